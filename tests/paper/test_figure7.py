"""Figure 7: a series trained here is scanned the same each time, and claims on it can hold and fail."""

import numpy as np
import pandas as pd
import pytest
import torch
from paper.cases import answers, tiny_neox, write_text_folder

from joma.claims import Outcome
from joma.paper import figure7, neox
from joma.paper.experiment import Measured, one_thread
from joma.paper.figure7 import (
    CLAIMS,
    ENTROPY,
    OURS,
    PUBLIC_CLAIMS,
    RANK,
    TOP,
    UNTRAINED,
    Figure7Config,
    PublicSeries,
    PublicSeriesConfig,
    charts,
    compute,
    compute_public,
    part_of,
)
from joma.store import Store, Workspace


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figure7")
    write_text_folder(folder / "text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOMA_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def tables(place):
    return compute(Figure7Config(model=tiny_neox(place / "text"), num_windows=2), Store(place / "store"))


def made(*, top=1.5, bottom=1.0, entropy=1.0, seeds=3, idle=0.0):
    """Curves that fall to 1/10 of their start and end at a multiple of the minimum."""
    step, rng, rows = np.arange(0, 41) * 10, np.random.default_rng(0), []
    for seed in range(seeds):
        for metric, start in ((RANK, 100.0), (ENTROPY, 4.0)):
            for layer in range(4):
                ends = entropy if metric == ENTROPY else top if part_of(layer, 4) == TOP else bottom
                curve = np.interp(step, [0, 100, 300, 400], start * np.array([1, 0.1, 0.1 * ends, 0.1 * ends]))
                curve = curve * (1 + 0.001 * rng.standard_normal(len(step)))
                own = {"layer": layer, "metric": metric, "step": step, "flag": "", "seed": seed}
                rows.append(pd.DataFrame({**own, "value": curve, "series": OURS}))
                copies = start * (1 + idle * np.arange(len(step)) / len(step))
                rows.append(pd.DataFrame({**own, "value": copies, "series": UNTRAINED}))
    return Measured(curves=pd.concat(rows, ignore_index=True))


def test_every_layer_has_both_curves_and_the_loss_falls(tables):
    ours = tables.curves[tables.curves["series"] == OURS]
    assert set(ours.groupby(["metric", "layer"]).size()) == {11} and (ours["flag"] == "").all()
    assert tables.facts["last_loss"] < tables.facts["first_loss"]
    assert tables.facts["num_caught"] == tables.facts["num_planted"] == 10
    found = answers(CLAIMS, tables)
    assert found["figure7-audit"].outcome is Outcome.HOLDS
    assert found["figure7-rank"].outcome is Outcome.UNDECIDED  # one model
    assert [chart.id for chart in charts(tables)] == ["figure7-trained-here"]


def test_an_interrupted_training_gives_the_same_weights(place, tmp_path, monkeypatch):
    config, corpus = tiny_neox(place / "text"), neox.first_text(tiny_neox(place / "text"))
    monkeypatch.setattr(neox, "STATE_SECONDS", 0.0)

    def weights(folder, until):
        folder.mkdir(exist_ok=True)
        space = Workspace(folder, "cpu", lambda share, doing: None)
        with one_thread():
            _, model = next(each for each in neox.train(config, corpus, space) if each[0] == until)
        return model.get_output_embeddings().weight

    whole = weights(tmp_path / "whole", 10)
    weights(tmp_path / "cut", 4)
    assert torch.load(tmp_path / "cut" / "state.pt", weights_only=True)["step"] == 3
    assert torch.equal(weights(tmp_path / "cut", 10), whole)


def test_rises_decide_with_several_seeds():
    assert answers(CLAIMS, made())["figure7-rank"].outcome is Outcome.HOLDS
    assert answers(CLAIMS, made(top=1.0))["figure7-rank"].outcome is Outcome.REFUTED
    assert answers(CLAIMS, made(seeds=1))["figure7-rank"].outcome is Outcome.UNDECIDED


def test_the_rank_must_bounce_more_than_the_entropy():
    assert answers(CLAIMS, made())["figure7-salience"].outcome is Outcome.HOLDS
    assert answers(CLAIMS, made(entropy=1.6))["figure7-salience"].outcome is Outcome.REFUTED


def test_copies_that_change_decide_nothing():
    assert answers(CLAIMS, made(idle=0.1))["figure7-rank"].outcome is Outcome.FAULTY


def test_partial_results_are_judged_as_far_as_they_are(tables):
    ours = tables.copy_with(**{name: tables[name].query("series == @OURS") for name in ("curves", "effects", "audit")})
    assert answers(CLAIMS, ours)["figure7-rank"].outcome is Outcome.UNDECIDED


def test_a_public_series_is_scanned_and_judged_as_it_is(place, tmp_path, monkeypatch):
    space = Workspace(tmp_path, "cpu", lambda share, doing: None)
    config = tiny_neox(place / "text")
    corpus = neox.first_text(config)
    for step, model in neox.train(config, corpus, space):
        model.save_pretrained(tmp_path / "there" / f"checkpoint-{step}")
    scan = figure7.scan
    monkeypatch.setattr(figure7, "scan", lambda source, *, revisions, **options: scan(tmp_path / "there", **options))
    monkeypatch.setattr(figure7, "PUBLIC_TEXTS", (str(place / "text"),))
    large = PublicSeries(repository="some/model", revisions=("step*",), num_parameters=2_700_000_000)
    found = compute_public(PublicSeriesConfig(series=(large,)), Store(tmp_path / "store"))
    assert set(found.curves["metric"]) == {RANK} and len(found.notes) == 1  # no entropy on a CPU
    answer = answers(PUBLIC_CLAIMS, found)["figure7-public"]
    assert answer.outcome in (Outcome.HOLDS, Outcome.REFUTED)
    assert [chart.id for chart in charts(found)] == ["figure7-model"]
