"""Gradients of the rows of an embedding, added in every way."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.models import embedding


@given(seed=st.integers(0, 10**6), num_runs=st.integers(1, 3), num_rows=st.integers(1, 9), num_tokens=st.integers(1, 5))
def test_all_ways_add_what_autograd_adds(seed, num_runs, num_rows, num_tokens):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(num_tokens, (num_runs, 1, num_rows), generator=generator)
    rows = torch.randn(num_runs, 1, num_rows, 4, generator=generator, dtype=torch.float64)
    weight = torch.zeros(num_runs, num_tokens, 4, dtype=torch.float64, requires_grad=True)
    (right,) = torch.autograd.grad(embedding.embedding_rows(weight, tokens), weight, rows)
    for add in (embedding._add_one_by_one, embedding._add_by_product, embedding._add_sorted):
        found = torch.ones_like(right)
        add(found, tokens.flatten(1), rows.flatten(1, 2))
        assert torch.allclose(found, 1 + right, rtol=0, atol=1e-13)  # sums of a few numbers of order 1
