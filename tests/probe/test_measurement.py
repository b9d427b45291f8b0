"""Measures, their readings, and how these become rows of the record."""

import math
from dataclasses import replace

import loops
import models
import pytest
import torch
from torch import nn

from joma.measure.rank import stable_rank
from joma.metrics import Reduction
from joma.probe.calls import AttentionCall
from joma.probe.measurement import Readings, first_sequence_if_enough
from joma.probe.measures import (
    BUILT_IN,
    Flagged,
    Matrix,
    attentions,
    forget_measure,
    kept,
    measures_of,
    ranks,
    register_measure,
)
from joma.probe.model import ProbedModel, fixed_batch
from joma.probe.watching import watch


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
    names = [f"my_{subject}" for subject in seen_by]
    table = loops.watched("llama", model=model, measures=names, heads=True).frame()
    values = table.set_index(["site", "metric", "head"])["value"]
    q, site = seen_by["attention"][0].q, "model.layers.0.self_attn"
    assert values[site, "query_norm", -1] == pytest.approx(q.norm(dim=-1).mean())
    assert values[site, "query_norm", 2] == pytest.approx(q[:, 2].norm(dim=-1).mean())
    assert values[site, "top", -1] == pytest.approx(q.max())
    assert values["", "my_model", -1] == len(list(model.parameters()))
    assert set(table.query("metric == 'ratio'")["flag"]) == {"mine"}
    assert seen_by["matrix"][0].site == "model.layers.0.mlp.gate_proj"
    assert ("model.layers.0.mlp.gate_proj", "mean", -1) in values.index


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


@pytest.mark.parametrize("reduction", Reduction)
def test_readings_of_every_type_are_reduced_over_rows_and_calls_without_nan(reduction):
    """All rows of a head are alike here, so that means, largest and smallest agree."""
    numbers = torch.tensor([3.0, 1.0, 2.0])
    rows = numbers[None, :, None].expand(2, 3, 5)
    forms = {
        "rows": rows, "half": rows.bfloat16(), "double": rows.double(), "whole": rows.long(), "heads": numbers,
        "whole heads": numbers.int(), "padded": rows.masked_fill(torch.arange(5) > 2, torch.nan),
    }  # fmt: skip
    readings = Readings()
    for _ in range(2):
        readings.add("a", "attention", 0, forms | {"yes": torch.tensor(True)}, dict.fromkeys(forms, reduction))
    found = {(row.metric, row.head): row.value for row in readings.rows(heads=True)}
    for form in forms:
        assert [found[form, head] for head in range(3)] == [3.0, 1.0, 2.0], form
        assert found[form, -1] == {"mean": 2.0, "max": 3.0, "min": 1.0}[reduction]
    assert found["yes", -1] == 1.0


def test_a_mean_counts_every_row_of_every_call_alike():
    readings = Readings()
    first = torch.tensor([[[1.0, 2.0, torch.nan], [3.0, torch.nan, torch.nan]]])
    for rows in (first, torch.tensor([[[6.0], [5.0]]])):
        readings.add("a", "attention", 0, {"mean": rows, "most": rows}, {"most": Reduction.MAX})
    values = {(row.metric, row.head): row.value for row in readings.rows(heads=True)}
    heads = {("mean", 0): 3.0, ("mean", 1): 4.0, ("most", 0): 6.0, ("most", 1): 5.0}
    assert values == {("mean", -1): 17 / 5, ("most", -1): 6.0} | heads
    with pytest.raises(ValueError, match=r"\(B, H, rows\), \(H\) or \(\), got shape \(2, 2\)"):
        readings.add("a", "attention", 0, {"flat": torch.zeros(2, 2)}, {})


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


RANDOM = torch.Generator().manual_seed(0)
MATRICES = {
    "tall": torch.randn(300, 220, generator=RANDOM),
    "another": torch.randn(300, 220, generator=RANDOM),
    "wide": torch.randn(220, 300, generator=RANDOM),
    "decaying": torch.randn(64, 200, generator=RANDOM) * torch.exp(-0.05 * torch.arange(200)),
    "row": torch.randn(1, 5, generator=RANDOM),
    "zero": torch.zeros(300, 220),
    "broken": torch.full((4, 3), torch.nan),
}


def test_ranks_agree_with_a_decomposition_up_to_their_residual_alone_and_together():
    matrices = [Matrix(site=site, layer=0, weight=weight) for site, weight in MATRICES.items()]
    together = dict(zip(MATRICES, ranks(matrices), strict=True))
    for each in matrices[:-2]:
        rank, (alone,) = together[each.site]["stable_rank"], ranks([each])
        exact = torch.linalg.svdvals(each.weight.double())
        assert rank.value == pytest.approx(float(exact.square().sum() / exact[0] ** 2), rel=0.04)  # 2 % of the norm
        assert rank.value >= stable_rank(each.weight).item() * (1 - 1e-5)  # products never give more than the true norm
        assert bool(rank.flag) == (together[each.site]["rank_residual"] > 0.02)
        assert alone["stable_rank"].value == pytest.approx(rank.value, rel=1e-4)
    assert math.isnan(together["zero"]["stable_rank"].value)
    assert together["zero"]["spectral_norm"] == Flagged(0.0, "every entry is 0")
    assert math.isnan(together["broken"]["spectral_norm"].value)
    assert together["broken"]["stable_rank"].flag == "12 of 12 entries are NaN or infinite"


def test_ranks_depend_on_the_weights_alone():
    """After a restart, and whatever was measured before, the same weights give the same bits."""
    model, values = loops.build("hand_written"), []
    for first in (0, 3):
        with watch(model, schedule=range(first, 5), measures="ranks") as seen:
            for step in range(first, 5):
                torch.manual_seed(step)
                for weight in model.parameters():
                    nn.init.normal_(weight)
                seen.step(step)
        values.append(seen.frame().query("step >= 3 and kind == 'mlp'")["value"].tolist())
    assert values[0] == values[1] and values[0]


def trained(steps, measures, *, clears=False, calls_gradients=False):
    """A watched loop of an MLP next to attention; returns the watch and, for each step, weights and gradients."""
    model, kept = loops.build("hand_written"), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.blocks[0].mlp[0].weight
    start = weight.detach().clone()
    with watch(model, every=1, measures=measures) as seen:
        for step in range(steps):
            optimizer.zero_grad()
            loops.loss_of(model, loops.batch("hand_written", step)).backward()
            gradient = weight.grad.double().clone()
            if calls_gradients:
                seen.gradients()
            optimizer.step()
            kept.append((weight.detach().double() - start.double(), gradient))
            if clears:
                optimizer.zero_grad()
            seen.step(step)
    return seen, kept


def of_block(seen):
    return seen.frame().query("site == 'blocks.0.mlp.0'").set_index(["step", "metric"])["value"]


def test_gradients_and_updates_agree_with_decompositions():
    seen, kept = trained(3, ("gradients", "updates"))
    table, before = of_block(seen), None
    for step, (moved, gradient) in enumerate(kept):
        _, s, vh = torch.linalg.svd(gradient)
        expected = {
            "gradient_norm": s.norm(),
            "gradient_stable_rank": s.square().sum() / s[0] ** 2,
            "gradient_energy": s[:4].square().sum() / s.square().sum(),
            "update_norm": moved.norm(),
            "update_stable_rank": moved.norm() ** 2 / torch.linalg.matrix_norm(moved, 2) ** 2,
        }
        if before is not None:
            expected["gradient_overlap"] = (vh[:4] @ before.T).square().sum() / 4
        before = vh[:4]
        assert gradient.shape[0] > gradient.shape[1]  # directions are those of the shorter side
        for name, value in expected.items():
            rel = 0.02 if name == "update_stable_rank" else 1e-3
            assert table[step, name] == pytest.approx(float(value), rel=rel), (step, name)
    assert (0, "gradient_overlap") not in table.index


@pytest.mark.parametrize("clears", [False, True])
def test_gradients_that_are_cleared_are_reported_and_can_be_measured_earlier(clears):
    seen, _ = trained(2, "gradients", clears=clears)
    assert seen.events()["kind"].tolist() == ["unseen"] * clears
    assert seen.frame().query("metric == 'gradient_norm'").empty == clears
    seen, _ = trained(2, "gradients", clears=clears, calls_gradients=True)
    assert seen.events().empty
    assert set(seen.frame().query("metric == 'gradient_norm'")["step"]) == {0, 1}


def test_ranks_of_all_matrices_on_request():
    model = loops.build("llama")
    seen = loops.watched("llama", model=model, measures=("ranks", "all_ranks"))
    table = seen.frame().query("metric == 'stable_rank'").set_index("site")
    matrices = {name.removesuffix(".weight"): each for name, each in model.named_parameters() if each.ndim == 2}
    assert set(table.index) == set(matrices)
    for site, weight in matrices.items():
        assert table.loc[site, "value"] == pytest.approx(stable_rank(weight.detach()).item(), rel=0.02), site
    assert table.loc["model.layers.1.self_attn.q_proj", "layer"] == 1


def test_a_matrix_that_cannot_be_measured_does_not_spoil_the_others(monkeypatch):
    def fragile(matrices):
        if any(matrix.layer == 1 for matrix in matrices):
            raise RuntimeError("broken")
        return ranks(matrices)

    monkeypatch.setitem(BUILT_IN, "ranks", replace(BUILT_IN["ranks"], make=lambda: fragile))
    seen = loops.watched("hand_written", measures="ranks")
    assert set(seen.frame().query("kind == 'mlp'")["layer"]) == {0}
    assert seen.events()[["site", "message"]].to_numpy().tolist() == [["blocks.1.mlp.0", "RuntimeError: broken"]]


CHEAP = measures_of("cheap")


def specimen_of(model):
    return ProbedModel.of(model.eval(), mlp_pattern=None, attention_pattern=None)


class Mixing(models.HandWritten):
    """Takes the mean of its batch away: what one sequence does depends on the others."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = 20 * (x - x.mean(dim=0, keepdim=True)) + tokens.shape[0]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def positions_first():
    """Build PyTorch's encoder as it comes: the batch is the second axis."""
    layer = nn.TransformerEncoderLayer(models.WIDTH, models.HEADS, 64)
    return nn.TransformerEncoder(layer, models.LAYERS, enable_nested_tensor=False)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "gemma2"])
def test_the_first_sequence_is_enough_for_the_cheap_preset(family):
    batch = models.inputs(family, batch=3)
    lean = first_sequence_if_enough(specimen_of(models.build(family)), CHEAP, fixed_batch(batch))
    assert {name: tuple(value.shape) for name, value in lean.items()} == {
        name: (1, *value.shape[1:]) for name, value in batch.items()
    }
    for name, value in lean.items():
        assert torch.equal(value, batch[name][:1])


@pytest.mark.parametrize(
    ("model", "batch", "measures"),
    [
        (models.HandWritten(), torch.ones(1, 8, dtype=torch.long), "cheap"),
        (models.HandWritten(), torch.randint(1, 20, (3, 8)), "full"),
        (models.HandWritten(), lambda model: model(torch.ones(3, 8, dtype=torch.long)), "cheap"),
        (Mixing(), torch.randint(1, 20, (3, 8)), "cheap"),
        (positions_first(), torch.randn(8, 3, models.WIDTH), "cheap"),
        (models.HandWritten(), torch.ones(3, 8), "cheap"),
    ],
    ids=["one", "full", "function", "mixing", "sequence first", "does not run"],
)
def test_the_batch_stays_whole_where_one_sequence_would_not_do(model, batch, measures):
    fixed = fixed_batch(batch)
    assert first_sequence_if_enough(specimen_of(model), measures_of(measures), fixed) is fixed


def test_calls_measured_together_are_those_measured_alone():
    """Two alike, one of another length, one with padding; the model overwrites what it showed."""
    draw = torch.Generator().manual_seed(0)

    def call(length: int, rows: torch.Tensor | None = None) -> AttentionCall:
        q, k = torch.randn(2, 2, 3, length, 4, generator=draw)
        state = torch.randn(2, length, 5, generator=draw)
        return AttentionCall(site="a", layer=0, q=q, k=k, causal=True, state=state, rows=rows)

    calls = [call(7), call(9), call(7), call(7, torch.arange(7).expand(2, -1) > 2)]
    alone = [attentions([each])[0] for each in calls]
    copies = [kept(each) for each in calls]
    assert [copy is None for copy in copies] == [False, False, False, True]
    for each in calls[:3]:
        each.q.zero_()
    for found, expected in zip(attentions(copies[:3] + calls[3:]), alone, strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, equal_nan=True, msg=name)
