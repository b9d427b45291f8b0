"""What figure 9 shows of a distribution: its curve, and what lines and pairs of clusters find on it."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import elementwise

from joma.errors import UnknownNameError, whole
from joma.experiments.figure9_cases import NAMES, Case
from joma.theory.critical_points import critical_pairs
from joma.theory.hyperplane import central_product, mean_activation, theta1_inverse

CONVEX = 1e-9
"""Largest fall of a slope that counts as rounding."""
PAIR = 2
"""Intersections from which on a line gives a critical point."""
PAIR_COLUMNS = {"law": str} | dict.fromkeys(
    ("k", "s_minus", "s_plus", "distance", "ratio", "field", "field_farther"), float
)
HIGHEST_SHOWN = 0.99
"""Level up to which curves are drawn: beyond, G of an unbounded distribution leaves every axis."""
FARTHER = 1.5
"""Distance of the clusters in the control, over that of a pair."""
Met = dict[float, np.ndarray]
"""Levels at which the line of each slope meets G."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Which distributions, and how finely they are searched."""

    laws: tuple[str, ...] = NAMES
    num_levels: int = 120
    """Levels at which curves are drawn."""
    num_places: int = 401
    """Hyperplanes between which zeros of the raw field are looked for."""
    distances: tuple[float, ...] = (0.5, 2.0)
    """Distances of two clusters at which critical points are counted."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        for name in self.laws:
            if name not in NAMES:
                raise UnknownNameError("distribution", name, NAMES)
        whole("num_levels", self.num_levels, low=3)
        whole("num_places", self.num_places, low=3)


def curve_of(config: Config, name: str, case: Case) -> pd.DataFrame:
    """G, its slope and G/y, with the distance of both coordinates from quadrature."""
    y = np.linspace(0, HIGHEST_SHOWN, config.num_levels + 1)[1:]
    s = theta1_inverse(case.noise, y)
    height, density = mean_activation(case.noise, s), case.noise.density(s)
    gap = np.maximum(np.abs(case.mean(s) - height), np.abs(case.mass(s) - y))
    columns = {"y": y, "G": height, "slope": y / density, "ratio": height / y, "density": density, "gap": gap}
    return pd.DataFrame({"law": name, "title": case.title, **columns})


def lines_met(name: str, case: Case, s: Float[np.ndarray, " S"], met: Met) -> pd.DataFrame:
    """Levels at which each line meets G, by theory and by the zeros of F − kθ₁ under quadrature; NaN for none."""
    mean, mass = case.mean(s), case.mass(s)
    rows = []
    for k, levels in met.items():
        signs = np.sign(mean - k * mass)
        at = np.flatnonzero(signs[1:] != signs[:-1])
        found = _levels_by_roots(case, k, s[at], s[at + 1]) if at.size else np.empty(0)
        gap = float(np.abs(found - levels).max()) if 0 < found.size == levels.size else np.nan
        own = {"law": name, "title": case.title, "k": k, "is_control": k == case.control}
        counts = {"count": levels.size, "count_raw": found.size, "gap": gap}
        rows += [own | counts | {"y": level} for level in (levels if levels.size else (np.nan,))]
    return pd.DataFrame(rows)


def _levels_by_roots(case: Case, k: float, low: np.ndarray, high: np.ndarray) -> Float[np.ndarray, " C"]:
    root = elementwise.find_root(lambda s: case.mean(s) - k * case.mass(s), (low, high)).x
    return case.mass(np.atleast_1d(root))


def pairs_of(name: str, case: Case, s: Float[np.ndarray, " S"], met: Met) -> pd.DataFrame:
    """The raw field at the critical points that the lines give, and at its smallest for clusters farther apart."""
    rows = []
    for k in case.with_pairs:
        places = theta1_inverse(case.noise, met[k])
        for minus, plus in combinations(range(places.size), PAIR):
            distance, ratio = places[plus] - places[minus], met[k][plus] / met[k][minus]
            at = _field(case, places[minus : minus + 1], distance, ratio)
            elsewhere = _field(case, s, FARTHER * distance, ratio)
            own = {"s_minus": places[minus], "s_plus": places[plus], "distance": distance, "ratio": ratio}
            rows.append({"law": name, "k": k, **own, "field": at.min(), "field_farther": elsewhere.min()})
    return pd.DataFrame(rows, columns=list(PAIR_COLUMNS)).astype(PAIR_COLUMNS)


def _field(case: Case, s: Float[np.ndarray, " S"], distance: float, ratio: float) -> Float[np.ndarray, " S"]:
    r"""Size of $(n^\top\dot v, \dot\xi)$ at $v = n$, $\xi = s$, over $\theta_1(s + D)$: a tail is no zero."""
    mass_plus = case.mass(s + distance)
    along = _pull(case, s, distance, np.full_like(s, ratio))
    return np.hypot(along, mass_plus - ratio * case.mass(s)) / mass_plus


def _pull(
    case: Case, s: Float[np.ndarray, " S"], distance: float, ratio: Float[np.ndarray, " S"]
) -> Float[np.ndarray, " S"]:
    r"""$n^\top\dot v = D\,\theta_1(s + D) + \theta_2(s + D) - a_-\theta_2(s)$ at $v = n$, $\xi = s$.

    The positive cluster lies at distance D along n with weight one, the negative one at zero.
    """
    plus = distance * case.mass(s + distance) + case.moment(np.abs(s + distance))
    return plus - ratio * case.moment(np.abs(s))


def counts_of(name: str, case: Case, s: Float[np.ndarray, " S"], distances: tuple[float, ...]) -> pd.DataFrame:
    """Critical points of two clusters at some distances, whatever the ratio: by theory, and by the raw field."""
    rows = []
    for distance in distances:
        # for every hyperplane the ratio at which ξ stands still; where v does so too, there is a critical point
        standing = case.mass(s + distance) / case.mass(s)
        signs = np.sign(_pull(case, s, distance, standing))
        known = [pair for pair in critical_pairs(case.noise, distance) if pair.orientation > 0]
        count = sum(s[0] < pair.s_minus < s[-1] for pair in known)
        count_raw = int((signs[1:] != signs[:-1]).sum())
        rows.append({"law": name, "distance": distance, "count": count, "count_raw": count_raw})
    return pd.DataFrame(rows)


def law_of(name: str, case: Case, curve: pd.DataFrame) -> pd.DataFrame:
    """Eqn 58's product, whether the density rises from zero on, the largest fall of G' at y > ½, and the error of G."""
    upper = curve[curve["y"] >= 1 / 2]
    slope = upper["slope"].to_numpy()
    row = {
        "law": name,
        "title": case.title,
        "central_product": central_product(case.noise),
        "density_rises": bool((np.diff(upper["density"]) > CONVEX).any()),
        "fall_of_slope": float((np.maximum.accumulate(slope) - slope).max()),
        "gap": curve["gap"].max(skipna=False),
    }
    return pd.DataFrame([row])
