"""Figures 6 and 8 while they are unfinished: what has ended is shown as it will be, and nothing is decided by it."""

import json
import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd
import pytest

from experiments.language_model_cases import place, toy, twenty_seconds_a_pack, write_text_folder
from joma.experiments import assumption1, cache, keeping
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import LINEAR, OTHER_PRECISION, PAPER, UNTRAINED
from joma.experiments.language_model_runs import planned_runs, runs_folder
from joma.experiments.language_models import EXPERIMENT, compute, so_far
from joma.experiments.publication import published
from joma.experiments.record import Status
from joma.experiments.reproduction import charts_of, reproduce
from joma.figures import chart_static
from joma.figures.chart import to_matplotlib
from joma.page.report import report
from joma.store.record import plain
from joma.verdicts import Outcome

NOT_THERE = "Not there yet: "
NO_NUMBER = re.compile(r"\bnan\b|\binf\b")


@pytest.fixture(scope="module", autouse=True)
def _no_data():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JOMA_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All kinds of runs that the full preset has, at toy size, and what they come to."""
    config = toy(
        write_text_folder(tmp_path_factory.mktemp("text")), depths=(1, 3), rates=(1e-3, 1e-2, 1e-1), rate_depth=3,
        controls=(LINEAR,), control_depths=(1, 3), checked_depths=(1,), small=False,
    )  # fmt: skip
    there = place(tmp_path_factory.mktemp("work"))
    return config, there.folder, compute(config, there)


def packs_of(config):
    """Names of the runs of each pack, in the order in which packs are trained."""
    packs = {}
    for name, (suite, run) in planned_runs(config).items():
        packs.setdefault((suite.name, run.config.shape), []).append(name)
    return list(packs.values())


def pieces_of(config, folder):
    """Where each piece of work leaves what it did, in their order."""
    drift = [[path] for path in assumption1._paths(config, place(folder)).values()]
    return [[runs_folder(place(folder)) / name for name in names] for names in packs_of(config)] + drift


def with_these(paths, work, folder):
    """A workplace that has these of the runs and trainings that are done in `work`, and no others."""
    for path in paths:
        linked = folder / path.relative_to(work)
        linked.parent.mkdir(parents=True, exist_ok=True)
        linked.symlink_to(path)
    return place(folder)


drawn_before: set[tuple[str, int]] = set()


def check(part, config, whole):
    """Whatever is there: it can be drawn, judged and kept, and what it says is what the whole will say of it."""
    kept = {name: cache.decode(cache.encode(table)) for name, table in part.result.tables.items()}
    charts = EXPERIMENT.draw(part.result)
    again = EXPERIMENT.draw(Result(tables=kept, facts=part.result.facts))
    assert json.dumps(plain(charts)) == json.dumps(plain(again))
    for chart in charts:
        if (looks := (chart.id, len(chart.panels))) not in drawn_before:
            to_matplotlib(chart).draw_without_rendering()
            drawn_before.add(looks)
    at_last = EXPERIMENT.verdicts(whole, config)
    for now, then in zip(EXPERIMENT.verdicts(part.result, config), at_last, strict=True):
        assert (now.id, now.claim) == (then.id, then.claim)
        if NOT_THERE not in now.explanation:
            assert repr(now) == repr(then), "a verdict that lacks nothing is that of the whole"
            continue
        assert now.outcome is Outcome.INCONCLUSIVE and now.correction == "" and now.sound
        assert not NO_NUMBER.search(now.explanation), now.explanation
        rows = {row.name: row for row in then.evidence}
        for row in now.evidence:
            assert repr(row.value) == repr(rows[row.name].value)
            assert row.lacks_control or row.control == rows[row.name].control


def test_after_every_pack_what_is_there_is_shown_as_it_will_be(trained, tmp_path):
    config, work, whole = trained
    pieces, there = pieces_of(config, work), tmp_path / "there"
    assert so_far(config, place(there)) is None
    num_all = sum(map(len, pieces))
    num_charts, num_open = [], []
    for num, new in enumerate(pieces):
        part = so_far(config, with_these(new, work, there))
        assert part.num_done == sum(map(len, pieces[: num + 1])) and part.num_all == num_all
        assert part.words == f"{part.num_done} of {num_all} trainings"
        check(part, config, whole)
        num_charts.append(len(EXPERIMENT.draw(part.result)))
        found = EXPERIMENT.verdicts(part.result, config)
        num_open.append(sum(NOT_THERE in each.explanation for each in found))
    assert num_charts == sorted(num_charts) and num_charts[0] == 7 and num_charts[-1] == 9
    assert num_open == sorted(num_open, reverse=True) and num_open[-1] == 0 < num_open[-2]


def test_when_all_is_there_it_is_what_compute_finds(trained, tmp_path):
    config, work, whole = trained
    part = so_far(config, with_these(list(chain(*pieces_of(config, work))), work, tmp_path))
    assert part.num_done == part.num_all
    for name, table in whole.tables.items():
        pd.testing.assert_frame_equal(part.result.tables[name], table, check_exact=True)
    assert repr({name: part.result.facts[name] for name in whole.facts}) == repr(whole.facts)


def test_any_piece_can_be_the_first(trained, tmp_path):
    """Small pieces go first where the large one does not fit into the time that is left."""
    config, work, whole = trained
    for num, alone in enumerate(pieces_of(config, work)):
        check(so_far(config, with_these(alone, work, tmp_path / str(num))), config, whole)


def test_pieces_in_any_order(trained, tmp_path):
    config, work, whole = trained
    pieces, random = pieces_of(config, work), np.random.default_rng(0)
    for num in range(5):
        chosen = random.permutation(len(pieces))[: random.integers(1, len(pieces))]
        paths = [path for index in chosen for path in pieces[index]]
        check(so_far(config, with_these(paths, work, tmp_path / str(num))), config, whole)


def test_single_runs_of_packs_that_were_split(trained, tmp_path):
    config, work, whole = trained
    paths, random = list(chain(*pieces_of(config, work))), np.random.default_rng(1)
    for num in range(5):
        chosen = random.permutation(len(paths))[: random.integers(1, len(paths))]
        part = so_far(config, with_these([paths[index] for index in chosen], work, tmp_path / str(num)))
        if part is not None:
            check(part, config, whole)


def test_the_pack_of_learning_rates_alone(trained, tmp_path):
    """Figure 8 is whole but for its untrained model, and figure 6 has the depth that both share."""
    config, work, _ = trained
    part = so_far(config, with_these(pieces_of(config, work)[0], work, tmp_path))
    charts = {chart.id: chart for chart in EXPERIMENT.draw(part.result)}
    assert [panel.title for panel in charts["figure6-entropy"].panels] == ["depth 3"]
    assert charts["figure6-loss"].panels[0].title == "validation loss, depth 3"
    assert len(charts["figure8-entropy"].panels) == 3 and "figure8-early" in charts
    assert "rebound-controls" not in charts and "assumption1-drift" not in charts
    assert all("Settings of which a seed has not ended are left out." in chart.caption for chart in charts.values())
    found = {verdict.id: verdict for verdict in EXPERIMENT.verdicts(part.result, config)[:9]}
    losses, best, regime = (found[name] for name in ("figure6-losses", "figure8-best", "figure8-regime"))
    lacking = "Not there yet: as in the paper at depth 1, learning rate 1e-2; untrained at depths 1 and 3."
    assert lacking in losses.explanation
    told = losses.explanation.partition("Lowest losses: ")[2]
    assert "at depth 3" in told and "at depth 1" not in told
    assert "Not there yet: untrained at depth 3." in best.explanation and np.isnan(best.evidence[0].control)
    assert NOT_THERE not in regime.explanation and regime.evidence
    [note] = part.notes
    assert f"on {config.texts[0]}: {PAPER} and {OTHER_PRECISION} at depth 1, learning rate 1e-2; untrained at d" in note
    assert note.endswith("; all trainings that follow E[g x].")


def test_a_text_on_which_nothing_is_trained_yet(trained, tmp_path):
    config, work, whole = trained
    both = replace(config, texts=(*config.texts, "another"))
    part = so_far(both, with_these(chain(*pieces_of(config, work)), work, tmp_path))
    assert "Not yet: on another: as in the paper at depth 3, learning rates 1e-3 and 0.1; as in the" in part.notes[0]
    assert "the paper at depths 1 and 3, learning rate 1e-2; untrained at depths 1 and 3." in part.notes[0]
    assert [chart.id for chart in EXPERIMENT.draw(part.result)] == [chart.id for chart in EXPERIMENT.draw(whole)]
    found, at_last = EXPERIMENT.verdicts(part.result, both), EXPERIMENT.verdicts(whole, config)
    first, second, others = found[:9], found[9:18], found[18:]
    assert repr((*first, *others)) == repr(at_last)
    assert all(NOT_THERE in each.explanation and not each.evidence and each.sound for each in second)


def test_learning_rates_are_held_against_each_other_only_when_all_are_there(trained, tmp_path):
    config, work, _ = trained
    planned = planned_runs(config)
    wanted = [path for path in pieces_of(config, work)[0] if planned[path.name][1].config.get("lr") != 1e-1]
    part = so_far(config, with_these(wanted, work, tmp_path))
    assert part.result.tables["rules"].empty and not [name for name in part.result.facts if name.startswith("dip_")]
    charts = {chart.id: chart for chart in EXPERIMENT.draw(part.result)}
    assert "figure8-early" not in charts
    assert {item.style for panel in charts["figure8-dip"].panels for item in panel.items} == {"points"}
    found = {verdict.id: verdict for verdict in EXPERIMENT.verdicts(part.result, config)[:9]}
    for name in ("best", "collapse", "dip", "regime", "early"):
        assert ", learning rate 0.1" in found[f"figure8-{name}"].explanation and not found[f"figure8-{name}"].evidence
    assert "at 1e-3" in found["figure8-best"].explanation and "diverged" not in found["figure8-collapse"].explanation


def test_no_mean_is_over_some_of_the_seeds(trained, tmp_path):
    config, work, _ = trained
    planned = planned_runs(config)

    def is_second_of_linear(path):
        suite, run = planned[path.name]
        return (suite.condition, run.config.get("seed")) == (LINEAR, 2)

    packs = list(chain(*pieces_of(config, work)[: len(packs_of(config))]))
    part = so_far(config, with_these([path for path in packs if not is_second_of_linear(path)], work, tmp_path))
    assert LINEAR not in set(part.result.tables["runs"]["condition"])
    assert part.notes[-1] == "Finished runs that wait for other seeds of their setting, and are not shown: 2."
    assert part.num_done == len(packs) - 2 and f"{LINEAR} at depths 1 and 3, learning rate 1e-2" in part.notes[0]


def test_a_mode_that_lacks_a_layer_has_no_mean_over_layers(trained, tmp_path):
    config, work, _ = trained
    *_, together, first, _ = pieces_of(config, work)
    part = so_far(config, with_these([*together, *first], work, tmp_path))
    [verdict] = [each for each in EXPERIMENT.verdicts(part.result, config) if each.id == "assumption1"]
    assert "Not there yet: one layer at a time (1 of 2 layers). All layers together it " in verdict.explanation
    assert verdict.evidence and not any(assumption1.ALONE in row.name for row in verdict.evidence)
    [chart] = EXPERIMENT.draw(part.result)
    lines = [[item for item in panel.items if item.shade is not None] for panel in chart.panels]
    assert [len(own) for own in lines] == [2, 1, 2, 1]  # the layer that is there is drawn
    assert part.words == f"2 of {part.num_all} trainings"


def test_a_missing_control_is_no_failed_check_of_ours(trained, tmp_path):
    config, work, _ = trained
    planned = planned_runs(config)
    absent = (UNTRAINED, OTHER_PRECISION)
    paths = [path for path in pieces_of(config, work)[0] if planned[path.name][0].condition not in absent]
    part = so_far(config, with_these(paths, work, tmp_path))
    assert set(part.result.tables["runs"]["condition"]) == {PAPER}
    assert all(verdict.sound for verdict in EXPERIMENT.verdicts(part.result, config))


def test_time_is_up_and_the_same_command_finishes(tmp_path, install, monkeypatch):
    """A part is on the page and in the document; in the end all is as without a limit."""
    config = toy(write_text_folder(tmp_path / "text"), controls=(LINEAR,))
    install(replace(EXPERIMENT, configs={"quick": lambda: config, "full": lambda: config}))
    monkeypatch.setattr(chart_static, "STAMPS", {"png": chart_static.STAMPS["png"]})
    whole = compute(config, place(tmp_path / "whole"))
    twenty_seconds_a_pack(monkeypatch)
    call = {"out": tmp_path / "out", "device": "cpu", "minutes": 95 / 60}
    [part] = reproduce(**call).experiments
    assert part.status is Status.UNFINISHED and part.part == "10 of 15 trainings" and part.sound
    assert {verdict.outcome for verdict in part.verdicts} == {Outcome.INCONCLUSIVE} and part.charts
    assert all("(unfinished: 10 of 15 trainings)" in each.title for each in charts_of(call["out"], part.id))
    page = report(call["out"]).read_text(encoding="utf8")
    assert "unfinished: 10 of 15 trainings" in page and "could not be drawn" not in page
    (tmp_path / "docs").mkdir()
    keeping.keep(call["out"], tmp_path)
    document = (tmp_path / "docs/results.md").read_text(encoding="utf8")
    assert "rests on 10 of 15 trainings and decides nothing yet" in document
    [found] = reproduce(**call).experiments
    assert found.status is Status.DONE and found.part == "" and found.notes == ()
    assert repr(found.verdicts) == repr(EXPERIMENT.verdicts(whole, config)) and len(found.charts) == 9
    for name, table in whole.tables.items():
        pd.testing.assert_frame_equal(published(call["out"] / found.id).tables[name], table, check_exact=True)
