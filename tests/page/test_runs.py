"""Runs and scans on the page: grouped by seed, averaged with errors, flagged, escaped, and what happened in them."""

import json
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from joma.figures.curves import MAX_LEGEND
from joma.figures.numbers import NO_LAYER
from joma.figures.span import FLAT_SHARE
from joma.page import effects, events, layers, panels
from joma.page.document import document
from joma.page.plot import script_json
from joma.page.records import flat, grouped, load
from joma.page.runs import TITLES, sections
from joma.store import find_runs, open_run

from .made_runs import ALARM, EXCEPTION, FLAG, HOSTILE, large, scanned, trained, watched


class Page(HTMLParser):
    """A page as a browser reads it: its texts, its tags and the data of its figures."""

    def __init__(self, html):
        """Read a page."""
        super().__init__()
        self.texts, self.tags, self.figures, self.attributes = [], [], [], []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = dict(attrs).get("type", tag) if tag == "script" else tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "application/json":
            self.figures.append(json.loads(data))
        elif self._inside not in ("script", "style"):
            self.texts.append(data.strip())

    def shows(self, *texts):
        return all(text in self.texts for text in texts)


def groups_under(folder):
    runs, unreadable = load(find_runs(folder), folder)
    assert not unreadable
    return grouped(runs)


def page_of(folder):
    return Page("".join(f"<h2>{section.title}</h2>{section.body}" for section in sections(folder, with_plotly=False)))


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    root = tmp_path_factory.mktemp("several")
    for seed in range(3):
        watched(root / "small" / f"seed-{seed}", seed=seed, trouble=seed == 1)
    watched(root / "deep", num_layers=14, num_steps=21, config={"learning_rate": 3e-4}, status="running", heads=2)
    scanned(root / "pythia")
    return root


@pytest.fixture(scope="module")
def page(several):
    return page_of(several)


def test_runs_that_differ_in_their_seed_alone_are_one_group(several):
    groups = {group.name: group for group in groups_under(several)}
    assert set(groups) == {"deep", "pythia", "small/seed*"}
    assert [run.seed for run in groups["small/seed*"].runs] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("configs", "num_groups"),
    [
        ([{"seed": 0}, {"seed": 1}], 1),
        ([{"seed": 0, "lr": 1}, {"seed": 1, "lr": 2}], 2),
        ([{"seed": 0}, {"seed": 0}], 2),
        ([{"data": {"order_seed": 3}}, {"data": {"order_seed": 4}}], 1),
        ([{"sources": ["a/pythia-seed1"]}, {"sources": ["a/pythia-seed2"]}], 1),
        ([{}, {}], 2),
    ],
    ids=["seed", "seed and more", "twice the same", "nested", "in the name of a source", "no seed told"],
)
def test_what_counts_as_a_seed(tmp_path, configs, num_groups):
    for name, config in zip(("first", "second"), configs, strict=True):
        open_run(tmp_path / name, kind="scan", config=config).close()
    assert len(groups_under(tmp_path)) == num_groups


def test_a_seed_may_be_in_the_name_of_the_folder_alone(tmp_path):
    for name in ("a/seed0", "a/seed1", "b/seed0"):
        open_run(tmp_path / name, kind="watch", config={}).close()
    assert [group.name for group in groups_under(tmp_path)] == ["a/seed*", "b/seed0"]


def test_ranks_of_one_training_are_not_seeds_and_kinds_are_kept_apart(tmp_path):
    for rank in range(2):
        open_run(tmp_path / f"rank-{rank}", kind="watch", config={"seed": 0}, about={"rank": rank}).close()
    open_run(tmp_path / "other", kind="train", config={"seed": 1}, about={"rank": 0}).close()
    assert len(groups_under(tmp_path)) == 3


def test_runs_watched_with_seeds_are_one_group(tmp_path):
    """As `watch` records them: the seed is part of what the run is about."""
    for seed in range(3):
        about = {
            "model": "GPT2LMHeadModel",
            "num_parameters": 10,
            "seed": seed,
            "learning_rate": 1e-3 if seed < 2 else 1,
        }
        open_run(tmp_path / "abc"[seed], kind="watch", config={"measures": ["entropy"]}, about=about).close()
    assert [[run.seed for run in group.runs] for group in groups_under(tmp_path)] == [["0", "1"], ["2"]]


def test_means_and_standard_errors_over_seeds(several):
    group = next(group for group in groups_under(several) if group.is_averaged)
    table = layers.rows(group, "entropy")
    [first, *_] = layers.curves(table)
    each = np.stack([run.values.query("metric == 'entropy' and layer == 0")["value"].to_numpy() for run in group.runs])
    np.testing.assert_allclose(first.values, each.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(first.errors, each.std(axis=0, ddof=1) / np.sqrt(3), rtol=1e-10)
    assert first.label == "layer 0" and first.detail == "layer 0, transformer.h.0.attn"


def test_flagged_values_stay_out_of_the_mean_and_are_marked(several):
    group = next(group for group in groups_under(several) if group.is_averaged)
    table = layers.rows(group, "stable_rank")
    curve = layers.curves(table)[1]
    at = curve.steps.tolist().index(500)
    others = [run.values.query("metric == 'stable_rank' and layer == 1 and step == 500") for run in group.runs]
    assert curve.values[at] == pytest.approx(np.mean([own["value"].item() for own in (others[0], others[2])]))
    marks, num = layers.flagged(group, table)
    assert num == 3 and [mark.step for mark in marks] == [500, 550, 600]
    assert FLAG in marks[0].text and "small/seed-1" in marks[0].text and np.isnan(marks[2].value)


def test_mean_over_layers_takes_only_steps_where_every_layer_is_trusted(several):
    group = next(group for group in groups_under(several) if group.is_averaged)
    table = layers.rows(group, "stable_rank")
    alone = table[table["run"] == 1]
    curve = layers.combined(alone, "x")
    assert set(alone["step"]) - set(curve.steps) == {500, 550, 600}
    own = alone[alone["step"] == 100]["value"]
    assert curve.values[curve.steps.tolist().index(100)] == pytest.approx(own.mean())


def test_side_by_side_offers_every_layer_of_every_group(several):
    groups = groups_under(several)
    found = layers.compared(groups, "entropy", max_choices=99)
    assert {(each.run, each.choice) for each in found if each.choice == "layer 13"} == {(0, "layer 13")}
    assert {each.run for each in found if each.choice == "layer 3"} == {0, 2}
    few = layers.compared(groups, "entropy", max_choices=4)
    assert [each.choice for each in few if each.run == 0] == ["mean over layers", "layer 0", "layer 6", "layer 13"]


def test_every_run_is_in_the_overview_with_how_it_ended(page):
    assert page.shows("5 runs", "small/seed-0", "small/seed-2", "deep", "pythia", "finished", "interrupted")
    told = [text for text in page.texts if text.startswith("deep was interrupted, or killed, after step 1000.")]
    assert len(told) == 1


def test_seeds_and_their_error_bars_are_explained(page):
    assert page.shows(
        "Mean over 3 runs that differ only in their seed (0, 1, 2). "
        "Error bars are the standard error of the mean over seeds."
    )


def names_of(site):
    return [each.name.value for each in site.by_run.values()]


def test_layers_are_listed_with_their_effects(several, page):
    group = next(group for group in groups_under(several) if group.is_averaged)
    found = effects.described(group)
    assert [each.layer for each in found] == [*range(6), *range(6)]
    assert [names_of(each) for each in found] == [["rebounding"] * 3] * 6 + [["falling"] * 3] * 6
    assert page.shows("rebounding", "falling", "rise", "transformer.h.5.mlp.c_fc.weight")
    cells = dict(zip(effects.COLUMNS, effects.rows(found)[0], strict=True))
    assert cells["start"].raw == pytest.approx(3.3, abs=0.2) and "±" in cells["start"].text
    assert cells["dip at step"].raw == pytest.approx(500, abs=60)


def test_alarms_findings_unseen_and_exceptions_are_listed(page):
    assert page.shows(ALARM, EXCEPTION, "3 times, 100 to 200", "vision.blocks.0", "attention set to flash_attention_2")
    assert page.shows("Audit of the checkpoints (2)", "out of place", "Step 256 is missing.", "no text was given")
    assert page.shows("steps.before: 32; steps.after: 128; across: 0.4")
    assert "An old finding." not in page.texts  # it was withdrawn


def test_what_is_outside_of_the_layers_is_called_so(tmp_path):
    with open_run(tmp_path / "pooled", kind="watch", config={}) as run:
        for step in range(20):
            for layer in range(MAX_LEGEND + 1):
                run.add(step, "entropy", 2.0 + layer, site=f"h.{layer}.attn", kind="attention", layer=layer)
            run.add(step, "entropy", 1.0, site="pooler.attn", kind="attention", layer=NO_LAYER)
        evidence = {"kind": "collapse", "layer": NO_LAYER}
        run.event(9, "alarm", "collapsed", level="warning", site="pooler.attn", evidence=evidence)
    page = page_of(tmp_path)
    assert page.texts.count("outside of the layers") == 2  # in the table of layers and in that of alarms
    assert "-1" not in page.texts
    bars = [trace["marker"] for figure in page.figures for trace in figure.get("data", []) if "marker" in trace]
    assert [bar["cmin"] for bar in bars if "cmin" in bar] == [0]


def test_cost_configuration_and_versions_are_shown(page):
    assert any(text.startswith("Measuring took 27 s") for text in page.texts)
    assert page.shows("alarm.patience", "entropy, ranks", "GPT2LMHeadModel", "version.numpy", np.__version__)


def test_what_differs_between_groups_has_a_table(page):
    assert page.shows("What differs", "learning_rate", "0.0003", "0.001")


def test_a_checkpoint_that_gave_no_value_is_not_counted_as_measured(tmp_path):
    with open_run(tmp_path, kind="scan", config={}) as run:
        for step in range(6):
            if step < 4:
                flag = "identical checkpoint" if step in (1, 2) else ""
                for metric in ("stable_rank", "spectral_norm"):
                    run.add(step, metric, 2.0, site="h.0.mlp", kind="mlp", layer=0, flag=flag)
            run.add(step, "seconds", 0.5, kind="cost")  # also of what could not be read
    [group] = groups_under(tmp_path)
    assert group.runs[0].num_measurements == 4
    assert any(text.endswith("(6 checkpoints, median 0.5 s).") for text in page_of(tmp_path).texts)


def test_values_that_are_not_trusted_are_counted_alike_in_the_overview_and_below_the_pictures(several, page):
    group = next(group for group in groups_under(several) if group.name == "pythia")
    notes = [
        note
        for metric in layers.metrics([group])
        for note in panels.panel(group, metric, "a", panels.share([group])).notes
        if "trusted" in note
    ]
    assert [note.partition(" are not")[0] for note in notes] == [
        "4 of 72 values of stable rank",
        "4 of 72 values of spectral norm",
    ]
    assert page.shows("not trusted", "8 of 144")  # of both together
    assert ("title", TITLES["not trusted"]) in page.attributes


def test_a_value_that_is_not_finite_is_not_trusted_in_the_overview_either(tmp_path):
    with open_run(tmp_path, kind="watch", config={}) as run:
        for step in range(4):
            run.add(step, "loss", np.inf if step == 3 else 1.0, kind="model")
            run.add(step, "seconds", 0.1, kind="cost")
    assert page_of(tmp_path).shows("not trusted", "1 of 4")


def test_flagged_values_are_in_the_figures(page):
    texts = [text for figure in page.figures for trace in figure.get("data", []) for text in trace.get("text", [])]
    assert any(FLAG in text for text in texts) and any("out of place" in text for text in texts)
    assert any("nothing but NaN" in text for text in texts)


def test_heads_have_a_map_of_their_own(several):
    group = next(group for group in groups_under(several) if group.name == "deep")
    drawn = panels.panel(group, "entropy", "a", panels.share([group]))
    assert len(drawn.plots) == 3 and "transformer.h.3.attn, head 1" in drawn.plots[2]
    assert len(panels.panel(group, "loss", "a", panels.share([group])).plots) == 1


def test_a_metric_of_single_heads_alone_is_drawn_once(tmp_path):
    with open_run(tmp_path, kind="watch", config={}) as run:
        for step in range(5):
            for head in range(3):
                run.add(step, "mine", step + head, site="h.0", kind="attention", layer=0, head=head)
    [group] = groups_under(tmp_path)
    drawn = panels.panel(group, "mine", "a", panels.share([group]))
    assert len(drawn.plots) == 2 and "layer 0, head 2" in drawn.plots[1]


def test_several_sites_of_a_layer_are_told_apart(tmp_path):
    with open_run(tmp_path, kind="scan", config={}) as run:
        for step in range(5):
            for name in ("gate", "up"):
                run.add(step, "stable_rank", step, site=f"h.0.{name}", kind="mlp", layer=0)
    [group] = groups_under(tmp_path)
    first, second = layers.curves(layers.rows(group, "stable_rank"))
    assert (first.label, second.label) == ("0: h.0.gate", "0: h.0.up") and first.dash != second.dash


def test_more_sites_than_lines_are_averaged_by_layer_and_said_so(tmp_path):
    with open_run(tmp_path, kind="scan", config={}) as run:
        for step in range(3):
            for layer in range(4):
                for expert in range(80):
                    site = f"h.{layer}.experts.{expert}"
                    run.add(step, "stable_rank", step + expert, site=site, kind="mlp", layer=layer)
    [group] = groups_under(tmp_path)
    drawn = panels.panel(group, "stable_rank", "a", panels.share([group]))
    assert drawn.notes[0] == "Of 320 sites the lines show the mean of each layer; the heat map has them one by one."
    lines = Page(drawn.plots[0]).figures[0]["data"]
    assert [trace["name"] for trace in lines] == [f"layer {layer}" for layer in range(4)]


def test_a_run_without_values_is_shown_as_such(tmp_path):
    open_run(tmp_path / "empty", kind="watch", config={}).close("failed")
    page = page_of(tmp_path)
    assert page.shows("1 run", "empty failed after step none.", "There is no value to draw.")


def test_a_run_that_is_being_written_says_so(tmp_path):
    run = open_run(tmp_path / "live", kind="watch", config={})
    run.add(7, "loss", 1.0, kind="model")
    run.flush()
    page = page_of(tmp_path)
    run.close()
    assert page.shows("being written", "live is being written: this is how it stood at step 7.")


def test_one_unreadable_run_does_not_hide_the_others(tmp_path):
    watched(tmp_path / "good", num_steps=3, num_layers=1)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{half")
    assert any(text.startswith("bad cannot be read:") for text in page_of(tmp_path).texts)
    os.remove(tmp_path / "good" / "run.json")
    with pytest.raises(ValueError, match=r"run\.json is not JSON"):
        sections(tmp_path)


def test_hostile_names_are_text_everywhere(tmp_path):
    folder = tmp_path / "<b>bold" / HOSTILE.replace("/", "_")
    config = {"note": HOSTILE, HOSTILE: [{"deep": HOSTILE}], "measures": [HOSTILE]}
    watched(folder, num_steps=5, num_layers=2, name=HOSTILE, config=config, metrics=[HOSTILE])
    with open_run(folder, kind="watch", config=config) as run:
        for kind in ("alarm", "audit", "unseen", HOSTILE):
            run.event(1, kind, HOSTILE, site=HOSTILE, evidence={"finding": HOSTILE, HOSTILE: HOSTILE})
        run.add(1, HOSTILE, np.nan, site=HOSTILE, kind=HOSTILE, flag=HOSTILE)
    watched(tmp_path / "other", num_steps=5, num_layers=2, metrics=[HOSTILE])
    html = document("t", "l", sections(tmp_path, with_plotly=False))
    page = Page(html)
    assert not {"img", "b"} & set(page.tags) and not any(name.startswith("on") for name, _ in page.attributes)
    assert page.tags.count("script") == html.count("</script>") == len(page.figures) + 1
    assert page.texts.count(HOSTILE.strip()) > 5
    assert not re.search("[\u2028\u2029]", "".join(re.findall(r"<script.*?</script>", html, re.DOTALL)))


def test_json_in_a_script_stays_json():
    text = json.dumps({"a": "</script><!--\u2028\u2029&"}, ensure_ascii=False)
    safe = script_json(text)
    assert json.loads(safe) == json.loads(text) and "<" not in safe and "\u2028" not in safe


def test_long_curves_are_thinned_and_the_page_says_so(tmp_path):
    large(tmp_path / "long", num_layers=40, num_steps=900, metrics=["entropy", *map(str, range(9))])
    [group] = groups_under(tmp_path)
    room = panels.share([group])
    drawn = panels.panel(group, "entropy", "a", room)
    assert room.max_points < 900 and f"Lines of 900 points are drawn with at most {room.max_points}: " in drawn.notes[0]
    assert drawn.notes[1].startswith("A column of a heat map stands for several steps")
    lines, map_ = (Page(plot).figures[0]["data"] for plot in drawn.plots)
    assert all(len(trace["x"]["bdata"]) <= 4 * room.max_points for trace in lines[:-1])  # two bytes each, in base 64
    assert len(map_[0]["x"]) <= room.max_columns and len(map_[0]["y"]) == 40


def test_many_runs_share_the_room_of_a_page(tmp_path):
    large(tmp_path / "0", num_layers=50, num_steps=300, metrics=["entropy", "max_logit", "mine"])
    [group] = groups_under(tmp_path)
    one, ten, hundred = (panels.share([group] * num) for num in (1, 10, 100))
    assert one.max_points > ten.max_points and one.max_lines > hundred.max_lines
    assert ten.metrics == ("entropy", "max_logit", "mine") and hundred.metrics == ("entropy",)
    assert hundred.left_out == ("max_logit", "mine")
    for room, num in ((one, 1), (ten, 10), (hundred, 100)):
        num_lines = num * len(room.metrics) * (min(room.max_lines, 50) + room.max_choices)
        assert num_lines * room.max_points <= 1.1 * panels.NUM_POINTS


def test_settings_are_flattened():
    assert dict(flat({"a": {"b": [1, {"c": None}]}, "d": [], "e": True})) == {
        "a.b[0]": "1",
        "a.b[1].c": "none",
        "d": "[]",
        "e": "yes",
    }


def test_evidence_that_is_no_object_is_shown_as_it_is(tmp_path):
    run = open_run(tmp_path, kind="watch", config={})
    run.event(0, "note", "said", evidence=[1, 2])
    run.close()
    [group] = groups_under(tmp_path)
    [table] = events.tables(group)
    assert "evidence: 1, 2" in table.body and table.title == "Other events (1)"


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Two learning rates with two seeds each; at the larger one both runs diverge."""
    root = tmp_path_factory.mktemp("grid")
    for seed in (1, 2):
        trained(root / f"lr1e-3-momentum0.9-weight_decay0.01-seed{seed}", seed=seed)
        trained(root / f"lr10-momentum0.9-weight_decay0.01-seed{seed}", seed=seed, lr=10.0, fails_at=40)
    return root


def test_seeds_of_a_grid_are_grouped_and_told_apart_by_what_differs(grid):
    groups = groups_under(grid)
    assert [len(group.runs) for group in groups] == [2, 2]
    assert layers.told_apart([group.name for group in groups]) == ["lr10", "lr1e-3"]


def test_names_that_share_everything_or_are_short_stay_as_they_are():
    assert layers.told_apart(["a-b", "a-c"]) == ["a-b", "a-c"]
    assert layers.told_apart(["a" * 40, "a" * 40]) == ["a" * 40] * 2
    one, more = "lr1-" + "x" * 40, "lr1-" + "x" * 40 + "-seed1"
    assert layers.told_apart([one, more]) == [one, more]


def test_losses_are_compared_site_by_site_validation_first(grid):
    groups = groups_under(grid)
    panel = panels.compared(groups, "loss", "anchor", panels.share(groups))
    assert panel.choices == ("validation", "training") and panel.choice_name == "where"
    [figure] = Page(panel.plots[0]).figures
    shown = [trace["name"] for trace in figure["data"] if trace["visible"]]
    assert shown == ["lr10", "lr1e-3"]


def test_a_loss_has_no_map_of_layers(grid):
    groups = groups_under(grid)
    room = panels.share(groups)
    assert len(panels.panel(groups[1], "loss", "a", room).plots) == 1
    assert len(panels.panel(groups[1], "entropy", "a", room).plots) == 2


def test_overview_of_training_has_losses_and_marks_what_failed(grid):
    page = page_of(grid)
    assert page.shows("best loss", "last loss", "failed", "diverged")
    assert any("failed after step 30" in text for text in page.texts)
    best = layers.rows(groups_under(grid)[1], "loss").query("run == 0 and site == 'validation'")["value"].min()
    assert f"{best:.4g}" in page.texts


def test_columns_that_tell_nothing_are_left_out_and_effects_are_shown_once(grid):
    page = page_of(grid)
    assert not {"alarms", "findings", "unseen", "not trusted", "seconds"} & set(page.texts)
    assert "attention entropy: flat" not in page.texts


def steady(folder, *, change, num_layers=2):
    """Write a run whose entropy moves by this much around 2 nats; return its folder."""
    with open_run(folder, kind="watch", config={}) as run:
        for step in range(20):
            for layer in range(num_layers):
                value = 2 - change * np.sin(np.pi * step / 19) + 1e-6 * layer
                run.add(step, "entropy", value, site=f"h.{layer}", kind="attention", layer=layer)
    return folder


def test_what_counts_as_flat_takes_a_fifth_of_axis_and_colours_at_most(tmp_path):
    for name, change in (("noise", 3e-5), ("flat", 0.039), ("dip", 0.5)):
        steady(tmp_path / name, change=change)
    drawn = {}
    for group in groups_under(tmp_path):
        panel = panels.panel(group, "entropy", "a", panels.share([group]))
        lines, map_ = (Page(plot).figures[0] for plot in panel.plots)
        drawn[group.name] = (lines["layout"]["yaxis"]["autorangeoptions"].get("include"), map_["data"][0], panel.notes)
        names = {name for each in effects.described(group) for name in names_of(each)}
        assert names == {"rebounding" if group.name == "dip" else "flat"}
    for name, change in (("noise", 3e-5), ("flat", 0.039)):
        ends, map_, notes = drawn[name]
        assert ends == [map_["zmin"], map_["zmax"]] and ends[0] < 2 - change < 2 < ends[1]
        assert change <= FLAT_SHARE * (ends[1] - ends[0]) and "span more than that" in notes[0]
    ends, map_, notes = drawn["dip"]
    assert not ends and "zmin" not in map_ and notes == ()


def test_layers_side_by_side_have_a_span_each(tmp_path):
    for name, change in (("a", 1e-5), ("b", 2e-5)):
        steady(tmp_path / name, change=change)
    groups = groups_under(tmp_path)
    panel = panels.compared(groups, "entropy", "a", panels.share(groups))
    [figure] = Page(panel.plots[0]).figures
    spans = figure["layout"]["meta"]["spans"]
    assert list(spans) == list(panel.choices) == ["mean over layers", "layer 0", "layer 1"]
    assert figure["layout"]["yaxis"]["autorangeoptions"]["include"] == spans["mean over layers"]
    assert all(high - low == pytest.approx(0.2, rel=1e-4) for low, high in spans.values())


def test_a_loss_may_fill_more_of_its_axis_and_a_fraction_is_a_part_of_one(tmp_path):
    [group] = groups_under(steady(tmp_path, change=0.1))
    curves = layers.curves(layers.rows(group, "entropy"))
    assert layers.min_span("loss", curves) == pytest.approx(0.02 * 2, rel=1e-5)
    assert layers.min_span("entropy", curves) == pytest.approx(0.1 * 2, rel=1e-5)
    assert layers.min_span("entropy_fraction", curves) == pytest.approx(0.1) and layers.min_span("entropy", []) == 0
