"""Every attention call of every family is seen and measured right."""

import models
import pytest
import torch
from tapping import entropies, tapped
from transformers import AlbertConfig, AlbertModel

from joma.probe.calls import AttentionKind, CallSource

EAGER = ("gemma2", "bloom", "mpt")
"""Families without `scaled_dot_product_attention`."""


def materialised(family, model, call, dtype=torch.float64):
    """Entropy of the attention that an eager twin of this precision returns, in the order of the calls."""
    exact = models.twin(family, model, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        out = exact(**{k: v.to(dtype) if v.is_floating_point() else v for k, v in call.items()}, output_attentions=True)
    if family == "t5":
        pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        weights = [*out.encoder_attentions, *(w for pair in pairs for w in pair)]
    else:
        weights = out.attentions
    return [torch.special.entr(p.double()).sum(-1) for p in weights]


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("family", models.FAMILIES)
def test_entropy_is_that_of_materialised_float64_attention(family, padded):
    model, call = models.build(family), models.inputs(family, padded=padded)
    found, wanted = entropies(model, **call), materialised(family, model, call)
    assert len(found) == len(wanted) == (6 if family == "t5" else models.LAYERS)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=0)  # the tolerance
        assert theirs.std() > 0.1  # the attention compared is far from uniform


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
def test_rows_that_see_nothing_are_nan_and_the_rest_is_right(family):
    model, call = models.build(family), models.inputs(family, left=True)
    padding = call["attention_mask"] == 0
    # In float64 the lowest number that hides a key overflows the softmax, which these models take in float32.
    wanted = materialised(family, model, call, torch.float32)
    for ours, theirs in zip(entropies(model, **call), wanted, strict=True):
        rows = padding[:, None].expand_as(ours)
        assert torch.equal(ours.isnan(), rows)
        torch.testing.assert_close(ours[~rows].double(), theirs[~rows], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_sites_layers_kinds_and_sources(family):
    seen, unseen = tapped(models.build(family), **models.inputs(family))
    calls = [call for call, _ in seen]
    assert unseen == []
    assert {call.source for call in calls} == {CallSource.SOFTMAX if family in EAGER else CallSource.SDPA}
    if family == "t5":
        assert [call.layer for call in calls] == [0, 1, 2, 2, 3, 3]
        assert [call.kind for call in calls] == [AttentionKind.SELF] * 3 + [
            AttentionKind.CROSS,
            AttentionKind.SELF,
            AttentionKind.CROSS,
        ]
        assert calls[3].site == "decoder.block.0.layer.1.EncDecAttention"
    else:
        assert [call.layer for call in calls] == [0, 1]
        assert all(call.kind is AttentionKind.SELF for call in calls)
        assert all(f".{call.layer}." in call.site for call in calls)


def test_grouped_queries_pass_through_as_groups():
    seen, _ = tapped(models.build("llama"), **models.inputs("llama", padded=False))
    for call, _ in seen:
        assert (call.q.shape[1], call.k.shape[1]) == (4, 2)
        assert call.causal and call.mask is None


def test_t5_has_no_scale_and_a_bias_that_is_not_a_mask():
    seen, _ = tapped(models.build("t5"), **models.inputs("t5"))
    call = seen[0][0]
    assert call.scale == 1.0
    assert call.mask.dtype == torch.float32 and call.mask[0].std() > 0.1


@pytest.mark.parametrize("family", ["llama", "bert", "t5", "mixtral", "qwen3"])
def test_the_eager_twin_gives_the_same_numbers_through_its_softmax(family):
    model, call = models.build(family), models.inputs(family)
    eager = models.twin(family, model, attn_implementation="eager")
    seen, _ = tapped(eager, **call)
    assert {c.source for c, _ in seen} == {CallSource.SOFTMAX}
    for (_, ours), theirs in zip(seen, tapped(model, **call)[0], strict=True):
        for name in ("entropy", "fraction", "effective_keys", "sink_mass", "mean_distance", "max_logit"):
            # Two float32 paths that add in another order.
            torch.testing.assert_close(
                getattr(ours, name), getattr(theirs[1], name), atol=2e-4, rtol=1e-4, equal_nan=True
            )


def test_a_layer_used_again_says_so():
    config = AlbertConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, vocab_size=61
    )
    seen, _ = tapped(AlbertModel(config).eval(), input_ids=torch.ones(1, 5, dtype=torch.long))
    assert [(call.layer, call.repeat) for call, _ in seen] == [(0, 0), (0, 1), (0, 2)]
