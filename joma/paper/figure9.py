r"""Figure 9: the curve $G(y) = F(\theta_1^{-1}(y))$ of a distribution, and the lines through zero that meet it.

Two clusters have a critical point of weights and bias together where $F/\theta_1$ takes one value at two distances
$s_\pm$ from the hyperplane: where a line through zero meets G at two levels $y_\pm = \theta_1(s_\pm)$. Curves and
intersections come from `joma.theory`; they are compared with the raw field of the two clusters, integrated over the
marginal densities of `scipy.stats` (for the ring, over its radii), and searched for its zeros.

Controls: for each distribution a line outside the slopes at which there are pairs, and a pair's ratio of weights at
another distance of the clusters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special, stats
from scipy.integrate import tanhsinh
from scipy.optimize import elementwise

from joma.charts import Chart, lines
from joma.checks.quadrature import GROWTH, panels
from joma.claims import Number, claim
from joma.paper.experiment import Experiment, Measured, as_float32, caption, catalogue, joined, select
from joma.store.work import Workspace
from joma.theory.critical_points import critical_pairs
from joma.theory.hyperplane import central_product, line_intersections, mean_activation, theta1_inverse
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall

FARTHEST_LOGIT = 22.0
"""Levels are searched from 1 / (1 + e^22) = 3e-10 to one minus that."""
AGREEMENT = 1e-8
"""Largest distance of curves and levels from quadrature and root finding; also the field at a critical point."""
AT_MOST = 2
"""Intersections that the paper allows."""
RING_WIDTH, RING_REACH = 0.05, 9.0
"""Standard deviation of the ring's radius around 1, and how many of them are integrated over."""
WIDE, SHARE = 10.0, 0.1
"""Scale and weight of the wider of two normals."""

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Law:
    """A distribution, its marginal by other means, and lines to try."""

    title: str
    make: Callable[[], Isotropic]
    """Returns the distribution; some take a while."""
    marginal: tuple[tuple[float, Any], ...]
    """Weighted laws of scipy.stats that are its marginal; empty for the ring."""
    with_pairs: tuple[float, ...]
    """Slopes of lines that should give critical points."""
    control: float
    """Slope of a line outside the slopes that do."""

    @cached_property
    def noise(self) -> Isotropic:
        """The distribution as `joma.theory` has it."""
        return self.make()

    @cached_property
    def beyond(self) -> list[Function]:
        """P(y > s) and E[y; y > s] for s ≥ 0, by quadrature."""
        if not self.marginal:
            return _of_ring()

        def weighted(power: int) -> Function:
            parts = [(weight, _beyond(law, power)) for weight, law in self.marginal]
            return lambda s: np.asarray(sum(weight * part(s) for weight, part in parts))

        return [weighted(0), weighted(1)]

    def moment(self, s: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
        """θ₂(s) = E[y; y > |s|] by quadrature."""
        return self.beyond[1](np.abs(s))

    def mass(self, s: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
        """θ₁ by quadrature."""
        tail = self.beyond[0](np.abs(s))
        return np.where(s > 0, 1 - tail, tail)

    def mean(self, s: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
        """F = E(y + s)₊ by quadrature."""
        return self.moment(s) + s * self.mass(s)


def _ring(r: np.ndarray) -> np.ndarray:
    return np.exp(-np.square((r - 1) / RING_WIDTH) / 2)


def _scales(r: np.ndarray) -> np.ndarray:
    return (1 - SHARE) * np.exp(-(r**2) / 2) + SHARE * np.exp(-((r / WIDE) ** 2) / 2) / WIDE


def _beyond(law: Any, power: int) -> Function:
    """Integral of y^power p(y) from s ≥ 0 on, by Gauss rules over panels, the first of them cut at s."""
    high = law.support()[1]
    edges = np.concatenate([[0.0], GROWTH, high - GROWTH if np.isfinite(high) else []])
    edges = np.unique(np.clip(edges, 0, high))

    def over(edges: np.ndarray) -> np.ndarray:
        y, weight = panels(edges)
        return (weight * y**power * law.pdf(y)).sum(axis=-1)

    whole_panels = over(np.stack([edges[:-1], edges[1:]], axis=-1))
    after = np.append(np.cumsum(whole_panels[::-1])[::-1], 0.0)

    def integral(s: np.ndarray) -> np.ndarray:
        s = np.minimum(s, edges[-1])
        following = np.minimum(np.searchsorted(edges, s, side="right"), edges.size - 1)
        return over(np.stack([s, edges[following]], axis=-1)) + after[following]

    return integral


def _of_ring() -> list[Function]:
    """Tail and moment of a ring in the plane: circles whose radius is nearly normal around 1."""
    low, high = 1 - RING_REACH * RING_WIDTH, 1 + RING_REACH * RING_WIDTH

    def weight(r: np.ndarray) -> np.ndarray:
        return np.asarray(r * _ring(r))

    total = tanhsinh(weight, low, high).integral

    def over_radii(part: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Function:
        def mean(s: np.ndarray) -> np.ndarray:
            begin = np.clip(s, low, high)
            # circles that do not reach the line add nothing
            found = tanhsinh(lambda r, s: weight(r) * part(r, np.minimum(s, r)), begin, high, args=(s,), rtol=1e-12)
            return np.asarray(found.integral / (total * np.pi))

        return mean

    return [over_radii(lambda r, s: np.arccos(s / r)), over_radii(lambda r, s: np.sqrt((r - s) * (r + s)))]


NORMAL, BALL, TWO = stats.norm(), stats.beta(2, 2, loc=-1, scale=2), (stats.norm(), stats.norm(scale=WIDE))
LAWS = {
    # strictly log-concave: every line meets G once; if bounded too, lines above slope 1 do not meet it at all
    "gaussian": Law("normal", Gaussian, ((1.0, NORMAL),), (), 1.2),
    "ball": Law("uniform ball, n = 3", lambda: UniformBall(dim=3), ((1.0, BALL),), (), 0.5),
    # a power tail: lines above the lowest F/θ₁ meet G twice; with a heavy one also at y ≥ ½
    "student": Law("Student's t, ν = 3", lambda: StudentT(dof=3.0), ((1.0, stats.t(3.0)),), (1.2, 2.0), 0.8),
    "heavy": Law("Student's t, ν = 1.5", lambda: StudentT(dof=1.5), ((1.0, stats.t(1.5)),), (2.0, 3.0), 1.2),
    # a ring in the plane, whose marginal density rises to the edge
    "ring": Law("thin ring, n = 2", lambda: RadialProfile(dim=2, profile=_ring), (), (1.05,), 0.8),
    # two normals of different scale around one center
    "scales": Law(
        "two scales",
        lambda: RadialProfile(dim=1, profile=_scales),
        ((1 - SHARE, TWO[0]), (SHARE, TWO[1])),
        (3.0,),
        10.0,
    ),
}
CONVEX = 1e-9
"""Largest fall of a slope that counts as rounding."""
HIGHEST_SHOWN = 0.99
"""Level up to which curves are drawn: beyond, G of an unbounded distribution leaves every axis."""
FARTHER = 1.5
"""Distance of the clusters in the control, over that of a pair."""
Met = dict[float, np.ndarray]
"""Levels at which the line of each slope meets G."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure9Config:
    """Which distributions, and how finely they are searched."""

    laws: tuple[str, ...] = tuple(LAWS)
    num_levels: int = 120
    """Levels at which curves are drawn."""
    num_places: int = 401
    """Hyperplanes between which zeros of the raw field are looked for."""
    distances: tuple[float, ...] = (0.5, 2.0)
    """Distances of two clusters at which critical points are counted."""


def lines_met(law: Law, s: Float[np.ndarray, " S"], met: Met) -> pd.DataFrame:
    """Levels at which each line meets G, by theory and by the zeros of F − kθ₁ under quadrature; NaN for none."""
    mean, mass = law.mean(s), law.mass(s)
    rows = []
    for k, levels in met.items():
        signs = np.sign(mean - k * mass)
        at = np.flatnonzero(signs[1:] != signs[:-1])
        found = np.empty(0)
        if at.size:
            root = elementwise.find_root(lambda s, k=k: law.mean(s) - k * law.mass(s), (s[at], s[at + 1])).x
            found = law.mass(np.atleast_1d(root))
        gap = float(np.abs(found - levels).max()) if 0 < found.size == levels.size else np.nan
        own = {"k": k, "is_control": k == law.control, "count": levels.size, "count_raw": found.size, "gap": gap}
        rows += [own | {"y": level} for level in (levels if levels.size else (np.nan,))]
    return pd.DataFrame(rows)


def pairs_of(law: Law, s: Float[np.ndarray, " S"], met: Met) -> pd.DataFrame:
    r"""The raw field at the critical points that the lines give, and at its smallest for clusters farther apart.

    The field is the size of $(n^\top\dot v, \dot\xi)$ at $v = n$, $\xi = s$, over $\theta_1(s + D)$: a tail is no zero.
    """

    def field(s: np.ndarray, distance: float, ratio: float) -> float:
        plus = law.mass(s + distance)
        along = _pull(law, s, distance, np.full_like(s, ratio))
        return (np.hypot(along, plus - ratio * law.mass(s)) / plus).min()

    rows = []
    for k in law.with_pairs:
        places = theta1_inverse(law.noise, met[k])
        for minus, plus in combinations(range(places.size), 2):
            distance, ratio = places[plus] - places[minus], met[k][plus] / met[k][minus]
            fields = field(places[minus : minus + 1], distance, ratio), field(s, FARTHER * distance, ratio)
            rows.append((k, places[minus], places[plus], distance, ratio, *fields))
    return pd.DataFrame(rows, columns=["k", "s_minus", "s_plus", "distance", "ratio", "field", "field_farther"])


def _pull(
    law: Law, s: Float[np.ndarray, " S"], distance: float, ratio: Float[np.ndarray, " S"]
) -> Float[np.ndarray, " S"]:
    r"""$n^\top\dot v = D\,\theta_1(s + D) + \theta_2(s + D) - a_-\theta_2(s)$ at $v = n$, $\xi = s$.

    The positive cluster lies at distance D along n with weight one, the negative one at zero.
    """
    return distance * law.mass(s + distance) + law.moment(s + distance) - ratio * law.moment(s)


def counts_of(law: Law, s: Float[np.ndarray, " S"], distances: tuple[float, ...]) -> pd.DataFrame:
    """Critical points of two clusters at some distances, whatever the ratio: by theory, and by the raw field."""
    rows = []
    for distance in distances:
        # for every hyperplane the ratio at which ξ stands still; where v does so too, there is a critical point
        signs = np.sign(_pull(law, s, distance, law.mass(s + distance) / law.mass(s)))
        known = [pair for pair in critical_pairs(law.noise, distance) if pair.orientation > 0]
        count = sum(s[0] < pair.s_minus < s[-1] for pair in known)
        rows.append({"distance": distance, "count": count, "count_raw": int((signs[1:] != signs[:-1]).sum())})
    return pd.DataFrame(rows)


def of_law(config: Figure9Config, name: str) -> dict[str, pd.DataFrame]:
    """G of one distribution with the lines that meet it, its pairs of clusters, and what the claims ask of it."""
    law = LAWS[name]
    y = np.linspace(0, HIGHEST_SHOWN, config.num_levels + 1)[1:]
    at = theta1_inverse(law.noise, y)
    height, density = mean_activation(law.noise, at), law.noise.density(at)
    gap = np.maximum(np.abs(law.mean(at) - height), np.abs(law.mass(at) - y))
    is_upper = y >= 1 / 2
    slope = (y / density)[is_upper]
    about = {
        "central_product": central_product(law.noise),
        "density_rises": bool((np.diff(density[is_upper]) > CONVEX).any()),
        "fall_of_slope": float((np.maximum.accumulate(slope) - slope).max()),
        "gap": gap.max(),
    }
    s = theta1_inverse(law.noise, special.expit(np.linspace(-FARTHEST_LOGIT, FARTHEST_LOGIT, config.num_places)))
    met = {k: line_intersections(law.noise, k) for k in (*law.with_pairs, law.control)}
    pairs = pairs_of(law, s, met)
    titled = {
        "curves": as_float32(pd.DataFrame({"y": y, "G": height, "ratio": height / y})),
        "lines": lines_met(law, s, met),
        "laws": pd.DataFrame([about]),
    }
    others = {"pairs": pairs, "counts": counts_of(law, s, (*config.distances, *pairs["distance"].tail(1)))}
    for table in titled.values():
        table.insert(0, "title", law.title)
    for table in (*titled.values(), *others.values()):
        table.insert(0, "law", name)
    return titled | others


def compute(config: Figure9Config, space: Workspace) -> Measured:
    """Tabulate the curves and count what the lines meet, by theory and by the raw field."""
    found = []
    for index, name in enumerate(config.laws):
        space.progress(index / len(config.laws), LAWS[name].title)
        found.append(of_law(config, name))
    return Measured(**joined(found))


@claim("fig9-convex", "G is convex above one half", source="Appendix A.3.1, after Eqn 57, figure 9; Appendix A.4")
def convexity(t: Measured) -> Iterator[Number]:
    """dG/dy = θ₁/p_n > 0, and G is convex for y > ½"""
    rises = t.laws["density_rises"]
    for own, setting, key in ((~rises, "density falls away from zero", "falling"), (rises, "density rises", "rising")):
        if own.any():
            fall, about = t.laws.loc[own, "fall_of_slope"].max(skipna=False), {"setting": setting, "key": key}
            yield Number.exact("largest fall of G' over y > ½", fall, at_most=CONVEX, unit="fall of slope", **about)
    name, gap = "G and θ₁⁻¹ of every distribution, against quadrature", t.laws["gap"].max(skipna=False)
    yield Number.exact(name, gap, at_most=AGREEMENT, unit="max abs error", sanity=True)


@claim("fig9-lines", "A line meets G at most twice", source="Appendix A.4")
def intersections(t: Measured) -> Iterator[Number]:
    """there are at most two intersections between G and a straight line through zero"""
    met = t.lines.drop_duplicates(["law", "k"])
    for title, count in met.groupby("title", sort=False)["count"].max().items():
        name = f"most intersections of a line with G, {title}"
        yield Number.exact(name, count, at_most=AT_MOST, unit="intersections")
    name = "most intersections, lines outside the slopes that give pairs"
    yield Number.exact(name, met.loc[met["is_control"], "count"].max())
    yield Number.exact("most intersections, all distributions", met["count"].max(), key="most")
    name = "lines whose number of intersections differs from the zeros of the raw F − kθ₁"
    yield Number.exact(name, (met["count"] != met["count_raw"]).sum(), at_most=0.0, unit="lines", sanity=True)
    name = "levels at which lines meet G, against root finding"
    yield Number.exact(name, met["gap"].max(), at_most=AGREEMENT, unit="max abs error", sanity=True)


@claim("fig9-critical", "Lines that meet G twice give critical points", source="Appendix A.3.1, Eqns 56 to 59")
def critical_points(t: Measured) -> Iterator[Number]:
    """if a line meets G at two points and a₋/a₊ = y₁/y₂, there are v and ξ at which both stand still"""
    limit = {"at_most": AGREEMENT, "unit": "relative to θ₁(s₊)"}
    name, own = "raw field at the critical points that the lines give", t.pairs["field"].max(skipna=False)
    yield Number.exact(name, own, setting="at the line's own distance", **limit)
    name, farther = "smallest raw field, same ratio of weights", t.pairs["field_farther"].min(skipna=False)
    yield Number.exact(name, farther, setting=f"clusters {FARTHER:g} times as far apart", key="farther", **limit)
    name = "cases whose number of critical points differs from the zeros of the raw field"
    wrong = (t.counts["count"] != t.counts["count_raw"]).sum()
    yield Number.exact(name, wrong, at_most=0.0, unit="cases", sanity=True)


CLAIMS = (convexity, intersections, critical_points)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw G with its lines, and the slope of the line to each point of G."""
    by: dict[str, Any] = {"facet": "title", "share_y": False}
    drawn, met = [], []
    for title, curve in t.curves.groupby("title", sort=False):
        top = float(curve["y"].iloc[-1]), float(curve["G"].iloc[-1])
        drawn.append(pd.DataFrame({"title": title, "y": curve["y"], "height": curve["G"], "line": "G"}))
        for k, rows in select(t.lines, title=title).groupby("k"):
            end = min(top[0], top[1] / float(k))
            own = {"title": title, "line": f"slope {k:g}" + (", control" if rows["is_control"].iloc[0] else "")}
            drawn.append(pd.DataFrame({"y": [0.0, end], "height": [0.0, end * float(k)], **own}))
            levels = rows.loc[rows["y"] <= top[0], "y"]
            met.append(pd.DataFrame({"y": levels, "height": levels * float(k), **own}))
    frame, marks = (pd.concat(parts, ignore_index=True) for parts in (drawn, met))
    order = ["G", *sorted(set(frame["line"]) - {"G"})]
    yield lines(frame, "y", "height", color="line", order=order, marks=marks, **by, **caption("figure9"))
    yield lines(t.curves, "y", "ratio", **by, **caption("figure9-ratio"))


EXPERIMENTS = (
    Experiment(
        **catalogue("figure9"),
        presets={
            "quick": Figure9Config(),
            "full": Figure9Config(num_places=2001, distances=(0.25, 0.5, 1.0, 2.0, 4.0)),
        },
        compute=compute,
        claims=CLAIMS,
        charts=charts,
    ),
)
