r"""The noise of a curve, read off the curve itself: its size $\sigma$ and its autocorrelation $\varphi$.

Both come from second differences at several strides, which a smooth signal hardly enters. Axes: C curves, N points.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float

STRIDES = (2, 3, 4)
"""Of the second differences that are set against those of stride 1 to find the autocorrelation."""
POINTS_PER_STRIDE = 10
"""Points that a stride needs: with fewer, second differences are mostly signal."""
MAX_AUTOCORRELATION = 0.8
"""Noise that is smoother cannot be told from signal."""
POINTS_OF_AUTOCORRELATION = 85
"""N points show an autocorrelation of at most N over this; in a short curve a bend looks like more."""
CLIP = 3.0
"""Second differences beyond this many deviations are signal or spikes, and count as this many."""
NUM_PARTS, POINTS_OF_PART = 3, 30
"""The noise is that of the noisiest third; halves or the whole where thirds would be shorter than 30 points."""
NORMAL_MAD = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Stationary noise around a curve: its deviation, and its correlation between neighbours."""

    deviation: float
    autocorrelation: float

    def of_mean(self, width: int) -> float:
        """Standard deviation of the mean of neighbouring points."""
        phi = self.autocorrelation
        factor = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**width) / (width * (1 - phi) ** 2)
        return self.deviation * sqrt(factor / width)


def noises_of(values: Float[np.ndarray, "C N"]) -> list[Noise]:
    r"""Match the sizes of second differences $x_{i-h} - 2x_i + x_{i+h}$, of variance $\sigma^2 g(\varphi^h)$."""
    nearest = _second_differences(values, 1)
    num_parts = max(1, min(NUM_PARTS, values.shape[1] // POINTS_OF_PART))
    noisiest = np.max([_spread(part) for part in np.array_split(nearest, num_parts, axis=1)], axis=0)
    return [
        Noise(deviation=spread / sqrt(_variance_of_difference(phi)), autocorrelation=phi)
        for spread, phi in zip(noisiest.tolist(), _autocorrelations(values, _spread(nearest)), strict=True)
    ]


def _autocorrelations(values: Float[np.ndarray, "C N"], nearest: Float[np.ndarray, " C"]) -> list[float]:
    """Read off how much larger second differences are at longer strides; at most what so many points can show."""
    num_curves, num = values.shape
    strides = [h for h in STRIDES if POINTS_PER_STRIDE * h <= num]
    if not strides:
        return [0.0] * num_curves
    spreads = np.stack([_spread(_second_differences(values, h)) for h in strides], axis=1)
    grid = np.linspace(0, MAX_AUTOCORRELATION, 161)
    expected = np.mean(_variance_of_difference(grid ** np.array(strides)[:, None]), axis=0)
    expected = expected / _variance_of_difference(grid)
    ratios = [
        np.mean([(spread / single) ** 2 for spread in further]) if single > 0 else 0.0
        for single, further in zip(nearest.tolist(), spreads.tolist(), strict=True)
    ]
    return np.minimum(np.interp(ratios, expected, grid), num / POINTS_OF_AUTOCORRELATION).tolist()


def _second_differences(values: Float[np.ndarray, "C N"], stride: int) -> Float[np.ndarray, "C n"]:
    return values[:, : -2 * stride] - 2 * values[:, stride:-stride] + values[:, 2 * stride :]


def _spread(differences: Float[np.ndarray, "C n"]) -> Float[np.ndarray, " C"]:
    """Root mean square with what is beyond `CLIP` deviations cut to that: a few jumps do not count as noise."""
    sizes = np.abs(differences)
    bounds = CLIP * NORMAL_MAD * np.median(sizes, axis=1, keepdims=True)
    return np.sqrt(np.mean(np.minimum(sizes, bounds) ** 2, axis=1))


def _variance_of_difference(correlation: float | Float[np.ndarray, "..."]) -> Any:
    r"""Variance of a second difference over that of a point, $g(\varphi) = 6 - 8\varphi + 2\varphi^2$."""
    return 6 - 8 * correlation + 2 * correlation**2
