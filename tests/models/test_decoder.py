"""The decoder: many runs at once, one run against a plain torch.nn twin, over every pair of its options."""

import dataclasses
import math
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from covering import all_pairs, pairs_of
from decoders import CLASSES, FACTORS, IMPOSSIBLE, ROWS, Pack, make_pack, small_config
from reference import PlainDecoder, TorchEncoder
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from joma.engine.config import OptimiserConfig
from joma.engine.step import Stepper
from joma.measure.entropy import attention_entropy, logits_entropy
from joma.models.batch import Batch, LayerReading, Model
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig, paper_language_model, paper_table1
from joma.probe.structure import Tensors, layout_of

every_pair = pytest.mark.parametrize("row", ROWS, ids=[f"row{i}" for i in range(len(ROWS))])
every_third = pytest.mark.parametrize("row", ROWS[::3], ids=[f"row{i}" for i in range(0, len(ROWS), 3)])
close = {"rtol": 1e-10, "atol": 1e-12}
"""Both sides sum the same float64 numbers in another order; ten digits leave room for a few blocks of that."""


def entropy_of(reading: LayerReading) -> Tensor:
    if reading.logits is None:
        return attention_entropy(reading.q, reading.k, causal=reading.causal, scale=reading.scale).entropy
    future = torch.ones(reading.logits.shape[-2:]).triu(1).bool() & reading.causal
    return logits_entropy(reading.logits.masked_fill(future, -torch.inf)).entropy


def test_the_rows_cover_every_pair_of_options():
    met = set().union(*(pairs_of(row) for row in ROWS))
    assert met == all_pairs(FACTORS) - set(IMPOSSIBLE)


def test_no_option_is_left_out():
    sizes = {"vocabulary", "width", "hidden", "max_length", "num_classes"}
    assert {field.name for field in dataclasses.fields(DecoderConfig)} == set(FACTORS) | sizes


@pytest.mark.parametrize("pair", IMPOSSIBLE, ids=lambda pair: "-".join(sorted(str(value) for _, value in pair)))
def test_pairs_left_out_are_refused(pair):
    with pytest.raises(
        ValueError, match=r"Rotary positions|cannot be tied|`qk_norm` norms|`negative_slope`|Masked words"
    ):
        small_config(dict(pair))


@every_pair
def test_one_run_equals_its_plain_twin(row):
    config = small_config(row)
    pack = make_pack(config, [3])
    twin = PlainDecoder(config).double().load({name: tensor[0] for name, tensor in pack.parameters.items()})
    tokens, targets = pack.batch.tokens[0], pack.batch.targets[0]
    rows = slice(None) if pack.batch.rows is None else pack.batch.rows[0]

    expected = twin.loss(tokens, targets, pack.drop(0), rows)
    expected.backward()
    torch.testing.assert_close(pack.train()[0], expected, check_dtype=False, **close)
    for name, gradient in pack.gradients.items():
        right = twin.gradient(name)
        right[pack.decoder.held.get(name, slice(0))] = 0
        torch.testing.assert_close(gradient[0], right, **close, msg=lambda text, name=name: name + text)

    readings: list[LayerReading] = []
    torch.testing.assert_close(
        pack.decoder.losses(pack.parameters, pack.batch, readings.append)[0],
        twin.loss(tokens, targets, rows=rows),
        **close,
    )
    for reading, block in zip(readings, twin.blocks, strict=True):
        # The entropy without the matrix cancels: nine digits are left of the twin's.
        torch.testing.assert_close(entropy_of(reading), block.attention.entropy, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(reading.hidden[0], block.mlp.hidden, **close)


@every_pair
def test_runs_at_once_equal_runs_alone(row):
    pack = make_pack(small_config(row), [5, 1, 8])
    losses = pack.train()
    for run in range(3):
        alone = pack.alone(run)
        torch.testing.assert_close(alone.train()[0], losses[run], **close)
        for name, gradient in alone.gradients.items():
            torch.testing.assert_close(gradient[0], pack.gradients[name][run], **close)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    "changes", [{}, {"norm_place": "before"}, {"activation": "gelu"}], ids=["paper", "pre", "gelu"]
)
def test_the_papers_language_model_is_torchs_encoder(heads, changes):
    config = paper_language_model(13, depth=2, width=8, hidden=10, heads=heads, dropout=0.0, **changes)
    pack = make_pack(config, [2])
    twin = TorchEncoder(config).double().load({name: tensor[0] for name, tensor in pack.parameters.items()})
    expected = twin.loss(pack.batch.tokens[0], pack.batch.targets[0])
    expected.backward()
    torch.testing.assert_close(pack.train()[0], expected, **close)
    for name, gradient in pack.gradients.items():
        torch.testing.assert_close(gradient[0], twin.gradient(name), **close)


@pytest.mark.slow
def test_many_settings_compile_as_one_graph_each_in_one_process(answer_of):
    tests = Path(__file__).parents[1]
    answer_of("compiled_blocks.py", PYTHONPATH=os.pathsep.join([str(tests), str(tests.parent)]))


@every_third
def test_bfloat16_products_stay_near_float64(row):
    pack = make_pack(small_config(row), [1, 2])
    parameters = {name: tensor.float() for name, tensor in pack.parameters.items()}
    gradients = {
        name: torch.full_like(tensor, torch.nan, dtype=torch.float32) for name, tensor in pack.gradients.items()
    }
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = pack.decoder.value_and_gradient(parameters, gradients, pack.batch, pack.noise)
    # Eight bits a factor: 0.4 % a product, over two blocks and perhaps no norm.
    torch.testing.assert_close(losses.double(), pack.train(), rtol=0.03, atol=0.0)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


class Kernels(TorchDispatchMode):
    """Counts the operations that compute something; views only rename. On a GPU each of them is one kernel or more.

    torch's profiler would also count what a single batched product does inside on the CPU: a loop over small matrices.
    """

    def __init__(self) -> None:
        """Start from none."""
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def kernels(pack: Pack) -> Counter[str]:
    with Kernels() as kernels:
        pack.train()
    return kernels.counts


@every_third
def test_more_runs_are_not_more_kernels(row):
    config = small_config(row)
    assert kernels(make_pack(config, [1])) == kernels(make_pack(config, range(16)))


@pytest.mark.parametrize("row", [{}, {"readout": "class"}], ids=["next token", "class"])
def test_weighted_rows_equal_repeated_rows(row):
    pack = make_pack(small_config(row), [0])
    counts = torch.tensor([3, 1, 2])
    tokens = pack.batch.tokens[:, [0, 0, 0, 1, 2, 2]]
    per_row = pack.batch.targets.unflatten(1, (3, -1))
    repeated = Batch(tokens=tokens, targets=per_row[:, [0, 0, 0, 1, 2, 2]].flatten(1))
    num_each = per_row.shape[-1]
    weights = (counts.double() / counts.sum() / num_each).repeat_interleave(num_each)[None]
    weighted = Batch(tokens=pack.batch.tokens, targets=pack.batch.targets, weights=weights)
    other = {name: torch.empty_like(gradient) for name, gradient in pack.gradients.items()}
    expected = pack.decoder.value_and_gradient(pack.parameters, pack.gradients, repeated, None)
    torch.testing.assert_close(
        pack.decoder.value_and_gradient(pack.parameters, other, weighted, None), expected, **close
    )
    for name, gradient in other.items():
        torch.testing.assert_close(gradient, pack.gradients[name], **close)


def test_dropout_needs_noise_and_moves_with_the_step():
    pack = make_pack(small_config({"dropout": 0.2}), [0, 1])
    quiet = pack.decoder.value_and_gradient(pack.parameters, pack.gradients, pack.batch, None)
    torch.testing.assert_close(quiet, pack.decoder.losses(pack.parameters, pack.batch), **close)
    first = pack.train()
    pack.noise.step.add_(1)
    assert (pack.train() != first).all() and (first != quiet).all()


PARTS = {
    "read-out": ({"frozen": ("attention", "mlp", "norm", "embedding")}, lambda name: name.startswith("output.")),
    "block": ({"only_block": 1}, lambda name: name.startswith("blocks.1.")),
    "mlp, norms and read-out": (
        {"train_embedding": False, "frozen": ("attention",)},
        lambda name: name != "embedding.weight" and ".attention." not in name,
    ),
}


@pytest.mark.parametrize(("changes", "is_trained"), PARTS.values(), ids=PARTS)
def test_a_part_that_is_trained_alone_has_the_gradients_that_it_has_among_all(changes, is_trained):
    config = small_config({"depth": 3})
    alone, together = make_pack(dataclasses.replace(config, **changes), [0]), make_pack(config, [0])
    assert isinstance(alone.decoder, Model)
    assert set(alone.gradients) == alone.decoder.shapes.keys() - alone.decoder.frozen
    assert set(alone.gradients) == set(filter(is_trained, alone.decoder.shapes))
    alone.train()
    together.train()
    for name, gradient in alone.gradients.items():
        torch.testing.assert_close(gradient, together.gradients[name], **close)


RATES = {"embedding": 0.5, "positions": 2.0, "attention": 0.3, "logits": 4.0, "mlp": 0.7, "norm": 3.0, "readout": 0.1}


def rate_of(name: str) -> float:
    """What the learning rate of a parameter of the twin is multiplied by."""
    for piece, part in (("logits", "logits"), ("norm", "norm"), (".attention.", "attention"), (".mlp.", "mlp")):
        if piece in name:
            return RATES["attention"] * RATES["logits"] if part == "logits" else RATES[part]
    return RATES["readout" if name.startswith("output") else name.partition(".")[0]]


@pytest.mark.parametrize("frozen", [(), ("value", "norm"), ("qk",)], ids=str)
@pytest.mark.parametrize("logits", ["projected", "free"])
@pytest.mark.parametrize("kind", ["adam", "adamw", "momentum"])
def test_parts_learn_at_rates_of_their_own_and_frozen_ones_stay(kind, logits, frozen):
    # Without biases: that of the keys has no effect, so its gradient is rounding, which Adam would scale up.
    row = {"heads": 2, "positions": "learned", "attention_logits": logits, "frozen": frozen, "attention_bias": False}
    config, data = small_config(row), make_pack(small_config(row), [5, 1]).batch
    own = OptimiserConfig(optimiser=kind, weight_decay=0.1, clip=0.5, **{f"lr_{part}": RATES[part] for part in RATES})
    optimisers = [dataclasses.replace(own, lr=lr) for lr in (1e-2, 3e-2)]

    def trained(runs: list[int]) -> dict[str, Tensor]:
        length = {"num_steps": 4, "steps_per_epoch": 4, "precision": "float64"}
        stepper = Stepper(Decoder(config), [[5, 1][run] for run in runs], [optimisers[run] for run in runs], **length)
        for _ in range(4):
            stepper.advance(Batch(tokens=data.tokens[runs], targets=data.targets[runs]))
        return stepper.parameters

    together = trained([0, 1])
    for run, seed in enumerate([5, 1]):
        twin = PlainDecoder(config).double().load(Decoder(config).initial(seed))
        for name, parameter in twin.named_parameters():
            is_qk = any(piece in name for piece in (".query.", ".key.", ".logits"))
            is_frozen = {"qk": is_qk, "value": ".value." in name, "norm": "norm." in name}
            parameter.requires_grad_(not any(is_frozen[part] for part in frozen))
        groups = [
            {"params": [parameter], "lr": optimisers[run].lr * rate_of(name)}
            for name, parameter in twin.named_parameters()
            if parameter.requires_grad
        ]
        optimiser = {
            "adam": lambda groups: torch.optim.Adam(groups, weight_decay=0.1),
            "adamw": lambda groups: torch.optim.AdamW(groups, weight_decay=0.1),
            "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.1),
        }[kind](groups)
        for _ in range(4):
            optimiser.zero_grad()
            twin.loss(data.tokens[run], data.targets[run]).backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
            optimiser.step()
        alone = trained([run])
        for name, tensor in together.items():
            right = torch.cat([twin.get_parameter(part).detach() for part in twin._parts(name)])
            torch.testing.assert_close(
                tensor[run], right, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: name + text
            )
            torch.testing.assert_close(alone[name][0], tensor[run], **close)


def test_a_scan_finds_the_matrices_by_their_names():
    config = dataclasses.replace(paper_language_model(50, depth=2), heads=2)
    layout = layout_of(Tensors(shapes=Decoder(config).shapes))
    assert [ref.site for ref in layout.lower] == ["blocks.0.mlp.lower", "blocks.1.mlp.lower"]
    rows = [(pair.query.rows, pair.key.rows) for pair in layout.query_keys]
    assert rows == 2 * [(((0, 200, 1),), ((200, 400, 1),))]
    assert not layout.unseen
    gated = layout_of(Tensors(shapes=Decoder(small_config({"gated": True})).shapes))
    assert [ref.site for ref in gated.lower] == ["blocks.0.mlp.lower:gate", "blocks.0.mlp.lower:up"]


@pytest.mark.parametrize("causal", [True, False])
def test_clipping_bounds_the_largest_logit_of_each_head_and_run(causal):
    pack = make_pack(small_config({"heads": 2, "depth": 2, "causal": causal}), [5, 1, 8], kick=1.0)
    singles = [pack.alone(run) for run in range(3)]
    before = {name: tensor.clone() for name, tensor in pack.parameters.items()}

    def largest() -> Tensor:
        found: list[Tensor] = []

        def tap(reading: LayerReading) -> None:
            s = reading.q @ reading.k.mT * reading.scale
            seen = torch.ones(s.shape[-2:]).tril().bool() | (not causal)
            found.append(s.where(seen, -torch.inf).unflatten(0, (3, -1)).amax(dim=(1, 3, 4)))

        pack.decoder.losses(pack.parameters, pack.batch, tap)
        return torch.stack(found)

    unclipped = largest()[0]
    bound = float(unclipped.median())
    for each in (pack, *singles):
        each.decoder.clip_logits(each.parameters, each.batch, bound)
    # The bottom layer's states do not change, so there the bound is met exactly; small heads stay as they are.
    torch.testing.assert_close(largest()[0], unclipped.clamp(max=bound), **close)
    for name, tensor in pack.parameters.items():
        first = 2 * pack.decoder.config.width if ".qkv." in name else 0
        assert torch.equal(tensor[:, first:], before[name][:, first:])
        for run, alone in enumerate(singles):
            torch.testing.assert_close(alone.parameters[name][0], tensor[run], **close)


def test_a_step_clips_after_the_optimiser():
    pack = make_pack(small_config({"heads": 2}), [5, 1])
    ends = []
    for bound in (math.inf, 0.01):
        optimiser = OptimiserConfig(lr=1e-2, qk_clip=bound)
        stepper = Stepper(pack.decoder, [5, 1], [optimiser] * 2, num_steps=1, steps_per_epoch=1, precision="float64")
        stepper.advance(pack.batch)
        ends.append(stepper.parameters)
    pack.decoder.clip_logits(ends[0], pack.batch, 0.01)
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], **close)


def test_a_window_past_the_learned_positions_is_refused():
    pack = make_pack(small_config({"positions": "learned"}), [0], length=8)
    with pytest.raises(ValueError, match=r"Learned positions reach `max_length` 7, got 8 tokens"):
        pack.train()


def test_the_papers_classifier_reads_the_last_position():
    config = paper_table1(CLASSES, width=8, hidden=12, depth=1)
    pack = make_pack(config, [0])
    assert pack.decoder.shapes["output.weight"] == (CLASSES, 8)
    assert not [name for name in pack.decoder.shapes if "attention.output" in name or "qkv.bias" in name]
    before = pack.decoder.losses(pack.parameters, pack.batch)
    turned = Batch(tokens=pack.batch.tokens[:, :, [2, 1, 0, 4, 3, 5]], targets=pack.batch.targets)
    # No positions, and the last token sees all: to one block the order of the others is nothing.
    torch.testing.assert_close(pack.decoder.losses(pack.parameters, turned), before, **close)
