"""Runs the Triton kernels of the models in Triton's interpreter, on the CPU, against torch in float64.

Started by test_kernels in a process of its own: the interpreter is chosen when a kernel is first imported.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import json
import sys
from dataclasses import replace
from itertools import cycle, product

import torch

from joma.models import (
    attention,
    attention_triton,
    embedding,
    embedding_triton,
    vocabulary_loss,
    vocabulary_loss_triton,
)
from joma.models.attention_triton import short_attention
from joma.models.decoder_config import DecoderConfig
from joma.models.gather_triton import gather_all
from joma.randomness import run_keys, streams

SINGLE = 1e-6
"""How far float32 may be from float64, relative: some ten roundings of 6e-8."""
ROUNDED = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
RATE = 0.3
HEADS, WIDTH = 2, 20
vocabulary_loss_triton._GROUP_ROWS = 16  # so that few rows make several groups


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    """Distance in units of what is right."""
    return float((found.detach().double() - right.detach()).norm() / right.detach().norm())


def of_attention(
    length: int,
    causal: bool,
    dropped: bool,
    biased: bool,
    *,
    few: bool = True,
    dtype: torch.dtype = torch.float32,
    permuted: bool = False,
) -> dict[str, float]:
    """Distances of output and gradient from those of materialised weights, for two runs of two sequences."""
    attention_triton._FEW = 512 if few else 0
    generator = torch.Generator().manual_seed(length)
    qkv = torch.randn(4, length, 3, HEADS, WIDTH, generator=generator).to(dtype)
    if permuted:  # as queries and keys that were turned are put together
        qkv = qkv.permute(0, 3, 2, 1, 4).contiguous().permute(0, 3, 2, 1, 4)
    qkv.requires_grad_()
    gradient = torch.randn(4, length, HEADS, WIDTH, generator=generator).to(dtype)
    stream = streams(run_keys([3, 4]), 7, ["attention.weights"])[0] if dropped else None
    bias = torch.randn(2, 2, length, generator=generator) if biased else None
    found = short_attention(qkv, stream, RATE, causal, bias)
    exact = qkv.detach().double().requires_grad_()
    q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
    config = DecoderConfig(vocabulary=2, width=HEADS * WIDTH, hidden=1, heads=HEADS, dropout=RATE)
    config = replace(config, causal=causal)
    logits = attention._biased(q @ k.mT * WIDTH**-0.5, bias)
    right = attention._materialised(config, logits, v, stream).transpose(1, 2)
    (found_gradient,) = torch.autograd.grad(found, qkv, gradient)
    (right_gradient,) = torch.autograd.grad(right, exact, gradient.double())
    return {"output": relative(found, right), "gradient": relative(found_gradient, right_gradient)}


def of_loss(
    num_words: int, num_rows: int, add: bool = False, *, dtype: torch.dtype = torch.float32, shared: bool = False
) -> dict[str, float]:
    """Distances of loss and gradients from torch's, with room behind the words.

    Rows have weights of their own, or all runs share targets and weights by a stride of 0.
    """
    generator = torch.Generator().manual_seed(num_words + num_rows)
    logits = torch.randn(2, num_rows, num_words + 5, generator=generator).to(dtype)
    bias = torch.randn(2, num_words, generator=generator)
    num_own = 1 if shared else 2
    targets = torch.randint(num_words, (num_own, num_rows), generator=generator).expand(2, -1)
    rows = torch.full((1, 1), 1 / num_rows) if shared else torch.rand(2, num_rows, generator=generator)
    rows = rows.expand(2, num_rows)
    exact = logits.double()
    exact[..., num_words:] = 0
    sums, right_sums = torch.ones(2, num_words), torch.ones(2, num_words, dtype=torch.float64)
    right = vocabulary_loss._differentiate(exact, bias.double(), targets, rows.double(), 0.5, right_sums, add=add)
    value = vocabulary_loss_triton.value(logits, bias, targets, rows, 0.5)
    found = vocabulary_loss_triton.differentiate(logits, bias, targets, rows, 0.5, sums, add=add)
    return {
        "value": relative(value, right),
        "loss": relative(found, right),
        "gradient": relative(logits, exact),
        "bias": relative(sums, right_sums),
    }


def of_embedding(num_rows: int, num_tokens: int, width: int) -> dict[str, float]:
    """Distance of an embedding's gradient, beside what is there, from that of torch."""
    generator = torch.Generator().manual_seed(num_rows)
    tokens = torch.randint(num_tokens, (2, num_rows), generator=generator)
    rows = torch.randn(2, num_rows, width, generator=generator)
    found = torch.randn(2, num_tokens, width, generator=generator)
    right = found.double()
    embedding._add_one_by_one(right, tokens, rows.double())
    beside = found.clone()
    embedding._add_sorted(found, tokens, rows)
    rounded, summed = torch.zeros(2, *found.shape, dtype=torch.float16)
    embedding._add_sorted(rounded, tokens, rows)
    embedding._add_one_by_one(summed, tokens, rows)
    assert torch.allclose(rounded, summed, rtol=2**-10, atol=1e-6)  # one rounding of sums in another order
    again, embedding_triton._MOST_COMPARED = beside.clone(), 0  # by torch's sort
    embedding._add_sorted(again, tokens, rows)
    embedding_triton._MOST_COMPARED = 16_384
    assert torch.equal(again, found)
    rows[1] = torch.nan
    embedding._add_sorted(beside, tokens, rows)
    assert torch.equal(beside[0], found[0]) and beside[1].isnan().any()  # a run that diverges stays by itself
    room = torch.full((2, num_tokens * width + 9), torch.nan)
    embedding_triton.clear(room[:, : num_tokens * width].unflatten(1, (num_tokens, width)))
    assert not room[:, : num_tokens * width].any() and room[:, num_tokens * width :].isnan().all()
    return {"gradient": relative(found, right)}


def of_gathering(num_runs: int) -> dict[str, float]:
    """Distances of gradients from what was brought: turned, in another precision, summed, into rows of a buffer."""
    generator = torch.Generator().manual_seed(num_runs)
    shapes = {"turned": (70, 130), "vector": (200,), "plain": (64, 64), "axes": (2, 5, 7)}
    shapes |= {"sum of 1": (33,), "sum of 20": (200,), "sum of 130": (70,)}
    sources = {
        name: torch.randn(num_runs, *([int(name.split()[-1])] if "sum" in name else []), *shape, generator=generator)
        for name, shape in shapes.items()
    }
    sources["turned"] = sources["turned"].bfloat16().mT.contiguous().mT
    expected = {name: each.float().sum(dim=1) if "sum" in name else each.float() for name, each in sources.items()}
    room = torch.full((num_runs, sum(each[0].numel() + 9 for each in expected.values())), torch.nan)
    targets, at = {}, 0
    for name, right in expected.items():
        targets[name] = room[:, at : at + right[0].numel()].unflatten(1, right.shape[1:])
        at += right[0].numel() + 9
    gather_all(list(targets.values()), list(sources.values()))
    assert room.isnan().sum() == 9 * len(shapes) * num_runs  # what lies between is not touched
    return {name: relative(targets[name], right) for name, right in expected.items()}


def leaves_its_neighbour():
    """Whether loss and gradient of a run are the same beside one with a NaN, whose own loss is NaN."""
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
    cases = product((True, False), (True, False), (True, False))  # of causal, dropped and biased
    distances = {
        f"attention of {length}, {case}": of_attention(length, *case)
        for length, case in zip(cycle((5, 16, 35)), cases, strict=False)
    }
    distances["attention of many"] = of_attention(35, True, True, True, few=False)
    distances |= {
        f"loss of {num_rows} rows over {num_words}, {add=}": of_loss(num_words, num_rows, add)
        for num_words, num_rows, add in ((7, 3, True), (1024, 1, False), (1500, 3, True), (7, 40, False))
    }
    distances |= {
        f"embedding of {num_rows} rows and {num_tokens} tokens, {width} wide": of_embedding(num_rows, num_tokens, width)
        for num_rows, num_tokens, width in ((1, 1, 3), (32, 1, 3), (70, 3, 130), (20, 30, 128))
    }
    distances["gathering"] = of_gathering(3)
    distances["loss of 40 rows that runs share"] = of_loss(70, 40, shared=True)
    found = {f"{case}, {name}": (each, SINGLE) for case, both in distances.items() for name, each in both.items()}
    # Of bfloat16 the interpreter multiplies the bits as whole numbers, so attention is tried in float16.
    half = of_attention(20, True, False, False, dtype=torch.float16, permuted=True)
    found |= {f"attention in float16, {name}": (each, ROUNDED[torch.float16]) for name, each in half.items()}
    half = of_loss(70, 5, dtype=torch.bfloat16, shared=True)
    found |= {f"loss in bfloat16, {name}": (each, ROUNDED[torch.bfloat16]) for name, each in half.items()}
    assert leaves_its_neighbour() == (True, True)
    json.dump(found, sys.stdout)
