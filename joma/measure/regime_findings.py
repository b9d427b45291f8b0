"""All that is found out about curves before they are named. Axis: C curves."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from joma.measure.regime_changes import Dip, Swing, both_sides, dips, swings
from joma.measure.regime_curves import Curves
from joma.measure.regime_noise import Noise
from joma.measure.regime_strays import Strays, strays

MIN_CHANGE = 0.02
"""Smallest change that matters, as part of the scale: the range of possible values, or else the curve's own height."""
COLLAPSED = 0.05
"""Curves that end this low, as part of the scale, have collapsed."""
UNIFORM = 0.99
"""Curves that end this high, as part of the scale, are uniform: attention at a usual initialisation is about there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All that the verdict on a curve rests on."""

    noise: Noise
    scale: float
    """The range of possible values, or else the curve's own height."""
    start: float
    end: float
    detectable: float
    """The smallest change that could count."""
    fall: Swing
    rise: Swing
    dip: Dip
    peak: Dip
    low: float
    """Probability that the end is as low as a collapsed curve's."""
    high: float
    """Probability that the end is as high as a uniform one's."""
    strays: Strays
    """What was left out at both ends."""


def findings(curves: Curves, lower: Float[np.ndarray, " C"], scale: Float[np.ndarray, " C"]) -> list[Findings]:
    """Look for every change, and at both ends."""
    smallest = MIN_CHANGE * scale
    before, after = both_sides(curves)
    upside_down = curves.upside_down
    start, end = curves.ends()
    above = end - lower
    error = np.array([noise.of_mean(curves.num_end_points) for noise in curves.noises]) + curves.rounding
    # the ends of the scale are rounded as well, and a curve of zeros has no rounding of its own to divide by
    error = np.maximum(error, np.finfo(np.float64).eps * scale)
    of_curves = {
        "noise": curves.noises,
        "scale": scale.tolist(),
        "start": start.tolist(),
        "end": end.tolist(),
        "detectable": curves.detectable().tolist(),
        "fall": swings(curves, before, smallest),
        "rise": swings(curves, after, smallest),
        "dip": dips(curves, before, after, smallest),
        "peak": dips(upside_down, *both_sides(upside_down), smallest),
        "low": ndtr((COLLAPSED * scale - above) / error).tolist(),
        "high": ndtr((above - UNIFORM * scale) / error).tolist(),
        "strays": strays(curves, smallest),
    }
    return [Findings(**dict(zip(of_curves, each, strict=True))) for each in zip(*of_curves.values(), strict=True)]
