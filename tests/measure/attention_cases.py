"""Attention calls of every shape, and the reference that every path is held to: float64, materialised."""

import math
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

LENGTH = 37  # not a multiple of any block size


@dataclass(frozen=True, kw_only=True)
class Case:
    """Arguments of `attention_entropy`."""

    q: Tensor
    k: Tensor
    options: dict = field(default_factory=dict)


@st.composite
def cases(
    draw,
    dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    masks=("none", "padding", "full"),
    biases=("none", "keys", "full"),
    softcaps=(None, 5.0),
) -> Case:
    """Draw a call: peaked or flat rows, keys far from zero or not, every mask, window, bias and grouping."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    heads, groups = draw(st.sampled_from([(4, 4), (4, 2), (3, 1)]))
    dtype, peak, shift = (
        draw(st.sampled_from(dtypes)),
        draw(st.sampled_from([0.1, 1.0, 12.0])),
        draw(st.sampled_from([0.0, 50.0])),
    )
    dim = draw(st.sampled_from([8, 24, 64]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q = (peak * normal(2, heads, LENGTH, dim)).to(dtype)
    k = (normal(2, groups, LENGTH, dim) + shift).to(dtype)
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 1, 7])),
        "mask": _mask(draw(st.sampled_from(masks)), generator),
        "bias": _bias(draw(st.sampled_from(biases)), heads, normal),
        "scale": draw(st.sampled_from([None, 0.3])),
        "softcap": draw(st.sampled_from(softcaps)),
    }
    return Case(q=q, k=k, options=options)


def _mask(kind: str, generator: torch.Generator) -> Tensor | None:
    if kind == "padding":  # one sequence padded on the right, one on the left
        mask = torch.ones(2, 1, 1, LENGTH, dtype=torch.bool)
        mask[0, ..., 20:] = False
        mask[1, ..., :5] = False
        return mask
    return torch.rand(2, 1, LENGTH, LENGTH, generator=generator) > 0.3 if kind == "full" else None


def _bias(kind: str, heads: int, normal) -> Tensor | None:
    return None if kind == "none" else normal(1, heads, 1 if kind == "keys" else LENGTH, LENGTH)


def reference(case: Case) -> dict[str, Tensor]:
    """Materialise the attention in float64 on the inputs as given, and read everything off it."""
    s, seen, products = _logits(case)
    p = s.softmax(dim=-1)
    row, key = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None, :]
    mask = case.options["mask"]
    first = (
        torch.zeros(s.shape[:2], dtype=torch.long)
        if mask is None
        else mask.any(-2).int().argmax(-1).expand(s.shape[:2])
    )
    return {
        "entropy": torch.special.entr(p).sum(dim=-1),
        "effective_keys": 1 / p.square().sum(dim=-1),
        "first_key_mass": p.gather(-1, first[..., None, None].expand(-1, -1, s.shape[-2], 1))[..., 0],
        "mean_distance": (p * (row - key).abs()).sum(dim=-1),
        "max_logit": s.amax(dim=-1).masked_fill(~seen.any(dim=-1), torch.nan),
        "num_visible": seen.sum(dim=-1),
        # A soft cap hides large products, but not their rounding.
        "largest_logit": torch.maximum(s[seen].abs().max(), products[seen].abs().max())
        if seen.any()
        else torch.tensor(0.0),
    }


def moments(case: Case, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Materialise the variance of each counted row's visible logits, and the share of it that is the mean query's."""
    s, seen, _ = _logits(case)
    counted = seen.any(dim=-1) & rows[:, None]
    q, k = case.q.double(), case.k.double().repeat_interleave(case.q.shape[1] // case.k.shape[1], dim=1)
    scale = q.shape[-1] ** -0.5 if case.options["scale"] is None else case.options["scale"]
    mean = torch.where(counted[..., None], q, math.nan).nanmean(dim=2, keepdim=True)

    def variance(x: Tensor) -> Tensor:
        x = torch.where(seen & counted[..., None], x, math.nan)
        return (x - x.nanmean(dim=-1, keepdim=True)).square().nanmean(dim=-1)

    of_keys, of_logits = variance(scale * mean @ k.mT), variance(s)
    return of_logits, of_keys.nansum(-1, keepdim=True) / of_logits.nansum(-1, keepdim=True)


def _logits(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits with hidden ones minus infinity, what is visible, and the scaled products before any cap."""
    o, q, k = case.options, case.q.double(), case.k.double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if o["scale"] is None else o["scale"])
    products = s
    if o["softcap"] is not None:
        s = o["softcap"] * torch.tanh(s / o["softcap"])
    if o["bias"] is not None:
        s = s + o["bias"].double()
    row, key = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None, :]
    seen = torch.ones_like(s, dtype=torch.bool)
    if o["causal"]:
        seen &= key <= row
    if o["window"] is not None:
        seen &= (row - key).abs() < o["window"]
    if o["mask"] is not None:
        seen &= o["mask"]
    return s.masked_fill(~seen, -math.inf), seen, products
