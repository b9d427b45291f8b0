"""The report of a folder: an index with a page for each subject, or one file; it loads nothing from anywhere."""

import re
import shutil
from pathlib import Path

import pytest

from joma.checks import verify
from joma.page.paper import write_verification
from joma.page.report import report
from joma.paper.reproduce import FILE_NAME, Reproduction, read_reproduction

from .made_runs import HOSTILE, simulated, trained

RESULTS = Path(__file__).parents[2] / "results"


def test_every_experiment_has_a_page_with_its_claims_and_charts(kept):
    for result in read_reproduction(RESULTS).experiments:
        page = (kept / f"{result.id}.html").read_text(encoding="utf8")
        assert all(f'id="{answer.claim}"' in page for answer in result.answers)
        assert all(f'id="{chart.id}"' in page for chart in result.charts)


def test_every_claim_is_in_the_table_and_every_link_leads_somewhere(kept):
    table = (kept / "claims.html").read_text(encoding="utf8")
    for answer in read_reproduction(RESULTS).answers:
        assert f">{answer.claim}</a>" in table
    for path in kept.glob("*.html"):
        page = path.read_text(encoding="utf8")
        for address, place in re.findall(r'(?:href|src)="([^":]*?)(?:#([^"]*))?"', page):
            target = kept / address if address else path
            assert target.exists() or address.startswith(("data", "..")), (path.name, address)
            assert not place or f'id="{place}"' in target.read_text(encoding="utf8"), (path.name, address, place)


def test_pages_load_nothing_from_anywhere_and_the_index_is_small(kept):
    index = (kept / "index.html").read_text(encoding="utf8")
    assert len(index.encode()) + sum(path.stat().st_size for path in (kept / "assets").iterdir()) < 1.5e6
    for path in kept.glob("*.html"):
        page = path.read_text(encoding="utf8")
        assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
        assert "default-src 'none'" in page


def test_runs_simulations_and_statements_are_found_below_a_folder(tmp_path):
    trained(tmp_path / "runs" / "one", seed=1)
    simulated(tmp_path / "flow")
    write_verification(verify(["thm2-limit"]), tmp_path)
    index = report(tmp_path)
    names = {"index", "runs", "statements", "simulation-1"}
    assert {path.stem for path in tmp_path.glob("*.html")} >= names
    assert "thm2-limit" in (tmp_path / "statements.html").read_text(encoding="utf8")
    assert report(tmp_path) == index  # again, over what is there


def test_a_small_run_stands_after_the_kept_result_of_the_papers_size(tmp_path):
    small = read_reproduction(RESULTS).experiments[0]
    small = small.model_copy(update={"preset": "quick", "answers": small.answers[:1]})
    shutil.copytree(RESULTS / small.id, tmp_path / "small" / small.id)
    record = Reproduction(preset="quick", experiments=(small,)).model_dump_json(exclude={"folder"})
    (tmp_path / "small" / FILE_NAME).write_text(record)
    trained(tmp_path / "run", seed=1)
    pages = report(tmp_path, RESULTS, out=tmp_path / "pages").parent
    page = (pages / f"{small.id}.html").read_text(encoding="utf8")
    first, again = page.split("Preset quick")
    assert f'id="{small.answers[0].claim}"' in first and "We find" in first
    assert f'id="{small.answers[0].claim}-1"' in again and "We find" not in again
    assert 'data-label="preset quick"' in (pages / "claims.html").read_text(encoding="utf8")
    assert (pages / "run-1.html").exists()


def test_one_file_holds_everything(tmp_path):
    simulated(tmp_path)
    page = report(tmp_path, single=True)
    assert [path.name for path in tmp_path.glob("*.html")] == ["index.html"]
    assert "vega" in page.read_text(encoding="utf8")


@pytest.mark.parametrize("make", [lambda folder: folder, lambda folder: folder / "missing"])
def test_nothing_to_show_is_refused_in_one_line(tmp_path, make):
    with pytest.raises(ValueError, match="joma") as error:
        report(make(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("simulation", "{"), ("simulation", "[]"), ("verification", '[{"claim": 1}]'), ("reproduction", "{}")],
)
def test_a_file_that_is_no_record_is_named_in_one_line(tmp_path, name, text):
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(ValueError, match=name):
        report(tmp_path)


def test_a_hostile_folder_stays_text(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "").replace("\u2028", "").replace("\u2029", "")[:60]
    trained(folder / "run", seed=1)
    assert "<script>alert(1)" not in report(folder).read_text(encoding="utf8")
