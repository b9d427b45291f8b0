r"""What a curve does over training: flat, falling, rising, rebounding, peaking, collapsed, uniform, or unclear.

The noise is estimated from the curve itself: its size $\sigma$ and its autocorrelation $\varphi$ from second
differences at several strides, which a smooth signal hardly enters. Means of windows are then compared with each other.
For windows of widths $w_1, w_2$ among $N$ points, one after the other, a difference counts when

$$\frac{|m_1 - m_2|}{\sqrt{\mathrm{Var}\,m_1 + \mathrm{Var}\,m_2}} >
  \sqrt{2\ln\tfrac{N}{w_1} + 2\ln\tfrac{N}{w_2}} + c, \qquad
  \mathrm{Var}\,m = \tfrac{\sigma^2}{w}\Big(\tfrac{1+\varphi}{1-\varphi} -
  \tfrac{2\varphi(1-\varphi^w)}{w(1-\varphi)^2}\Big).$$

The root is what the largest of many such differences reaches by chance at those widths, and $c$ (`EVIDENCE`) serves
curves of all lengths. A rebound is a window lower than one before it and lower than one after it, by differences that
count. On a falling curve the second difference exists by noise alone, and is largest where the curve is flat: so $c$
bounds false rebounds whatever the shape of the descent. Only the order of the steps enters, not their spacing.

Curves of one length are worked on together. The files of this folder hold the noise (`regime_noise`), the windows
(`regime_curves`), falls, rises and dips (`regime_changes`), what was left out at the ends (`regime_strays`), what all
that tells of a curve (`regime_findings`), and the words for it (`regime_kinds`, `regime_words`); this one names it.

Rates of error and the curves they were measured on: docs/regimes.md.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from joma.errors import finite, same_shape
from joma.measure.regime_changes import KEPT, MIN_REBOUND, Dip
from joma.measure.regime_curves import EVIDENCE, SPIKE, Curves
from joma.measure.regime_findings import COLLAPSED, MIN_CHANGE, UNIFORM, Findings, findings
from joma.measure.regime_kinds import Kind
from joma.measure.regime_noise import MAX_AUTOCORRELATION
from joma.measure.regime_words import doubt, told

__all__ = [
    "COLLAPSED",
    "EVIDENCE",
    "HIDDEN",
    "KEPT",
    "MAX_AUTOCORRELATION",
    "MIN_CHANGE",
    "MIN_HEIGHT",
    "MIN_POINTS",
    "MIN_REBOUND",
    "SPIKE",
    "UNIFORM",
    "Curve",
    "Kind",
    "Regime",
    "classify",
    "classify_all",
]

MIN_POINTS = 8
"""Shorter curves are unclear."""
MIN_HEIGHT = 1e-3
"""Height of a curve that lies on its lower bound, relative to its values: a stable rank of 1 is flat, not noise."""
HIDDEN = 0.25
"""Where a change of this part of the scale would drown in noise, a curve without changes is unclear, not flat."""
MORE_LIKELY_THAN_NOT = 0.5
MAX_TOGETHER = 64
"""Curves that are worked on at a time: the longest of them compare their windows in some 100 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """What a curve does, and how sure that is."""

    kind: Kind
    start: float
    """Level at the start: the median of the first tenth of the points."""
    end: float
    """Level at the end, without the points that were left out there."""
    first: float
    """The first value as it was measured."""
    last: float
    """The last value as it was measured."""
    num_first_aside: int = 0
    """First points that stick out so far that it would matter, and were left out as a possible spike."""
    num_last_aside: int = 0
    """Last points of the same kind."""
    dip_step: float = np.nan
    """Step of the dip; NaN unless rebounding, as the next two."""
    dip_depth: float = np.nan
    """Fall into the dip, from the highest level before it."""
    rebound: float = np.nan
    """Rise out of the dip, to the highest level after it."""
    noise: float = np.nan
    """Standard deviation of a point around the curve."""
    autocorrelation: float = np.nan
    """Of that noise, between neighbouring points."""
    confidence: float
    """From 0.5 to 1: probability of the weakest of the conditions that the verdict rests on, under that noise; at most
    the chance of a spike where points were left out that speak against the verdict."""
    doubt: str = ""
    """What the points that were left out may be, in words; empty where there are none."""
    why: str
    """The verdict in words, with its numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values over ascending steps."""

    steps: Float[np.ndarray, " N"] | Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]
    upper: float | None = None
    """The largest value possible, if there is one."""
    lower: float = 0.0
    """The smallest value possible."""


def classify(
    steps: Float[np.ndarray, " N"] | Int[np.ndarray, " N"],
    values: Float[np.ndarray, " N"],
    *,
    upper: float | None = None,
    lower: float = 0.0,
) -> Regime:
    """Name the regime of a curve over ascending steps.

    `upper` and `lower` are the largest and smallest values possible: log L and 0 for the entropy over L keys, 1 for
    the smallest stable rank. Without `upper` nothing is uniform, and sizes are relative to the curve's own height.

    >>> steps = np.arange(60)
    >>> found = classify(steps, 3 + np.abs(steps - 20) / 16, upper=8.0)
    >>> found.kind.value, found.dip_step
    ('rebounding', 20.0)
    >>> found.why
    'falls by 1.25 to step 20, then rises by 2.44; noise 0'
    """
    return classify_all([Curve(steps=steps, values=values, upper=upper, lower=lower)])[0]


def classify_all(curves: Iterable[Curve]) -> list[Regime]:
    """Name the regimes of many curves as `classify` does, in far less time for those that are of one length.

    >>> steps = np.arange(60)
    >>> [found.kind.value for found in classify_all(Curve(steps=steps, values=1.0 + k * steps) for k in (0, 1))]
    ['flat', 'rising']
    """
    checked = [_checked(curve) for curve in curves]
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, curve in enumerate(checked):
        places[len(curve.values)].append(place)
    found: dict[int, Regime] = {}
    for length, alike in places.items():
        named = _verdicts if length >= MIN_POINTS else _too_short
        for first in range(0, len(alike), MAX_TOGETHER):
            together = alike[first : first + MAX_TOGETHER]
            found.update(zip(together, named([checked[place] for place in together]), strict=True))
    return [found[place] for place in range(len(checked))]


def _checked(curve: Curve) -> Curve:
    steps, values = finite("steps", _as_array(curve.steps)), finite("values", _as_array(curve.values))
    same_shape(steps=steps, values=values)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"A curve needs one axis and a point, got shape {values.shape}. Classify curves one by one.")
    if (np.diff(steps) <= 0).any():
        at = int(np.argmax(np.diff(steps) <= 0))
        raise ValueError(f"`steps` must ascend, got {steps[at]:g} before {steps[at + 1]:g}. Sort; keep one of each.")
    top = np.inf if curve.upper is None else curve.upper
    slack = 1e-6 * float(np.abs(values).max())  # single precision may round an entropy above log L
    if values.min() < curve.lower - slack or values.max() > top + slack:
        raise ValueError(
            f"`values` must lie between `lower` {curve.lower:g} and `upper` {top:g}, "
            f"got {values.min():g} to {values.max():g}. Pass the bounds of this quantity."
        )
    return replace(curve, steps=steps, values=values)


def _as_array(values: Any) -> Any:
    """Bring a tensor over from its device and without its gradient, which NumPy refuses; leave all else as it is."""
    return values.detach().cpu().double().numpy() if hasattr(values, "detach") else values


def _too_short(curves: Sequence[Curve]) -> list[Regime]:
    return [
        Regime(
            kind=Kind.UNCLEAR,
            start=float(curve.values[0]),
            end=float(curve.values[-1]),
            first=float(curve.values[0]),
            last=float(curve.values[-1]),
            confidence=1.0,
            why=f"{len(curve.values)} points, {MIN_POINTS} are needed",
        )
        for curve in curves
    ]


def _verdicts(curves: Sequence[Curve]) -> list[Regime]:
    clean = Curves.of(np.stack([curve.steps for curve in curves]), np.stack([curve.values for curve in curves]))
    scales = [_scale(curve, top) for curve, top in zip(curves, clean.values.max(axis=1).tolist(), strict=True)]
    found = findings(clean, np.array([float(curve.lower) for curve in curves]), np.array(scales))
    return [_verdict(each, curve) for each, curve in zip(found, curves, strict=True)]


def _scale(curve: Curve, top: float) -> float:
    if curve.upper is not None:
        return float(curve.upper - curve.lower)
    return max(top - curve.lower, MIN_HEIGHT * abs(top))


def _verdict(found: Findings, curve: Curve) -> Regime:
    """Go through the kinds in order; the first that is more likely than not is the verdict."""
    is_bounded = curve.upper is not None
    monotone = [(Kind.FALLING, found.fall.chance), (Kind.RISING, found.rise.chance)]
    is_hidden = found.noise.deviation > 0 and found.detectable > HIDDEN * found.scale
    chances = [
        (Kind.COLLAPSED, found.low if is_bounded else min(found.low, found.fall.chance)),
        (Kind.UNIFORM, found.high if is_bounded else 0.0),
        (Kind.REBOUNDING, found.dip.chance),
        (Kind.PEAKING, found.peak.chance),
        *(monotone if found.fall.size > found.rise.size else monotone[::-1]),
        (Kind.UNCLEAR if is_hidden else Kind.FLAT, 1.0),
    ]
    chosen = next(i for i, (_, chance) in enumerate(chances) if chance > MORE_LIKELY_THAN_NOT)
    kind, chance = chances[chosen]
    dip = found.dip if kind is Kind.REBOUNDING else Dip(chance=chance)
    strays = found.strays
    first, last, doubted = float(curve.values[0]), float(curve.values[-1]), doubt(kind, strays)
    words = (told(kind, found, abs(last - first)), doubted, f"noise {found.noise.deviation:.2g}")
    return Regime(
        kind=kind,
        start=found.start,
        end=found.end,
        first=first,
        last=last,
        num_first_aside=strays.first.num if strays.first else 0,
        num_last_aside=strays.last.num if strays.last else 0,
        dip_step=dip.step,
        dip_depth=dip.depth,
        rebound=dip.rebound,
        noise=found.noise.deviation,
        autocorrelation=found.noise.autocorrelation,
        confidence=min(
            chance,
            *(1 - rejected for _, rejected in chances[:chosen]),
            strays.chance if strays.contradict(kind) else 1.0,
        ),
        doubt=doubted,
        why="; ".join(filter(None, words)),
    )
