"""What the kernels of the models meet on a GPU beyond small even tensors, in Triton's interpreter.

Rows of several programs, strides of 0, half precision, layouts that rotary positions leave behind, a run that is no
longer finite. This file is also the script that tries them: the interpreter is chosen when a kernel is first imported,
so in a process of its own.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

ROUNDED = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""How far results in a precision may be from float64, relative: some roundings."""


@pytest.fixture(scope="module")
def distances():
    """Distances from float64 by case, with how far they may be."""
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kernel", ["attention", "loss"])
def test_kernels_are_torchs_operations(distances, kernel):
    found = {case: numbers for case, numbers in distances.items() if case.startswith(kernel)}
    assert len(found) >= 3
    for case, (distance, allowed) in found.items():
        assert distance < allowed, case


def test_a_run_that_is_no_longer_finite_stays_by_itself(distances):
    assert distances["neighbour of NaN"] == [True, True]


def relative(found, right):
    """Distance in units of what is right."""
    return float((found.detach().double() - right.detach()).norm() / right.detach().norm())


def of_attention(dtype, *, permuted):
    """Distance of the output and the gradient from torch's."""
    from joma.models.attention_triton import short_attention  # noqa: PLC0415 (by the interpreter, as a script alone)

    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 20, 3, 2, 20, generator=generator).to(dtype)
    if permuted:  # as queries and keys that were turned are put together
        qkv = qkv.permute(0, 3, 2, 1, 4).contiguous().permute(0, 3, 2, 1, 4)
        assert not qkv.is_contiguous()
    qkv.requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
    right = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    found = short_attention(qkv, None, 0.0, True)
    gradient = torch.randn(found.shape, generator=generator).to(dtype)
    (found_gradient,) = torch.autograd.grad(found, qkv, gradient)
    (right_gradient,) = torch.autograd.grad(right, exact, gradient.double())
    return max(relative(found, right), relative(found_gradient, right_gradient))


def of_loss(dtype, num_rows, num_words=70, room=128):
    """Distance of loss and gradients from torch's, with targets and weights that all runs share by a stride of 0."""
    from joma.models import vocabulary_loss, vocabulary_loss_triton  # noqa: PLC0415 (as above)

    generator = torch.Generator().manual_seed(num_rows)
    logits = torch.randn(2, num_rows, room, generator=generator).to(dtype)
    logits[..., num_words:] = 0
    bias = torch.randn(2, num_words, generator=generator)
    targets = torch.randint(num_words, (1, num_rows), generator=generator).expand(2, -1)
    rows = torch.full((1, 1), 1 / num_rows).expand(2, num_rows)
    exact = logits.double()
    sums, right_sums = torch.zeros(2, num_words), torch.zeros(2, num_words, dtype=torch.float64)
    given = exact, bias.double(), targets, rows.double(), 0.5, right_sums
    right = vocabulary_loss._differentiate(*given, add=False)
    found = vocabulary_loss_triton.differentiate(logits, bias, targets, rows, 0.5, sums, add=False)
    return max(relative(found, right), relative(logits, exact), relative(sums, right_sums))


def leaves_its_neighbour():
    """Whether loss and gradient of a run are the same beside one with a NaN, whose own loss is NaN."""
    from joma.models import vocabulary_loss_triton  # noqa: PLC0415 (as above)

    calm = torch.randn(2, 5, 70, generator=torch.Generator().manual_seed(0))
    broken = calm.clone()
    broken[1, 3, 4] = torch.nan
    targets, rows, bias = torch.zeros(2, 5, dtype=torch.int64), torch.full((2, 5), 0.2), torch.zeros(2, 70)
    alone, beside = (
        vocabulary_loss_triton.differentiate(logits, bias, targets, rows, 1.0, None, add=False)
        for logits in (calm, broken)
    )
    is_same = torch.equal(alone[0], beside[0]) and torch.equal(calm[0], broken[0])
    return is_same, bool(beside[1].isnan())


if __name__ == "__main__":
    # Of bfloat16 the interpreter multiplies the bits as whole numbers, so attention is tried in float16.
    found = {
        f"attention in {dtype}, {permuted=}": (of_attention(dtype, permuted=permuted), ROUNDED[dtype])
        for dtype in (torch.float32, torch.float16)
        for permuted in (False, True)
    }
    found |= {
        f"loss of {num_rows} rows in {dtype}": (of_loss(dtype, num_rows), ROUNDED[dtype])
        for dtype, num_rows in ((torch.float32, 5), (torch.float32, 360), (torch.bfloat16, 5))
    }
    json.dump({**found, "neighbour of NaN": leaves_its_neighbour()}, sys.stdout)
