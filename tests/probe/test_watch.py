"""What a watch sees, records, refuses and tells; what it leaves alone is in test_untouched."""

import json
import logging
import math
import random
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import loops
import models
import pandas
import pytest
import torch
from torch import nn

import joma
from joma.measure.rank import qk_spectral_norms, stable_rank
from joma.probe.alarm import Alarm, AlertKind
from joma.probe.loggers import Logger, TensorBoard, WandB
from joma.probe.measures import Flagged, Matrix, Reduction, WarmRanks, forget_measure, measures_of, register_measure
from joma.probe.readings import Readings
from joma.probe.schedule import Logarithmic
from joma.probe.summary import curves_in_words
from joma.probe.watch import watch
from joma.runs.record import info, read, read_events

NUM_KILLS = 20
EXAMPLE = Path(__file__).parents[2] / "examples" / "watch_a_loop.py"
COLUMNS = ["step", "site", "kind", "layer", "head", "metric", "value", "flag"]
ATTENTION = {
    "entropy",
    "entropy_fraction",
    "effective_keys",
    "sink_mass",
    "mean_distance",
    "max_logit",
    "entropy_lowest_before_clamp",
}
RANKS = {"stable_rank", "spectral_norm", "frobenius_norm", "rank_residual"}


@pytest.fixture
def measure():
    """Register measures for one test."""
    names = []

    def register(name, function, **settings):
        register_measure(name, function, **settings)
        names.append(name)

    yield register
    for name in names:
        forget_measure(name)


def run(model, name, seen, steps):
    """Step through a training without learning anything: the forward pass is all that a watch needs."""
    for step in steps:
        seen.step(step, loss=loops.loss_of(model, loops.batch(name, step)))


def materialised(name, inputs):
    """Entropy and its fraction, mean over visible rows, by float64 attention that the model itself returns."""
    model = models.build(name, attn_implementation="eager").double()
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    rows = inputs["attention_mask"].bool()[:, None, :].expand(-1, models.HEADS, -1)
    length = rows.shape[-1]
    found = []
    for p in weights:
        entropy = torch.special.entr(p).sum(-1)
        visible = inputs["attention_mask"][:, None, None, :].expand(-1, -1, length, -1).bool()
        if name != "bert":
            visible = visible & torch.ones(length, length).tril().bool()
        count = visible.sum(-1).expand_as(entropy)
        fraction = entropy / count.double().log()
        found.append((entropy.mean().item(), fraction[count > 1].mean().item(), entropy.mean((0, 2)).tolist()))
    assert rows.any()
    return found


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "gpt_neox"])
def test_values_agree_with_materialised_attention(name):
    inputs = models.inputs(name)
    model = models.build(name).train()
    with watch(model, measures="attention", every=1, probe_batch=inputs, heads=True) as seen:
        seen.step(0)
    table = seen.frame().set_index(["metric", "layer", "head"])["value"]
    for layer, (entropy, fraction, by_head) in enumerate(materialised(name, inputs)):
        assert table["entropy", layer, -1] == pytest.approx(entropy, abs=1e-4)
        assert table["entropy_fraction", layer, -1] == pytest.approx(fraction, abs=1e-4)
        assert [table["entropy", layer, head] for head in range(models.HEADS)] == pytest.approx(by_head, abs=1e-4)


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
    with watch(model, measures="full", every=1, heads=True) as seen:
        run(model, "llama", seen, range(2))
    table = seen.frame().query("step == 1").set_index(["site", "metric", "head"])["value"]
    for number, layer in enumerate(model.model.layers):
        for part in ("gate_proj", "up_proj"):
            site, weight = f"model.layers.{number}.mlp.{part}", getattr(layer.mlp, part).weight.double()
            # The tolerance is what the tracker allows itself before it flags a value; a rank has the norm squared.
            assert table[site, "stable_rank", -1] == pytest.approx(stable_rank(weight).item(), rel=0.04)
            assert table[site, "spectral_norm", -1] == pytest.approx(
                torch.linalg.matrix_norm(weight, 2).item(), rel=0.02
            )
            assert table[site, "frobenius_norm", -1] == pytest.approx(weight.norm().item(), rel=1e-6)
            assert table[site, "rank_residual", -1] <= 0.02
        attention = layer.self_attn
        norms = qk_spectral_norms(attention.q_proj.weight, attention.k_proj.weight, models.HEADS, 2)
        site = f"model.layers.{number}.self_attn"
        assert [table[site, "qk_spectral_norm", head] for head in range(models.HEADS)] == pytest.approx(norms.tolist())
        assert table[site, "qk_spectral_norm", -1] == pytest.approx(norms.max().item())
    assert (seen.frame()["flag"] == "").all()


def test_warm_ranks_follow_weights_that_move():
    generator = torch.Generator().manual_seed(0)
    ranks = WarmRanks()
    weight = torch.randn(300, 220, generator=generator)
    for _ in range(10):
        weight = weight + 0.3 * torch.randn(300, 220, generator=generator)
        (found,) = ranks([Matrix(site="w", layer=0, weight=weight)])
        exact = stable_rank(weight).item()
        assert found["stable_rank"].value == pytest.approx(exact, rel=0.06)
        assert found["stable_rank"].value >= exact * (1 - 1e-6)  # a norm from products never exceeds the true one
        assert bool(found["stable_rank"].flag) == (found["rank_residual"] > 0.02)


def test_warm_ranks_notice_when_another_singular_value_takes_the_lead():
    """Two values cross; products from the vector of the old one alone would never find the other but for rounding."""
    generator = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(300, 200, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(200, 200, generator=generator))
    ranks = WarmRanks()
    for step in range(30):
        values = torch.linspace(0, 1, 200)
        values[:2] = torch.tensor([2.0 - 0.02 * step, 1.4 + 0.02 * step])
        (found,) = ranks([Matrix(site="w", layer=0, weight=left @ torch.diag(values) @ right.T)])
        assert found["spectral_norm"].value == pytest.approx(values.max().item(), rel=0.05)
    assert found["spectral_norm"].value == pytest.approx(values.max().item(), rel=1e-4)


def test_matrices_without_a_rank_are_flagged_and_ranked_again_later():
    ranks = WarmRanks()
    (found,) = ranks([Matrix(site="w", layer=0, weight=torch.zeros(4, 3))])
    assert math.isnan(found["stable_rank"].value) and found["spectral_norm"] == Flagged(0.0, "every entry is 0")
    (found,) = ranks([Matrix(site="w", layer=0, weight=torch.full((4, 3), torch.nan))])
    assert math.isnan(found["spectral_norm"].value)
    assert found["stable_rank"].flag == "12 of 12 entries are NaN or infinite"
    for size in (3, 2):  # the second has another shape
        (found,) = ranks([Matrix(site="w", layer=0, weight=torch.eye(size))])
        assert found["stable_rank"].value == pytest.approx(size)


def test_ranks_of_many_matrices_are_those_of_each():
    """Two shapes, one of them lying, one matrix that was measured before, one without a rank."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (60, 40), "b": (60, 40), "lying": (40, 60), "c": (50, 30), "known": (60, 40)}
    matrices = [
        Matrix(site=site, layer=0, weight=torch.randn(shape, generator=generator)) for site, shape in shapes.items()
    ]
    matrices.append(Matrix(site="zero", layer=0, weight=torch.zeros(60, 40)))
    together, apart = WarmRanks(), WarmRanks()
    for ranks in (together, apart):
        ranks([matrices[4]])
    for found, matrix in zip(together(matrices), matrices, strict=True):
        (alone,) = apart([matrix])
        assert found.keys() == alone.keys()
        for name, value in found.items():
            one, other = (v.value if isinstance(v, Flagged) else v for v in (value, alone[name]))
            assert one == pytest.approx(other, rel=1e-4, nan_ok=True), (matrix.site, name)


def test_a_matrix_that_cannot_be_measured_does_not_spoil_the_others(monkeypatch):
    model = models.HandWritten()
    honest = WarmRanks.__call__

    def fragile(self, matrices):
        if any(matrix.layer == 1 for matrix in matrices):
            raise RuntimeError("broken")
        return honest(self, matrices)

    monkeypatch.setattr(WarmRanks, "__call__", fragile)
    with watch(model, every=1, measures="ranks") as seen:
        seen.step(0)
    assert set(seen.frame().query("kind == 'mlp'")["layer"]) == {0}
    assert seen.events()[["site", "message"]].to_numpy().tolist() == [["blocks.1.mlp.0", "RuntimeError: broken"]]


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


def test_the_record_of_a_run(tmp_path):
    model = loops.build("hand_written")
    with watch(model, out=tmp_path / "run", every=2, measures="full") as seen:
        run(model, "hand_written", seen, range(5))
        pandas.testing.assert_frame_equal(seen.frame(), read(tmp_path / "run"))
    table = read(tmp_path / "run")
    assert table.columns.tolist() == COLUMNS
    assert sorted(set(table["step"])) == [0, 2, 4]
    attention = table.query("kind == 'attention'")
    assert set(attention["site"]) == {"blocks.0", "blocks.1"}
    assert set(attention["metric"]) == ATTENTION | {"qk_spectral_norm"}
    assert set(table.query("kind == 'mlp'")["metric"]) == RANKS
    assert set(table.query("kind == 'mlp'")["site"]) == {"blocks.0.mlp.0", "blocks.1.mlp.0"}
    assert table.query("metric == 'loss'")["value"].between(1, 10).all()
    assert (table.query("kind == 'cost' and metric == 'seconds'")["value"] > 0).all()
    assert (table["head"] == -1).all()
    about = info(tmp_path / "run")
    assert (about.kind, about.status, about.about["model"]) == ("watch", "finished", "HandWritten")
    assert about.config["measures"] == ["attention", "ranks", "qk_norms"]
    assert about.config["batch"] == "training"


def test_seeds_and_what_else_there_is_to_say_are_recorded(tmp_path):
    for seed in range(2):
        model = loops.build("hand_written")
        settings = {"seed": seed, "about": {"learning_rate": 0.1}, "measures": "ranks"}
        with watch(model, out=tmp_path / f"run-{seed}", every=1, **settings) as seen:
            seen.step(0)
        about = info(tmp_path / f"run-{seed}").about
        assert about["seed"] == seed and about["learning_rate"] == 0.1 and about["model"] == "HandWritten"


def test_a_seed_that_is_no_number_is_refused(tmp_path, as_a_user_runs_it):
    with pytest.raises(TypeError, match="integer"):
        watch(loops.build("hand_written"), out=tmp_path / "bad", seed="three")
    assert not (tmp_path / "bad").exists()


def test_the_cheap_preset_measures_entropy_of_one_sequence_and_ranks():
    model = models.HandWritten()
    inputs = loops.batch("hand_written", 3)
    with watch(model, every=1) as cheap:
        model(**inputs)
        cheap.step(0)
    with watch(model, every=1, measures="attention") as full:
        model(tokens=inputs["tokens"][:1])
        full.step(0)
    cheap, full = (seen.frame().query("metric == 'entropy'")["value"].tolist() for seen in (cheap, full))
    assert cheap == pytest.approx(full, abs=1e-6)
    assert [each.name for each in measures_of("cheap")] == ["entropy", "ranks"]


def test_one_line_in_a_loop_is_found_at_the_top():
    assert joma.watch is watch
    assert joma.register_measure is register_measure


def test_steps_are_counted_where_none_is_given():
    model = loops.build("hand_written")
    with watch(model, schedule=Logarithmic(), measures="ranks") as seen:
        for _ in range(12):
            seen.step()
    assert sorted(set(seen.frame()["step"])) == [0, 1, 2, 5, 10]


def test_steps_that_jump_are_measured_late_rather_than_never():
    """The forward pass of a step that nobody could foresee was not tapped: the next one is, and says so by its step."""
    model = loops.build("hand_written")
    with watch(model, schedule=[0, 1000, 1040], measures="entropy") as seen:
        run(model, "hand_written", seen, [0, 10, 20, 1000, 1010, 1020, 1030, 1040])
    # 10 apart: 1000 came unforeseen after 20, 1010 made up for it; the stride of 10 was known again at 1040.
    assert sorted(set(seen.frame()["step"])) == [0, 1010, 1040]


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


class Scaled(nn.Module):
    """One layer whose queries a test makes as sharp, or as flat, as it likes."""

    def __init__(self):
        """Start ordinary."""
        super().__init__()
        self.block = models.HandWritten(layers=1)
        self.sharpness = 1.0

    def forward(self, tokens):
        with torch.no_grad():
            self.block.blocks[0].qkv.weight[: models.WIDTH] = self.sharpness * torch.eye(models.WIDTH)
            self.block.blocks[0].qkv.weight[models.WIDTH : 2 * models.WIDTH] = torch.eye(models.WIDTH)
            self.block.blocks[0].qkv.bias.zero_()
        return self.block(tokens)


def collapse(seen, model, steps, first_sharp, sharpness=1e4):
    for step in steps:
        model.sharpness = sharpness if step >= first_sharp else 1.0
        # Every token once: two of a kind share a row's attention, however sharp it is.
        model(torch.randperm(models.VOCABULARY, generator=torch.Generator().manual_seed(step))[None, :12])
        seen.step(step)


@pytest.mark.parametrize(
    ("sharpness", "kind"), [(1e4, AlertKind.COLLAPSE), (0.0, AlertKind.UNIFORM)], ids=["collapse", "uniform"]
)
def test_the_alarm_rings_once_is_logged_recorded_and_told(tmp_path, caplog, sharpness, kind):
    model, told = Scaled(), []
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(10), first_sharp=4, sharpness=sharpness)
    (alert,) = told
    assert told == seen.alerts
    assert (alert.kind, alert.since, alert.step, alert.site, alert.layer) == (kind, 4, 6, "block.blocks.0", 0)
    (event,) = read_events(tmp_path).query("kind == 'alarm'").itertuples()
    assert (event.step, event.site, event.level) == (6, "block.blocks.0", "warning")
    assert json.loads(event.evidence)["fraction"] == pytest.approx(alert.fraction)
    (record,) = [record for record in caplog.records if record.name == "joma"]
    assert (record.levelno, record.message) == (logging.WARNING, alert.message)
    assert alert.message in seen.report()


def test_the_alarm_of_a_resumed_run_does_not_ring_again(tmp_path):
    model, told = Scaled(), []
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(6), first_sharp=4)
    assert not told
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(6, 9), first_sharp=0)
    assert [alert.step for alert in told] == [6]  # two measurements before the break, one behind it
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(9, 12), first_sharp=0)
    assert len(told) == 1
    assert len(read_events(tmp_path).query("kind == 'alarm'")) == 1


def test_a_hook_may_stop_training_and_the_alarm_can_be_switched_off():
    def stop(alert):
        raise KeyboardInterrupt(alert.message)

    model = Scaled()
    with (
        pytest.raises(KeyboardInterrupt, match="collapsed at step 4"),
        watch(model, every=1, on_alarm=stop, alarm=Alarm(patience=1)) as seen,
    ):
        collapse(seen, model, range(10), first_sharp=4)
    assert len(seen.events().query("kind == 'alarm'")) == 1
    with watch(model, every=1, on_alarm=stop, alarm=False) as seen:
        collapse(seen, model, range(6), first_sharp=0)


def test_measures_of_the_user(measure):
    seen_by = {"attention": [], "matrix": [], "query_key": [], "model": []}

    def take(subject, result):
        def function(thing):
            seen_by[subject].append(thing)
            return result(thing)

        measure(f"my_{subject}", function, on=subject, reductions={"top": "max"})

    take("attention", lambda call: {"query_norm": call.q.norm(dim=-1), "top": call.q.amax(dim=(-1, -2, 0))})
    take("matrix", lambda matrix: {"mean": matrix.weight.mean()})
    take("query_key", lambda pair: {"ratio": Flagged(float(pair.query.norm() / pair.key.norm()), "mine")})
    take("model", lambda model: len(list(model.parameters())))
    model = loops.build("llama")
    with watch(model, every=1, measures=[f"my_{subject}" for subject in seen_by], heads=True) as seen:
        run(model, "llama", seen, range(1))
    table = seen.frame().set_index(["site", "metric", "head"])
    q = seen_by["attention"][0].q
    assert table.loc[("model.layers.0.self_attn", "query_norm", -1), "value"] == pytest.approx(q.norm(dim=-1).mean())
    assert table.loc[("model.layers.0.self_attn", "query_norm", 2), "value"] == pytest.approx(
        q[:, 2].norm(dim=-1).mean()
    )
    assert table.loc[("model.layers.0.self_attn", "top", -1), "value"] == pytest.approx(q.max())
    assert table.loc[("", "my_model", -1), "value"] == len(list(model.parameters()))
    assert table.loc[("model.layers.1.self_attn", "ratio", -1), "flag"] == "mine"
    assert seen_by["matrix"][0].site == "model.layers.0.mlp.gate_proj"
    assert ("model.layers.0.mlp.gate_proj", "mean", -1) in table.index


def test_measures_that_are_refused(as_a_user_runs_it):
    with pytest.raises(ValueError, match="'ranks' is a measure of joma's own"):
        register_measure("ranks", print)
    with pytest.raises(ValueError, match=r"no subject of a measure named 'atention'\. Did you mean 'attention'"):
        register_measure("mine", print, on="atention")
    with pytest.raises(TypeError, match="must be a function, got 3"):
        register_measure("mine", 3)
    with pytest.raises(ValueError, match=r"no measure named 'rank'\. Did you mean 'ranks'"):
        measures_of("rank")
    with pytest.raises(ValueError, match="`measures` is empty"):
        measures_of(())
    with pytest.raises(ValueError, match="no registered measure named 'mine'"):
        forget_measure("mine")


def test_readings_are_reduced_over_rows_and_calls_without_nan():
    readings = Readings()
    first = torch.tensor([[[1.0, 2.0, torch.nan], [3.0, torch.nan, torch.nan]]])
    second = torch.tensor([[[6.0], [5.0]]])
    for rows in (first, second):
        readings.add("a", "attention", 0, {"mean": rows, "most": rows, "one": 2.0}, {"most": Reduction.MAX})
    values = {(row.metric, row.head): row.value for row in readings.rows(heads=True)}
    assert values == {
        ("mean", -1): 17 / 5, ("mean", 0): 3.0, ("mean", 1): 4.0, ("most", -1): 6.0, ("most", 0): 6.0, ("most", 1): 5.0,
        ("one", -1): 2.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"\(B, H, rows\), \(H\) or \(\), got shape \(2, 2\)"):
        readings.add("a", "attention", 0, {"flat": torch.zeros(2, 2)}, {})


@pytest.mark.parametrize("reduction", Reduction)
def test_readings_of_every_type_come_through_one_transfer(reduction):
    """Means, largest and smallest agree here, as all rows of a head are alike."""
    numbers = torch.tensor([3.0, 1.0, 2.0])
    rows = numbers[None, :, None].expand(2, 3, 5)
    forms = {
        "rows": rows, "half": rows.bfloat16(), "double": rows.double(), "whole": rows.long(), "heads": numbers,
        "whole heads": numbers.int(),
    }  # fmt: skip
    readings = Readings()
    for _ in range(2):
        readings.add("a", "attention", 0, forms | {"yes": torch.tensor(True)}, dict.fromkeys(forms, reduction))
    found = {(row.metric, row.head): row.value for row in readings.rows(heads=True)}
    for form in forms:
        assert [found[form, head] for head in range(3)] == [3.0, 1.0, 2.0], form
        assert found[form, -1] == {"mean": 2.0, "max": 3.0, "min": 1.0}[reduction]
    assert found["yes", -1] == 1.0


def test_heads_that_change_are_refused_and_the_rest_is_kept():
    readings = Readings()
    readings.add("a", "attention", 0, {"entropy": torch.ones(1, 2, 3)}, {})
    with pytest.raises(ValueError, match=r"shape \(2,\) and then \(4,\)"):
        readings.add("a", "attention", 0, {"entropy": torch.ones(1, 4, 3)}, {})
    with pytest.raises(IndexError):  # nothing to take the largest of
        readings.add("b", "attention", 0, {"entropy": torch.ones(1, 4, 0)}, {"entropy": Reduction.MAX})
    assert [(row.site, row.value) for row in readings.rows(heads=False)] == [("a", 1.0)]


def test_a_value_of_nothing_is_flagged():
    readings = Readings()
    readings.add("a", "attention", 0, {"entropy": torch.full((1, 2, 3), torch.nan)}, {})
    rows = list(readings.rows(heads=True))
    assert all(math.isnan(row.value) and row.flag == "nothing but NaN" for row in rows)
    assert [row.head for row in rows] == [-1, 0, 1]


@pytest.mark.parametrize("probe", [True, False])
def test_a_dry_run_tells_and_leaves_nothing(tmp_path, probe):
    model = loops.build("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"probe_batch": models.inputs("llama")} if probe else {}
    seen = watch(model, out=tmp_path / "run", dry_run=True, measures="full", **settings)
    told = str(seen)
    for part in (
        "LlamaForCausalLM",
        "2 sites in 2 layers",
        "layer 1: model.layers.1.self_attn",
        "4 matrices",
        "model.layers.0.mlp.gate_proj 96×32",
        "Query-key norms: 2 sites",
        "Cost of a measurement",
    ):
        assert part in told
    assert ("seen in a forward pass" in told) == probe
    assert ("during the training step" in told) == (not probe)
    assert seen.plan.seconds > 0
    assert not (tmp_path / "run").exists()
    loops.assert_same(before, dict(model.state_dict()))
    with pytest.raises(ValueError, match="is not attached: it was a dry run"):
        seen.step()
    watch(model).close()  # nothing is left that would refuse another


def test_what_cannot_be_seen_is_told(tmp_path):
    model = models.HandWritten()
    model.blocks[1].mlp = nn.Identity()
    with watch(model, out=tmp_path, every=1) as seen:
        run(model, "hand_written", seen, range(2))
    events = read_events(tmp_path).query("kind == 'unseen'")
    assert events["site"].tolist() == ["blocks.1"]
    assert "No lower matrix" in events["message"].item()
    assert "Unseen: blocks.1: No lower matrix" in seen.report()


def test_a_step_without_a_forward_pass_is_told(caplog):
    with watch(models.HandWritten(), every=1, measures="entropy") as seen:
        seen.step()
        seen.step()
    (event,) = seen.events().itertuples()
    assert event.kind == "unseen" and event.message.startswith("No attention call was seen in the step's forward pass.")
    assert caplog.text.count("No attention call was seen") == 1


def test_a_report_says_how_often_and_at_what_cost():
    model = loops.build("hand_written")
    with watch(model, every=2) as seen:
        run(model, "hand_written", seen, range(5))
    assert "Measured 3 times, last step 4." in seen.report()
    assert "Measuring took" in seen.report()
    assert "Entropy of layer 1 (blocks.1): " in seen.report()


def test_values_that_round_over_their_bounds_are_told():
    frame = pandas.DataFrame(
        [
            {"step": step, "site": "a", "layer": 0, "head": -1, "metric": metric, "value": value}
            for step in range(20)
            for metric, value in (("entropy_fraction", 1 + 1e-5), ("stable_rank", 1 - 1e-5))
        ]
    )
    entropy, rank = curves_in_words(frame)
    assert "uniform" in entropy and "flat" in rank


def test_a_report_names_the_regime_of_every_curve():
    model = Scaled()
    with watch(model, every=1, alarm=False) as seen:
        for step in range(60):
            model.sharpness = 1.0 + 5.0 * math.exp(-(((step - 20) / 6) ** 2))
            model(**loops.batch("hand_written", step))
            seen.step()
    assert "rebounding" in next(line for line in seen.report().splitlines() if line.startswith("Entropy of layer 0"))


def test_the_example_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["watch_a_loop.py", "--steps", "10", "--out", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "Measured 5 times, last step 10." in capsys.readouterr().out
    assert sorted(set(read(tmp_path / "run")["step"])) == [0, 1, 2, 5, 10]


def test_a_pattern_picks_sites_and_matrices():
    model = loops.build("hand_written")
    with watch(model, every=1, attention_pattern=r"blocks\.1", mlp_pattern=r"out\.weight") as seen:
        run(model, "hand_written", seen, range(1))
    table = seen.frame()
    assert set(table.query("kind == 'attention'")["site"]) == {"blocks.1"}
    assert set(table.query("kind == 'mlp'")["site"]) == {"blocks.0.out", "blocks.1.out"}


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(lambda tokens: {"tokens": tokens}, id="keywords"),
        pytest.param(lambda tokens: (tokens,), id="arguments"),
        pytest.param(lambda tokens: [tokens], id="list"),
        pytest.param(lambda tokens: tokens, id="tensor"),
        pytest.param(lambda tokens: lambda model: model(tokens), id="function"),
    ],
)
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


class NoAttention(nn.Module):
    """Linear layers with a softmax between them."""

    def __init__(self):
        """Make three layers."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).softmax(-1)
        return x


def test_a_model_without_attention_is_refused_in_one_line(tmp_path):
    for settings in ({}, {"probe_batch": torch.zeros(1, 4)}, {"attention_pattern": "nowhere"}):
        with pytest.raises(ValueError, match="attention") as caught:
            watch(NoAttention(), out=tmp_path / "run", **settings)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_is_refused():
    model = models.HandWritten()
    with watch(model), pytest.raises(ValueError, match="This HandWritten is being watched already"):
        watch(model)
    watch(model).close()
    with pytest.raises(ValueError, match=r"does not run on the probe batch \(TypeError"):
        watch(model, probe_batch={"token": torch.zeros(1, 3, dtype=torch.long)})
    with pytest.raises(ValueError, match="at least 1, got 0"):
        watch(model, every=0)
    watch(model).close()


def test_a_probe_batch_that_is_none(as_a_user_runs_it):
    with pytest.raises(TypeError, match=r"`probe_batch` must be keyword arguments, .* got int"):
        watch(models.HandWritten(), probe_batch=3)


def test_closing_twice_and_stepping_after():
    seen = watch(models.HandWritten())
    seen.close()
    seen.close()
    with pytest.raises(ValueError, match="it is closed"):
        seen.step()


def test_a_loop_that_raises_ends_the_run_as_failed(tmp_path):
    with pytest.raises(ZeroDivisionError), watch(models.HandWritten(), out=tmp_path):
        raise ZeroDivisionError
    assert info(tmp_path).status == "failed"


def test_a_record_that_cannot_be_written_does_not_stop_training(tmp_path, monkeypatch, caplog):
    model = loops.build("hand_written")
    seen = watch(model, out=tmp_path, every=1)

    def full(*args, **kwargs):
        raise OSError("The disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("joma.runs.writer.RunWriter.add", full)
        patch.setattr("joma.runs.writer.RunWriter.event", full)
        run(model, "hand_written", seen, range(2))
    run(model, "hand_written", seen, range(2, 3))
    seen.close()
    assert set(read(tmp_path)["step"]) == {2}
    assert caplog.text.count("The disk is full") == 1
    assert "The disk is full" in seen.report()


def test_a_full_disk_does_not_silence_the_alarm(tmp_path, monkeypatch):
    model, told = Scaled(), []
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen, monkeypatch.context() as patch:
        patch.setattr("joma.runs.writer.RunWriter.add", lambda *args, **settings: 1 / 0)
        collapse(seen, model, range(5), first_sharp=0)
    assert [alert.step for alert in told] == [2]


def test_a_watch_that_cannot_begin_leaves_nothing_behind(tmp_path, monkeypatch):
    model = models.HandWritten()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("joma.probe.watch.Watch._recall", lambda self: 1 / 0)
        watch(model, out=tmp_path)
    assert info(tmp_path).status == "failed"
    watch(model, out=tmp_path).close()  # neither the model nor the folder is taken


class Collecting(Logger):
    """Keeps what it is told; raises at one step."""

    def __init__(self, bad_step=-1):
        """Have been told nothing."""
        self.told, self.closed, self.bad_step = {}, False, bad_step

    def log(self, step, values):
        if step == self.bad_step:
            raise ConnectionError("no line")
        self.told[step] = dict(values)

    def close(self):
        self.closed = True


def test_loggers_get_every_value_and_may_fail():
    model, logger, broken = loops.build("hand_written"), Collecting(), Collecting(bad_step=0)
    with watch(model, every=1, loggers=(broken, logger), heads=True) as seen:
        run(model, "hand_written", seen, range(2))
    assert logger.told.keys() == {0, 1} and broken.told.keys() == {1}
    assert {"loss", "entropy/blocks.0", "entropy/blocks.1/head 3", "stable_rank/blocks.0.mlp.0"} <= logger.told[
        0
    ].keys()
    assert logger.closed and broken.closed
    assert seen.events()["message"].tolist() == ["ConnectionError: no line"]


def test_tensorboard(tmp_path):
    EventAccumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    model = loops.build("hand_written")
    with watch(model, every=1, loggers=[TensorBoard(tmp_path)]) as seen:
        run(model, "hand_written", seen, range(3))
    events = EventAccumulator(str(tmp_path)).Reload()
    written = [(each.step, each.value) for each in events.Scalars("joma/entropy/blocks.0")]
    expected = seen.frame().query("metric == 'entropy' and site == 'blocks.0'")
    assert written == [(row.step, pytest.approx(row.value, rel=1e-6)) for row in expected.itertuples()]
    with pytest.raises(TypeError, match="a folder or a SummaryWriter, got int"):
        TensorBoard(3)


class FakeRun:
    """A run of W&B as far as its documentation goes: rows are filled until something commits them."""

    def __init__(self):
        """Start at row 0."""
        self.step, self.rows, self.defined, self.open = 0, [], {}, {}

    def define_metric(self, name, step_metric=None):
        self.defined[name] = step_metric

    def log(self, values, commit=True):
        self.open |= values
        if commit:
            self.rows.append(self.open)
            self.step, self.open = self.step + 1, {}


def test_wandb_loses_nothing_and_does_not_move_the_steps_of_others(monkeypatch):
    run = FakeRun()
    logger = WandB(run)
    logger.log(0, {"entropy/a": 1.0})
    run.log({"loss": 3.0})  # the user's own, which closes the row
    logger.log(100, {"entropy/a": 2.0})
    logger.log(200, {"entropy/a": 3.0})
    assert run.rows == [{"joma/step": 0, "joma/entropy/a": 1.0, "loss": 3.0}, {"joma/step": 100, "joma/entropy/a": 2.0}]
    assert run.open == {"joma/step": 200, "joma/entropy/a": 3.0}
    assert run.defined == {"joma/step": None, "joma/*": "joma/step"}
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="wandb is not installed"):
        WandB()


@pytest.fixture
def mortal():
    """A function that runs watched loops in children of another process, and returns how they ended."""
    script = Path(__file__).with_name("mortal_watch.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def order(folder, num_steps, **death):
            process.stdin.write(json.dumps({"folder": str(folder), "num_steps": num_steps, **death}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield order
        process.stdin.close()


@pytest.mark.slow
def test_kill_9_at_random_moments_leaves_a_record_that_the_next_loop_finishes(tmp_path, mortal):
    rng = random.Random(2)
    folder, known, hit_while_open, num_steps = tmp_path / "killed", 0, 0, 10**6
    for _ in range(NUM_KILLS):
        assert mortal(folder, num_steps, kill_after=rng.uniform(0.0, 0.5)) == -signal.SIGKILL
        hit_while_open += (folder / "run.lock").exists()
        if (folder / "run.json").exists():
            steps = read(folder)["step"].unique().tolist()
            assert steps == list(range(len(steps)))
            assert len(steps) >= known
            known = len(steps)
            read_events(folder)
    assert hit_while_open > NUM_KILLS // 2
    assert known > NUM_KILLS // 4
    assert_finishes_as_one_in_peace(mortal, folder, tmp_path / "whole", known + 3)


def assert_finishes_as_one_in_peace(mortal, folder, whole, num_steps):
    """The next loop ends the record, and finds what a loop that never died does."""
    assert mortal(folder, num_steps) == 0
    if not whole.exists():
        assert mortal(whole, num_steps) == 0
    assert info(folder).status == "finished"
    killed, peaceful = (read(each).query("kind != 'cost'").reset_index(drop=True) for each in (folder, whole))
    columns = ["step", "site", "kind", "layer", "head", "metric"]
    pandas.testing.assert_frame_equal(killed[columns], peaceful[columns])
    of_attention = killed["kind"] == "attention"
    assert killed[of_attention].equals(peaceful[of_attention])
    # A tracker that was started anew finds the same norm up to the residual it allows itself.
    followed = killed["metric"].isin(["stable_rank", "spectral_norm", "frobenius_norm"]) & (killed["flag"] == "")
    found, expected = (table.loc[followed, "value"].to_numpy() for table in (killed, peaceful))
    assert found == pytest.approx(expected, rel=0.04)


@pytest.mark.slow
def test_dying_at_every_operation_in_turn(tmp_path, mortal):
    num_steps, at, ended = 2, 0, None
    while ended != 0:
        at += 1
        folder = tmp_path / str(at)
        ended = mortal(folder, num_steps, at=at, flush_seconds=1e9)
        assert ended in (9, 0)
        if (folder / "run.json").exists():
            assert set(read(folder)["step"]) <= set(range(num_steps))
        assert_finishes_as_one_in_peace(mortal, folder, tmp_path / "whole", num_steps)
    assert at > 20  # opening, a part of each table, the end
