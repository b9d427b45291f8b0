"""Layers and matrices are found by structure, and taken out as the model uses them."""

import random
import re

import models
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from joma.probe.structure import Tensors, find_layout, layout_of
from joma.probe.taps import tap

BLOCK = {"attn.qkv.weight": (24, 8), "fc1.weight": (32, 8), "fc2.weight": (8, 32)}


def blocks_at(*paths, **others):
    """Names and shapes of blocks, and of other matrices."""
    blocks = {f"{path}.{name}": shape for path in paths for name, shape in BLOCK.items()}
    return blocks | {name.replace("__", ".") + ".weight": shape for name, shape in others.items()}


def shapes_of(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def found_in(shapes, *, mlp_pattern=None, **known):
    return layout_of(Tensors(shapes=shapes, **known), mlp_pattern=mlp_pattern)


def reader(model):
    parameters = dict(model.named_parameters())
    return lambda name: parameters[name].detach()


# --- Lower matrices


@given(seed=st.integers(0, 1000), family=st.sampled_from(sorted(models.FAMILIES)))
def test_the_order_of_names_does_not_matter(seed, family):
    shapes = shapes_of(models.build(family))
    names = sorted(shapes)
    random.Random(seed).shuffle(names)
    shuffled = {name: shapes[name] for name in names}
    other, layout = found_in(shuffled), found_in(shapes)
    assert other.layers == layout.layers and set(other.lower) == set(layout.lower)
    assert {pair.site for pair in other.query_keys} == {pair.site for pair in layout.query_keys}


EXPERTS = {
    f"layers.0.mlp.experts.{e}.{w}.weight": (8, 16) if w == "w2" else (16, 8)
    for e in range(3)
    for w in ("w1", "w2", "w3")
}
SHAPES = {
    "layers are ordered as numbers": (
        blocks_at(*(f"h.{i}" for i in (10, 9, 2, 0, 1))),
        None,
        [(f"h.{i}.fc1", layer) for layer, i in enumerate((0, 1, 2, 9, 10))],
        [],
    ),
    "a classifier is no block": (
        blocks_at("h.0", classifier__0=(8, 8), classifier__2=(2, 8)),
        None,
        [("h.0.fc1", 0)],
        [],
    ),
    "a layer without attention in a row with others counts": (
        blocks_at("h.0", "h.2", h__1__mixer=(8, 8)),
        None,
        [("h.0.fc1", 0), ("h.2.fc1", 2)],
        ["h.1"],
    ),
    "experts and a router of the same shape": (  # as many experts as neurons
        {"layers.0.attn.qkv.weight": (24, 8), "layers.0.mlp.gate.weight": (16, 8)} | EXPERTS,
        None,
        [(f"layers.0.mlp.experts.{e}.{w}", 0) for e in range(3) for w in ("w1", "w3")],
        [],
    ),
    "a pattern reaches matrices of no layer and of layers beyond the blocks": (
        blocks_at("h.0", m__7=(32, 8), last=(32, 8)),
        "m.7|last",
        [("last", -1), ("m.7", 7)],
        ["h.0"],
    ),
    "a matrix outside belongs to the block of its number and family": (
        blocks_at(
            *(f"{stack}.layers.{i}" for stack in ("encoder", "decoder") for i in (0, 1)),
            decoder__extra__0=(32, 8),
            encoder__extra__1=(32, 8),
        ),
        "extra",
        [("encoder.extra.1", 1), ("decoder.extra.0", 2)],
        ["encoder.layers.0", "decoder.layers.1"],
    ),
    "blocks of a shard keep their numbers": (
        blocks_at("layers.12", "layers.13", adapters__0=(32, 8), adapters__12=(32, 8), adapters__13=(32, 8)),
        "adapters",
        [("adapters.0", -1), ("adapters.12", 0), ("adapters.13", 1)],
        [],
    ),
    "vectors alone": ({"norm.weight": (8,)}, None, [], [""]),
    "no match": (blocks_at("h.0"), r"mlps\.\d", [], [""]),
}
"""Shapes, a pattern, sites and layers of the lower matrices, and what has none."""


@pytest.mark.parametrize("name", SHAPES)
def test_lower_matrices_of_shapes(name):
    shapes, pattern, expected, without = SHAPES[name]
    layout = layout_of(Tensors(shapes=shapes), mlp_pattern=pattern, with_attention=False)
    assert [(ref.site, ref.layer) for ref in layout.lower] == expected
    assert [each.site for each in layout.unseen] == without
    if name == "no match":
        assert layout.unseen[0].reason == r"No matrix matches `mlp_pattern=mlps\.\d`. Change the pattern."


def test_gpt2_matrices_are_transposed_like_its_layer():
    model = models.build("gpt2")
    layer = model.transformer.h[0].mlp.c_fc
    weight = find_layout(model).lower[0].take(reader(model))
    x = torch.randn(3, models.WIDTH)
    torch.testing.assert_close(x @ weight.T + layer.bias, layer(x))


def mixtral(model):
    gate, up = model.model.layers[0].mlp.experts.gate_up_proj[1].chunk(2)
    return 2, gate, up


def gpt_oss(model):
    fused = model.model.layers[0].mlp.experts.gate_up_proj[0]
    return 0, fused[:, ::2].T, fused[:, 1::2].T


def phi3(model):
    gate, up = model.model.layers[0].mlp.gate_up_proj.weight.chunk(2)
    return 0, gate, up


GATES = {
    "experts": (lambda: models.build("mixtral"), mixtral),
    "rows that alternate": (lambda: models.of_transformers("GptOss", head_dim=8, num_local_experts=4), gpt_oss),
    "fused": (lambda: models.of_transformers("Phi3", pad_token_id=0), phi3),
}


@pytest.mark.parametrize("name", GATES)
def test_a_gate_and_what_it_gates_are_taken_apart(name):
    make, parts_of = GATES[name]
    model = make()
    first, gate, up = parts_of(model)
    refs = find_layout(model).lower[first : first + 2]
    assert torch.equal(refs[0].take(reader(model)), gate) and torch.equal(refs[1].take(reader(model)), up)
    if name == "rows that alternate":  # names do not give the order
        layout = found_in(shapes_of(model))
        assert {ref.shape for ref in layout.lower} == {(2 * 96, 32)} and "unknown order" in layout.unseen[0].reason


def test_neurons_fewer_than_the_width_and_low_rank_attention():
    small = {"moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "kv_lora_rank": 8}
    small |= {"q_lora_rank": 12, "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8, "head_dim": 4}
    layout = find_layout(models.of_transformers("DeepseekV3", num_key_value_heads=4, first_k_dense_replace=1, **small))
    assert {ref.shape for ref in layout.lower if ref.layer == 1} == {(16, 32)}
    assert layout.attention == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    assert [each.site for each in layout.unseen] == list(layout.attention)
    assert "No query and key matrices" in layout.unseen[0].reason


def test_blocks_inside_of_stages():
    small = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 2}
    layout = find_layout(transformers.SwinModel(transformers.SwinConfig(**small)))
    assert layout.layers == tuple(f"encoder.layers.{i}" for i in ("0.blocks.0", "0.blocks.1", "1.blocks.0"))
    assert [ref.shape for ref in layout.lower] == [(32, 8), (32, 8), (64, 16)]


def test_patterns_override_what_is_found():
    model = models.build("llama")
    layout = find_layout(model, mlp_pattern=r"down_proj", attention_pattern=r"layers\.1\.self_attn$")
    assert [ref.site for ref in layout.lower] == ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"]
    assert layout.attention == ("model.layers.1.self_attn",)
    assert find_layout(model, attention_pattern="attn").attention == find_layout(model).attention
    layout = find_layout(model, mlp_pattern=r"layers\.0.*up_proj")
    assert [each.site for each in layout.unseen] == ["model.layers.1"]
    assert layout.unseen[0].reason == r"No matrix of this layer matches `mlp_pattern=layers\.0.*up_proj`."
    for name in ("mlp_pattern", "attention_pattern"):
        with pytest.raises(ValueError, match=f"`{name}` must be a regular expression, got '\\[up'"):
            find_layout(model, **{name: "[up"})


def test_parametrised_weights_are_left_alone_and_named():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    assert [ref.site for ref in find_layout(model).lower] == ["layers.0.linear1"]
    nn.utils.parametrizations.spectral_norm(model.layers[0].linear1)
    [unseen] = find_layout(model).unseen
    assert unseen.site == "layers.0" and "parametrised" in unseen.reason


# --- Low-rank adapters


class Adapted(nn.Module):
    """A linear layer with LoRA, laid out as PEFT does."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        self.scaling = {"default": 1.5}
        self.merged_adapters, self.disable_adapters, self.active_adapters = [], False, ["default"]

    def forward(self, x):
        update = self.lora_B["default"](self.lora_A["default"](x))
        return self.base_layer(x) + self.scaling["default"] * update


def adapted():
    model = models.build("llama")
    mlp = model.model.layers[0].mlp
    mlp.up_proj = Adapted(mlp.up_proj)
    model.model.layers[1].self_attn.q_proj = Adapted(model.model.layers[1].self_attn.q_proj)
    return model


def test_lora_counts_as_the_effective_weight():
    model = adapted()
    layout, read = find_layout(model), reader(model)
    gate, up = layout.lower[:2]
    x = torch.randn(3, models.WIDTH)
    torch.testing.assert_close(x @ up.take(read).T, model.model.layers[0].mlp.up_proj(x))
    torch.testing.assert_close(x @ gate.take(read).T, model.model.layers[0].mlp.gate_proj(x))
    query = layout.query_keys[1].query
    torch.testing.assert_close(x @ query.take(read).T, model.model.layers[1].self_attn.q_proj(x))
    assert layout.unseen == () and up.site == "model.layers.0.mlp.up_proj"
    layer = model.model.layers[0].mlp.up_proj
    for idle in ({"disable_adapters": True}, {"merged_adapters": ["default"]}, {"active_adapters": []}):
        before = dict(vars(layer))
        vars(layer).update(idle)
        assert torch.equal(find_layout(model).lower[1].take(read), layer.base_layer.weight)
        vars(layer).update(before)


def test_names_do_not_show_the_scaling_of_an_adapter():
    shapes = shapes_of(adapted())
    unseen = found_in(shapes).unseen
    assert [each.site for each in unseen] == ["model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"]
    assert "scaling is not known" in unseen[0].reason
    layout = found_in(shapes, lora_scaling={f"{each.site}.default": 1.5 for each in unseen})
    up = layout.lower[1]
    assert layout.unseen == () and up.updates[0][2] == 1.5
    assert up.tensors == (
        "model.layers.0.mlp.up_proj.base_layer.weight",
        "model.layers.0.mlp.up_proj.lora_A.default.weight",
        "model.layers.0.mlp.up_proj.lora_B.default.weight",
    )


# --- Queries and keys


class KeysWithValues(nn.Module):
    """Attention as many write it: a matrix of queries, and one of keys and values; its name does not say attention."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.to_q, self.to_kv = heads, nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, x):
        parts = self.to_q(x), *self.to_kv(x).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


SEEN_APART = {family: lambda family=family: models.build(family) for family in models.FAMILIES if family != "qwen3"}
SEEN_APART |= {
    "falcon, one key head": lambda: models.of_transformers("Falcon"),
    "falcon, groups": lambda: models.of_transformers("Falcon", new_decoder_architecture=True, num_kv_heads=2),
    "phi3": lambda: models.of_transformers("Phi3", pad_token_id=0),
    "hand-written": models.HandWritten,
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval(),
    "keys with values": KeysWithValues,
}
"""Models whose queries and keys are linear in the input but for a rotation: Qwen3 normalises them."""


def first_call(name, model, x):
    """The first attention call of a model, and what went into the module with its queries."""
    pair = find_layout(model).query_keys[0]
    owner = re.sub(r"\.(?:in_proj_)?weight$", "", pair.query.name)
    calls, given = [], []
    hook = model.get_submodule(owner).register_forward_pre_hook(lambda module, args: given.append(args[0]))
    with torch.no_grad(), tap(model, calls.append):
        model(**x)
    hook.remove()
    return pair, calls[0], given[0]


def call_of(name):
    if name == "encoder":
        return {"src": torch.randn(2, 12, 32)}
    if name == "hand-written":
        return {"tokens": torch.arange(24).reshape(2, 12)}
    if name == "keys with values":
        return {"x": torch.randn(2, 12, 32)}
    return models.inputs(name if name in models.FAMILIES else "llama")


@pytest.mark.parametrize("name", SEEN_APART)
def test_queries_and_keys_are_those_of_the_attention_call(name):
    model = SEEN_APART[name]()
    with torch.no_grad():
        for parameter in (p for n, p in model.named_parameters() if n.endswith("bias") and "norm" not in n):
            parameter.zero_()
    pair, call, x = first_call(name, model, call_of(name))
    read = reader(model)
    q = (x @ pair.query.take(read).T).unflatten(-1, (pair.num_heads, -1)).transpose(1, 2)
    k = (x @ pair.key.take(read).T).unflatten(-1, (pair.num_key_heads, -1)).transpose(1, 2)
    k = k.repeat_interleave(pair.num_heads // pair.num_key_heads, dim=1)
    if call.q is not None:  # a rotation keeps lengths; they differ from head to head
        scale = call.q.norm(dim=-1) / q.norm(dim=-1)  # OPT scales its queries by itself
        torch.testing.assert_close(scale, scale.mean().expand_as(scale), atol=0, rtol=1e-4)
        keys = call.k.repeat_interleave(q.shape[1] // call.k.shape[1], dim=1)
        torch.testing.assert_close(k.norm(dim=-1), keys.norm(dim=-1), atol=0, rtol=1e-4)
    elif name != "gemma2":  # whose logits are capped and rotated
        # ALiBi depends on the key alone: between two rows of the first sequence it drops out.
        found = call.logits[0, :, -1, :10] - call.logits[0, :, -2, :10]
        wanted = ((q[0, :, -1:] - q[0, :, -2:-1]) @ k[0, :, :10].mT)[:, 0] * q.shape[-1] ** -0.5
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_hints_give_the_number_of_heads():
    fused, apart = (shapes_of(models.build(name)) for name in ("gpt_neox", "qwen3"))
    for shapes, heads, found, words in (
        (fused, None, None, "how many heads there are is not known"),
        (fused, (5, 5), None, "96 rows do not divide"),
        (fused, (4, 4), (4, 4), ""),
        (apart, (4, 4), (4, 2), ""),  # one count is enough
        (apart, None, (None, None), ""),
    ):
        layout = found_in(shapes, heads={"": heads} if heads else {})
        assert [(pair.num_heads, pair.num_key_heads) for pair in layout.query_keys[:1]] == ([found] if found else [])
        assert words in layout.unseen[0].reason if words else not layout.unseen
    assert found_in(fused, heads={"": (4, 4)}).query_keys[0].query.rows[1] == (24, 32, 1)


# --- The rest


def test_modules_know_their_layer():
    layout = find_layout(models.build("t5"))
    assert layout.layer_of("decoder.block.1.layer.1.EncDecAttention.q") == 3
    assert layout.layer_of("encoder.final_layer_norm") == layout.layer_of("shared") == -1
