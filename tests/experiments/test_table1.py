"""Table 1: NCorr against a naive loop, runs that repeat and resume, and verdicts that can fail."""

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from joma.engine import grid as recipes
from joma.engine.config import HIERARCHY, TREES
from joma.engine.sources import HierarchySource, with_vocabulary
from joma.experiments import latent_neurons, table1, table1_measure
from joma.experiments.experiment import Result, Workplace
from joma.experiments.latent_neurons import latent_samples, ncorr, of_one_run, planned, read_neurons, rows_path
from joma.experiments.table1_measure import (
    PUBLISHED,
    TREE_DEPTH,
    _hierarchy_grids,
    _tree_grids,
    by_choice,
    by_setting,
    distance_error,
    fall_along,
    grids_of,
    measure_settings,
)
from joma.experiments.table1_seeds import KEYS, run_settings
from joma.experiments.table1_verdicts import (
    chance_verdict,
    complexity_verdict,
    numbers_verdict,
    training_verdict,
    trees_verdict,
    verdicts,
)
from joma.experiments.timetable import Timetable
from joma.figures.chart import to_matplotlib, to_plotly
from joma.models.decoder import Decoder
from joma.verdicts import Outcome

TINY = replace(
    table1.quick(),
    width=16,
    hiddens=(12,),
    tree_hiddens=(12,),
    steps=3,
    tree_steps=2,
    batch=8,
    num_samples=64,
    num_shuffles=2,
    seeds=(1, 2),
)


def workplace(folder):
    return Workplace(folder=folder, device="cpu", progress=lambda share, doing: None)


def computed(folder):
    folder.mkdir(exist_ok=True)
    return table1.compute(TINY, workplace(folder))


def naive_ncorr(latents, activations):
    """NCorr by its definition, one pair at a time; constant latents and neurons are left out."""
    best = []
    for y in np.asarray(latents, dtype=float).T:
        if y.std() > 0:
            best.append(max(np.corrcoef(y, h)[0, 1] for h in np.asarray(activations).T if np.ptp(h) > 1e-5))
    return np.mean(best)


@pytest.mark.parametrize("data", [HIERARCHY, TREES])
def test_ncorr_is_the_naive_loop_over_latents_neurons_and_positions(data):
    settings = {
        "width": 8,
        "hidden": 10,
        "data": data,
        "num_classes": 3,
        "tree_depth": TREE_DEPTH,
    }
    if data == HIERARCHY:
        settings |= {"num_latents": (4, 5)}
    config = with_vocabulary(recipes.recipe("table1").base.update(settings))
    samples = latent_samples(config, 100)
    decoder = Decoder(config.model)
    hidden = {}
    tokens = samples.of_samples(samples.batch.tokens[0])[None]
    decoder.losses(
        of_one_run(decoder.initial(1), "cpu"),
        replace(samples.batch, tokens=tokens, targets=torch.zeros(1, 100, dtype=torch.int64)),
        lambda reading: hidden.setdefault(reading.layer, reading.hidden[0]),
    )
    reading = read_neurons(decoder, of_one_run(decoder.initial(1), "cpu"), samples)
    for layer, latents in enumerate(samples.latents):
        peaks = np.array([[max(row[:, j]) for j in range(10)] for row in hidden[layer].numpy()])
        found = ncorr(latents, reading.peaks[layer], seed=0, num_shuffles=2, groups=samples.drawn)
        # float32 activations on both sides, computed for other batches
        assert found["ncorr"] == pytest.approx(naive_ncorr(latents, peaks), abs=1e-5)
        assert found["matched"] <= found["ncorr"] + 1e-12


def test_latents_of_trees_come_from_the_tokens_up():
    config = with_vocabulary(recipes.recipe("trees").base.update({"tree_depth": TREE_DEPTH, "rho": 1.0}))
    samples = latent_samples(config, 50)
    assert [level.shape[1] for level in samples.latents] == [8, 4, 2]
    present = samples.batch.tokens[0] < 16
    assert torch.equal(samples.latents[0], present[:, ::2])  # without noise a leaf is its parent


@pytest.mark.parametrize("seed", [1, 2])
def test_an_untrained_network_scores_nearly_what_the_paper_publishes(seed):
    config = recipes.recipe("table1").base.update({"seed": seed})
    samples = latent_samples(config, 1280)
    decoder = Decoder(config.model)
    reading = read_neurons(decoder, of_one_run(decoder.initial(seed), "cpu"), samples)
    scores = [
        ncorr(latents, peaks, seed=0, num_shuffles=2, groups=samples.drawn)["ncorr"]
        for latents, peaks in zip(samples.latents, reading.peaks, strict=False)
    ]
    # five seeds give 0.975 and 0.611 with spreads of 0.015 and 0.012
    assert scores == pytest.approx([0.975, 0.611], abs=0.06)


def test_the_same_config_gives_the_same_numbers_and_resumes(tmp_path, monkeypatch):
    first, again = computed(tmp_path / "a"), computed(tmp_path / "b")
    for name, table in first.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
    assert first.facts == again.facts
    assert not [path for path in (tmp_path / "a").iterdir() if path.is_dir()]  # weights are not kept
    monkeypatch.setattr(latent_neurons, "train_pack", None)
    resumed = computed(tmp_path / "a")
    pd.testing.assert_frame_equal(first.tables["runs"], resumed.tables["runs"], check_exact=True)
    charts = table1.draw(first)
    assert [chart.id for chart in charts] == ["table1", "table1-training"]
    found = verdicts(first, TINY)
    assert all(verdict.outcome != Outcome.REFUTED and verdict.sound for verdict in found)


def planned_seconds(folder, monkeypatch):
    """Return the seconds counted for each pack, without training any."""
    seconds = []
    monkeypatch.setattr(Timetable, "work_off", lambda table, pieces, tell: seconds.extend(map(_seconds, pieces)))
    with pytest.raises(FileNotFoundError):  # there are no rows, since nothing was done
        computed(folder)
    return seconds


def _seconds(piece):
    return piece.seconds


def test_the_time_that_is_foretold_contains_the_measuring(tmp_path, monkeypatch):
    monkeypatch.setattr(table1_measure, "_measuring_seconds", lambda run, config, device: 0.0)
    training = planned_seconds(tmp_path, monkeypatch)
    monkeypatch.setattr(table1_measure, "_measuring_seconds", lambda run, config, device: 100.0)
    measured_too = planned_seconds(tmp_path, monkeypatch)
    num_runs = (4, 2)  # of the pack of the hierarchy, and of that of the trees
    assert measured_too == pytest.approx([each + 100.0 * num for each, num in zip(training, num_runs, strict=True)])
    assert all(each > 0 for each in training)


def test_the_time_of_measuring_is_that_of_all_levels_of_both_networks(monkeypatch):
    pause, networks = 0.05, []
    monkeypatch.setattr(table1_measure, "_levels", lambda *given: networks.append(given) or time.sleep(pause) or [{}])
    run = with_vocabulary(grids_of(TINY)[0][0].config)
    found = table1_measure._measuring_seconds(run, TINY, "cpu")
    assert len(networks) == 2 and 2 * pause <= found < 40 * pause  # others may keep the machine busy


TWO_CHOICES = replace(TINY, lrs=(1e-3, 1e-2), num_classes=(20, 30))
"""Two learning rates of four settings and two seeds each, and two of trees with one setting: 20 runs."""


def finish(folder, is_finished, has_diverged=lambda labels: False):
    """Write the rows of the runs that are finished, as training would, without any; those that diverged have none."""
    folder.mkdir(exist_ok=True)
    place, planned_runs = workplace(folder), [run for runs in grids_of(TWO_CHOICES) for run in runs]
    for run in planned_runs:
        config = with_vocabulary(run.config)
        labels = run_settings(config)
        if is_finished(labels):
            num_levels = 2 if labels["data"] == HIERARCHY else 3
            rows = [
                labels
                | {"network": network, "level": level, "ncorr": 0.5 + 0.1 * (network == "trained"), "loss": 0.1}
                | {"shuffled": 0.3, "matched": 0.5}
                for network in ("trained", "untrained")
                for level in range(num_levels)
            ]
            path = rows_path(config, place, settings=measure_settings(TWO_CHOICES))
            pd.DataFrame([] if has_diverged(labels) else rows).to_parquet(path, index=False)
    return place


def is_numbered(part):
    """Whether no verdict says or measures NaN, and all can be written down."""
    found = verdicts(part.result, TWO_CHOICES)
    words = " ".join(each.explanation for each in found)
    return "nan" not in words and all(np.isfinite(row.value) for each in found for row in each.evidence)


def test_a_finished_choice_is_shown_and_judged_without_the_others(tmp_path):
    place = finish(tmp_path, lambda run: run["data"] == HIERARCHY and run["lr"] == 1e-3)
    part = table1.so_far(TWO_CHOICES, place)
    assert part.words == "8 of 20 runs" and part.result.facts["num_finished"] == 8
    assert set(part.result.tables["choices"]["lr"]) == {1e-3} and set(part.result.tables["runs"]["seed"]) == {1, 2}
    assert table1.IN_PART not in part.result.tables and is_numbered(part)
    [note] = part.notes
    assert "latent trees, hidden 12, learning rate 1e-2 (0 of 2 runs)" in note and "learning rate 1e-3 (" in note
    scores, adds = table1.draw(part.result)
    assert len(scores.panels) == 2 and [panel.title for panel in adds.panels] == ["hierarchy of Table 1"]
    assert "hierarchy, hidden 12, learning rate 1e-2 (0 of 8 runs)" in part.result.facts["not_finished"]
    assert "Open choices that are not finished are left out" in scores.caption
    trees = trees_verdict(part.result, TWO_CHOICES)
    assert trees.evidence == () and trees.explanation == "There is nothing on these data yet."


def test_settings_of_an_unfinished_choice_are_drawn_and_not_judged(tmp_path):
    """Of one choice a setting has both seeds and another has one: neither moves a mean over settings."""
    first = finish(tmp_path / "a", lambda run: run["lr"] == 1e-3)
    more = finish(
        tmp_path / "b",
        lambda run: (
            run["lr"] == 1e-3 or (run["num_latents"] == "10x20" and (run["num_classes"], run["seed"]) != (30, 2))
        ),
    )
    whole, part = (table1.so_far(TWO_CHOICES, place) for place in (first, more))
    assert (whole.num_done, part.num_done) == (10, 13)
    for name, table in whole.result.tables.items():
        pd.testing.assert_frame_equal(table, part.result.tables[name], check_exact=True)
    alone = part.result.tables[table1.IN_PART]
    assert set(alone["lr"]) == {1e-2} and set(alone["num_classes"]) == {20} and len(alone) == 2  # its two levels
    assert part.notes[-1] == "Finished runs that wait for other seeds of their setting, and are not shown: 1."
    titles = [panel.title for panel in table1.draw(part.result)[0].panels]
    assert titles[-1] == "s = 1, hidden 12, learning rate 1e-2 (some settings)" and len(titles) == 4
    assert verdicts(part.result, TWO_CHOICES) == verdicts(whole.result, TWO_CHOICES)


def test_with_no_choice_finished_settings_are_all_there_is(tmp_path):
    place = finish(tmp_path, lambda run: run["data"] == HIERARCHY and run["num_classes"] == 20)
    part = table1.so_far(TWO_CHOICES, place)
    assert part.words == "8 of 20 runs" and is_numbered(part)
    assert [chart.id for chart in table1.draw(part.result)] == ["table1"]
    for config in (TWO_CHOICES, FULL):
        found = verdicts(part.result, config)
        assert {each.outcome for each in found} == {Outcome.INCONCLUSIVE} and not any(each.evidence for each in found)


def test_nothing_is_said_before_a_setting_has_all_its_seeds(tmp_path):
    assert table1.so_far(TWO_CHOICES, workplace(tmp_path)) is None
    assert table1.so_far(TWO_CHOICES, finish(tmp_path / "a", lambda run: run["seed"] == 1)) is None


def test_what_is_finished_is_what_compute_would_find(tmp_path):
    result = computed(tmp_path)
    part = table1.so_far(TINY, workplace(tmp_path))
    assert part.num_done == part.num_all == result.facts["num_runs"]
    for name in ("settings", "choices"):
        pd.testing.assert_frame_equal(part.result.tables[name], result.tables[name], check_exact=True)


def diverged_here(run):
    """One seed of a setting, both of another, and all of the trees at the larger rate."""
    hierarchy = run["data"] == HIERARCHY and run["lr"] == 1e-2 and run["num_latents"] == "10x20"
    one, both = run["num_classes"] == 20 and run["seed"] == 2, run["num_classes"] == 30
    return (hierarchy and (one or both)) or (run["data"] == TREES and run["lr"] == 1e-2)


@pytest.fixture
def with_diverged(tmp_path):
    """A result of which five runs diverged."""
    place = finish(tmp_path, lambda run: True, diverged_here)
    return table1.compute(TWO_CHOICES, place), table1.so_far(TWO_CHOICES, place).result


def test_tables_say_over_how_many_seeds_a_mean_is_and_which_runs_diverged(with_diverged):
    for result in with_diverged:
        settings = result.tables["settings"].query("data == 'hierarchy' and level == 0 and num_latents == '10x20'")
        assert settings.set_index(["lr", "num_classes"])["num_seeds"].to_dict() == {
            (1e-3, 20): 2, (1e-3, 30): 2, (1e-2, 20): 1, (1e-2, 30): 0,
        }  # fmt: skip
        assert set(result.tables["settings"]["num_seeds_planned"]) == {2}
        assert settings["trained"].isna().tolist() == [False, False, False, True]  # kept in its place
        diverged = result.tables["diverged"]
        assert len(diverged) == result.facts["num_diverged"] == 5 and result.facts["num_runs"] == 15
        assert all(diverged_here(run) for run in diverged.to_dict("records"))
        choices = result.tables["choices"].query("level == 0").set_index(["data", "lr"])
        assert choices.loc[(HIERARCHY, 1e-2), ["num_runs", "num_runs_planned"]].tolist() == [5, 8]
        assert choices.loc[(TREES, 1e-2), "num_runs"] == 0 and np.isnan(choices.loc[(TREES, 1e-2), "trained"])


def test_page_and_charts_say_which_runs_diverged(with_diverged):
    said = (
        "5 of 20 runs diverged and are in no mean, so that means are over 1 to 2 seeds. They are: "
        "hierarchy, hidden 12, learning rate 1e-2: 20/2/10x20 seed 2, 30/2/10x20 all seeds; "
        "latent trees, hidden 12, learning rate 1e-2: ρ = 0.8 all seeds. "
        "Without any seed, and so without a number: 2 settings."
    )
    for result in with_diverged:
        found = verdicts(result, FULL)
        assert all(said in verdict.explanation and "nan" not in verdict.explanation for verdict in found)
        charts = table1.draw(result)
        assert all(said in chart.caption and to_matplotlib(chart) and to_plotly(chart) for chart in charts)
        bars = next(panel for panel in charts[0].panels if "s = 0" in panel.title and "1e-2" in panel.title).items[0]
        assert bars.categories[0] == "20/2/10x20 (1 of 2 seeds)" and "30/2/10x20 (none of 2 seeds)" in bars.categories
        trees = trees_verdict(result, FULL)
        assert [row.name for row in trees.evidence if np.isnan(row.value)] == [
            f"level {level}, hidden 12, learning rate 1e-2 (none of 2 runs)" for level in range(3)
        ]


def test_a_fall_is_told_by_the_seeds_that_have_both_ends():
    runs = made_up(lambda network, row: 0.9 - 0.1 * (row["num_latents"] == "20x30"), seed_spread=0.0).tables["runs"]
    simplest = (runs["data"] == HIERARCHY) & (runs["num_latents"] == "10x20")
    without_one = fall_along(runs[~(simplest & (runs["seed"] == 2))], 0, "num_latents")
    assert without_one.trained == pytest.approx(0.1) and without_one.error == pytest.approx(0.0)
    most = (runs["data"] == HIERARCHY) & (runs["num_latents"] == "20x30")
    no_seed_has_both = runs[~((simplest & (runs["seed"] == 2)) | (most & (runs["seed"] != 2)))]
    assert fall_along(no_seed_has_both, 0, "num_latents") is None


def test_without_diverged_runs_the_number_of_seeds_is_told(tmp_path):
    result = table1.compute(TWO_CHOICES, finish(tmp_path, lambda run: True))
    assert "diverged" not in result.tables and result.facts["num_diverged"] == 0
    for chart in table1.draw(result):
        assert chart.caption.count("Every mean is over 2 seeds, and no run diverged.") == 1


def test_results_that_were_kept_without_a_number_of_seeds_are_shown_as_before(with_diverged):
    result, _ = with_diverged
    columns = ["num_seeds", "num_seeds_planned", "num_runs", "num_runs_planned"]
    tables = {
        name: result.tables[name].drop(columns=columns, errors="ignore") for name in ("runs", "settings", "choices")
    }
    before = Result(tables=tables, facts={"is_paper_size": True})
    assert all("diverged" not in verdict.explanation for verdict in verdicts(before, FULL))
    assert [chart.id for chart in table1.draw(before)] == ["table1", "table1-training"]


def test_full_has_the_papers_runs_one_pack_for_each_number_of_classes_and_children():
    config = replace(table1.full(), hiddens=(400,), lrs=(1e-5,))
    packs = [each.pack for each in planned(_hierarchy_grids(config), "cpu")]
    assert sum(pack.num_runs for pack in packs) == 60
    assert {(pack.config.data.num_classes, pack.config.trained_length) for pack in packs} == {
        (num_classes, length) for num_classes in (20, 30, 50) for length in (9, 28)
    }
    assert len({run.name for pack in packs for run in pack.runs}) == 60
    assert sum(len(runs) for runs in _hierarchy_grids(table1.full())) == 240
    assert sum(len(runs) for runs in _tree_grids(table1.full())) == 30
    assert table1.full().precision == "bf16" and table1.full().steps == 10_000


def test_published_numbers_are_those_of_the_paper():
    assert len(PUBLISHED) == 24
    assert PUBLISHED[0, "10x20", 20, 3] == 1.0
    assert PUBLISHED[1, "10x20", 50, 3] == 0.64
    assert PUBLISHED[1, "20x30", 30, 2] == 0.74
    assert PUBLISHED[0, "20x30", 30, 2] == 0.94


def made_up(score, *, shuffled=0.3, shuffled_untrained=0.3, matched_loss=0.01, seed_spread=0.001, lrs=(1e-5,)):
    """A result of the paper's settings whose NCorr is `score(network, row)`."""
    rows = []
    settings = [
        {"data": HIERARCHY, "num_classes": c, "num_children": n, "num_latents": latents, "rho": 1.0, "level": level}
        for (level, latents, c, n) in PUBLISHED
    ]
    settings += [
        {"data": TREES, "num_classes": 3, "num_children": 2, "num_latents": "", "rho": 0.8, "level": level}
        for level in range(3)
    ]
    for setting, lr in product(settings, lrs):
        for seed in (1, 2, 3):
            for network in ("trained", "untrained"):
                row = setting | {"hidden": 400, "lr": lr, "seed": seed, "network": network}
                value = score(network, row) + seed_spread * (seed - 2) * (network == "trained")
                null = shuffled if network == "trained" else shuffled_untrained
                rows.append(row | {"ncorr": value, "shuffled": null, "matched": value - matched_loss, "loss": 0.1})
    runs = pd.DataFrame(rows)
    planned = runs[[*KEYS, "seed"]].drop_duplicates()
    tables = {"runs": runs, "settings": by_setting(runs, planned), "choices": by_choice(runs, planned)}
    return Result(tables=tables, facts={"is_paper_size": True})


def as_published(row):
    return PUBLISHED.get((row["level"], row["num_latents"], row["num_classes"], row["num_children"]), 0.9)


def learned(network, row):
    return as_published(row) - (0.3 if network == "untrained" else 0.0)


def random_features(network, row):
    return as_published(row)


FULL = table1.full()
on_both_data = pytest.mark.parametrize("verdict", [training_verdict, trees_verdict], ids=["hierarchy", "trees"])


def test_numbers_hold_when_published_and_fail_when_not():
    assert numbers_verdict(made_up(learned), FULL).outcome == Outcome.HOLDS
    off = numbers_verdict(made_up(lambda network, row: as_published(row) - 0.2), FULL)
    assert off.outcome == Outcome.REFUTED
    assert off.evidence[0].value == pytest.approx(0.2)
    assert off.evidence[0].published == pytest.approx(np.mean(list(PUBLISHED.values())))
    assert numbers_verdict(made_up(learned), table1.quick()).outcome == Outcome.INCONCLUSIVE


def test_the_papers_size_needs_a_gpu_until_all_is_measured(tmp_path):
    config, place = replace(TINY, is_paper_size=True), workplace(tmp_path)
    assert "needs a GPU" in table1.missing(config, place)
    assert table1.missing(TINY, place) == "" == table1.missing(config, replace(place, device="cuda"))
    table1.compute(TINY, place)
    assert table1.missing(config, place) == ""


def test_a_distance_that_seeds_do_not_tell_from_its_threshold_is_told():
    def off_by(distance):
        return made_up(lambda network, row: as_published(row) - distance, seed_spread=0.01)

    near, far = (numbers_verdict(off_by(distance), FULL) for distance in (0.031, 0.2))
    assert near.outcome == far.outcome == Outcome.REFUTED
    assert "beyond the threshold by 0.0010" in near.explanation and "decides nothing" in near.explanation
    assert "threshold" not in far.explanation
    assert "off by 0.200 on average (level 0 by 0.200, level 1 by 0.200)" in far.explanation


def test_numbers_that_are_far_off_are_named_with_what_is_left_without_them():
    def one_far(network, row):
        is_far = (row["level"], row["num_classes"], row["num_children"]) == (1, 50, 2)
        return as_published(row) - (0.9 if is_far else 0.02)

    words = numbers_verdict(made_up(one_far), FULL).explanation
    assert "50/2/10x20 at level 1, -0.32 for 0.58; 50/2/20x30 at level 1, -0.35 for 0.55" in words
    assert "without them the distance is 0.020" in words
    assert "without them" not in numbers_verdict(made_up(learned), FULL).explanation


def test_the_lowest_loss_is_that_of_classes_which_share_sequences():
    runs = made_up(learned).tables["runs"]
    found = table1_measure.with_lowest_losses(runs, FULL)
    assert found[found["data"] == TREES]["lowest_loss"].isna().all()
    for run in [run.config for run in next(_hierarchy_grids(FULL)) if run.config.seed == 1][::7]:
        settings, [hierarchy] = run_settings(run), HierarchySource([with_vocabulary(run)], "cpu").hierarchies
        sequences = [tuple(row) for row in hierarchy.sequences.tolist()]
        lowest = np.mean([np.log(sequences.count(row)) for row in sequences])
        own = found[(found[list(settings)[:4]] == list(settings.values())[:4]).all(axis=1) & (found["seed"] == 1)]
        assert len(own) and own["lowest_loss"].to_numpy() == pytest.approx(lowest)
    words = training_verdict(replace(made_up(learned), tables={**made_up(learned).tables, "runs": found}), FULL)
    assert "Runs that end within 0.01 nats of the lowest loss that their task has: " in words.explanation


def test_trees_say_what_they_are_and_what_the_class_fixes():
    words = trees_verdict(made_up(learned), FULL).explanation
    assert words.startswith("Trees of 16 leaves and 3 classes, a mean over ρ = 0.8; hidden width 400 alone.")
    assert "The latents of the top level, 2, are fixed by the class" in words
    assert "Losses end at 0.10 (ρ = 0.8) nats, where guessing has 1.10." in words


def test_latents_of_the_top_level_and_no_others_are_fixed_by_the_class():
    [run, *_] = next(_tree_grids(FULL))
    samples = latent_samples(with_vocabulary(run.config), 400)
    label = samples.batch.targets[0]
    is_fixed = [
        all((level[label == each] == level[label == each][0]).all() for each in label.unique())
        for level in samples.latents
    ]
    assert is_fixed == [False, False, True]


def test_the_error_of_a_distance_is_that_of_a_mean_where_all_lie_on_one_side():
    runs = made_up(lambda network, row: as_published(row) - 0.2, seed_spread=0.01).tables["runs"]
    own = runs[runs["data"] == HIERARCHY]
    by_seed = own[own["network"] == "trained"].groupby("seed")["ncorr"].mean()
    assert distance_error(own) == pytest.approx(by_seed.sem())
    assert np.isnan(distance_error(own[own["seed"] == 1]))


@on_both_data
def test_training_holds_only_above_the_untrained_network_and_shuffled_latents(verdict):
    assert verdict(made_up(learned), FULL).outcome == Outcome.HOLDS
    assert verdict(made_up(random_features), FULL).outcome == Outcome.REFUTED
    assert verdict(made_up(random_features), table1.quick()).outcome == Outcome.INCONCLUSIVE
    as_good_shuffled = verdict(made_up(learned, shuffled=0.7), FULL)
    assert as_good_shuffled.outcome == Outcome.CONDITIONAL and as_good_shuffled.control_passes
    assert verdict(made_up(learned, shuffled=0.7, seed_spread=0.5), FULL).outcome == Outcome.INCONCLUSIVE
    assert verdict(made_up(learned, seed_spread=0.5), FULL).outcome == Outcome.INCONCLUSIVE
    one_level = made_up(lambda network, row: learned(network, row) if row["level"] else as_published(row))
    assert verdict(one_level, FULL).outcome == Outcome.CONDITIONAL


@on_both_data
def test_a_gain_that_is_no_more_than_that_of_shuffled_latents_is_told(verdict):
    words = verdict(made_up(lambda network, row: 0.64 if network == "trained" else 0.6, shuffled=0.35), FULL)
    num_levels = len(words.evidence)
    assert f"In {num_levels} of {num_levels} it is no more than shuffled latents gain." in words.explanation
    assert "shuffled latents gain." not in verdict(made_up(learned), FULL).explanation


def test_an_open_gain_that_shuffled_latents_have_too_can_be_no_sign_of_learning():
    gain = made_up(lambda network, row: 0.6 + 0.048 * (network == "trained"), seed_spread=0.005, shuffled=0.36)
    assert "no number of seeds makes a sign of learning" in training_verdict(gain, FULL).explanation
    assert "number of seeds" not in training_verdict(made_up(learned, seed_spread=0.005), FULL).explanation


def test_a_range_over_settings_stands_beside_a_mean():
    uneven = made_up(lambda network, row: 0.6 + (0.1 if row["num_classes"] == 20 else -0.1) * (network == "trained"))
    assert all(", -0.100 to +0.100 by setting" in row.name for row in training_verdict(uneven, FULL).evidence)
    rising = made_up(lambda network, row: 1e4 * row["lr"] * row["num_children"], lrs=(1e-4, 1e-5))
    assert any(", -1.000 to -0.100 by choice" in row.name for row in complexity_verdict(rising, FULL).evidence)


@on_both_data
@pytest.mark.parametrize(
    ("gain", "words", "outcome"),
    [
        (0.03, "By seeds above 0, and below 0.05: level 0 +0.030 ±", Outcome.REFUTED),
        (0.052, "By seeds above 0, and not told from 0.05: level 0 +0.052 ±", Outcome.HOLDS),
        (0.048, "Left open, below 0.05 and not told from it by seeds: level 0 +0.048 ±", Outcome.INCONCLUSIVE),
    ],
)
def test_a_gain_that_seeds_do_not_tell_from_the_smallest_that_counts_is_told(verdict, gain, words, outcome):
    found = verdict(made_up(lambda network, row: 0.6 + gain * (network == "trained"), seed_spread=0.005), FULL)
    assert found.outcome == outcome
    assert words in found.explanation
    clear = verdict(made_up(learned, seed_spread=0.005), FULL)
    assert "not told" not in clear.explanation


@pytest.mark.parametrize("verdict", [chance_verdict, complexity_verdict], ids=["chance", "complexity"])
def test_means_over_open_choices_say_so(verdict):
    both = verdict(made_up(random_features, lrs=(1e-4, 1e-5)), FULL)
    assert "a mean over the open choices together (hidden 400, learning rates 1e-5 and 1e-4)" in both.explanation
    assert "open choices" not in verdict(made_up(random_features), FULL).explanation


def test_what_matching_loses_has_the_sign_of_its_number():
    found = chance_verdict(made_up(random_features, matched_loss=0.0123), FULL)
    assert "lost by one-to-one matching 0.0123" in found.explanation
    assert [row.value for row in found.evidence if "matching" in row.name] == pytest.approx([0.0123, 0.0123])


def test_chance_is_passed_by_an_untrained_network_too():
    assert chance_verdict(made_up(random_features), FULL).outcome == Outcome.CONDITIONAL
    only_trained = made_up(lambda network, row: as_published(row) if network == "trained" else 0.3)
    assert chance_verdict(only_trained, FULL).outcome == Outcome.HOLDS
    assert chance_verdict(made_up(random_features, shuffled=0.95), FULL).outcome == Outcome.REFUTED
    assert chance_verdict(made_up(random_features, matched_loss=0.2), FULL).outcome == Outcome.REFUTED


def test_complexity_falls_or_rises():
    def falling(network, row):
        return 0.9 - 0.05 * (row["num_latents"] == "20x30") - 0.05 * row["num_children"]

    def only_trained(network, row):
        return falling(network, row) if network == "trained" else 1 - falling(network, row)

    assert complexity_verdict(made_up(only_trained), FULL).outcome == Outcome.HOLDS
    assert complexity_verdict(made_up(falling), FULL).outcome == Outcome.CONDITIONAL
    rising = made_up(lambda network, row: 1 - falling(network, row))
    assert complexity_verdict(rising, FULL).outcome == Outcome.REFUTED
    assert complexity_verdict(made_up(only_trained), FULL).evidence[0].published == pytest.approx(0.0383, abs=1e-3)
