"""Entropy and ranks where they run on a GPU, held to the same references as on a CPU."""

from dataclasses import replace

import pytest
import torch
from attention_cases import cases
from hypothesis import given, settings
from test_entropy import assert_close

from joma.measure.directions import overlap, top_directions
from joma.measure.entropy import AttentionStatistics, Path, attention_entropy
from joma.measure.rank import power_step, qk_cores, spectral_norm, stable_rank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KERNEL = cases(
    dtypes=(torch.float32, torch.bfloat16), masks=("none", "padding"), biases=("none", "keys"), softcaps=(None,)
)


def on_gpu(case, **options) -> AttentionStatistics:
    """Measure a case there, and bring the result back."""
    moved = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in case.options.items()}
    found = attention_entropy(case.q.cuda(), case.k.cuda(), **moved, **options)
    fields = {name: getattr(found, name) for name in AttentionStatistics.__slots__}
    tensors = {name: value.cpu() for name, value in fields.items() if isinstance(value, torch.Tensor)}
    return replace(found, **tensors)


@settings(max_examples=25, deadline=None, derandomize=True)  # every combination of options is compiled
@given(KERNEL)
def test_the_kernel_agrees_with_float64(case):
    found = on_gpu(case)
    assert found.path is Path.TRITON
    assert_close(found, case)
    torch.testing.assert_close(on_gpu(case, companions=False).entropy, found.entropy, equal_nan=True)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases(dtypes=(torch.float32, torch.float64), masks=("full",), biases=("none", "full")))
def test_row_chunks_agree_with_float64_on_a_gpu(case):
    found = on_gpu(case)
    assert found.path is Path.CHUNKED
    assert_close(found, case)


@pytest.fixture(params=["highest", "high"])
def precision_of_products(request):
    """Products of float32 matrices in float32, and in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("precision_of_products")
@pytest.mark.parametrize("shape", [(700, 500), (500, 700), (90, 64)])
def test_ranks_and_norms(shape):
    w = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(w.double())
    on_device = w.cuda()
    ranks = singular.square().sum(-1) / singular[:, 0].square()
    torch.testing.assert_close(stable_rank(on_device).cpu(), ranks, rtol=1e-6, atol=0)
    torch.testing.assert_close(spectral_norm(on_device).cpu(), singular[:, 0], rtol=1e-6, atol=0)
    live = power_step(list(on_device), num_steps=200)
    torch.testing.assert_close(live.norm, singular[:, 0], rtol=1e-6, atol=0)
    assert live.vector.device == on_device.device
    again = power_step(on_device, live.vector)
    torch.testing.assert_close(again.norm, singular[:, 0], rtol=1e-6, atol=0)
    assert (again.residual < 1e-4).all()


def test_norms_of_query_key_products():
    w_q, w_k = torch.randn(2, 64, 128, generator=torch.Generator().manual_seed(0))
    found = spectral_norm(qk_cores(w_q.cuda(), w_k.cuda(), 4))
    torch.testing.assert_close(found.cpu(), spectral_norm(qk_cores(w_q, w_k, 4)))


def test_variances_of_causal_logits():
    q, k = torch.randn(2, 2, 4, 200, 64, generator=torch.Generator().manual_seed(0))
    here, there = (attention_entropy(a, b, causal=True, moments=True) for a, b in ((q, k), (q.cuda(), k.cuda())))
    torch.testing.assert_close(there.logit_variance.cpu(), here.logit_variance, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(there.key_bias_share.cpu(), here.key_bias_share, rtol=1e-3, atol=1e-5)


def test_directions_of_a_gradient():
    w = torch.randn(3, 96, 64, generator=torch.Generator().manual_seed(0)) @ torch.diag(0.8 ** torch.arange(64))
    here, there = top_directions(w, 4), top_directions(w.cuda(), 4)
    torch.testing.assert_close(there.values.cpu(), here.values, rtol=1e-5, atol=0)
    torch.testing.assert_close(overlap(there.vectors.cpu(), here.vectors), torch.ones(3).double(), rtol=1e-5, atol=0)
