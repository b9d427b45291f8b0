"""Calls of `scaled_dot_product_attention` in models written by hand, with axes of every kind."""

from dataclasses import replace

import pytest
import torch
from tapping import Sdpa, tapped
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

from joma.probe.calls import AttentionCall, AttentionKind, CallSource
from joma.probe.taps import tap


@pytest.mark.parametrize(
    "function",
    [functional.scaled_dot_product_attention, imported_by_name, torch.ops.aten.scaled_dot_product_attention],
    ids=["attribute", "imported by name", "aten"],
)
def test_a_call_is_seen_however_the_function_was_imported(function):
    q = torch.randn(2, 3, 5, 4)
    seen, _ = tapped(Sdpa(function), q=q, k=q, v=q)
    assert [call.source for call, _ in seen] == [CallSource.SDPA]


@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (2, 3, 2)], ids=str)
def test_leading_axes_become_batch_and_heads(lead):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(*lead, n, 4, generator=generator) for n in (5, 7))
    mask = torch.rand(*lead[-1:], 5, 7, generator=generator) > 0.3
    mask[..., 0] = True
    seen, _ = tapped(Sdpa(imported_by_name, attn_mask=mask, scale=0.7), q=q, k=k, v=k)
    p = (0.7 * q.double() @ k.double().mT).masked_fill(~mask, -torch.inf).softmax(-1)
    wanted = torch.special.entr(p).sum(-1)
    call, statistics = seen[0]
    assert call.q.ndim == 4 and call.kind is AttentionKind.CROSS
    torch.testing.assert_close(statistics.entropy.double().reshape(wanted.shape), wanted, atol=1e-5, rtol=0)


def test_heads_inside_the_batch_axis_are_split_by_what_the_module_says():
    model = Sdpa(imported_by_name)
    model.num_heads = 3
    q = torch.randn(6, 5, 4)
    seen, _ = tapped(model, q=q, k=q, v=q)
    assert seen[0][0].q.shape == (2, 3, 5, 4)
    assert torch.equal(seen[0][0].q[1, 2], q[5])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_read_is_reported_and_does_not_stop_the_model():
    q = torch.nested.nested_tensor([torch.randn(3, 2, 4), torch.randn(5, 2, 4)], layout=torch.jagged).transpose(1, 2)
    model, unseen = Sdpa(imported_by_name), []
    with torch.no_grad(), tap(model, lambda call: None, on_unseen=unseen.append):
        model(q, q, q)
    assert len(unseen) == 1 and "nested tensors" in unseen[0].reason


def test_a_call_carries_queries_or_logits():
    q = torch.zeros(1, 1, 2, 2)
    call = AttentionCall(site="", kind=AttentionKind.SELF, layer=0, source=CallSource.SDPA, q=q, k=q)
    with pytest.raises(ValueError, match="needs `q` and `k`, or `logits`"):
        replace(call, logits=q)
    with pytest.raises(ValueError, match=r"got \[\]"):
        replace(call, q=None, k=None)
