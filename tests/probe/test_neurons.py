"""Hidden neurons and attended tokens of any model are those of hand hooks and of materialised float64 attention."""

import copy
import dataclasses
import logging
import random

import models
import numpy as np
import pytest
import torch
import transformers
from tapping import Largest, snapshot
from torch import nn
from torch.nn import functional

from joma.measure.superposition import superposed_neurons
from joma.probe.calls import AttentionCall
from joma.probe.neurons import mean_weights, read_neurons

UPPER = {
    "gpt_neox": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
    "gpt2": "transformer.h.{}.mlp.c_proj",
    "opt": "model.decoder.layers.{}.fc2",
    "llama": "model.layers.{}.mlp.down_proj",
    "qwen2": "model.layers.{}.mlp.down_proj",
    "qwen3": "model.layers.{}.mlp.down_proj",
    "mistral": "model.layers.{}.mlp.down_proj",
    "gemma2": "model.layers.{}.mlp.down_proj",
    "bloom": "transformer.h.{}.mlp.dense_4h_to_h",
    "mpt": "transformer.blocks.{}.ffn.down_proj",
    "bert": "bert.encoder.layer.{}.output.dense",
}
"""Modules that the hidden neurons go into."""


def hidden_by_hand(model, sites, call):
    """What goes into modules, in one forward pass of all contexts."""
    found = {}
    hooks = [
        model.get_submodule(site).register_forward_pre_hook(lambda m, args, site=site: found.update({site: args[0]}))
        for site in sites
    ]
    with torch.no_grad():
        model(**call)
    for hook in hooks:
        hook.remove()
    return [found[site] for site in sites]


def at_queries(values, call):
    """The last visible position of each sequence, also where a model has put all positions in one axis."""
    values = values.reshape(*call["input_ids"].shape, -1)
    mask = call.get("attention_mask", torch.ones_like(call["input_ids"]))
    last = [int(row.nonzero()[-1]) for row in mask]
    return torch.stack([value[position] for value, position in zip(values, last, strict=True)])


def assert_same(found, wanted, **tolerances):
    tolerances = {"atol": 1e-6, "rtol": 1e-5} | tolerances  # single precision, batches of another size
    assert [each.layer for each in found.layers] == [each.layer for each in wanted.layers]
    for one, other in zip(found.layers, wanted.layers, strict=True):
        torch.testing.assert_close(one.activations, other.activations, **tolerances)
        torch.testing.assert_close(one.attended.weights, other.attended.weights, **tolerances)


@pytest.mark.parametrize("left", [None, False, True], ids=["whole", "padded", "padded on the left"])
@pytest.mark.parametrize("family", UPPER)
def test_neurons_and_attention_are_those_of_a_float64_twin(family, left):
    model = models.build(family)
    call = models.inputs(family, batch=5, padded=left is not None, left=bool(left))
    found = read_neurons(model, call, at_once=2)
    sites = [UPPER[family].format(layer) for layer in range(models.LAYERS)]
    # In float64, rows that see no key make NaN of what an eager twin attends to: its masks are those of float32.
    dtype = torch.float32 if left else torch.float64
    exact = models.twin(family, model, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        attentions = exact(**call, output_attentions=True).attentions
    hidden = hidden_by_hand(exact, sites, call)
    below = 1 if family == "gpt_neox" else 0
    assert [each.layer for each in found.layers] == [*range(below, models.LAYERS)]
    for each in found.layers:
        assert (each.site, each.attention_layer) == (sites[each.layer], each.layer - below)
        neurons = at_queries(hidden[each.layer], call)
        torch.testing.assert_close(each.activations.to(dtype), neurons, atol=1e-4, rtol=1e-4)  # single precision
        weights = at_queries(attentions[each.attention_layer].mean(dim=1), call)
        torch.testing.assert_close(each.attended.weights.to(dtype), weights, atol=1e-5, rtol=0)
        assert torch.equal(each.attended.ids, call["input_ids"])


@pytest.mark.parametrize("at_once", [1, 3, 7, 12])
def test_the_size_of_batches_changes_nothing(at_once):
    model, call = models.build("llama"), models.inputs("llama", batch=25)
    assert_same(read_neurons(model, call, at_once=at_once), read_neurons(model, call, at_once=25))


def test_a_model_written_by_hand_is_read_from_its_tokens():
    torch.manual_seed(0)
    model, tokens = models.HandWritten().eval(), torch.randint(models.VOCABULARY, (6, 10))
    found = read_neurons(model, tokens, at_once=4)
    sites = ["blocks.0.mlp.2", "blocks.1.mlp.2"]
    assert [each.site for each in found.layers] == sites
    for each, hidden in zip(found.layers, hidden_by_hand(model, sites, {"tokens": tokens}), strict=True):
        torch.testing.assert_close(each.activations, hidden[:, -1], atol=1e-6, rtol=1e-5)
    first = model.blocks[0]
    x = first.norm(model.embedding(tokens).detach())
    q, k, _ = (part.unflatten(-1, (models.HEADS, -1)).transpose(1, 2) for part in first.qkv(x).chunk(3, -1))
    weights = (q[:, :, -1:] @ k.mT / q.shape[-1] ** 0.5).softmax(-1).mean(1)[:, 0]
    torch.testing.assert_close(found.layers[0].attended.weights, weights.detach(), atol=1e-6, rtol=0)


def zero_output():
    model = models.HandWritten()
    for block in model.blocks:
        nn.init.zeros_(block.out.weight)
    return model


class Swapped(models.HandWrittenBlock):
    """MLP first, then attention."""

    def forward(self, x):
        mlp, self.mlp = self.mlp, nn.Identity()
        try:
            return super().forward(x + mlp(x)) / 2
        finally:
            self.mlp = mlp


def mlp_first():
    model = models.HandWritten()
    model.blocks = nn.ModuleList(Swapped(models.WIDTH, models.HEADS, 0.0) for _ in range(2))
    return model


BELOW = {
    "gpt_neox": lambda: models.FAMILIES["gpt_neox"](use_parallel_residual=True),
    "gpt_j": lambda: models.of_transformers("GPTJ", rotary_dim=4),
    "phi": lambda: models.of_transformers("Phi", intermediate_size=64),
    "falcon": lambda: models.of_transformers("Falcon", parallel_attn=True),
    "MLP before attention": mlp_first,
}
"""Models whose MLPs do not see the attention of their own layer."""
OWN = {
    "gpt_neox": lambda: models.FAMILIES["gpt_neox"](use_parallel_residual=False),
    "falcon": lambda: models.of_transformers("Falcon", parallel_attn=False, new_decoder_architecture=False),
    "phi3": lambda: models.of_transformers("Phi3", intermediate_size=64, num_key_value_heads=2, pad_token_id=0),
    "attention that puts out zero so far": zero_output,
    "MLPs outside of the blocks": models.Apart,
}


@pytest.mark.parametrize("name", BELOW)
def test_an_mlp_next_to_or_before_attention_sees_that_of_the_layer_below(name):
    found = read_neurons(BELOW[name]().eval(), torch.arange(12).reshape(2, 6))
    assert [(each.layer, each.attention_layer) for each in found.layers] == [(1, 0)]
    (unseen,) = found.unseen
    assert ".0." in unseen.site and "there is none" in unseen.reason


@pytest.mark.parametrize("name", OWN)
def test_an_mlp_after_attention_sees_its_own(name):
    pattern = r"mlps\.\d\.0\.weight" if "outside" in name else None
    found = read_neurons(OWN[name]().eval(), torch.arange(12).reshape(2, 6), mlp_pattern=pattern)
    assert [(each.layer, each.attention_layer) for each in found.layers] == [(0, 0), (1, 1)]
    assert found.unseen == ()


def test_positions_may_stand_in_the_first_axis():
    torch.manual_seed(0)
    embedding = nn.Embedding(models.VOCABULARY, 16)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24), 2, enable_nested_tensor=False)
    model, tokens = nn.Sequential(embedding, encoder).eval(), torch.randint(models.VOCABULARY, (6, 6))
    turned = copy.deepcopy(model)
    for module in turned.modules():
        if hasattr(module, "batch_first"):
            module.batch_first = True
    model.forward = lambda tokens: model[1](model[0](tokens).transpose(0, 1))
    assert_same(read_neurons(model, tokens), read_neurons(turned, tokens))


@pytest.mark.parametrize("positions", [[5, 5, 5], [2, 5, 3]], ids=["one", "several"])
@pytest.mark.parametrize(
    "shaping",
    [
        {},
        {"causal": True},
        {"causal": True, "window": 2},
        {"window": 3},
        {"scale": 0.7, "softcap": 0.5},
        {"bias": torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(1))},
        {"mask": torch.ones(3, 1, 6, 6).tril().bool()},
        {"mask": torch.zeros(3, 1, 1, 6).index_fill(3, torch.tensor([0]), -1e9)},
        {"mask": torch.randn(6, 6, generator=torch.Generator().manual_seed(2))},
    ],
    ids=["plain", "causal", "causal window", "window", "capped", "biased", "boolean", "padding", "added"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_row_is_that_of_materialised_attention(shaping, positions, dtype):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 6, 8, generator=generator).to(dtype)
    k = torch.randn(3, 2, 6, 8, generator=generator).to(dtype)
    call = AttentionCall(q=q, k=k, **shaping)
    s = shaping.get("scale", 8**-0.5) * q.double() @ k.double().repeat_interleave(2, dim=1).mT
    if "softcap" in shaping:
        s = shaping["softcap"] * (s / shaping["softcap"]).tanh()
    ahead = torch.arange(6) - torch.arange(6)[:, None]
    visible = (ahead <= 0) if "causal" in shaping else torch.ones(6, 6, dtype=torch.bool)
    visible = visible & (ahead.abs() < shaping.get("window", 6))
    mask = shaping.get("mask", torch.ones(1, dtype=torch.bool))
    s = s + shaping.get("bias", torch.zeros(1)) + (torch.zeros(1) if mask.dtype == torch.bool else mask)
    visible = visible & mask if mask.dtype == torch.bool else visible
    wanted = s.masked_fill(~visible, -torch.inf).softmax(-1).mean(1)[torch.arange(3), positions]
    found = mean_weights(call, torch.tensor(positions))
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=0)
    logits = AttentionCall(logits=s.masked_fill(~visible, -1e9))
    torch.testing.assert_close(mean_weights(logits, torch.tensor(positions)), wanted)


@pytest.mark.parametrize("window", [None, 2], ids=["causal", "causal window"])
def test_a_row_after_cached_keys_is_that_of_the_whole_sequence(window):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 4, 6, 8, generator=generator)
    whole = AttentionCall(q=q, k=k, causal=True, window=window)
    last = dataclasses.replace(whole, q=q[:, :, 4:], offset=4)
    for row in (0, 1):
        wanted = mean_weights(whole, torch.full((3,), 4 + row))
        torch.testing.assert_close(mean_weights(last, torch.full((3,), row)), wanted)


def test_no_matrix_of_the_length_squared_is_built():
    model, length = models.HandWritten(layers=1).eval(), 512
    with Largest() as record:
        read_neurons(model, torch.arange(2 * length).reshape(2, length) % models.VOCABULARY)
    assert record.largest < length**2


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_the_model_and_the_random_states_are_as_they_were(training):
    model = models.build("gpt2").train(training)
    model(**models.inputs("gpt2")).logits.sum().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    hooks = snapshot(model)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    contexts = models.inputs("gpt2", batch=5)
    given = {name: value.clone() for name, value in contexts.items()}
    first = read_neurons(model, contexts)
    assert random.getstate() == states[0] and np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert snapshot(model) == hooks
    assert all(module.training is training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, old) for p, old in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(contexts[name], value) for name, value in given.items())
    assert not any(each.activations.requires_grad or each.attended.weights.requires_grad for each in first.layers)
    assert_same(read_neurons(model, contexts), first, atol=0, rtol=0)  # without dropout


def test_hooks_are_gone_when_the_model_fails(caplog):
    model = models.build("gpt2")
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"does not run on the contexts .*Pass what its forward takes"):
        read_neurons(model, torch.full((2, 4), models.VOCABULARY))
    assert snapshot(model) == before
    assert not caplog.records


def test_a_model_that_takes_no_nan_is_read_all_the_same_and_that_is_reported(caplog):
    class Strict(models.HandWrittenBlock):
        """A block that looks at its input."""

        def forward(self, x):
            if x.isnan().any():
                raise FloatingPointError("NaN")
            return super().forward(x)

    model = models.HandWritten().eval()
    model.blocks[0] = Strict(models.WIDTH, models.HEADS, 0.0)
    found = read_neurons(model, torch.arange(12).reshape(2, 6))
    assert [each.attention_layer for each in found.layers] == [0, 1]
    assert "joma takes the MLPs of this HandWritten to come after attention" in caplog.text


def test_layers_that_cannot_be_seen_are_reported_with_their_reason(caplog):
    decoder = models.inputs("t5")
    with caplog.at_level(logging.WARNING, logger="joma"):
        found = read_neurons(models.build("t5"), decoder | {"decoder_input_ids": decoder["input_ids"]})
    assert [each.site for each in found.layers] == [f"encoder.block.{i}.layer.1.DenseReluDense.wo" for i in (0, 1)]
    assert [each.site for each in found.unseen] == [f"decoder.block.{i}.layer.2.DenseReluDense.wi_0" for i in (0, 1)]
    assert all("another sequence" in each.reason for each in found.unseen)
    assert "joma cannot see decoder.block.0.layer.2.DenseReluDense.wi_0" in caplog.text


class Bare(models.HandWrittenBlock):
    """A block whose MLP multiplies by bare parameters."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.w_up = nn.Parameter(torch.randn(64, models.WIDTH))
        self.w_down = nn.Parameter(torch.randn(models.WIDTH, 64))
        self.mlp = nn.Identity()

    def forward(self, x):
        x = super().forward(x)
        return x + functional.linear(functional.linear(x, self.w_up).relu(), self.w_down)


class Hidden(models.HandWrittenBlock):
    """A block whose attention nothing sees from outside."""

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            x = x + self.out((q @ k.mT).softmax(-1) @ v)
        return x + self.mlp(x)


class Broken(models.HandWrittenBlock):
    """A block whose attention is NaN."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        nn.init.constant_(self.qkv.weight, torch.nan)


class WithoutMlp(models.HandWrittenBlock):
    """A block of attention alone."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.mlp = nn.Identity()


@pytest.mark.parametrize(
    ("block", "site", "reason"),
    [
        (Bare, "blocks.1.w_up", "takes hooks"),
        (Hidden, "blocks.1.mlp.0", "No attention of layer 1 was seen before its MLP ran."),
        (Broken, "blocks.1.mlp.0", "Its attention is NaN"),
        (WithoutMlp, "blocks.1", "No lower matrix of an MLP"),
    ],
)
def test_a_layer_that_cannot_be_read_is_reported_with_its_reason(block, site, reason):
    model = models.HandWritten().eval()
    model.blocks[1] = block(models.WIDTH, models.HEADS, 0.0).eval()
    found = read_neurons(model, torch.arange(12).reshape(2, 6))
    assert [each.layer for each in found.layers] == [0]
    assert [each.reason for each in found.unseen if each.site == site and reason in each.reason]


def test_experts_and_layers_used_twice_are_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"no hidden neurons of this MixtralForCausalLM.*experts"):
        read_neurons(models.build("mixtral"), models.inputs("mixtral"))
    sizes = {"hidden_size": 32, "embedding_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.AlbertConfig(**sizes, intermediate_size=64, vocab_size=models.VOCABULARY)
    with pytest.raises(ValueError, match="ran 2 times in one forward pass"):
        read_neurons(transformers.AlbertModel(config).eval(), models.inputs("bert"))


@pytest.mark.parametrize(
    ("contexts", "settings", "message"),
    [
        ({"tokens": torch.zeros(2, 4, dtype=torch.long)}, {}, r"must hold the tokens as `input_ids`, got \['tokens'\]"),
        (torch.zeros(2, 4), {}, "token ids, got torch.float32"),
        (torch.zeros(2, 1, dtype=torch.long), {}, "at least 2 token ids"),
        (torch.zeros(4, dtype=torch.long), {}, r"axes \(C, L\)"),
        (torch.zeros(2, 4, dtype=torch.long), {"at_once": 0}, "`at_once` must be positive"),
        (torch.zeros(2, 4, dtype=torch.long), {"mlp_pattern": "nowhere"}, "No matrix matches"),
        (
            {"input_ids": torch.zeros(2, 4, dtype=torch.long), "attention_mask": torch.tensor([[1, 1, 1, 1], [0] * 4])},
            {},
            "context 1 has none",
        ),
        (
            {"input_ids": torch.zeros(2, 4, dtype=torch.long), "attention_mask": torch.ones(2, 5)},
            {},
            r"shape of the tokens, \(2, 4\), got \(2, 5\)",
        ),
    ],
    ids=["names", "floats", "one token", "one axis", "no batch", "pattern", "nothing visible", "mask"],
)
def test_what_cannot_be_read_is_refused_in_one_line(contexts, settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_neurons(models.build("gpt2"), contexts, **settings)
    assert "\n" not in str(caught.value)


def test_a_list_of_tokens_is_refused(as_a_user_runs_it):
    with pytest.raises(
        TypeError, match="must be a tensor of token ids or the keyword arguments of the model, got list"
    ):
        read_neurons(models.build("gpt2"), [[1, 2, 3]])


@pytest.mark.parametrize("part", ["whole", "one block"])
def test_a_compiled_model_is_read_as_the_plain_one(part):
    torch.manual_seed(0)
    model = models.HandWritten().eval()
    tokens = torch.randint(models.VOCABULARY, (3, 6))
    plain = read_neurons(model, tokens)
    if part == "whole":
        model = torch.compile(model, backend="eager")
    else:
        model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    found = read_neurons(model, tokens)
    assert_same(found, plain, atol=0, rtol=0)
    assert [each.site for each in found.layers] == [each.site for each in plain.layers]


def test_half_precision_is_read_and_its_attention_kept_in_single():
    model, call = models.build("llama"), models.inputs("llama")
    found, right = read_neurons(model.bfloat16(), call), read_neurons(model.float(), call)
    for one, other in zip(found.layers, right.layers, strict=True):
        assert one.activations.dtype == torch.bfloat16 and one.attended.weights.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(one.activations.float(), other.activations).min() > 0.98
        torch.testing.assert_close(one.attended.weights.sum(dim=1), torch.ones(2))


class MadeLayer(nn.Module):
    """The query attends to tokens that are marked in the first entry, and each neuron fires for some topics."""

    def __init__(self, u, topics, held):
        super().__init__()
        width = u.shape[1]
        self.qkv = nn.Linear(width, 3 * width)
        self.fc1, self.fc2 = nn.Linear(width, len(held)), nn.Linear(len(held), width)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([torch.zeros(width, width), *torch.eye(width).expand(2, -1, -1)]))
            self.qkv.bias.copy_(functional.one_hot(torch.tensor(0), 3 * width))
            self.fc1.weight.copy_(u[topics[held].flatten(1)].sum(dim=1).index_fill(1, torch.tensor([0]), 0.0))
            self.fc1.bias.fill_(-0.5)

    def forward(self, x):
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        x = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=12.0)[:, 0]
        return self.fc2(self.fc1(x).relu())


def made_model(topics, per_neuron, *, num_neurons=16, vocabulary=200, width=128):
    generator = torch.Generator().manual_seed(0)
    u = functional.normalize(torch.randn(vocabulary, width, generator=generator))
    u[:, 0], u[topics.flatten(), 0] = 0.0, 1.0
    held = torch.rand(num_neurons, len(topics), generator=generator).argsort(dim=1)[:, :per_neuron]
    return nn.Sequential(nn.Embedding.from_pretrained(u), MadeLayer(u, topics, held))


@pytest.mark.parametrize(("per_neuron", "score"), [(1, 0.0), (2, 1.0)], ids=["one pattern", "two patterns"])
def test_a_made_models_neurons_come_out_as_they_were_made(per_neuron, score):
    generator = torch.Generator().manual_seed(1)
    topics = torch.randperm(199, generator=generator)[:100].reshape(25, 4)
    topic = torch.arange(500) % 25
    others = torch.tensor([token for token in range(199) if token not in set(topics.flatten().tolist())])
    rest = others[torch.randint(len(others), (500, 8), generator=generator)]
    tokens = torch.cat([topics[topic], rest], dim=1)[:, torch.randperm(12, generator=generator)]
    (layer,) = read_neurons(made_model(topics, per_neuron), tokens).layers
    found = superposed_neurons(layer.activations, layer.attended, generator=generator)
    assert abs(found.average - score) < 0.05
    assert set(found.num_patterns.tolist()) == {per_neuron}
    top = found.top_contexts(int(found.neuron[0]), num_tokens=4)
    assert all({token for token, _ in each.tokens} == set(topics[topic[each.context]].tolist()) for each in top)
