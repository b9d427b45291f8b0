"""docs/results.md says what the kept results say."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.fakes import Config, compute, draw, fake, fake_in_pieces
from joma.experiments import documents, keeping, record
from joma.experiments.experiment import Part
from joma.experiments.publication import published
from joma.experiments.reproduction import charts_of, reproduce
from joma.verdicts import Outcome

ROOT = Path(__file__).parents[2]
SLOW = Config(num_steps=1, pause=100.0)
"""Walks that no call of a second has time for."""


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


def kept(out, root):
    """Keep a reproduction in a repository of its own, and return its document."""
    (root / "docs").mkdir()
    keeping.keep(out, root)
    return (root / "docs/results.md").read_text(encoding="utf8")


def changed(out, **changes):
    """Write the summary of a reproduction again, with `changes` in the record of each experiment by its id."""
    done = record.read(out)
    records = [replace(each, **changes.get(each.id, {})) for each in done.experiments]
    record.save(replace(done, experiments=tuple(records)))


def test_what_is_kept_is_whole_and_small(tmp_path, out):
    kept(out, tmp_path)
    names = {path.relative_to(tmp_path / "results").as_posix() for path in (tmp_path / "results").rglob("*.*")}
    own = {f"a/{name}" for name in ("captions.json", "result.json", "tables/walk.parquet")}
    assert names == {"reproduction.json", "b/result.json"} | own
    assert record.read(tmp_path / "results").experiments == record.read(out).experiments
    assert published(tmp_path / "results/a").facts["farthest"] == published(out / "a").facts["farthest"]
    assert [chart.id for chart in charts_of(tmp_path / "results", "a")] == ["walk"]


def test_kept_pictures_show_the_same_in_fewer_bytes(tmp_path, out):
    kept(out, tmp_path)
    drawn, small = out / "a/figures/walk.png", tmp_path / "docs/results/a/walk.png"
    assert small.stat().st_size < drawn.stat().st_size / 2
    with Image.open(drawn) as before, Image.open(small) as after:
        distance = np.abs(np.asarray(before.convert("RGB"), dtype=int) - np.asarray(after.convert("RGB"), dtype=int))
    assert distance.mean() < 0.1 and distance.max() < 50  # of 255: the edges of letters, if anything


def test_the_document_holds_every_claim_number_and_picture(tmp_path, out):
    text = kept(out, tmp_path)
    for part in ("The walk stays near: holds", "≤ 100", "| 200 | 0.5 | a straight walk |", "seeds 3, 4", "on the CPU"):
        assert part in text
    assert "Of 2 claims of the paper 1 holds and 1 was not run." in text
    assert re.search(r"!\[A walk\]\(results/a/walk.png\)\n\nIt goes up and down.", text)


def test_one_claim_is_counted_as_one(tmp_path, out, install):
    install(fake("a", draw=draw))
    reproduce(out=out, device="cpu")
    assert "Of 1 claim of the paper 1 holds." in kept(out, tmp_path)


def test_the_papers_claims_are_counted_apart_from_ours(tmp_path, out):
    [verdict] = record.read(out).experiments[0].verdicts
    sources = ("Figure 8", "Figure 8, asked further", "joma", "Our own check of the runs")
    own = tuple(replace(verdict, id=f"v{place}", source=source) for place, source in enumerate(sources))
    changed(out, a={"verdicts": own})
    text = kept(out, tmp_path)
    assert (
        "Of 2 claims of the paper 1 holds and 1 was not run. Of 1 claim that goes further than the paper's 1 holds. "
        "Of 2 checks of our own 2 hold."
    ) in text
    assert "[The walk stays near](#a--v1) (asked further); " in text and text.count("(asked further)") == 2
    assert "| [The walk stays near](#a--v1) | holds (asked further) |" in text


def test_what_was_not_run_says_what_it_needs(tmp_path, out):
    text = kept(out, tmp_path)
    assert re.search(r"### Not run here\n\n- b: \[Walk b\]\(#b--b\)\. Needs a \\\| in a\\_b\.", text)
    assert r"**Not run**, preset `quick`: Needs a \| in a\_b." in text


def test_every_link_of_the_document_leads_somewhere(tmp_path, out):
    text = kept(out, tmp_path)
    anchors = re.findall(r'<a id="([^"]+)"></a>', text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(anchors) == len(set(anchors)) == 4 and len(targets) > 8
    for target in targets:
        assert target[1:] in anchors if target.startswith("#") else (tmp_path / "docs" / target).exists(), target


def test_devices_and_presets_are_told_apart_where_they_differ(tmp_path, out, install):
    install(fake("a", draw=draw), fake("b"))
    reproduce(out=out, device="cpu")
    same = kept(out, tmp_path)
    assert "with the preset `quick`: " in same and "of computing on the CPU." in same and "Small size." in same
    changed(out, b={"device": "cuda:0 (NVIDIA H200)", "preset": "full"})
    (tmp_path / "other").mkdir()
    told = kept(out, tmp_path / "other")
    assert "with the preset `quick` for a, and `full` for b: " in told
    assert "of computing on the CPU for a, and on a GPU (NVIDIA H200) for b." in told
    assert "Preset `full`, on a GPU (NVIDIA H200) in" in told
    changed(out, a={"device": "cuda:1 (NVIDIA H200)", "preset": "full"})
    (tmp_path / "third").mkdir()
    alike = kept(out, tmp_path / "third")
    assert "with the preset `full`: " in alike and "of computing on a GPU (NVIDIA H200)." in alike
    assert "Small size." not in alike


def one_walk(config, place):
    """What one finished walk of two says."""
    result = compute(Config(num_steps=1, seeds=(3,)), place)
    return Part(result=result, num_done=1, num_all=2, what="walks")


def test_a_part_is_kept_with_its_label_and_decides_nothing(tmp_path, out, install):
    install(
        fake("a", draw=draw),
        fake("b", missing=lambda config, place: "Needs."),
        fake_in_pieces("c", SLOW, draw=draw, so_far=one_walk),
        fake_in_pieces("d", SLOW),
        fake("z"),
    )
    reproduce(["c", "d"], out=out, device="cpu", minutes=0.01)
    text = kept(out, tmp_path)
    first = text.index(
        "> **Not all experiments are whole.** Whole: a. In part, and deciding nothing yet: c (1 of 2 walks)."
    )
    assert first < text.index("The figures and the table of the JoMA paper")  # before anything else is said
    assert " Begun, with nothing to show yet: d. Not run, since something is missing: b. Not run yet: z." in text
    assert (
        "Of 2 claims of the paper 1 holds and 1 was not run. The claims of c (1 of 2 walks) and d are not among them"
        in text
    )
    assert "### Unfinished\n\n- c (1 of 2 walks): [The walk stays near](#c--near)\n" in text
    assert "control beside them: 1." in text  # that of `a` alone
    said = "| [c](#c) | [The walk stays near](#c--near) | unfinished: 1 of 2 walks | farthest place (steps) |"
    assert said in text  # and what the numbers after it are numbers of
    assert "| [d](#d) | [Walk d](#d--d) | unfinished | no number |" in text
    own = text[text.index('<a id="c"></a>') : text.index('<a id="d"></a>')]
    assert "**Unfinished: 1 of 2 walks**, preset `quick`." in own and "rests on 1 of 2 walks and decides nothing" in own
    assert "### The walk stays near: unfinished" in own and "So far 1 of 2 walks are done." in own
    assert "![A walk (unfinished: 1 of 2 walks)](results/c/walk.png)" in own
    assert "holds" not in own and published(tmp_path / "results/c").tables["walk"]["seed"].tolist() == [3]


def test_a_whole_reproduction_says_so_first(tmp_path, out, install):
    install(fake("a", draw=draw))
    reproduce(out=tmp_path / "whole", device="cpu")
    text = kept(tmp_path / "whole", tmp_path)
    assert "rebuilt\n\nAll experiments are whole.\n\n" in text and "nfinished" not in text


def test_a_control_that_passes_is_told(tmp_path, out):
    [verdict] = record.read(out).experiments[0].verdicts
    assert "control beside them: 1. No control passes a threshold that its claim passes." in kept(out, tmp_path)
    row = replace(verdict.evidence[0], control=1.0)
    matched = replace(
        verdict,
        outcome=Outcome.CONDITIONAL,
        evidence=(row,),
        correction="it stays at all",
        sound=False,
        control_passes=True,
    )
    changed(out, a={"verdicts": (matched,)})
    (tmp_path / "other").mkdir()
    text = kept(out, tmp_path / "other")
    assert "control beside them: 1. In 1 of them the claim's number passes" in text
    assert re.search(r"- a: \[The walk stays near\]\(#a--near\): farthest place: ", text)
    assert "control 1 (a straight walk), threshold ≤ 100." in text
    heading = "### Passes, but so does the control"
    link = "[The walk stays near](#a--near)"
    assert f"{heading}\n\n- a: {link}. What holds: it stays at all." in text
    counted = "Of those that hold under conditions 1 has a control that passes too"
    assert f"{counted}; 1 of them has no number that passes where its control fails." in text
    assert "### Holds under conditions" not in text
    assert f"| {link} | holds under conditions (control passes too) |" in text
    assert "**One of our own checks fails here.**" in text
    beyond = replace(row, name="on other paths", control=200.0)
    changed(out, a={"verdicts": (replace(matched, evidence=(row, beyond)),)})
    (tmp_path / "third").mkdir()
    mixed = kept(out, tmp_path / "third")
    heading = "### Holds under conditions that the paper does not state, or in part"
    assert f"{heading}\n\n- a: {link} (control passes too). What holds: it stays at all." in mixed
    assert "so does the control" not in mixed and f"{counted}." in mixed
    both = (matched, replace(matched, id="other", evidence=(row, beyond)))
    changed(out, a={"verdicts": both})
    (tmp_path / "fourth").mkdir()
    text = kept(out, tmp_path / "fourth")
    assert "conditions 2 have a control that passes too; 1 of them has no number that passes where" in text
    assert text.count("(control passes too) |") == 2  # as many as are counted


def test_numbers_that_fail_and_numbers_that_do_not_decide_say_so(tmp_path, out):
    [verdict] = record.read(out).experiments[0].verdicts
    [row] = verdict.evidence
    rows = (replace(row, value=101.0), replace(row, value=7.0, decides=False))
    changed(out, a={"verdicts": (replace(verdict, outcome=Outcome.REFUTED, correction="less", evidence=rows),)})
    text = kept(out, tmp_path)
    assert "| farthest place | **101** (fails) | ≤ 100 |" in text
    assert "| farthest place *(beside)* | 7 | ≤ 100 |" in text
    assert "| refuted | farthest place (steps) | **101** (fails) | ≤ 100 |" in text


def test_failures_and_large_tables_are_not_kept(tmp_path, out, install, monkeypatch):
    monkeypatch.setattr(keeping, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="must stay below 100 bytes"):
        keeping.keep(out, tmp_path)
    install(fake("a", configs={}))
    reproduce(out=out, device="cpu")
    with pytest.raises(ValueError, match="must not have failed, as a did in"):
        keeping.keep(out, tmp_path)
    assert not (tmp_path / "results").exists()
