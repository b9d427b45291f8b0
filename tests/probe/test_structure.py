"""Layers and matrices are found by structure, and taken out as the model uses them."""

import random
import re

import models
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    SwinConfig,
    SwinModel,
)

from joma.probe.structure import Hints, Role, find_blocks, find_layout, lower_matrices, query_keys
from joma.probe.taps import tap

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 61, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def shapes_of(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def reader(model):
    parameters = dict(model.named_parameters())
    return lambda name: parameters[name].detach()


def lower_of(layout, layer):
    return [ref for ref in layout.lower if ref.layer == layer]


# --- Lower matrices


@given(seed=st.integers(0, 1000), family=st.sampled_from(sorted(models.FAMILIES)))
def test_the_order_of_names_does_not_matter(seed, family):
    shapes = shapes_of(models.build(family))
    names = sorted(shapes)
    random.Random(seed).shuffle(names)
    shuffled = {name: shapes[name] for name in names}
    assert [block.path for block in find_blocks(shuffled)] == [block.path for block in find_blocks(shapes)]
    assert set(lower_matrices(shuffled)[0]) == set(lower_matrices(shapes)[0])
    assert {pair.site for pair in query_keys(shuffled)[0]} == {pair.site for pair in query_keys(shapes)[0]}


def test_layers_are_ordered_as_numbers():
    shapes = {f"h.{i}.{name}": shape for i in (10, 9, 2, 0, 1) for name, shape in _BLOCK.items()}
    assert [block.path for block in find_blocks(shapes)] == ["h.0", "h.1", "h.2", "h.9", "h.10"]


_BLOCK = {"attn.qkv.weight": (24, 8), "fc1.weight": (32, 8), "fc2.weight": (8, 32)}


def test_gpt2_matrices_are_transposed_like_its_layer():
    model = models.build("gpt2")
    layer = model.transformer.h[0].mlp.c_fc
    weight = find_layout(model).lower[0].take(reader(model))
    x = torch.randn(3, models.WIDTH)
    torch.testing.assert_close(x @ weight.T + layer.bias, layer(x))


def test_experts_are_their_own_rows():
    model = models.build("mixtral")
    experts, read = model.model.layers[1].mlp.experts, reader(model)
    refs = lower_of(find_layout(model), 1)
    assert [ref.expert for ref in refs] == [0, 0, 1, 1, 2, 2, 3, 3]
    gate, up = experts.gate_up_proj[2].chunk(2)
    assert torch.equal(refs[4].take(read), gate) and torch.equal(refs[5].take(read), up)


def test_numbered_experts_and_a_router_of_the_same_shape():
    shapes = {"layers.0.attn.qkv.weight": (24, 8), "layers.0.mlp.gate.weight": (16, 8)}  # as many experts as neurons
    for expert in range(3):
        names = {"w1": (16, 8), "w2": (8, 16), "w3": (16, 8)}
        shapes |= {f"layers.0.mlp.experts.{expert}.{name}.weight": shape for name, shape in names.items()}
    found, _ = lower_matrices(shapes)
    assert [(ref.expert, ref.role) for ref in found] == [(e, r) for e in range(3) for r in (Role.GATE, Role.UP)]


def test_gates_that_alternate_with_what_they_gate():
    model = GptOssForCausalLM(
        GptOssConfig(**SIZES, head_dim=8, num_local_experts=4, layer_types=["full_attention"] * 2)
    )
    experts, read = model.model.layers[0].mlp.experts, reader(model)
    gate, up = find_layout(model).lower[:2]
    assert torch.equal(gate.take(read), experts.gate_up_proj[0][:, ::2].T)
    assert torch.equal(up.take(read), experts.gate_up_proj[0][:, 1::2].T)
    found, unseen = lower_matrices(shapes_of(model))  # names do not give the order
    assert {ref.role for ref in found} == {Role.GATE_AND_UP} and "unknown order" in unseen[0].reason


def test_a_fused_gate_is_split():
    model = Phi3ForCausalLM(Phi3Config(**SIZES, pad_token_id=0))
    gate, up = find_layout(model).lower[:2]
    fused = model.model.layers[0].mlp.gate_up_proj.weight
    assert torch.equal(gate.take(reader(model)), fused[:96]) and torch.equal(up.take(reader(model)), fused[96:])


def test_neurons_fewer_than_the_width_and_low_rank_attention():
    small = {"moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "kv_lora_rank": 8}
    heads = {"q_lora_rank": 12, "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8, "head_dim": 4}
    sizes = SIZES | {"num_key_value_heads": 4}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **small, **heads, first_k_dense_replace=1))
    layout = find_layout(model)
    assert {ref.shape for ref in lower_of(layout, 1)} == {(16, 32)}
    assert layout.attention == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    assert [each.site for each in layout.unseen] == list(layout.attention)
    assert "No query and key matrices" in layout.unseen[0].reason


def test_blocks_inside_of_stages():
    small = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 2}
    layout = find_layout(SwinModel(SwinConfig(**small)))
    assert list(layout.layers) == [
        "encoder.layers.0.blocks.0",
        "encoder.layers.0.blocks.1",
        "encoder.layers.1.blocks.0",
    ]
    assert [ref.shape for ref in layout.lower] == [(32, 8), (32, 8), (64, 16)]


def test_torch_transformer_and_a_hand_written_one():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    layout = find_layout(nn.TransformerEncoder(layer, 3))
    assert [ref.site for ref in layout.lower] == [f"layers.{i}.linear1" for i in range(3)]
    assert layout.attention == tuple(f"layers.{i}.self_attn" for i in range(3))
    layout = find_layout(models.HandWritten())
    assert [ref.site for ref in layout.lower] == ["blocks.0.mlp.0", "blocks.1.mlp.0"]
    assert layout.attention == ("blocks.0", "blocks.1")


def test_a_classifier_of_numbered_layers_is_no_block():
    shapes = {f"h.0.{name}": shape for name, shape in _BLOCK.items()}
    shapes |= {"classifier.0.weight": (8, 8), "classifier.2.weight": (2, 8)}
    assert [block.path for block in find_blocks(shapes)] == ["h.0"]


def test_a_layer_without_attention_in_a_row_with_others_counts():
    shapes = {f"h.{i}.{name}": shape for i in (0, 2) for name, shape in _BLOCK.items()}
    shapes |= {"h.1.mixer.weight": (8, 8)}
    found, unseen = lower_matrices(shapes)
    assert [ref.layer for ref in found] == [0, 2] and [each.site for each in unseen] == ["h.1"]


def test_patterns_override_what_is_found():
    model = models.build("llama")
    layout = find_layout(model, mlp_pattern=r"down_proj", attention_pattern=r"layers\.1\.self_attn$")
    assert [ref.site for ref in layout.lower] == ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"]
    assert layout.attention == ("model.layers.1.self_attn",)
    assert find_layout(model, attention_pattern="attn").attention == find_layout(model).attention
    layout = find_layout(model, mlp_pattern=r"layers\.0.*up_proj")
    assert [each.site for each in layout.unseen] == ["model.layers.1"]
    assert layout.unseen[0].reason == r"No matrix of this layer matches `mlp_pattern=layers\.0.*up_proj`."


def test_a_pattern_reaches_matrices_outside_of_the_blocks():
    """As the message of a model whose MLPs stand apart from its attention advises."""
    model = models.Apart()
    before = find_layout(model)
    assert before.lower == () and all("`mlp_pattern=`" in each.reason for each in before.unseen)
    layout = find_layout(model, mlp_pattern=r"mlps\.\d+\.0\.weight")
    assert [(ref.site, ref.layer) for ref in layout.lower] == [("mlps.0.0", 0), ("mlps.1.0", 1)]
    assert [ref.shape for ref in layout.lower] == [(4 * models.WIDTH, models.WIDTH)] * 2
    assert layout.unseen == ()
    found, unseen = lower_matrices(shapes_of(model), mlp_pattern=r"mlps\.\d+\.0\.weight")
    assert tuple(found) == layout.lower and unseen == []


def test_a_pattern_reaches_matrices_of_no_layer_and_of_layers_beyond_the_blocks():
    shapes = {f"h.0.{name}": shape for name, shape in _BLOCK.items()} | {"m.7.weight": (32, 8), "last.weight": (32, 8)}
    found, unseen = lower_matrices(shapes, mlp_pattern="m.7|last")
    assert [(ref.site, ref.layer) for ref in found] == [("last", -1), ("m.7", 7)]
    assert [each.site for each in unseen] == ["h.0"]


def test_a_matrix_outside_belongs_to_the_block_of_its_number_and_family():
    paths = ("encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1")
    shapes = {f"{path}.{name}": shape for path in paths for name, shape in _BLOCK.items()}
    shapes |= {"decoder.extra.0.weight": (32, 8), "encoder.extra.1.weight": (32, 8)}
    found, _ = lower_matrices(shapes, mlp_pattern="extra")
    assert {ref.site: ref.layer for ref in found} == {"decoder.extra.0": 2, "encoder.extra.1": 1}
    shard = {f"layers.{i}.{name}": shape for i in (12, 13) for name, shape in _BLOCK.items()}
    shard |= {f"adapters.{i}.weight": (32, 8) for i in (0, 12, 13)}
    found, unseen = lower_matrices(shard, mlp_pattern="adapters")
    assert {ref.site: ref.layer for ref in found} == {"adapters.0": -1, "adapters.12": 0, "adapters.13": 1}
    assert unseen == []


def test_a_pattern_that_nothing_matches_is_reported_once_and_as_it_was_given():
    found, [unseen] = lower_matrices(shapes_of(models.HandWritten()), mlp_pattern=r"mlps\.\d")
    assert found == [] and unseen.site == ""
    assert unseen.reason == r"No matrix matches `mlp_pattern=mlps\.\d`. Change the pattern."


@pytest.mark.parametrize("name", ["mlp_pattern", "attention_pattern"])
def test_a_pattern_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be a regular expression, got '\\[up'"):
        find_layout(models.HandWritten(), **{name: "[up"})


def test_parametrised_weights_are_left_alone_and_named():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    nn.utils.parametrizations.spectral_norm(model.layers[0].linear1)
    [unseen] = find_layout(model).unseen
    assert unseen.site == "layers.0" and "parametrised" in unseen.reason


def test_nothing_but_vectors_is_said():
    found, unseen = lower_matrices({"norm.weight": (8,)})
    assert found == [] and "No matrix was found" in unseen[0].reason


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
    gate, up = lower_of(layout, 0)
    x = torch.randn(3, models.WIDTH)
    torch.testing.assert_close(x @ up.take(read).T, model.model.layers[0].mlp.up_proj(x))
    torch.testing.assert_close(x @ gate.take(read).T, model.model.layers[0].mlp.gate_proj(x))
    query = layout.query_keys[1].query
    torch.testing.assert_close(x @ query.take(read).T, model.model.layers[1].self_attn.q_proj(x))
    assert layout.unseen == () and up.site == "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    "state", [{"disable_adapters": True}, {"merged_adapters": ["default"]}, {"active_adapters": []}]
)
def test_adapters_that_do_not_act_are_not_added(state):
    model = adapted()
    layer = model.model.layers[0].mlp.up_proj
    vars(layer).update(state)
    assert torch.equal(find_layout(model).lower[1].take(reader(model)), layer.base_layer.weight)


def test_names_do_not_show_the_scaling_of_an_adapter():
    shapes = shapes_of(adapted())
    _, unseen = lower_matrices(shapes)
    assert [each.site for each in unseen] == ["model.layers.0.mlp.up_proj"]
    assert "scaling is not known" in unseen[0].reason
    known = Hints(lora_scaling={"model.layers.0.mlp.up_proj.default": 1.5})
    refs, unseen = lower_matrices(shapes, hints=known)
    assert unseen == [] and refs[1].updates[0][2] == 1.5
    assert refs[1].tensors == (
        "model.layers.0.mlp.up_proj.base_layer.weight",
        "model.layers.0.mlp.up_proj.lora_A.default.weight",
        "model.layers.0.mlp.up_proj.lora_B.default.weight",
    )


# --- Queries and keys


def falcon(**changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
    return FalconForCausalLM(FalconConfig(**sizes, **changes)).eval()


SEEN_APART = {family: lambda family=family: models.build(family) for family in models.FAMILIES if family != "qwen3"}
SEEN_APART |= {
    "falcon, one key head": falcon,
    "falcon, groups": lambda: falcon(new_decoder_architecture=True, num_kv_heads=2),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SIZES, pad_token_id=0)).eval(),
    "hand-written": models.HandWritten,
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval(),
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


def test_a_wrong_order_of_fused_heads_would_show():
    model = models.build("gpt_neox")
    pair, call, x = first_call("gpt_neox", model, models.inputs("gpt_neox"))
    fused = model.gpt_neox.layers[0].attention.query_key_value.weight
    q = (x @ fused[: models.WIDTH].T).unflatten(-1, (pair.num_heads, -1)).transpose(1, 2)
    assert (call.q.norm(dim=-1) / q.norm(dim=-1)).std() > 0.1


def test_fused_heads_need_their_number():
    shapes = shapes_of(models.build("gpt_neox"))
    pairs, unseen = query_keys(shapes)
    assert pairs == [] and "how many heads there are is not known" in unseen[0].reason
    pairs, unseen = query_keys(shapes, hints=Hints(heads={"": (4, 4)}))
    assert unseen == [] and pairs[0].query.rows[1] == (24, 32, 1)
    _, unseen = query_keys(shapes, hints=Hints(heads={"": (5, 5)}))
    assert "96 rows do not divide" in unseen[0].reason


def test_heads_of_separate_matrices_follow_from_one_count():
    pairs, _ = query_keys(shapes_of(models.build("qwen3")), hints=Hints(heads={"": (4, 4)}))
    assert (pairs[0].num_heads, pairs[0].num_key_heads) == (4, 2)
    pairs, _ = query_keys(shapes_of(models.build("qwen3")))
    assert (pairs[0].num_heads, pairs[0].num_key_heads) == (None, None)


# --- The rest


def test_modules_know_their_layer():
    layout = find_layout(models.build("t5"))
    assert layout.layer_of("decoder.block.1.layer.1.EncDecAttention.q") == 3
    assert layout.layer_of("encoder.final_layer_norm") == layout.layer_of("shared") == -1


def test_many_experts_are_found_layer_by_layer():
    names = {"w1.weight": (16, 8), "w2.weight": (8, 16), "w3.weight": (16, 8)}
    shapes = {}
    for layer in range(6):
        shapes |= {f"layers.{layer}.attn.{part}.weight": (8, 8) for part in ("q_proj", "k_proj", "v_proj", "o_proj")}
        for expert in range(64):
            shapes |= {f"layers.{layer}.mlp.experts.{expert}.{name}": shape for name, shape in names.items()}
    found, unseen = lower_matrices(shapes)
    assert len(found) == 6 * 64 * 2 and unseen == []
