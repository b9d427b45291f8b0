"""Runs on pages: groups of seeds, means and errors, tables and charts; hostile names stay text."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from joma.page.report import report
from joma.page.runs import flat, grouped, load, metrics_of, run_pages
from joma.store import find_runs, open_run

from .made_runs import ALARM, EXCEPTION, FLAG, HOSTILE, large, scanned, trained, watched


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Two seeds of one setting, one run of another, and a scan."""
    folder = tmp_path_factory.mktemp("several")
    for seed in (1, 2):
        watched(folder / f"adam-seed{seed}", seed=seed, heads=2, num_layers=3)
    watched(folder / "sgd", seed=3, config={"learning_rate": 0.1}, trouble=False, num_layers=3)
    scanned(folder / "pythia")
    return folder


@pytest.fixture(scope="module")
def pages(several):
    return {page.slug: page for page in run_pages(several)}


def groups_in(folder):
    return grouped(load(find_runs(folder), folder)[0])


def test_runs_that_differ_in_their_seed_alone_are_one_group(several):
    assert {group.name: len(group.runs) for group in groups_in(several)} == {"adam-seed*": 2, "pythia": 1, "sgd": 1}


@pytest.mark.parametrize(
    ("configs", "num_groups"),
    [
        (({"seed": 1}, {"seed": 2}), 1),
        (({"data_seed": 1, "a": {"b": 1}}, {"data_seed": 2, "a": {"b": 1}}), 1),
        (({"seed": 1, "lr": 1}, {"seed": 2, "lr": 2}), 2),
        (({"seed": 1}, {"seed": 1}), 2),
        (({"seeding": 1}, {"seeding": 2}), 2),
        (({"model": "x-seed1"}, {"model": "x-seed2"}), 1),
    ],
)
def test_what_counts_as_a_seed(tmp_path, configs, num_groups):
    for index, config in enumerate(configs):
        open_run(tmp_path / f"run{index}", kind="watch", config=config).close()
    assert len(groups_in(tmp_path)) == num_groups


def test_a_seed_may_be_in_the_name_of_the_folder_alone(tmp_path):
    for seed in (1, 2):
        open_run(tmp_path / f"a-seed{seed}", kind="scan", config={}).close()
    assert [group.name for group in groups_in(tmp_path)] == ["a-seed*"]


def test_flagged_and_infinite_values_are_not_trusted(several):
    group = next(group for group in groups_in(several) if group.name == "adam-seed*")
    values = group.rows("stable_rank")
    bad = values[~values["trusted"]]
    assert len(bad) == 6
    assert (bad["value"].isna() | (bad["flag"] != "")).all()


def test_pages_list_what_was_recorded(pages):
    overview, first = pages["runs"].body, pages["run-1"].body
    adam, sgd, scan = (
        next(page.body for page in pages.values() if page.title == name) for name in ("adam-seed*", "sgd", "pythia")
    )
    for name in ("adam-seed1", "adam-seed2", "sgd", "pythia"):
        assert f">{name}</a>" in overview
    assert 'href="run-1.html"' in overview
    assert "What differs" in overview
    assert ALARM in adam
    assert "flash_attention_2" in adam  # what was not seen
    assert "belong to step 65536" in scan
    assert "An old finding." not in scan
    assert "rebounding" in first or "falling" in first
    assert 'id="run-1-entropy-heads"' in first
    assert EXCEPTION in first
    assert "Other events" not in sgd  # effects are not listed again


def chart(body, name):
    """The spec of one chart of a page."""
    return json.loads(re.search(rf'id="{name}".*?<script[^>]*>(.*?)</script>', body, re.DOTALL)[1])


def test_flagged_values_are_drawn_as_crosses(pages):
    spec = chart(pages["run-1"].body, "run-1-stable-rank")
    [crosses] = [layer for layer in spec["layer"] if "shape" in layer["mark"]]
    assert sorted(crosses["data"]["columns"]["x"]) == [500, 500, 550, 550]  # two seeds; one that is NaN has no place
    assert set(crosses["data"]["columns"]["flag"]) == {FLAG}


def test_a_layer_can_be_chosen_to_see_runs_side_by_side(pages):
    spec = chart(pages["runs"].body, "compare-entropy")
    [choice] = spec["params"]
    assert choice["bind"]["options"] == ["mean over layers", "layer 0", "layer 1", "layer 2"]
    drawn = pd.DataFrame(spec["data"]["columns"])
    means = drawn.groupby(["choose", "color"])["y"].mean().unstack("choose")
    layers = means[["layer 0", "layer 1", "layer 2"]].mean(axis=1)
    np.testing.assert_allclose(means["mean over layers"], layers, rtol=1e-6)
    assert set(drawn["color"]) == {"adam-seed*", "sgd"}


@pytest.mark.parametrize(("status", "words"), [("failed", "failed"), ("running", "interrupted")])
def test_a_run_that_did_not_finish_says_so(tmp_path, status, words):
    trained(tmp_path / "run", seed=1)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(about | {"status": status, "ended": None}))
    assert words in run_pages(tmp_path)[1].body


def test_one_unreadable_run_does_not_hide_the_others(tmp_path):
    trained(tmp_path / "good", seed=1)
    trained(tmp_path / "bad", seed=2)
    (tmp_path / "bad" / "run.json").write_text("{")
    overview, *_ = run_pages(tmp_path)
    assert "bad cannot be read" in overview.body
    assert ">good</a>" in overview.body


def test_hostile_names_are_text_everywhere(tmp_path):
    watched(tmp_path / "run", config={HOSTILE: HOSTILE}, name=HOSTILE, num_layers=2, num_steps=5)
    page = report(tmp_path, single=True).read_text(encoding="utf8")
    assert "<img src=x" not in page
    assert "<script>alert(1)" not in page


def test_many_runs_keep_to_the_principal_metrics_and_say_what_has_no_page(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.page.runs.MAX_PAGES", 2)
    monkeypatch.setattr("joma.page.runs.MAX_METRICS", 3)
    for index in range(4):
        trained(tmp_path / f"run{index}", seed=1, lr=10.0**-index)
    pages = run_pages(tmp_path)
    assert len(pages) == 3
    assert "2 groups" in pages[0].body
    assert set(metrics_of(groups_in(tmp_path))) <= {"entropy", "loss"}


def test_a_large_record_stays_a_small_page(tmp_path):
    large(tmp_path / "run", num_layers=60, num_steps=500, metrics=["entropy", "stable_rank"])
    assert report(tmp_path, single=True).stat().st_size < 8e6


def test_nested_settings_are_flattened():
    assert dict(flat({"a": {"b": [1, {"c": None}]}, "d": True})) == {"a.b[0]": "1", "a.b[1].c": "none", "d": "yes"}


def test_losses_of_training_are_in_the_overview(tmp_path):
    trained(tmp_path / "a-seed1", seed=1)
    trained(tmp_path / "b", seed=2, lr=1.0, fails_at=50)
    body = run_pages(tmp_path)[0].body
    assert "best loss" in body
    assert "failed" in body
    assert any(5.0 < float(cell) < 5.3 for cell in re.findall(r'data-label="best loss" class="num">([^<]+)<', body))
    diverged = next(page.body for page in run_pages(tmp_path) if page.title == "b")
    assert "no longer finite at step 50" in diverged
