"""A watch: attaching, what it measures, records and reports, its alarm, and letting go."""

import errno
import json
import logging
import math
import re
import runpy
import sys
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import loops
import models
import pandas
import pytest
import torch
from loops import run
from models import ENTROPY_ALONE, Scaled, collapse
from tapping import tapped
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

import joma
from joma.cli import app
from joma.measure.rank import stable_rank
from joma.metrics import METRICS
from joma.probe.alarm import Alarm, AlertKind
from joma.probe.measures import measures_of
from joma.probe.summary import SCANNED, effects_of, layer_lines
from joma.probe.watching import watch
from joma.store import info, open_run, read, read_events


def test_the_example_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["watch_a_loop.py", "--steps", "10", "--out", str(tmp_path / "run")])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "watch_a_loop.py"), run_name="__main__")
    assert "11 steps" in capsys.readouterr().out
    assert sorted(set(read(tmp_path / "run")["step"])) == [0, 1, 2, 5, 10]


def test_steps_that_jump_are_measured_late_rather_than_never():
    """The forward pass of a step that nobody could foresee was not tapped: the next one is, and says so by its step."""
    model = loops.build("hand_written")
    with watch(model, schedule=[0, 1000, 1040], measures="entropy") as seen:
        run(model, "hand_written", seen, [0, 10, 20, 1000, 1010, 1020, 1030, 1040])
    # 10 apart: 1000 came unforeseen after 20, 1010 made up for it; the stride of 10 was known again at 1040.
    assert sorted(set(seen.frame()["step"])) == [0, 1010, 1040]


NO_MODEL = r"`model` must be a torch\.nn\.Module, got str 'gpt2'\. Build or load the model"
REFUSED = {
    "batch": ({"probe_batch": {"token": torch.zeros(1, 3)}}, r"does not run on the probe batch \(TypeError"),
    "no batch": ({"probe_batch": 3}, "`probe_batch` must be keyword arguments, .* got int"),
    "every": ({"every": 0}, "at least 1, got 0"),
    "name": ({"model": "gpt2"}, NO_MODEL),
    "seed": ({"seed": "three"}, "integer"),
    "pattern": ({"attention_pattern": "nowhere"}, "No attention of this HandWritten matches 'nowhere'"),
    "MLPs apart": (
        {"model": models.Apart(), "measures": "ranks"},
        r"no MLP in this Apart\. .* Name it by `mlp_pattern=`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_nothing(name, tmp_path, as_a_user_runs_it):
    settings, message = REFUSED[name]
    model = models.HandWritten()
    with pytest.raises((ValueError, TypeError), match=message):
        watch(**{"model": model, "out": tmp_path / "run"} | settings)
    assert not (tmp_path / "run").exists()
    with watch(model), pytest.raises(ValueError, match="This HandWritten is being watched already"):
        watch(model)


def test_a_model_without_attention_is_refused_with_how_to_measure_its_ranks():
    model = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1), nn.Linear(16, 8), nn.Softmax(-1))
    asked = r'made no attention call|has no attention .* For the ranks of its MLP alone, pass `measures="ranks"`'
    for settings in ({}, {"probe_batch": torch.zeros(1, 8)}):
        with pytest.raises(ValueError, match=asked) as caught:
            watch(model, **settings)
        assert "\n" not in str(caught.value)
    with watch(model, every=1, measures="ranks") as seen:
        seen.step()
    assert seen.frame().query("metric == 'stable_rank'")["site"].tolist() == ["0"]


def test_values_are_means_over_the_rows_that_count():
    model, inputs = models.build("llama"), models.inputs("llama")
    with watch(model, measures="attention", every=1, probe_batch=inputs, heads=True) as seen:
        seen.step(0)
    table = seen.frame().set_index(["metric", "layer", "head"])["value"]
    for call, found in tapped(model, **inputs)[0]:
        for metric, values in (("entropy", found.entropy), ("entropy_fraction", found.fraction)):
            rows = values.double().transpose(0, 1).flatten(1)  # padding is NaN
            assert table[metric, call.layer, -1] == pytest.approx(rows[~rows.isnan()].mean().item())
            by_head = [table[metric, call.layer, head] for head in range(models.HEADS)]
            assert by_head == pytest.approx(rows.nanmean(1).tolist())


def test_the_training_batch_gives_the_values_of_its_own_forward_pass():
    """Without dropout a probe batch and the same training batch must agree."""
    inputs = models.inputs("llama")
    values = []
    for settings in ({}, {"probe_batch": inputs}):
        model = models.build("llama")
        with watch(model, measures="full", every=1, heads=True, **settings) as seen:
            model(**inputs)
            seen.step(0)
        values.append(seen.frame().query("kind == 'attention'"))
    pandas.testing.assert_frame_equal(*values)


def test_matrices_agree_with_a_decomposition():
    model = models.build("llama")
    frame = loops.watched("llama", 2, model=model, measures="full", heads=True).frame()
    table = frame.query("step == 1").set_index(["site", "metric", "head"])["value"]
    for number, layer in enumerate(model.model.layers):
        for part in ("gate_proj", "up_proj"):
            site, weight = f"model.layers.{number}.mlp.{part}", getattr(layer.mlp, part).weight.double()
            # The tolerance is what the tracker allows itself before it flags a value; a rank has the norm squared.
            assert table[site, "stable_rank", -1] == pytest.approx(stable_rank(weight).item(), rel=0.04)
            norm = torch.linalg.matrix_norm(weight, 2).item()
            assert table[site, "spectral_norm", -1] == pytest.approx(norm, rel=0.02)
            assert table[site, "frobenius_norm", -1] == pytest.approx(weight.norm().item(), rel=1e-6)
            assert table[site, "rank_residual", -1] <= 0.02
        q, k = layer.self_attn.q_proj.weight.double(), layer.self_attn.k_proj.weight.double()
        k = k.unflatten(0, (2, -1)).repeat_interleave(models.HEADS // 2, dim=0)
        values = torch.linalg.svdvals(q.unflatten(0, (models.HEADS, -1)).mT @ k)
        site = f"model.layers.{number}.self_attn"
        for name, naive in (
            ("qk_stable_rank", values.square().sum(-1) / values[:, 0] ** 2),
            ("qk_spectral_norm", values[:, 0]),
        ):
            assert [table[site, name, head] for head in range(models.HEADS)] == pytest.approx(naive.tolist())
        assert table[site, "qk_spectral_norm", -1] == pytest.approx(values.max().item())
    assert (frame.query("not metric.str.startswith('update')")["flag"] == "").all()


def test_the_presets_measure_one_sequence():
    model = models.HandWritten()
    inputs = loops.batch("hand_written", 3)["tokens"]
    tables = []
    for measures, tokens in (("cheap", inputs), ("standard", inputs), ("attention", inputs[:1])):
        with watch(model, every=1, measures=measures) as seen:
            model(tokens=tokens)
            seen.step(0)
        tables.append(seen.frame().query("kind == 'attention'").set_index(["site", "metric"])["value"])
    cheap, standard, alone = tables
    pandas.testing.assert_series_equal(standard, alone, atol=1e-6)
    pandas.testing.assert_series_equal(cheap, alone[cheap.index], atol=1e-6)
    assert "max_logit" in standard.index.get_level_values("metric")
    assert [each.name for each in measures_of("cheap")] == ["entropy", "ranks"]


def test_a_pattern_picks_sites_and_matrices():
    patterns = {"attention_pattern": r"blocks\.1", "mlp_pattern": r"out\.weight"}
    table = loops.watched("hand_written", **patterns).frame()
    assert set(table.query("kind == 'attention'")["site"]) == {"blocks.1"}
    assert set(table.query("kind == 'mlp'")["site"]) == {"blocks.0.out", "blocks.1.out"}


FORMS = {
    "keywords": lambda tokens: {"tokens": tokens},
    "arguments": lambda tokens: (tokens,),
    "list": lambda tokens: [tokens],
    "tensor": lambda tokens: tokens,
    "function": lambda tokens: lambda model: model(tokens),
}


@pytest.mark.parametrize("batch", FORMS.values(), ids=FORMS)
def test_probe_batches_of_every_form(batch):
    tokens = loops.batch("hand_written", 0)["tokens"]
    given = batch(tokens.clone())
    with watch(loops.build("hand_written"), every=1, probe_batch=given, measures="entropy") as seen:
        if isinstance(given, torch.Tensor):
            given.zero_()  # a later change is not felt
        seen.step()
    with watch(loops.build("hand_written"), every=1, probe_batch={"tokens": tokens}, measures="entropy") as other:
        other.step()
    values = [each.frame().query("kind == 'attention'")["value"].tolist() for each in (seen, other)]
    assert values[0] == values[1]


def test_a_measurement_waits_for_the_device_as_often_however_many_layers_there_are(monkeypatch):
    """On a GPU each of these calls is a stop."""
    waits = []

    def noted(honest):
        return lambda *args, **kwargs: waits.append(honest.__name__) or honest(*args, **kwargs)

    for name in ("tolist", "item", "cpu", "__float__", "__bool__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, noted(getattr(torch.Tensor, name)))

    def num_waits(num_layers):
        model = models.HandWritten(layers=num_layers)
        with watch(model, every=1, probe_batch=models.inputs("gpt2", padded=False)["input_ids"]) as seen:
            seen.step(0)
            waits.clear()
            seen.step(1)
        return len(waits)

    assert 0 < num_waits(6) == num_waits(2)


COLUMNS = "step site kind layer head metric value flag"
ATTENTION = (
    "entropy entropy_fraction effective_keys first_key_mass mean_distance max_logit logit_variance key_bias_share"
)
ATTENTION += " state_norm token_spread entropy_lowest_before_clamp qk_spectral_norm qk_stable_rank"
RANKS = "stable_rank spectral_norm frobenius_norm rank_residual update_norm update_stable_rank"


def test_the_record_of_a_run(tmp_path):
    model = loops.build("hand_written")
    with watch(model, out=tmp_path / "run", every=2, measures="full") as seen:
        run(model, "hand_written", seen, range(5))
        pandas.testing.assert_frame_equal(seen.frame(), read(tmp_path / "run"))
    table = read(tmp_path / "run")
    assert table.columns.tolist() == COLUMNS.split()
    assert sorted(set(table["step"])) == [0, 2, 4]
    attention = table.query("kind == 'attention'")
    assert set(attention["site"]) == {"blocks.0", "blocks.1"}
    assert set(attention["metric"]) == set(ATTENTION.split())
    assert set(table.query("kind == 'mlp'")["metric"]) == set(RANKS.split())
    assert set(table.query("kind == 'mlp'")["site"]) == {"blocks.0.mlp.0", "blocks.1.mlp.0"}
    assert table.query("metric == 'loss'")["value"].between(1, 10).all()
    assert (table.query("kind == 'cost' and metric == 'seconds'")["value"] > 0).all()
    assert (table["head"] == -1).all()
    about = info(tmp_path / "run")
    assert (about.kind, about.status, about.about["model"]) == ("watch", "finished", "HandWritten")
    assert about.config["measures"] == ["attention", "ranks", "qk_norms", "gradients", "updates"]
    assert about.config["batch"] == "training"


def test_a_resumed_run_starts_anywhere(tmp_path):
    model = loops.build("hand_written")
    with watch(model, out=tmp_path, every=10) as seen:
        run(model, "hand_written", seen, range(3))
    with watch(model, out=tmp_path, every=10) as seen:
        with pytest.raises(ValueError, match="Pass `step`"):
            seen.step()
        run(model, "hand_written", seen, range(20, 23))
    assert sorted(set(read(tmp_path)["step"])) == [0, 20]
    assert len(info(tmp_path).resumed) == 1


def test_a_loop_that_raises_ends_the_run_as_failed(tmp_path):
    with pytest.raises(ZeroDivisionError), watch(models.HandWritten(), out=tmp_path):
        raise ZeroDivisionError
    assert info(tmp_path).status == "failed"


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("ends_full", [False, True])
def test_a_full_disk_does_not_stop_training_and_is_reported_once(tmp_path, monkeypatch, caplog, ends_full):
    monkeypatch.setattr("joma.probe.watching.open_run", partial(open_run, flush_seconds=0))
    model = loops.build("hand_written")
    seen = watch(model, out=tmp_path, every=1)
    with monkeypatch.context() as patch:
        patch.setattr("joma.store.files.os.fsync", full)
        run(model, "hand_written", seen, range(3))
        summary = seen.summary()
        if ends_full:
            seen.close()
    seen.close()
    with pytest.raises(ValueError, match="it is closed"):
        seen.step()
    assert "full" in summary
    assert caplog.text.count("The disk is full") == 1
    assert set(read(tmp_path)["step"]) == (set() if ends_full else {0, 1, 2})
    watch(model, out=tmp_path).close()  # the folder is free


def test_a_full_disk_costs_no_row_once_there_is_room(tmp_path, monkeypatch, caplog):
    """Also where the first row of a step is what finds the disk full, as it does after a long step."""
    clock = count(step=60)
    monkeypatch.setattr("joma.store.record.monotonic", lambda: next(clock))
    model = loops.build("hand_written")
    with watch(model, out=tmp_path, every=1) as seen:
        with monkeypatch.context() as patch:
            patch.setattr("joma.store.files.os.fsync", full)
            run(model, "hand_written", seen, range(3))
            assert read(tmp_path).empty
    assert caplog.text.count("The disk is full") == 1
    assert read(tmp_path).groupby("step").size().nunique() == 1
    assert set(read(tmp_path)["step"]) == {0, 1, 2}


def test_a_watch_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch):
    model = models.HandWritten()
    watch(model, out=tmp_path).close()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("joma.probe.watching.read_events", lambda folder: 1 / 0)
        watch(model, out=tmp_path)
    assert info(tmp_path).status == "failed"
    watch(model, out=tmp_path).close()  # neither the model nor the folder is taken


@pytest.mark.parametrize("probe", [True, False])
def test_a_dry_run_reports_and_leaves_nothing(tmp_path, probe):
    model = loops.build("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"probe_batch": models.inputs("llama")} if probe else {}
    seen = watch(model, out=tmp_path / "run", dry_run=True, measures="full", **settings)
    summary = str(seen)
    for part in ("model.layers.1.self_attn", "model.layers.0.mlp.gate_proj 96×32", "W_QᵀW_K", "A measurement takes"):
        assert part in summary
    assert not (tmp_path / "run").exists()
    loops.assert_same(before, dict(model.state_dict()))
    with pytest.raises(ValueError, match="is not attached: it was a dry run"):
        seen.step()
    watch(model).close()  # nothing is left that would refuse another


def test_a_loss_in_place_of_the_step_is_refused_with_the_way_to_pass_it():
    with watch(loops.build("llama")) as seen:
        with pytest.raises(TypeError, match="Pass a loss by its name, `loss=`"):
            seen.step(torch.tensor(1.5))
        seen.step(0, loss=torch.tensor(1.5))


def test_what_cannot_be_seen_is_reported(tmp_path, caplog):
    model = models.HandWritten()
    model.blocks[1].mlp = nn.Identity()
    seen = loops.watched("hand_written", 2, model=model, out=tmp_path)
    events = read_events(tmp_path).query("kind == 'unseen'")
    assert events["site"].tolist() == ["blocks.1"]
    assert "No lower matrix" in events["message"].item() and events["level"].item() == "warning"
    assert caplog.text.count("joma cannot see blocks.1: No lower matrix") == 1
    assert "blocks.1: No lower matrix" in seen.summary()


def test_the_pattern_that_is_asked_for_is_enough():
    seen = loops.watched("hand_written", model=models.Apart(), mlp_pattern=r"mlps\.\d+\.0\.weight")
    ranks = seen.frame().query("metric == 'stable_rank'")
    assert list(zip(ranks["layer"], ranks["site"], strict=True)) == [(0, "mlps.0.0"), (1, "mlps.1.0")]
    assert seen.events().empty
    assert watch(models.Apart(), dry_run=True).unseen
    assert not watch(models.Apart(), dry_run=True, measures="entropy").unseen  # nobody asked for matrices


def test_a_step_without_a_forward_pass_is_reported(caplog):
    with watch(models.HandWritten(), every=1, measures="entropy") as seen:
        seen.step()
        seen.step()
    (event,) = seen.events().itertuples()
    assert event.kind == "unseen" and event.message.startswith("No attention call was seen in the step's forward pass.")
    assert caplog.text.count("No attention call was seen") == 1


@pytest.fixture(scope="module")
def dipping():
    """A watch of one layer whose attention sharpens and spreads again."""
    model = Scaled()
    with watch(model, every=1, alarm=False) as seen:
        for step in range(30):
            model.sharpness = 1.0 + 5.0 * math.exp(-(((step - 10) / 3) ** 2))
            model(**loops.batch("hand_written", 0))
            seen.step(loss=5.0 - 0.1 * step)
    return seen


def test_a_summary_has_first_lowest_and_last_value_and_effect_of_every_layer(dipping):
    table = dipping.to_frame().pivot_table(index="step", columns="metric", values="value")
    entropy, rank, logit = (table[name] for name in ("entropy", "stable_rank", "max_logit"))
    header, columns, row, remark = dipping.summary().splitlines()
    curve = ["first", "lowest", "(step)", "last", "effect"]
    assert [header.split()[0], *columns.split()] == ["layer", *curve, *curve, "last"]
    effect = effects_of(dipping.to_frame())["entropy", 0]
    expected = [0, entropy[0], entropy.min(), 10, entropy[29], -effect.fall.value, effect.rise.value]
    expected += [rank[0], rank.min(), rank.idxmin(), rank[29], 0, 0, logit[29]]  # the MLP does not learn
    cells = [float(cell) for cell in re.sub(r"[()]", "", row).replace("−", "-").split()]
    assert cells == pytest.approx(expected, abs=0.06)
    assert entropy.min() < entropy[29] - 0.05
    assert "30 steps" in remark and "%" in remark


def test_small_values_of_a_summary_keep_their_digits():
    rows = [
        (step, metric, "h.0", 0, -1, 10.0**-size) for step in (0, 1) for size, metric in enumerate(SCANNED, start=1)
    ]
    table = pandas.DataFrame(rows, columns=["step", "metric", "site", "layer", "head", "value"])
    cells = re.sub(r"\(\d\)", "", layer_lines(table, SCANNED)[2]).split()
    assert [float(cell) for cell in cells[1:]] == pytest.approx([0.1] * 3 + [0.01] * 3 + [0.001] * 2 + [0.0001] * 2)


def test_a_watch_shows_itself_in_a_notebook_and_as_a_chart(dipping):
    html = dipping._repr_html_()
    assert "<table" in html and "max_logit" in html
    spec = json.dumps(dipping.plot().to_dict())
    assert all(METRICS[name].axis in spec for name in ("entropy", "stable_rank", "max_logit", "loss"))
    with pytest.raises(ValueError, match="nothing was measured yet"):
        watch(Scaled(), dry_run=True).plot()


def test_runs_are_compared_side_by_side(tmp_path):
    for name, sharpness in (("a", 1.0), ("b", 3.0)):
        model = Scaled()
        model.sharpness = sharpness
        with watch(model, out=tmp_path / name, every=1) as seen:
            model(**loops.batch("hand_written", 0))
            seen.step(0, loss=sharpness)
    found = joma.compare([tmp_path / "a", tmp_path / "b"]).set_index(["metric", "layer", "run"])
    for name in ("a", "b"):
        values = read(tmp_path / name).set_index(["metric", "layer"])["value"]
        for key in (("entropy", 0), ("max_logit", 0), ("loss", -1)):
            assert found.loc[(*key, name), ["first", "lowest", "last"]].tolist() == [values[key]] * 3
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert {(row["metric"], row["run"]) for row in json.loads(done.output)} >= {("loss", "a"), ("loss", "b")}
    shown = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output
    assert METRICS["max_logit"].axis in shown
    with pytest.raises(ValueError, match="two runs or more, got 1"):
        joma.compare([tmp_path / "a"])


@pytest.mark.parametrize(
    ("sharpness", "kind"), [(1e4, AlertKind.COLLAPSE), (0.0, AlertKind.UNIFORM)], ids=["collapse", "uniform"]
)
def test_the_alarm_rings_once_is_logged_recorded_and_reported(tmp_path, caplog, sharpness, kind):
    model, alerts = Scaled(), []
    with watch(model, out=tmp_path, every=1, alarm=ENTROPY_ALONE, on_alarm=alerts.append) as seen:
        collapse(seen, model, range(10), first_sharp=4, sharpness=sharpness)
    (alert,) = alerts
    assert alerts == seen.alerts
    assert (alert.kind, alert.since, alert.step, alert.site, alert.layer) == (kind, 4, 6, "block.blocks.0", 0)
    (event,) = read_events(tmp_path).query("kind == 'alarm'").itertuples()
    assert (event.step, event.site, event.level) == (6, "block.blocks.0", "warning")
    assert json.loads(event.evidence)["value"] == pytest.approx(alert.value)
    (record,) = [record for record in caplog.records if record.name == "joma"]
    assert (record.levelno, record.message) == (logging.WARNING, alert.message)
    assert alert.message in seen.summary()


def test_a_fresh_model_that_trains_is_silent(caplog):
    """Attention of a new GPT-2 is uniform for many measurements: that is how every training starts."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": models.VOCABULARY}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).train()
    seen = loops.watched("gpt2", 30, model=model)
    fractions = seen.frame().query("metric == 'entropy_fraction'")["value"]
    assert (fractions > Alarm().uniform).all()
    assert not seen.alerts and not caplog.records


def test_a_hook_may_stop_training_and_the_alarm_can_be_switched_off():
    def stop(alert):
        raise KeyboardInterrupt(alert.message)

    model = Scaled()
    with (
        pytest.raises(KeyboardInterrupt, match="at step 4"),
        watch(model, every=1, on_alarm=stop, alarm=replace(ENTROPY_ALONE, patience=1)) as seen,
    ):
        collapse(seen, model, range(10), first_sharp=4)
    assert len(seen.events().query("kind == 'alarm'")) == 1
    with watch(model, every=1, on_alarm=stop, alarm=False) as seen:
        collapse(seen, model, range(6), first_sharp=0)


def test_a_full_disk_does_not_silence_the_alarm(tmp_path, monkeypatch):
    model, alerts = Scaled(), []
    with (
        watch(model, out=tmp_path, every=1, alarm=ENTROPY_ALONE, on_alarm=alerts.append) as seen,
        monkeypatch.context() as patch,
    ):
        patch.setattr("joma.store.record.RunWriter.add", lambda *args, **settings: 1 / 0)
        collapse(seen, model, range(5), first_sharp=0)
    assert [alert.step for alert in alerts] == [2]


# A newcomer who follows `joma.watch` meets few files before the first recorded value.

ROOT = Path(joma.__file__).parent
MOST_FILES = 20


def files_that_run(action):
    """Files of joma with a function that runs during an action; importing a module does not count."""
    ran = set()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            ran.add(code.co_filename)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(name).relative_to(ROOT)) for name in ran if Path(name).is_relative_to(ROOT))


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "on disk"])
def test_few_files_run_between_watch_and_the_first_value(in_memory, tmp_path, as_a_user_runs_it):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(10, 16), nn.TransformerEncoder(layer, 2))
    watch, seen = joma.watch, []

    def first_value():
        seen.append(watch(model, out=None if in_memory else tmp_path, every=1))
        model(torch.ones(2, 8, dtype=torch.long))
        seen[0].step(0)

    files = files_that_run(first_value)
    seen[0].close()
    assert {"entropy", "stable_rank"} <= set(seen[0].frame()["metric"])
    assert len(files) <= MOST_FILES, files
