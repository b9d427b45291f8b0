"""Figure 7: a series trained here is scanned and audited the same each time; every verdict can fail."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.neox_cases import text_and_cache, tiny_neox, workplace_in
from joma.experiments import figure7, public_series, timetable
from joma.experiments.claim_kinds import ClaimKind, kind_of
from joma.experiments.experiment import FAILURE, Result
from joma.experiments.figure7 import Config, compute, draw, planted_duplicates, verdicts
from joma.experiments.figure7_regimes import ENTROPY, IN_ORDER, OURS, RANK, SHUFFLED, UNTRAINED, part_of, turns_of
from joma.experiments.figure7_verdicts import ABSENT, NO_ENTROPY, public_verdicts
from joma.experiments.neox_series import train_series
from joma.experiments.public_series import PublicSeries, why_no_entropy
from joma.experiments.record import Status
from joma.experiments.reproduction import reproduce
from joma.experiments.timetable import OutOfTime, Timetable
from joma.probe.findings import Fault
from joma.probe.fingerprint import load
from joma.probe.hub import HubError
from joma.probe.scanning import scan
from joma.verdicts import Outcome

SMALL, LARGE = 10_000, 2_700_000_000
"""Parameters of a model that is run on a CPU, and of one that is not."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with text_and_cache(tmp_path_factory.mktemp("figure7")) as folder:
        yield folder


@pytest.fixture(scope="module")
def config(place):
    return Config(neox=tiny_neox(place / "text"), num_windows=2, small=True)


@pytest.fixture(scope="module")
def result(config, place):
    return compute(config, workplace_in(place / "first", "figure7"))


@pytest.fixture
def checkpoints(result, place):
    """The series trained here, as a hub might have it."""
    [found] = (place / "first" / "models").glob("*/checkpoints/checkpoint-10")
    return found.parent


@pytest.fixture
def on_a_cpu(place, monkeypatch):
    """Public series are measured on the text of the tests, as on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(public_series, "PUBLIC_TEXTS", (str(place / "text"),))


def by_id(found):
    return {verdict.id: verdict for verdict in found}


def test_every_layer_has_both_curves_over_all_checkpoints(result, config):
    curves = result.tables["curves"]
    ours = curves[curves["series"] == OURS]
    assert ours.groupby(["metric", "layer"]).size().to_dict() == {
        (metric, layer): 11 for metric in (ENTROPY, RANK) for layer in (0, 1)
    }
    assert (ours["flag"] == "").all()
    assert result.facts["last_loss"] < result.facts["first_loss"]


def test_the_same_command_twice_gives_the_same_numbers(result, config, place):
    again = compute(config, workplace_in(place / "second", "figure7"))
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
    assert again.facts == result.facts


def test_a_second_call_in_the_same_place_trains_and_scans_nothing(result, config, place):
    told = []
    again = compute(config, workplace_in(place / "first", "figure7", lambda share, doing: told.append(doing)))
    assert not [doing for doing in told if "training" in doing or "checkpoint-" in doing]
    pd.testing.assert_frame_equal(result.tables["curves"], again.tables["curves"], check_exact=True)


def test_what_is_scanned_is_complete_without_the_weights(result, config, place, monkeypatch, tmp_path):
    moved = shutil.copytree(place / "first", tmp_path / "moved", ignore=shutil.ignore_patterns("*.safetensors"))
    assert not list(moved.rglob("*.safetensors"))
    monkeypatch.setattr(figure7, "train_series", None)
    monkeypatch.setattr(figure7, "scan", None)
    again = compute(config, workplace_in(moved, "figure7"))
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
    assert again.facts == result.facts and again.facts["trained_on"] == "cpu"


def test_a_scan_that_was_cut_off_without_weights_is_made_again(result, config, place, tmp_path):
    moved = shutil.copytree(place / "first", tmp_path / "moved", ignore=shutil.ignore_patterns("*.safetensors"))
    for path in (moved / "figure7" / "work").glob("scan-*"):
        (path / "fingerprints" / "3.json").unlink()
    again = compute(config, workplace_in(moved, "figure7"))
    pd.testing.assert_frame_equal(result.tables["curves"], again.tables["curves"], check_exact=True)


def test_each_network_is_a_piece_of_its_own(config, place, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timetable, "monotonic", lambda: now[0])
    trained = []

    def slow(series, *arguments, **options):
        now[0] += 30.0
        trained.append(series.lr)
        return train_series(series, *arguments, **options)

    monkeypatch.setattr(figure7, "train_series", slow)
    there = workplace_in(tmp_path, "figure7")
    with pytest.raises(OutOfTime, match="1 of 2 networks left"):
        compute(config, replace(there, timetable=Timetable(limit=31.0, begun=now[0])))
    compute(config, replace(there, timetable=Timetable(limit=1e4, begun=now[0])))
    assert sorted(trained) == [0.0, 0.01]


def test_verdicts_of_the_tiny_series_are_sound_and_say_that_it_is_small(result, config):
    found = by_id(verdicts(result, config))
    assert list(found) == ["figure7-rank", "figure7-salience", "figure7-audit", "figure7-public"]
    assert all(verdict.sound for verdict in found.values())
    assert found["figure7-audit"].outcome is Outcome.HOLDS
    assert found["figure7-public"].outcome is Outcome.NOT_RUN
    assert "needs the Hugging Face hub" in found["figure7-public"].explanation


def test_the_series_without_learning_is_flat_and_the_audit_calls_it_copies(result):
    regimes, audited = result.tables["regimes"], result.tables["audit"]
    assert set(regimes.loc[regimes["series"] == UNTRAINED, "kind"]) == {"flat"}
    assert list(audited.loc[audited["series"] == UNTRAINED, "kind"]) == [Fault.IDENTICAL_CHECKPOINT.value]


def test_a_checkpoint_copied_under_another_step_is_caught_by_the_audit_of_the_scan(checkpoints, tmp_path):
    spoilt = shutil.copytree(checkpoints, tmp_path / "spoilt")
    shutil.copy(spoilt / "checkpoint-9" / "model.safetensors", spoilt / "checkpoint-2" / "model.safetensors")
    findings = scan(spoilt, out=tmp_path / "scan").findings
    assert [finding.step for finding in findings if finding.kind is Fault.IDENTICAL_CHECKPOINT] == [2]


def test_planted_duplicates_are_counted(result, place):
    [scanned] = [path for path in (place / "first" / "figure7" / "work").glob("scan-*-2") if len(load(path)) == 11]
    prints = list(load(scanned).values())
    assert planted_duplicates(prints) == {"num_planted": 10, "num_caught": 10}


def test_charts_show_each_series_with_its_panels(result):
    charts = draw(result)
    assert [(chart.id, len(chart.panels)) for chart in charts] == [
        ("figure7-trained-here", 3),
        ("figure7-untrained", 2),
    ]
    assert [line.label for line in charts[0].panels[0].items] == ["layer 0", "layer 1"]
    assert [[panel.log_y for panel in chart.panels] for chart in charts] == [[True, False, False], [False, False]]


def made(top, bottom, *, shuffled=("unclear", "unclear"), swing=(0.5, 0.1), series=OURS, untrained="flat", **facts):
    """A result of four layers whose stable ranks do what is said."""

    def rows(name, order, kinds, rank_swing, entropy_swing):
        for layer in range(4):
            for metric, size in ((RANK, rank_swing), (ENTROPY, entropy_swing)):
                yield {
                    "series": name, "metric": metric, "layer": layer, "order": order, "kind": kinds[layer // 2],
                    "start": 1.0, "dip_depth": size, "rebound": size, "part": part_of(layer, 4),
                }  # fmt: skip

    regimes = pd.DataFrame(
        [
            *rows(series, IN_ORDER, (bottom, top), *swing),
            *rows(series, SHUFFLED, shuffled[::-1], 0.0, 0.0),
            *rows(UNTRAINED, IN_ORDER, (untrained, untrained), float("nan"), float("nan")),
        ]
    )
    curves = pd.DataFrame(
        [
            {"series": name, "metric": metric, "layer": layer, "step": step, "value": value, "flag": ""}
            for name in dict.fromkeys((OURS, series, UNTRAINED))
            for metric, size in zip((RANK, ENTROPY), swing, strict=True)
            for layer in range(4)
            for step, value in enumerate(bouncing(0.0 if name == UNTRAINED else size))
        ]
    )
    loss = pd.DataFrame({"step": [0, 100, 200], "loss": [7.0, 3.5, 4.0]})
    audited = pd.DataFrame(
        [(UNTRAINED, 0, Fault.IDENTICAL_CHECKPOINT.value, True, "copies")],
        columns=["series", "step", "kind", "flags_values", "message"],
    )
    known = {
        "text": "made", "num_layers": 4, "first_loss": 7.0, "last_loss": 4.0, "num_planted": 20, "num_caught": 20,
        "public_missing": "no hub",
    }  # fmt: skip
    tables = {"curves": curves, "regimes": regimes, "audit": audited, "loss": loss}
    return Result(tables=tables, facts=known | facts)


def bouncing(size):
    """Values that start at 1, fall and rise by `size`; ones that fall to the end if it is NaN."""
    return (1.0, 0.9, 0.8) if np.isnan(size) else (1.0, 1.0 - size, 1.0)


def outcome_of(result, config, name):
    return by_id(verdicts(result, config))[name].outcome


def test_the_rank_verdict_holds_fails_and_is_inconclusive_as_it_should(config):
    large = replace(config, small=False)
    assert outcome_of(made("rebounding", "falling"), config, "figure7-rank") is Outcome.HOLDS
    assert outcome_of(made("falling", "falling"), config, "figure7-rank") is Outcome.INCONCLUSIVE
    assert outcome_of(made("falling", "falling"), large, "figure7-rank") is Outcome.REFUTED
    assert outcome_of(made("rebounding", "rising"), large, "figure7-rank") is Outcome.CONDITIONAL
    assert outcome_of(made("falling", "rising"), large, "figure7-rank") is Outcome.REFUTED


def test_a_control_that_shows_the_same_shape_takes_the_rank_claim_away(config):
    same = made("rebounding", "falling", shuffled=("rebounding", "falling"))
    assert outcome_of(same, config, "figure7-rank") is Outcome.INCONCLUSIVE
    matched = by_id(verdicts(same, replace(config, small=False)))["figure7-rank"]
    assert (matched.outcome, matched.control_passes) == (Outcome.CONDITIONAL, True)


def test_an_untrained_series_that_moves_is_our_own_mistake(config):
    moving = made("rebounding", "falling", untrained="falling")
    assert not by_id(verdicts(moving, config))["figure7-rank"].sound


def test_the_salience_verdict_compares_rank_with_entropy(config):
    large = replace(config, small=False)
    assert outcome_of(made("rebounding", "falling", swing=(0.5, 0.1)), config, "figure7-salience") is Outcome.HOLDS
    weaker = made("rebounding", "falling", swing=(0.1, 0.5))
    assert outcome_of(weaker, config, "figure7-salience") is Outcome.INCONCLUSIVE
    assert outcome_of(weaker, large, "figure7-salience") is Outcome.REFUTED
    neither = made("falling", "falling", swing=(float("nan"), float("nan")))
    assert outcome_of(neither, large, "figure7-salience") is Outcome.INCONCLUSIVE
    only_entropy = made("falling", "falling", swing=(float("nan"), 0.5))
    assert outcome_of(only_entropy, large, "figure7-salience") is Outcome.REFUTED


def test_a_bounce_that_is_no_rebound_by_the_rule_is_told_as_it_is(config):
    found = by_id(verdicts(made("falling", "falling", swing=(0.6, 0.01)), replace(config, small=False)))
    rank, salience = found["figure7-rank"], found["figure7-salience"]
    assert rank.outcome is Outcome.REFUTED
    assert "layer 3 0.4 at step 1, then 1 (+150%)" in rank.explanation and "One seed" in rank.explanation
    assert "in top layers the stable rank falls from 1.0 to 0.4 and rises again by 150 % of that" in rank.correction
    assert salience.outcome is Outcome.HOLDS and "do not agree" not in salience.explanation
    assert salience.evidence[0].value == pytest.approx(0.59) and salience.evidence[0].control == 0.0


@pytest.mark.parametrize(("size", "start", "holds"), [(0.018, 0.5, [False, True]), (0.5, 50.0, [True, False])])
def test_a_bounce_that_matters_from_one_start_alone_decides_nothing(config, size, start, holds):
    found = made("falling", "falling", swing=(size, 0.0))
    found.tables["regimes"]["start"] = start
    verdict = by_id(verdicts(found, replace(config, small=False)))["figure7-salience"]
    assert verdict.outcome is Outcome.INCONCLUSIVE and "the two do not agree" in verdict.explanation
    assert [row.holds for row in verdict.evidence] == holds


def test_a_loss_that_rises_again_is_told_with_its_step(config):
    risen = made("falling", "falling")
    assert (
        "rises again from step 100 on, from 3.50 to 4.00" in by_id(verdicts(risen, config))["figure7-rank"].explanation
    )
    risen.tables["loss"]["loss"] = [7.0, 4.0, 3.5]
    assert "falls to the end" in by_id(verdicts(risen, config))["figure7-rank"].explanation
    risen.tables["loss"]["loss"] = [7.0, 4.221, 4.224]  # from 4.22 to 4.22
    words = by_id(verdicts(risen, config))["figure7-rank"].explanation
    assert "validation loss" not in words and "  " not in words


def test_what_is_asked_of_a_model_trained_here_goes_further_than_the_paper(config):
    found = verdicts(made("falling", "falling", public_missing="no hub"), config)
    assert {verdict.id: kind_of(verdict) for verdict in found} == {
        "figure7-rank": ClaimKind.FURTHER, "figure7-salience": ClaimKind.FURTHER, "figure7-audit": ClaimKind.CHECK,
        "figure7-public": ClaimKind.PAPER,
    }  # fmt: skip


def test_turns_leave_out_flagged_values_and_know_the_lowest_step():
    curves = made("falling", "falling").tables["curves"]
    curves.loc[curves["series"].eq(OURS) & curves["step"].eq(1) & curves["layer"].eq(2), "flag"] = "copy"
    turns = turns_of(curves, OURS, RANK)
    assert turns["step"].tolist() == [1, 1, 0, 1] and turns["fall"].tolist() == [0.5, 0.5, 0.0, 0.5]
    assert turns["part"].tolist() == ["bottom", "bottom", "top", "top"]


def test_the_audit_verdict_is_unsound_when_a_duplicate_is_missed_or_a_sound_series_accused(config):
    missed = by_id(verdicts(made("falling", "falling", num_caught=18), config))["figure7-audit"]
    assert (missed.outcome, missed.sound) == (Outcome.INCONCLUSIVE, False)
    accused = made("falling", "falling")
    accused.tables["audit"].loc[1] = [OURS, 3, Fault.OUT_OF_PLACE.value, True, "where is it from"]
    assert not by_id(verdicts(accused, config))["figure7-audit"].sound


def test_without_a_hub_the_full_preset_has_no_public_series_and_says_what_it_needs(monkeypatch, tmp_path):
    reason = "It needs the Hugging Face hub. The hub cannot be reached."
    monkeypatch.setattr(figure7, "hub_missing", lambda: reason)
    config = figure7.full()
    assert config.public == ()
    assert figure7.missing(config, workplace_in(tmp_path, "figure7")) == ""
    monkeypatch.setattr(figure7, "hub_missing", lambda: "")
    assert [series.repository for series in figure7.full().public] == [
        "EleutherAI/pythia-70m", "EleutherAI/pythia-1.4b", "EleutherAI/pythia-6.9b", "facebook/opt-2.7b",
    ]  # fmt: skip
    verdict = by_id(verdicts(made("falling", "falling", public_missing=reason), config))["figure7-public"]
    assert (verdict.outcome, verdict.explanation) == (Outcome.NOT_RUN, reason)


def test_without_transformers_nothing_runs_and_the_extra_is_named(monkeypatch, config, tmp_path):
    monkeypatch.setattr(figure7, "transformers_missing", lambda: "It needs transformers. Install joma[hf].")
    assert "joma[hf]" in figure7.missing(config, workplace_in(tmp_path, "figure7"))


def test_public_series_are_scanned_under_their_own_name_and_those_out_of_reach_are_told(
    checkpoints, config, place, on_a_cpu, monkeypatch
):
    def hub(source, *, revisions, out, **settings):
        if source == "org/far":
            raise HubError("The hub cannot be reached at https://a.mirror: timed out. Check the network.")
        if source == "org/gone":
            raise HubError("The hub has no repository.")
        if source == "org/part":
            refused = {"step3": "The hub refused a request: 503 for https://a.mirror/org/part.", "step4": "Gone."}
            assert settings["text"] is None  # too large for its entropy
            return replace(scan(checkpoints, out=out), failures=refused)
        if revisions == "late*":
            raise ValueError("No revision of org/here fits 'late*'.")
        return scan(checkpoints, out=out)

    monkeypatch.setattr(public_series, "scan", hub)
    public = (
        PublicSeries(repository="org/here", revisions=("step*", "late*"), num_parameters=SMALL),
        PublicSeries(repository="org/gone", revisions=("step*",), num_parameters=SMALL),
        PublicSeries(repository="org/far", revisions=("step*",), num_parameters=SMALL),
        PublicSeries(repository="org/part", revisions=("step*",), num_parameters=LARGE),
    )
    with_public = replace(config, public=public)
    found = compute(with_public, workplace_in(place / "first", "figure7"))
    judged = by_id(verdicts(found, with_public))
    assert "figure7-public" not in judged
    assert judged["figure7-gone"].outcome is Outcome.NOT_RUN
    assert judged["figure7-gone"].explanation == "The hub has no repository."
    assert judged["figure7-here"].outcome is not Outcome.NOT_RUN
    assert "Not all was reached: No revision of org/here" in judged["figure7-here"].explanation
    assert judged["figure7-far"].outcome is Outcome.NOT_RUN
    assert (
        judged["figure7-far"].explanation == "The hub cannot be reached at its address: timed out. Check the network."
    )
    told = "step3, step4 could not be inspected: The hub refused a request: 503 for its address."
    assert judged["figure7-part"].explanation.endswith(f"Not all was reached: {told}")
    assert found.failures == {
        "org/gone": "The hub has no repository.", "org/far": judged["figure7-far"].explanation, "org/part": told,
    }  # fmt: skip
    assert "a.mirror" not in str(found.facts) + str(judged)  # where the hub was asked is no news to a reader
    assert [chart.id for chart in draw(found)][-2:] == ["figure7-here", "figure7-part"]


PUBLIC = "org/model"


def judged_public(found):
    return by_id(public_verdicts(found))["figure7-model"]


def test_the_verdict_on_a_public_series_holds_and_fails_as_it_should():
    def judged(top, bottom, **changes):
        found = made(top, bottom, series=PUBLIC, public_missing="", **changes)
        return judged_public(found)

    assert judged("rebounding", "falling").outcome is Outcome.HOLDS
    assert judged("falling", "falling").outcome is judged("falling", "rising").outcome is Outcome.REFUTED
    assert judged("rising", "falling").outcome is judged("flat", "flat").outcome is Outcome.REFUTED
    assert judged("rebounding", "rising").outcome is Outcome.CONDITIONAL
    refuted = judged("falling", "falling")
    assert "in top layers the stable rank falls from 1.0 to 0.5" in refuted.correction
    assert [row.holds for row in refuted.evidence] == [False, True]
    assert kind_of(refuted) is ClaimKind.PAPER


def test_shuffled_checkpoints_with_the_same_shape_take_the_claim_on_a_public_series_away():
    same = made("rebounding", "falling", shuffled=("rebounding", "falling"), series=PUBLIC, public_missing="")
    verdict = judged_public(same)
    assert (verdict.outcome, verdict.control_passes) == (Outcome.CONDITIONAL, True)
    assert "The control passes as well" in verdict.explanation


def test_a_public_series_of_which_a_later_call_may_have_more_refutes_nothing():
    def judged(top, bottom, kind):
        facts = {f"{kind}{PUBLIC}": "Not there."}
        return judged_public(made(top, bottom, series=PUBLIC, public_missing="", **facts)).outcome

    assert judged("falling", "falling", FAILURE) is judged("rebounding", "rising", FAILURE) is Outcome.INCONCLUSIVE
    assert judged("rebounding", "falling", FAILURE) is Outcome.HOLDS
    assert judged("falling", "falling", ABSENT) is Outcome.REFUTED  # there is no more of it


def test_a_public_series_that_the_audit_distrusts_is_inconclusive():
    found = made("rebounding", "falling", series=PUBLIC, public_missing="")
    regimes, audited = found.tables["regimes"], found.tables["audit"]
    audited.loc[1] = [PUBLIC, 0, Fault.IDENTICAL_CHECKPOINT.value, True, "All steps hold the same weights."]
    distrusted = replace(found, tables=found.tables | {"regimes": regimes[regimes["series"] != PUBLIC]})
    verdict = judged_public(distrusted)
    assert verdict.outcome is Outcome.INCONCLUSIVE and "All steps hold the same weights." in verdict.explanation


def test_a_public_series_too_shallow_for_halves_is_inconclusive():
    found = made("rebounding", "falling", series=PUBLIC, public_missing="")
    one_layer = {name: found.tables[name].query("layer == 0") for name in ("curves", "regimes")}
    one_layer["regimes"] = one_layer["regimes"].assign(part=part_of(0, 1))
    assert judged_public(replace(found, tables=found.tables | one_layer)).outcome is Outcome.INCONCLUSIVE


def test_the_entropy_of_a_public_series_is_told_or_why_there_is_none():
    measured = made("rebounding", "falling", series=PUBLIC, public_missing="")
    assert "Attention entropy: falling, falling, rebounding, rebounding." in judged_public(measured).explanation
    without = {
        name: measured.tables[name].query("metric != 'entropy' or series != 'org/model'")
        for name in ("curves", "regimes")
    }
    facts = measured.facts | {f"{NO_ENTROPY}{PUBLIC}": "It needs a GPU."}
    words = judged_public(replace(measured, tables=measured.tables | without, facts=facts)).explanation
    assert "Attention entropy was not measured. It needs a GPU." in words
    words = judged_public(replace(measured, tables=measured.tables | without)).explanation
    assert "Attention entropy was not measured. The checkpoints show no attention" in words


def test_a_model_is_run_for_its_entropy_where_it_is_not_too_large(on_a_cpu, monkeypatch):
    small, large = (PublicSeries(repository="org/model", revisions=(), num_parameters=n) for n in (SMALL, LARGE))
    free = {"cpu": 100 * 2**30, "cuda": 100 * 2**30}
    monkeypatch.setattr(public_series, "free_bytes", lambda device: free[device.type])
    assert why_no_entropy(small) == ""
    assert why_no_entropy(large) == "A model of 2.7 billion parameters is not run on a CPU. It needs a GPU."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [why_no_entropy(each) for each in public_series.PUBLIC] == [""] * 4
    free["cuda"] = 8 * 2**30
    assert why_no_entropy(small) == ""
    assert "needs 12.6 GiB of the GPU's memory, and 8.0 GiB are free" in why_no_entropy(large)
    free["cpu"] = 4 * 2**30  # where it is built
    assert "of the host's memory" in why_no_entropy(large)

    def untold(device):
        raise OSError("It does not say how much memory is available.")

    monkeypatch.setattr(public_series, "free_bytes", untold)
    assert why_no_entropy(large) == ""


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["run", "too large"])
def test_public_series_are_measured_on_the_text_unless_they_are_too_large(
    checkpoints, config, place, on_a_cpu, monkeypatch, size
):
    def hub(source, *, revisions, out, text, num_windows, progress):
        own = {"text": text, "tokenizer": checkpoints.parent / "tokenizer", "num_windows": num_windows}
        return scan(checkpoints, out=out, progress=progress, **(own if text else {}))

    monkeypatch.setattr(public_series, "scan", hub)
    with_public = replace(
        config, public=(PublicSeries(repository=f"org/of-{size}", revisions=("step*",), num_parameters=size),)
    )
    found = compute(with_public, workplace_in(place / "first", "figure7"))
    curves = found.tables["curves"]
    metrics = set(curves.loc[curves["series"] == f"org/of-{size}", "metric"])
    assert metrics == ({RANK, ENTROPY} if size == SMALL else {RANK})
    words = by_id(verdicts(found, with_public))[f"figure7-of-{size}"].explanation
    assert ("Attention entropy: " in words) == (size == SMALL)
    assert ("It needs a GPU." in words) == (size == LARGE)
    assert len(draw(found)[-1].panels) == len(metrics)


def test_what_the_hub_did_not_give_is_asked_for_again_and_nothing_else(
    checkpoints, config, on_a_cpu, tmp_path, monkeypatch, install
):
    asked = []

    def hub(source, *, revisions, out, **settings):
        asked.append(source)
        if source == "org/none":
            raise ValueError("No revision of org/none fits 'step*'.")
        if source == "org/late" and asked.count("org/late") < 3:
            raise HubError("The hub is gone.")
        return scan(checkpoints, out=out)

    monkeypatch.setattr(public_series, "scan", hub)
    names = ("org/here", "org/none", "org/late")
    public = tuple(PublicSeries(repository=each, revisions=("step*",), num_parameters=LARGE) for each in names)
    install(replace(figure7.EXPERIMENT, configs={"quick": lambda: replace(config, public=public)}))
    [first] = reproduce(out=tmp_path, device="cpu").experiments
    monkeypatch.setattr(figure7, "train_series", None)
    monkeypatch.setattr(figure7, "scan", None)
    [second] = reproduce(out=tmp_path, device="cpu").experiments  # it is still gone
    [third], [fourth] = (reproduce(out=tmp_path, device="cpu").experiments for _ in range(2))
    assert asked == ["org/here", "org/none", "org/late", "org/late", "org/late"]
    assert {each.status for each in (first, second, third, fourth)} == {Status.DONE}
    outcomes = [by_id(each.verdicts)["figure7-late"].outcome for each in (first, second, third, fourth)]
    assert outcomes[:2] == [Outcome.NOT_RUN] * 2 and outcomes[2] is outcomes[3] is not Outcome.NOT_RUN
    assert by_id(first.verdicts)["figure7-here"] == by_id(fourth.verdicts)["figure7-here"]
    assert by_id(fourth.verdicts)["figure7-none"].explanation == "No revision of org/none fits 'step*'."


def test_a_result_that_was_kept_with_the_address_of_the_hub_is_judged_without_it(config):
    kept = "It needs the Hugging Face hub. The hub cannot be reached at https://a.mirror: timed out. Check the network."
    verdict = by_id(verdicts(made("falling", "falling", public_missing=kept), config))["figure7-public"]
    assert (verdict.outcome, verdict.explanation) == (Outcome.NOT_RUN, kept.replace("https://a.mirror", "its address"))


def test_quick_is_offline_and_small(monkeypatch):
    monkeypatch.setattr(figure7, "hub_missing", lambda: pytest.fail("quick asks for no hub"))
    assert figure7.quick().public == ()
    assert figure7.quick().small
