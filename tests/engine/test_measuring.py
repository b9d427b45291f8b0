"""What is measured of a pack is what naive code finds for each run alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import PlainDecoder

from engine.small_runs import config, pack
from joma.engine.config import DataConfig, RunConfig, TrainingConfig
from joma.engine.grid import Run
from joma.engine.loop import train_pack
from joma.engine.measuring import measure, on_host, stable_ranks
from joma.engine.plan import Pack
from joma.engine.sources import PAPER_WINDOW, source_of
from joma.engine.step import Stepper
from joma.formatting import ALL_HEADS
from joma.metrics import METRICS
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig
from joma.store import read

MEASURES = {
    "norm": lambda squares: squares.sum().sqrt(),
    "stable_rank": lambda squares: squares.sum() / squares[0],
    "energy": lambda squares: squares[:4].sum() / squares.sum(),
    "rest_rank": lambda squares: squares[1:].sum() / squares[1],
}
"""Of a matrix by its squared singular values."""
SPECTRUM = ("stable_rank", "energy", "rest_rank")
MOVES = {f"{kind}_{end}" for kind in ("gradient", "update") for end in ("norm", "stable_rank")}
EVERY = {f"{kind}_{end}" for kind in ("gradient", "mean_gradient") for end in SPECTRUM}

STATES = {"gram_drift", "layer_cosine", "entrance_cosine"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    generator = torch.Generator().manual_seed(0)
    for split, num_words in (("train", 400), ("valid", 2 * 35 * (PAPER_WINDOW + 4)), ("test", 100)):
        chosen = torch.randint(9, (num_words,), generator=generator).tolist()
        (folder / f"{split}.txt").write_text(" ".join("abcdefghi"[i] for i in chosen))
    return str(folder)


def text_config(text, seed=1, **model):
    settings = {"vocabulary": 10, "width": 8, "hidden": 12, "depth": 2, "positions": "sinusoidal"} | model
    return RunConfig(
        model=DecoderConfig(**settings),
        data=DataConfig(data=text, batch=2, window=35, valid_batch=2),
        training=TrainingConfig(steps=5, precision="float64"),
        seed=seed,
    )


def measured(configs):
    """All values of runs at their start by (site, head, metric), a list over runs; with the pack's pieces."""
    source, stepper = source_of(configs), Stepper.of(configs, 5, 5)
    found = measure(stepper.model, stepper.parameters, source, configs[0].training)
    keys = [(each.site, each.head, each.metric) for each in found]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, on_host(found), strict=True)), stepper, source


def naive_entropy(model, parameters, batch, layer):
    """Entropies of every row, (R, B, H, L), from the whole matrix of weights."""
    taken = {}
    model.losses(parameters, batch, lambda reading: taken.update({reading.layer: reading}))
    reading = taken[layer]
    logits = reading.logits
    if logits is None:
        logits = reading.scale * reading.q @ reading.k.mT
    if reading.causal:
        logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf)
    return torch.special.entr(logits.softmax(-1)).sum(-1).unflatten(0, (batch.tokens.shape[0], -1))


MODELS = {
    "one head": {},
    "heads": {"heads": 2},
    "all see all": {"causal": False},
    "free logits": {"attention_logits": "free"},
    "free logits, all see all": {"attention_logits": "free", "causal": False, "heads": 2},
}


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_against_whole_matrices_of_attention(text, settings, monkeypatch):
    monkeypatch.setattr("joma.engine.sources.TOKENS_AT_ONCE", 4000)  # several batches, the last one smaller
    found, stepper, source = measured([text_config(text, seed, **settings) for seed in (1, 2)])
    model, parameters = stepper.model, stepper.parameters
    batches = list(source.validation())
    num_rows = [batch.targets.shape[1] for batch in batches]
    assert len(set(num_rows)) == 2
    losses = sum(model.losses(parameters, batch) * n for batch, n in zip(batches, num_rows, strict=True))
    # only the order of sums differs
    np.testing.assert_allclose(found["validation", ALL_HEADS, "loss"], losses / sum(num_rows), rtol=1e-12)
    for layer in range(2):
        entropy = torch.cat([naive_entropy(model, parameters, batch, layer) for batch in batches], dim=1)
        site = f"blocks.{layer}.attention"
        np.testing.assert_allclose(found[site, ALL_HEADS, "entropy"], entropy.mean((1, 2, 3)), rtol=1e-10)
        visible = torch.arange(1, 36) if model.config.causal else torch.full((35,), 35)
        shares = (entropy / visible.double().log())[..., visible > 1]
        np.testing.assert_allclose(found[site, ALL_HEADS, "entropy_fraction"], shares.mean((1, 2, 3)), rtol=1e-10)
        heads = {head for where, head, _ in found if where == site} - {ALL_HEADS}
        assert heads == (set(range(model.config.heads)) if model.config.heads > 1 else set())
        for head in heads:
            np.testing.assert_allclose(found[site, head, "entropy"], entropy[:, :, head].mean((1, 2)), rtol=1e-10)
        single = naive_entropy(model, parameters, source.single_window(), layer).mean((1, 2, 3))
        np.testing.assert_allclose(found[site, ALL_HEADS, "entropy_window"], single, rtol=1e-10)


def test_runs_are_measured_as_if_alone_and_failed_neighbours_do_not_matter():
    configs = [config(seed) for seed in (1, 2, 3)]
    together, stepper, source = measured(configs)
    for tensor in stepper.parameters.values():
        tensor[1].fill_(torch.nan)
    beside_a_failed_one = measure(stepper.model, stepper.parameters, source, configs[0].training)
    numbers = on_host(beside_a_failed_one)
    for run in (0, 2):
        alone, _, _ = measured([configs[run]])
        assert {key: values[run] for key, values in together.items()} == {key: value[0] for key, value in alone.items()}
        assert [values[run] for values in numbers] == [values[run] for values in together.values()]
    assert all(np.isnan(values[1]) for values in numbers)


def recorded(folder, own):
    """The rows of one run."""
    train_pack(Pack(runs=(Run(name="run", config=own),)), folder)
    return read(folder / "run")


def twins(own, due):
    """At each step of `due`: the step, the weights at the start and now, a plain twin of them, and the batches."""
    source, stepper = source_of([own]), Stepper.of([own], 6, 6)
    start = {name: tensor[0].clone() for name, tensor in stepper.parameters.items()}
    for step in range(max(due) + 1):
        if step in due:
            weights = {name: tensor[0] for name, tensor in stepper.parameters.items()}
            yield step, start, weights, PlainDecoder(own.model).double().load(weights), source
        stepper.advance(source.batch(step))


@pytest.mark.parametrize("settings", [{}, {"heads": 2, "gated": True}, {"attention_logits": "free", "causal": False}])
def test_extra_measures_against_a_plain_twin(text, tmp_path, settings):
    own, lower = text_config(text, seed=3, depth=1, **settings), "blocks.0.mlp.lower.weight"
    extra = {"measure_extra": True, "gradient_batches": 3}
    own = replace(own, training=TrainingConfig(steps=6, measure_every=3, precision="float64", **extra))
    rows = recorded(tmp_path, own).set_index(["step", "site", "metric", "head"])["value"].sort_index()
    for step, start, weights, twin, source in twins(own, (0, 3, 6)):

        def assert_near(name, matrix, prefix, *ends, step=step):
            parts = [":query", ":key", ":value"] if ".qkv." in name else [""]
            parts = [":gate", ":up"] if own.model.gated and name == lower else parts
            for part, half in zip(parts, matrix.chunk(len(parts)), strict=True):
                squares, site = torch.linalg.svdvals(half).square(), name.removesuffix(".weight") + part
                for end in ends:
                    found = rows[step, site, prefix + end, ALL_HEADS]
                    np.testing.assert_allclose(found, MEASURES[end](squares), rtol=1e-6)  # NaN for zeros, at the start

        gradients = []
        for ahead in range(3):
            twin.zero_grad()
            batch = source.batch(step + ahead)
            twin.loss(batch.tokens[0], batch.targets[0]).backward()
            gradients.append({name: twin.gradient(name) for name in weights if weights[name].dim() == 2})
        assert {"embedding.weight", "output.weight", "blocks.0.mlp.upper.weight"} <= set(gradients[0])
        for name, first in gradients[0].items():
            assert_near(name, first, "gradient_", *SPECTRUM)
            assert_near(name, sum(each[name] for each in gradients) / 3, "mean_gradient_", *SPECTRUM)
        assert_near(lower, gradients[0][lower], "gradient_", "norm")
        assert_near(lower, weights[lower] - start[lower], "update_", "norm", "stable_rank")
        assert_near(lower, weights[lower], "", "stable_rank")
        largest = []
        for each in source.validation():
            twin(each.tokens[0])
            largest.append([twin.blocks[0].attention.largest[head] for head in range(own.model.heads)])
        heads = np.max(largest, axis=0)
        expected = {ALL_HEADS: heads.max()} | (dict(enumerate(heads)) if len(heads) > 1 else {})
        assert rows[step, "blocks.0.attention", "max_logit"].to_dict() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"heads": 2, "norm_place": "after", "embedding_scale": 2.5, "attention_scale": 0.7},
        {"norm_place": "after", "positions": "learned", "attention_bias": False, "causal": False},
        {"positions": "rotary", "tied": True},
    ],
    ids=["heads", "learned, all see all", "norms before"],
)
def test_states_against_a_plain_twin(text, tmp_path, settings):
    own = text_config(text, seed=3, **settings).update({"lr": 0.05, "measure_states": True, "measure_every": 3})
    rows = recorded(tmp_path, own).set_index(["step", "metric", "site", "head"])["value"]
    heads = range(own.model.heads)
    for step, first, weights, twin, source in twins(own, (0, 3, 5)):
        states, tokens = [], torch.cat([batch.tokens[0] for batch in source.validation()])
        twin.requires_grad_(False)
        for block in twin.blocks:
            block.register_forward_hook(lambda module, given, out, to=states: to.append((given[0], out)))
        twin(tokens)
        for layer, (x, y) in enumerate(states):
            for metric, other in (("layer_cosine", x), ("entrance_cosine", states[0][0])):
                cosine = float(((y * other).sum(-1) / y.norm(dim=-1) / other.norm(dim=-1)).mean())
                assert rows[step, metric, f"blocks.{layer}", ALL_HEADS] == pytest.approx(cosine, rel=1e-9)
        start, e = first["embedding.weight"], weights["embedding.weight"]
        drift = (e @ e.mT - start @ start.mT).norm() / (start @ start.mT).norm()
        assert rows[step, "gram_drift", "embedding", ALL_HEADS] == pytest.approx(float(drift), rel=1e-9)
        if own.model.norm_place == "after":
            compare_parts(own.model, twin, tokens, states[0][0], rows[step], heads)
    assert rows[5, "gram_drift", "embedding", ALL_HEADS] > 0.01
    if own.model.norm_place == "before":
        assert not {"part_spread", "part_entropy"} & set(rows.index.get_level_values("metric"))


def compare_parts(config, twin, tokens, x, rows, heads):
    """Every part of the query on keys without what all share, one row of logits after the other."""
    token = config.embedding_scale * twin.embedding(tokens)
    position, attention = x - token, twin.blocks[0].attention
    parts = {"token": token - token.mean((0, 1)), "position": position - position.mean((0, 1))}
    parts |= {f"mean {name}": each.mean((0, 1)) for name, each in (("token", token), ("position", position))}
    key = (parts["token"] + parts["position"]) @ attention.key.weight.T
    queries = {name: each.expand_as(x) @ attention.query.weight.T for name, each in parts.items()}
    if attention.query.bias is not None:
        queries["bias"] = attention.query.bias.expand_as(x)
    size = config.head_width
    for part, query in queries.items():
        found = {"part_spread": [], "part_entropy": []}
        for head in heads:
            of_head = slice(head * size, (head + 1) * size)
            z = config.attention_scale / size**0.5 * query[..., of_head] @ key[..., of_head].mT
            ends = range(1, z.shape[-1] + 1) if config.causal else [z.shape[-1]] * z.shape[-1]
            seen = [z[:, i, :end] for i, end in enumerate(ends)]
            found["part_spread"].append(float(torch.stack([each.std(-1, correction=0) for each in seen]).mean()))
            entropies = [torch.special.entr(each.softmax(-1)).sum(-1) for each in seen]
            found["part_entropy"].append(float(torch.stack(entropies).mean()))
        for metric, by_head in found.items():
            site = f"blocks.0.attention:{part}"
            assert rows[metric, site, ALL_HEADS] == pytest.approx(np.mean(by_head), rel=1e-8, abs=1e-12)
            own = [rows[metric, site, head] for head in heads] if len(by_head) > 1 else by_head
            np.testing.assert_allclose(own, by_head, rtol=1e-8, atol=1e-12)


def test_a_mean_gradient_has_the_dropout_of_the_steps_that_follow():
    own = config(steps=3)
    assert own.model.dropout > 0
    _, stepper, source = measured([own])
    batches, apart = [source.batch(step) for step in range(3)], []
    for batch in batches:
        apart.append({name: tensor.clone() for name, tensor in stepper.gradients(batch).items()})
        stepper.state.step.add_(1)
    stepper.state.step.zero_()
    same = {name: tensor.clone() for name, tensor in stepper.gradients(batches[1]).items()}
    for name, mean in stepper.gradients(*batches).items():
        torch.testing.assert_close(mean, sum(each[name] for each in apart) / 3, rtol=1e-9, atol=1e-15)
    assert not torch.equal(same["blocks.0.mlp.lower.weight"], apart[1]["blocks.0.mlp.lower.weight"])
    assert int(stepper.state.step) == 0


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_windows_of_1024_tokens(text, tmp_path, positions):
    data = DataConfig(data=str(tmp_path), batch=1, window=1024, valid_batch=1, valid_windows=1)
    model = {"depth": 1, "positions": positions, "dropout": 0.1}
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(Path(text, "valid.txt").read_text())
    configs = [replace(text_config(text, seed, **model), data=data) for seed in (1, 2)]
    found, stepper, source = measured(configs)
    (valid,) = source.validation()
    assert valid.tokens.shape == (2, 1, 1024)
    for run in range(2):
        weights = {name: tensor[run] for name, tensor in stepper.parameters.items()}
        twin = PlainDecoder(configs[0].model).double().load(weights)
        with torch.no_grad():
            loss = twin.loss(valid.tokens[run], valid.targets[run])
        assert found["validation", ALL_HEADS, "loss"][run] == pytest.approx(float(loss), rel=1e-10)
        entropy = float(twin.blocks[0].attention.entropy.mean())
        assert found["blocks.0.attention", ALL_HEADS, "entropy"][run] == pytest.approx(entropy, rel=1e-9)
    stepper.advance(source.batch(0))
    assert bool(stepper.losses.isfinite().all())
    plain = replace(configs[0], model=replace(configs[0].model, dropout=0.0))
    stepper, batch = Stepper.of([plain], 5, 5), source_of([plain]).batch(0)
    weights = {name: tensor[0] for name, tensor in stepper.parameters.items()}
    twin = PlainDecoder(plain.model).double().load(weights)
    twin.loss(batch.tokens[0], batch.targets[0]).backward()
    for name, gradient in stepper.gradients(batch).items():
        torch.testing.assert_close(gradient[0], twin.gradient(name), rtol=1e-7, atol=1e-12)


def test_masked_words_are_learned_and_a_pack_changes_nothing(text, tmp_path):
    model = {"vocabulary": 11, "readout": "masked_word", "causal": False, "depth": 1, "norm_place": "after"}
    extra = {"measure_extra": True, "measure_states": True}
    training = TrainingConfig(steps=30, measure_every=10, precision="float64", **extra)
    runs = [
        Run(name=f"seed{seed}", config=replace(text_config(text, seed, **model), training=training)) for seed in (1, 2)
    ]
    train_pack(Pack(runs=tuple(runs)), tmp_path / "both")
    train_pack(Pack(runs=(runs[1],)), tmp_path / "alone")
    both = read(tmp_path / "both" / "seed2")
    assert both.equals(read(tmp_path / "alone" / "seed2"))
    assert {"part_spread", "part_entropy", "gram_drift"} < set(both["metric"])
    losses = read(tmp_path / "both" / "seed1").query("site == 'validation'")["value"]
    assert losses.iloc[-1] < losses.iloc[0]
    first = read(tmp_path / "both" / "seed1").query("step == 0 and site == 'validation'")["value"].item()
    own, source = runs[0].config, source_of([runs[0].config])
    twin = PlainDecoder(own.model).double().load(Decoder(own.model).initial(1))
    with torch.no_grad():
        sums = [
            twin.loss(each.tokens[0], each.targets[0], rows=each.rows[0]) * each.rows.shape[1]
            for each in source.validation()
        ]
    assert first == pytest.approx(float(sum(sums)) / sum(each.rows.shape[1] for each in source.validation()), rel=1e-9)


def test_the_gradient_that_is_measured_is_that_of_the_next_step_with_its_dropout(tmp_path):
    own = config(measure_extra=True, steps=1).update({"optimiser": "sgd", "lr": 0.5, "clip": "inf"})
    rows = recorded(tmp_path, own).set_index(["metric", "step", "site"])["value"]
    for site in ("blocks.0.mlp.lower", "blocks.1.mlp.lower"):
        assert rows["update_norm", 1, site] == pytest.approx(0.5 * rows["gradient_norm", 0, site], rel=1e-9)
        ranks = rows["update_stable_rank", 1, site], rows["gradient_stable_rank", 0, site]
        assert ranks[0] == pytest.approx(ranks[1], rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "metrics"),
    [
        ({"measure_extra": True}, {"max_logit"} | MOVES),
        ({"measure_extra": True, "gradient_batches": 3}, {"max_logit"} | MOVES | EVERY),
        ({"gradient_batches": 1}, {f"gradient_{end}" for end in SPECTRUM}),
        ({"measure_states": True}, STATES),
    ],
    ids=["lower", "every", "one batch", "states"],
)
def test_extra_measures_change_no_bit_of_the_others_and_depend_on_no_neighbour(tmp_path, settings, metrics):
    plain, extra, alone = (tmp_path / name for name in ("plain", "extra", "alone"))
    train_pack(pack(seeds=(1, 2, 7), diverging=(7,)), plain)
    train_pack(pack(seeds=(1, 2, 7), diverging=(7,), **settings), extra)
    train_pack(pack(seeds=(2,), **settings), alone)
    keys = ["step", "site", "head", "metric"]
    for seed in ("seed1", "seed2"):
        before, after = read(plain / seed).set_index(keys)["value"], read(extra / seed).set_index(keys)["value"]
        assert before.equals(after.loc[before.index])
        more = set(after.index.get_level_values("metric")) - set(before.index.get_level_values("metric"))
        assert more == metrics <= set(METRICS)
        assert after.index.is_unique
    assert read(extra / "seed2").equals(read(alone / "seed2"))


@pytest.mark.parametrize("changes", [{"frozen": "mlp"}, {"only_block": 1}], ids=str)
def test_of_frozen_matrices_no_gradient_and_no_change_is_measured(tmp_path, changes):
    own = config(measure_extra=True).update(changes)
    sites = recorded(tmp_path, own).query("metric == 'gradient_norm' or metric == 'update_norm'")["site"]
    assert set(sites) == ({"blocks.1.mlp.lower"} if "only_block" in changes else set())


@pytest.mark.parametrize("factor", [1e25, 1e-12], ids=["huge", "tiny"])
def test_a_neighbour_that_is_huge_or_tiny_changes_no_bit_of_a_stable_rank(factor):
    """Matrices are scaled where single precision has no room, and their neighbours are not."""
    generator = torch.Generator().manual_seed(5)
    weights = {"blocks.0.mlp.lower.weight": torch.randn(3, 200, 60, generator=generator)}
    [calm] = stable_ranks(weights)
    weights["blocks.0.mlp.lower.weight"][1] *= factor
    [beside] = stable_ranks(weights)
    assert torch.equal(calm.by_run[[0, 2]], beside.by_run[[0, 2]])
    torch.testing.assert_close(calm.by_run[1], beside.by_run[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(12, 8), (8, 12), (300, 290), (290, 400)], ids=str)
def test_stable_ranks_against_singular_values(shape):
    generator = torch.Generator().manual_seed(4)
    weights = {f"blocks.{layer}.mlp.lower.weight": torch.randn(3, *shape, generator=generator) for layer in (0, 10, 2)}
    weights["blocks.2.mlp.lower.weight"][1] = 0
    values = {
        each.site: each.by_run for each in stable_ranks(weights | {"blocks.0.mlp.upper.weight": torch.ones(3, 1)})
    }
    assert list(values) == ["blocks.0.mlp.lower", "blocks.2.mlp.lower", "blocks.10.mlp.lower"]
    for site, found in values.items():
        singular = torch.linalg.svdvals(weights[f"{site}.weight"].double())
        expected = (singular / singular[:, :1]).square().sum(1)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)  # the accuracy that is promised


def test_other_precisions_measure_nearly_the_same(text):
    own = text_config(text)
    exact, stepper, _ = measured([own])
    single = {name: tensor.float() for name, tensor in stepper.parameters.items()}
    for precision, tolerance in (("fp32", 1e-5), ("bf16", 0.05)):
        low = replace(own, training=replace(own.training, precision=precision))
        values = on_host(measure(stepper.model, single, source_of([low]), low.training))
        np.testing.assert_allclose(values, list(exact.values()), rtol=tolerance)
