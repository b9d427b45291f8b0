"""Attention that ran and was not seen is reported; the trail of one pass serves the next."""

import models
import pytest
import torch
from tapping import tapped
from torch import nn
from torch.nn import functional

from joma.probe.calls import CallSource
from joma.probe.taps import tap


class Hidden(nn.Module):
    """Attention in a kernel that is invisible from Python."""

    def __init__(self):
        """Keep the parts."""
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            q, k, v = (layer(x)[:, None] for layer in (self.q_proj, self.k_proj, self.v_proj))
            return functional.scaled_dot_product_attention(q, k, v)[:, 0]


@pytest.mark.parametrize("family", ["gpt2", "t5", "bloom"])
def test_the_sites_of_one_pass_show_the_same_calls_in_the_next(family):
    model, batch = models.build(family), models.inputs(family)
    sites, calls = set(), {}
    for known in (None, sites):
        calls[known is None] = []

        def on_call(call, seen=calls[known is None]):
            sites.add((call.site, call.source))
            seen.append((call.site, call.kind, call.layer, call.source, call.repeat, call.causal))

        with tap(model, on_call, sites=known), torch.no_grad():
            model(**batch)
    assert calls[True] == calls[False] != []
    assert any(source is CallSource.SOFTMAX for _, source in sites) == (family == "bloom")


def test_a_softmax_where_none_was_before_is_missed_and_reported():
    sdpa = models.build("gpt2")
    eager = models.twin("gpt2", sdpa, attn_implementation="eager")
    sites, unseen = set(), []
    with tap(sdpa, lambda call: sites.add((call.site, call.source))), torch.no_grad():
        sdpa(**models.inputs("gpt2"))
    with tap(eager, lambda call: None, on_unseen=unseen.append, sites=sites), torch.no_grad():
        eager(**models.inputs("gpt2"))
    assert {each.site for each in unseen} == {site for site, _ in sites}


def test_attention_that_ran_and_was_not_seen_is_reported():
    model = nn.ModuleList([Hidden(), nn.Linear(8, 8)])
    model.forward = lambda x: model[1](model[0](x))
    seen, unseen = tapped(model, x=torch.randn(1, 5, 8))
    assert seen == [] and [each.site for each in unseen] == ["0"]
    assert "neither scaled_dot_product_attention" in unseen[0].reason


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_attention_beside_attention_that_is_seen_is_reported():
    model = models.HandWritten()
    model.blocks[1].attention = torch.jit.script(nn.MultiheadAttention(32, 4))
    seen, unseen = tapped(model, tokens=torch.arange(14).reshape(2, 7))
    assert [call.site for call, _ in seen] == ["blocks.0", "blocks.1"]
    assert [each.site for each in unseen] == ["blocks.1.attention"]


def test_a_model_without_attention_is_reported():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    unseen = []
    with tap(model, lambda call: None, on_unseen=unseen.append):
        model(torch.zeros(2, 4))
    assert [each.site for each in unseen] == [""]
