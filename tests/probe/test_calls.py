"""What a model does with its logits is measured as it is."""

import pytest
import torch

from joma.probe.calls import AttentionCall, AttentionKind, CallSource, interface_fields, measure_call


def call_of(q, k, **given):
    return AttentionCall(site="attention", kind=AttentionKind.SELF, layer=0, source=CallSource.SDPA, q=q, k=k, **given)


def exact_entropy(q, k, added):
    p = torch.softmax(q.double() @ k.double().mT / q.shape[-1] ** 0.5 + added.double(), dim=-1)
    return -torch.special.xlogy(p, p).sum(dim=-1)


@pytest.mark.parametrize("has_bias", [False, True])
def test_zeros_and_ones_that_a_model_adds_are_added(has_bias):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 2, 3, 5, 8, generator=generator)
    neighbours = torch.randint(2, (5, 5), generator=generator).float()  # as of a graph
    bias = torch.randn(1, 3, 5, 5, generator=generator) if has_bias else None
    found = measure_call(call_of(q, k, mask=neighbours, bias=bias)).entropy
    right = exact_entropy(q, k, neighbours if bias is None else neighbours + bias)
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-5)
    hidden = torch.where(neighbours == 1, 0.0, -torch.inf).fill_diagonal_(0.0)
    found = measure_call(call_of(q, k, mask=hidden, bias=bias)).entropy
    right = exact_entropy(q, k, hidden if bias is None else hidden + bias)
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-5)


def test_no_soft_cap_as_flash_attention_says_it():
    x = torch.randn(1, 2, 4, 8)
    assert interface_fields(torch.nn.Identity(), x, x, None, {"softcap": 0.0})["softcap"] is None
    assert interface_fields(torch.nn.Identity(), x, x, None, {"softcap": 30.0})["softcap"] == 30.0
