"""What a watch tells: beforehand in a dry run, of what it cannot see, and in its report."""

import math

import loops
import models
import pandas
import pytest
from loops import run
from sharp_attention import Scaled
from torch import nn

from joma.probe.summary import curves_in_words
from joma.probe.watch import watch
from joma.store import read_events


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
    assert not (tmp_path / "run").exists()
    loops.assert_same(before, dict(model.state_dict()))
    with pytest.raises(ValueError, match="is not attached: it was a dry run"):
        seen.step()
    watch(model).close()  # nothing is left that would refuse another


def test_what_cannot_be_seen_is_told(tmp_path, caplog):
    model = models.HandWritten()
    model.blocks[1].mlp = nn.Identity()
    with watch(model, out=tmp_path, every=1) as seen:
        run(model, "hand_written", seen, range(2))
    events = read_events(tmp_path).query("kind == 'unseen'")
    assert events["site"].tolist() == ["blocks.1"]
    assert "No lower matrix" in events["message"].item() and events["level"].item() == "warning"
    assert caplog.text.count("joma cannot see blocks.1: No lower matrix") == 1
    assert "Unseen: blocks.1: No lower matrix" in seen.report()


def test_the_pattern_that_is_asked_for_is_enough():
    model = models.Apart()
    with pytest.raises(ValueError, match=r"finds no MLP in this Apart\. No lower matrix .* Name it by `mlp_pattern=`"):
        watch(model, measures="ranks")
    with watch(model, every=1, mlp_pattern=r"mlps\.\d+\.0\.weight") as seen:
        run(model, "hand_written", seen, range(1))
    ranks = seen.frame().query("metric == 'stable_rank'")
    assert list(zip(ranks["layer"], ranks["site"], strict=True)) == [(0, "mlps.0.0"), (1, "mlps.1.0")]
    assert seen.events().empty


def test_a_model_without_attention_is_told_how_to_have_its_ranks():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    asked = r'has no attention .* For the ranks of its MLP alone, pass `measures="ranks"`, and `mlp_pattern`'
    with pytest.raises(ValueError, match=asked):
        watch(model)
    with watch(model, every=1, measures="ranks") as seen:
        seen.step()
    assert seen.frame().query("metric == 'stable_rank'")["site"].tolist() == ["0"]


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
        run(model, "hand_written", seen, range(6))
    assert "Measured 3 times, last at step 4." in seen.report()  # not 5, the last one there was
    assert "Measuring took" in seen.report()
    assert "Stable rank of layer 1 (blocks.1.mlp.0): " in seen.report()


def test_an_entropy_that_is_told_as_a_fraction_says_so():
    model = loops.build("hand_written")
    with watch(model, every=1) as seen:
        run(model, "hand_written", seen, range(1))
    told = next(line for line in seen.report().splitlines() if line.startswith("Entropy of layer 1"))
    values = seen.frame().query("layer == 1").set_index("metric")["value"]
    value = f"{values['entropy_fraction']:.3g}"
    assert told.startswith(f"Entropy of layer 1 (blocks.1) as a fraction of its maximum: {value} → {value},")


def test_one_of_a_thing_is_told_in_the_singular():
    model = models.HandWritten(layers=1)
    assert "Nothing was measured." in watch(model, dry_run=True).report()
    with watch(model, every=1, measures="full") as seen:
        run(model, "hand_written", seen, range(1))
    told = seen.report()
    for part in ("1 site in 1 layer (", "Ranks: 1 matrix.", "norms: 1 site.", "Measured 1 time, last at step 0."):
        assert part in told


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


def test_what_is_outside_of_the_layers_is_told_as_such():
    frame = pandas.DataFrame(
        [
            {"step": step, "site": "pooler", "layer": -1, "head": -1, "metric": "stable_rank", "value": 2.0}
            for step in range(20)
        ]
    )
    [rank] = curves_in_words(frame)
    assert rank.startswith("Stable rank outside of the layers (pooler): 2 → 2,")


def test_a_report_names_the_regime_of_every_curve():
    model = Scaled()
    with watch(model, every=1, alarm=False) as seen:
        for step in range(60):
            model.sharpness = 1.0 + 5.0 * math.exp(-(((step - 20) / 6) ** 2))
            model(**loops.batch("hand_written", step))
            seen.step()
    assert "rebounding" in next(line for line in seen.report().splitlines() if line.startswith("Entropy of layer 0"))


def test_matrices_that_nobody_asked_for_are_not_told_as_unseen():
    assert watch(models.Apart(), dry_run=True).unseen
    assert not watch(models.Apart(), dry_run=True, measures="entropy").unseen
