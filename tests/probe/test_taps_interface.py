"""Kernels behind Hugging Face's attention interface are measured through it."""

import copy

import models
import pytest
import torch
from tapping import entropies, tapped
from transformers.modeling_utils import AttentionInterface

from joma.probe.calls import CallSource


def hidden_attention(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **kwargs):
    """Stand in for a kernel: attention that nothing can see, with the masks that flash attention takes."""
    with torch._C.DisableTorchFunction():
        groups = query.shape[1] // key.shape[1]
        rows, keys = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])[None]
        visible = (rows >= keys) if module.is_causal else torch.ones(len(rows), keys.shape[1], dtype=torch.bool)
        if sliding_window is not None:
            visible = visible & (rows - keys < sliding_window)
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None].bool()
        logits = scaling * query @ key.repeat_interleave(groups, 1).mT
        p = logits.masked_fill(~visible, -torch.inf).softmax(-1)
        return (p @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None


@pytest.fixture
def flash(monkeypatch):
    """Models set to flash_attention_2 that run without a GPU."""
    functions = dict(AttentionInterface._global_mapping) | {"flash_attention_2": hidden_attention}
    monkeypatch.setattr(AttentionInterface, "_global_mapping", functions)

    def make(family, model):
        other = copy.deepcopy(model)
        for module in other.modules():
            if hasattr(module, "config"):
                module.config._attn_implementation = "flash_attention_2"
        return other

    return make


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("family", ["llama", "mistral", "bert", "gpt_neox"])
def test_flash_attention_is_measured_through_the_interface(family, padded, flash):
    model, call = models.build(family), models.inputs(family, padded=padded)
    seen, unseen = tapped(flash(family, model), **call)
    assert unseen == [] and [c.source for c, _ in seen] == [CallSource.INTERFACE] * 2
    for (_, ours), theirs in zip(seen, entropies(model, **call), strict=True):
        torch.testing.assert_close(ours.entropy, theirs, atol=1e-5, rtol=0)


def test_packed_sequences_are_reported_as_unseen(flash):
    call = models.inputs("llama", batch=1, padded=False)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]])
    seen, unseen = tapped(flash("llama", models.build("llama")), **call, position_ids=positions)
    assert seen == [] and len(unseen) == 2
    assert "packs several sequences" in unseen[0].reason and unseen[0].site == "model.layers.0.self_attn"


def test_a_registered_implementation_that_calls_sdpa_is_counted_once(monkeypatch):
    functions = dict(AttentionInterface._global_mapping)
    functions["mine"] = functions["sdpa"]
    monkeypatch.setattr(AttentionInterface, "_global_mapping", functions)
    model = models.build("opt")
    model.config._attn_implementation = "mine"
    seen, unseen = tapped(model, **models.inputs("opt", padded=False))
    assert unseen == [] and [call.source for call, _ in seen] == [CallSource.SDPA] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler and Hugging Face's masks warn of their own doings
def test_flex_attention_is_measured_through_the_interface():
    model, call = models.build("gemma2"), models.inputs("gemma2")
    flex = models.twin("gemma2", model, attn_implementation="flex_attention")
    seen, unseen = tapped(flex, **call)
    assert unseen == [] and [c.source for c, _ in seen] == [CallSource.INTERFACE] * 2
    for (_, ours), theirs in zip(seen, entropies(model, **call), strict=True):
        torch.testing.assert_close(ours.entropy, theirs, atol=1e-5, rtol=0)
