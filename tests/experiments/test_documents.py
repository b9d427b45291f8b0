"""docs/results.md says what the kept results say."""

import re
from pathlib import Path

import pytest

from experiments.fakes import draw, fake
from joma.experiments import documents, keeping, record
from joma.experiments.publication import published
from joma.experiments.reproduction import charts_of, reproduce

ROOT = Path(__file__).parents[2]


@pytest.fixture
def out(tmp_path, install):
    install(fake("a", draw=draw), fake("b", missing=lambda config, place: "Needs a | in a_b."))
    reproduce(out=tmp_path / "out", device="cpu")
    return tmp_path / "out"


def test_the_document_is_current():
    document = ROOT / documents.DOCUMENT
    if not (ROOT / documents.RESULTS).exists():
        assert not document.exists(), "there are no results to write of"
    else:
        assert document.read_text(encoding="utf8") == documents.results(ROOT), "run `make docs`"


def test_kept_results_are_small():
    files = [path for path in (ROOT / documents.RESULTS).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < keeping.MOST_BYTES


def test_without_results_nothing_is_written(tmp_path):
    assert documents.write(tmp_path) == [] and not list(tmp_path.iterdir())


def test_what_is_kept_is_whole_and_small(tmp_path, out):
    (tmp_path / "docs").mkdir()
    keeping.keep(out, tmp_path)
    names = {path.relative_to(tmp_path / "results").as_posix() for path in (tmp_path / "results").rglob("*.*")}
    assert names == {"reproduction.json", "a/result.json", "a/tables/walk.parquet", "b/result.json"}
    assert record.read(tmp_path / "results").experiments == record.read(out).experiments
    assert published(tmp_path / "results/a").facts["farthest"] == published(out / "a").facts["farthest"]
    assert [chart.id for chart in charts_of(tmp_path / "results", "a")] == ["walk"]


def test_the_document_holds_every_claim_number_and_picture(tmp_path, out):
    (tmp_path / "docs").mkdir()
    keeping.keep(out, tmp_path)
    text = (tmp_path / "docs/results.md").read_text(encoding="utf8")
    for part in ("The walk stays near: holds", "≤ 100", "| 200 | 0.5 | a straight walk |", "seeds 3, 4", "not run"):
        assert part in text
    assert r"Needs a \| in a\_b." in text
    [picture] = re.findall(r"!\[walk\]\((.*)\)", text)
    assert (tmp_path / "docs" / picture).exists()


def test_failures_and_large_tables_are_not_kept(tmp_path, out, install, monkeypatch):
    monkeypatch.setattr(keeping, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="must stay below 100 bytes"):
        keeping.keep(out, tmp_path)
    install(fake("a", configs={}))
    reproduce(out=out, device="cpu")
    with pytest.raises(ValueError, match="a failed in"):
        keeping.keep(out, tmp_path)
    assert not (tmp_path / "results").exists()
