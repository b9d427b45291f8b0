"""Which rows of a call count, what is a key and what a sink, and how many calls a module makes."""

import copy

import models
import pandas
import pytest
import torch
from tapping import Eager, Sdpa, tapped
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from transformers import AlbertConfig, AlbertModel

from joma.measure.entropy import attention_entropy, logits_entropy
from joma.probe.calls import AttentionCall, interface_fields, measure_call, measure_state
from joma.probe.structure import Tensors, layout_of
from joma.probe.taps import count_rows
from joma.probe.watching import watch

LENGTH = 7
KEPT = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1]]).bool()
"""A sequence without padding, one with some on the right, one with some on the left."""


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Rows


class Masked(nn.Module):
    """Attention that hides padding in the way it is given, and passes its mask through modules."""

    def __init__(self, way):
        super().__init__()
        self.inner = Sdpa(way)

    def forward(self, x, attention_mask):
        x = x[:, None]
        return self.inner.function(x, x, x, attention_mask)


def eager(hidden):
    def way(q, k, v, mask):
        logits = (q @ k.mT).masked_fill(~mask[:, None, None].bool(), hidden)
        return logits.softmax(-1) @ v

    return way


def fused(mask_of, **options):
    def way(q, k, v, mask):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(mask), **options)

    return way


WAYS = {
    "keys": fused(lambda kept: kept[:, None, None].bool()),
    "keys, additive": fused(lambda kept: torch.where(kept[:, None, None].bool(), 0.0, -1e9).double()),
    "keys and rows": fused(lambda kept: kept[:, None, None].bool() & torch.ones(LENGTH, LENGTH).bool().tril()),
    "padding rows see all": fused(lambda kept: kept[:, None, None].bool() | ~kept[:, None, :, None].bool()),
    "no mask but causal": fused(lambda kept: None, is_causal=True),
    "eager, -inf": eager(-torch.inf),
    "eager, -1e3": eager(-1e3),
    "eager, lowest": eager(torch.finfo(torch.float64).min),
}


@pytest.mark.parametrize("kept", [KEPT, KEPT.long(), KEPT.double()], ids=["bool", "int", "float"])
@pytest.mark.parametrize("way", WAYS)
def test_padding_does_not_count_on_either_side(way, kept):
    [(call, found)], _ = tapped(Masked(WAYS[way]), x=normal(3, LENGTH, 8), attention_mask=kept)
    assert torch.equal(call.rows, KEPT)
    assert torch.equal(found.entropy[:, 0].isnan(), ~KEPT)


def test_padding_of_pytorchs_own_modules_does_not_count():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).double().eval()
    seen, _ = tapped(
        model,
        tgt=normal(3, LENGTH, 8),
        memory=normal(3, 5, 8),
        tgt_key_padding_mask=~KEPT,
        memory_key_padding_mask=torch.tensor([[0, 0, 0, 0, 1]] * 3).bool(),
    )
    assert [call.is_cross for call, _ in seen] == [False, True] * 2
    for call, found in seen:
        assert torch.equal(call.rows, KEPT)
        assert torch.equal(found.entropy[:, 0].isnan(), ~KEPT)
        assert (found.num_visible <= (4 if call.is_cross else LENGTH)).all()


def test_the_user_may_say_which_rows_count():
    rows = torch.rand(2, 12, generator=torch.Generator().manual_seed(0)) > 0.5
    model, batch = models.build("gpt2").double(), models.inputs("gpt2", padded=False)
    with count_rows(rows):
        seen, _ = tapped(model, **batch)
        other, _ = tapped(model, input_ids=batch["input_ids"][:, :5])
    everything, _ = tapped(model, **batch)
    for (_, found), (_, full) in zip(seen, everything, strict=True):
        counts = rows[:, None].expand_as(found.entropy)
        assert torch.equal(found.entropy[counts], full.entropy[counts]) and found.entropy[~counts].isnan().all()
    assert not any(found.entropy.isnan().any() for _, found in [*everything, *other])


def test_large_logits_are_no_mask():
    logits = torch.tensor([[[[-800.0, -400.0, 0.0]]]])
    assert logits_entropy(logits).num_visible.item() == 3


@pytest.mark.parametrize(
    "rows", [torch.ones(3, LENGTH), torch.ones(2, LENGTH).bool(), "all"], ids=["float", "shape", "word"]
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_rows_that_are_no_truth_values_are_refused(rows):
    q = normal(3, 2, LENGTH, 8)
    with pytest.raises((ValueError, TypeError), match="`rows`"):
        attention_entropy(q, q, rows=rows)


# Sinks


def naive(q, k, sink, mask=None):
    """Weights on the keys, and on the sink."""
    logits = q @ k.mT if mask is None else (q @ k.mT).masked_fill(~mask, -torch.inf)
    p = torch.cat([logits, sink.expand(*logits.shape[:-1], -1)], -1).softmax(-1)
    return p[..., : k.shape[-2]], p[..., k.shape[-2] :].sum(-1)


def assert_sink(found, on_keys, on_sink):
    p = on_keys / on_keys.sum(-1, keepdim=True)
    distance = torch.arange(p.shape[-2])[:, None] - torch.arange(p.shape[-1])
    torch.testing.assert_close(found.sink_mass.double(), on_sink, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.entropy.double(), torch.special.entr(p).sum(-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.mean_distance.double(), (p * distance.abs()).sum(-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.effective_keys.double(), 1 / p.square().sum(-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.first_key_mass.double(), p[..., 0], atol=1e-6, rtol=0)


class Sunk(Eager):
    """Attention with columns next to those of the keys."""

    def __init__(self, join):
        super().__init__(None)
        self.join, self.sink = join, nn.Parameter(torch.tensor([[1.5]]))

    def forward(self, x):
        q, k, v = self.linear(x).chunk(3, -1)
        joined, front, keys = self.join(q @ k.mT, self.sink)
        p = (joined - joined.amax(-1, keepdim=True)).softmax(-1)
        return p[..., front : front + keys] @ v


JOINS = {
    "learned, last": (lambda s, sink: (torch.cat([s, sink.expand(*s.shape[:-1], 1)], -1), 0, s.shape[-1]), 1.5),
    "learned, first": (lambda s, sink: (torch.cat([sink.expand(*s.shape[:-1], 1), s], dim=2), 1, s.shape[-1]), 1.5),
    "plus one": (lambda s, sink: (torch.cat([s, s.new_zeros(*s.shape[:-1], 1)], dim=-1), 0, s.shape[-1]), 0.0),
    "plus one by padding": (lambda s, sink: (functional.pad(s, (0, 1)), 0, s.shape[-1]), 0.0),
}


@pytest.mark.parametrize("join", JOINS)
def test_a_column_next_to_the_keys_is_a_sink(join):
    torch.manual_seed(0)
    way, logit = JOINS[join]
    model, x = Sunk(way).double(), normal(2, LENGTH, 8)
    [(call, found)], _ = tapped(model, x=x)
    assert call.shape == (2, 1, LENGTH, LENGTH)
    q, k, _ = model.linear(x)[:, None].chunk(3, -1)
    assert_sink(found, *naive(q, k, torch.full((1,), logit, dtype=torch.float64)))


@pytest.mark.parametrize("need_weights", [True, False])
def test_keys_that_pytorchs_attention_adds_are_a_sink(need_weights):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True).double().eval()
    x = normal(2, LENGTH, 8)
    [(call, found)], _ = tapped(model, query=x, key=x, value=x, need_weights=need_weights)
    _, p = model(x, x, x, average_attn_weights=False)
    assert call.shape == (2, 2, LENGTH, LENGTH)
    assert_sink(found, p[..., :LENGTH], p[..., LENGTH:].sum(-1))


def test_the_sink_of_a_kernel_is_read_through_the_interface():
    q, k, sinks = normal(2, 4, LENGTH, 8), normal(2, 2, LENGTH, 8, seed=1), normal(4, seed=2)
    fields = interface_fields(nn.Identity(), q, k, None, {"s_aux": sinks, "scaling": 1.0, "is_causal": True})
    call = AttentionCall(**fields)
    mask = torch.ones(LENGTH, LENGTH).bool().tril()
    assert_sink(measure_call(call), *naive(q, k.repeat_interleave(2, 1), sinks[:, None, None], mask))


# States


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
def test_states_are_those_that_the_layers_are_given(family):
    model, batch = models.build(family).double(), models.inputs(family)
    seen, _ = tapped(model, **batch)
    with torch.no_grad():
        out = model(**batch, output_hidden_states=True)
    layers = out.hidden_states if family != "t5" else (*out.encoder_hidden_states[:-1], *out.decoder_hidden_states)
    shown = [call for call, _ in seen if not call.is_cross]
    for call, x in zip(shown, layers[:-1], strict=True):
        found = measure_state(call)
        kept = torch.ones(x.shape[:2]).bool() if call.rows is None else call.rows
        assert torch.equal(found["state_norm"][:, 0].isnan(), ~kept)
        for i, of_sequence in enumerate(x):
            tokens = of_sequence[kept[i]]
            torch.testing.assert_close(found["state_norm"][i, 0, kept[i]], tokens.norm(dim=-1))
            wanted = (tokens - tokens.mean(0)).norm() / tokens.norm()
            torch.testing.assert_close(found["token_spread"][i, 0, 0], wanted)


# Passes and parts


def test_each_pass_of_a_shared_layer_is_a_layer():
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    model = AlbertModel(AlbertConfig(**sizes, vocab_size=61)).eval()
    seen, _ = tapped(model, input_ids=torch.ones(1, 5, dtype=torch.long))
    site = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert [(call.layer, call.repeat, call.part) for call, _ in seen] == [(0, 0, 0), (1, 1, 0), (2, 2, 0)]
    assert [call.label for call, _ in seen] == [site, f"{site}[pass 2]", f"{site}[pass 3]"]


def test_two_softmaxes_of_a_module_are_apart():
    model = Eager(lambda q, k: (q @ k.mT).softmax(-1) - 0.5 * (k @ q.mT).softmax(-1))
    for _ in range(2):  # a second forward pass begins anew
        seen, _ = tapped(model, x=torch.randn(1, 5, 8))
        assert [(call.part, call.repeat, call.layer) for call, _ in seen] == [(0, 0, 0), (1, 0, 0)]
        assert len({call.label for call, _ in seen}) == 2


MIXERS = {
    "mamba": {"mixer.in_proj": (32, 8), "mixer.conv1d": (16, 1, 4), "mixer.out_proj": (8, 16), "mixer.x_proj": (9, 16)},
    "recurrence": {"mixer.in_proj": (32, 8), "mixer.dt_bias": (16,), "mixer.out_proj": (8, 16)},
    "in the block": {"in_proj": (32, 8), "conv1d": (16, 1, 4), "out_proj": (8, 16)},
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_other_mixers_of_tokens_are_no_mlps(mixer):
    block = {f"{name}.weight" if len(shape) > 1 else name: shape for name, shape in MIXERS[mixer].items()}
    mlp = {"mlp.up.weight": (32, 8), "mlp.down.weight": (8, 32)}
    shapes = {f"layers.0.{name}": shape for name, shape in (block | mlp).items()}
    shapes |= {f"layers.1.{name}": shape for name, shape in ({"attn.qkv.weight": (24, 8)} | mlp).items()}
    assert [ref.site for ref in layout_of(Tensors(shapes=shapes)).lower] == ["layers.0.mlp.up", "layers.1.mlp.up"]


def test_matrices_in_shards_are_gathered(tmp_path):
    def measured(model):
        with watch(model, measures=("full", "all_ranks"), every=1) as seen:
            model(torch.arange(14).reshape(2, 7)).square().mean().backward()
            seen.step(0)
        assert not seen.unseen
        return seen.frame().query("kind != 'cost'")

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = models.HandWritten()
        expected = measured(copy.deepcopy(model))
        with watch(model, measures="full", every=1) as too_early:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
            too_early.step(0)
        found = measured(model)
    finally:
        distributed.destroy_process_group()
    pandas.testing.assert_frame_equal(found, expected)
    assert "stable_rank" not in set(too_early.frame()["metric"]) and too_early.unseen
    assert set(found["kind"]) == {"attention", "gradient", "mlp", "weight"}
