"""What a watch measures is right: against materialised attention and decomposed matrices."""

import loops
import models
import pandas
import pytest
import torch
from loops import run

from joma.measure.rank import qk_spectral_norms, stable_rank
from joma.probe.measures import measures_of
from joma.probe.watch import watch


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
