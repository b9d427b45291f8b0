r"""Figure 9: the curve $G(y) = F(\theta_1^{-1}(y))$ of a distribution, and the lines through zero that meet it.

Two clusters have a critical point of weights and bias together where $F/\theta_1$ takes one value at two distances
$s_\pm$ from the hyperplane: where a line through zero meets G at two levels $y_\pm = \theta_1(s_\pm)$. Curves and
intersections come from `joma.theory`; they are compared with the raw field of the two clusters, integrated over the
marginal densities of `scipy.stats` (for the ring, over its radii), and searched for its zeros.

Controls: for each distribution a line outside the slopes at which there are pairs, and a pair's ratio of weights at
another distance of the clusters.
"""

from collections.abc import Callable
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

from joma.errors import UnknownNameError, whole
from joma.experiments.drawn import for_drawing
from joma.experiments.experiment import Experiment, Result, Workplace, nothing_missing
from joma.figures.chart import Chart, Line, Panel
from joma.statements.quadrature import GROWTH, panels
from joma.theory.critical_rays import critical_pairs
from joma.theory.hyperplane import (
    central_product,
    line_intersections,
    mean_activation,
    theta1_inverse,
)
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall
from joma.verdicts import Evidence, Outcome, Verdict

AGREEMENT = 1e-8
"""Largest distance of curves and levels from quadrature and root finding; also the field at a critical point."""
CONVEX = 1e-9
"""Largest fall of a slope that counts as rounding."""
AT_MOST = 2
"""Intersections that the paper allows."""

PAIR = 2
"""Intersections from which on a line gives a critical point."""
PAIR_COLUMNS = {"law": str} | dict.fromkeys(
    ("k", "s_minus", "s_plus", "distance", "ratio", "field", "field_farther"), float
)
FARTHEST_LOGIT = 22.0
"""Levels are searched from 1 / (1 + e^22) = 3e-10 to one minus that."""
HIGHEST_SHOWN = 0.99
"""Level up to which curves are drawn: beyond, G of an unbounded distribution leaves every axis."""
FARTHER = 1.5
"""Distance of the clusters in the control, over that of a pair."""
RING_WIDTH, RING_REACH = 0.05, 9.0
"""Standard deviation of the ring's radius around 1, and how many of them are integrated over."""
WIDE, SHARE = 10.0, 0.1
"""Scale and weight of the wider of two normals."""

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A distribution, its marginal by other means, and lines to try."""

    title: str
    noise: Isotropic
    tail: Function
    """P(y > s) for s ≥ 0, independently."""
    moment: Function
    """E[y; y > s] for s ≥ 0, independently."""
    with_pairs: tuple[float, ...]
    """Slopes of lines that should give critical points."""
    control: float
    """Slope of a line outside the slopes that do."""

    def mass(self, s: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
        """θ₁ by quadrature."""
        tail = self.tail(np.abs(s))
        return np.where(s > 0, 1 - tail, tail)

    def mean(self, s: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
        """F = E(y + s)₊ by quadrature."""
        return self.moment(np.abs(s)) + s * self.mass(s)

    @property
    def lines(self) -> tuple[float, ...]:
        """Slopes of all lines."""
        return (*self.with_pairs, self.control)


def _of_laws(*laws: tuple[float, Any]) -> dict[str, Function]:
    """Tail and moment of weighted laws of scipy.stats."""

    def weighted(power: int) -> Function:
        parts = [(weight, _beyond(law, power)) for weight, law in laws]
        return lambda s: np.asarray(sum(weight * part(s) for weight, part in parts))

    return {"tail": weighted(0), "moment": weighted(1)}


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


def _of_ring() -> dict[str, Function]:
    """Tail and moment of a ring in the plane: circles whose radius is nearly normal around 1."""
    low, high = 1 - RING_REACH * RING_WIDTH, 1 + RING_REACH * RING_WIDTH

    def weight(r: np.ndarray) -> np.ndarray:
        return np.asarray(r * np.exp(-np.square((r - 1) / RING_WIDTH) / 2))

    total = tanhsinh(weight, low, high).integral

    def over_radii(part: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Function:
        def mean(s: np.ndarray) -> np.ndarray:
            begin = np.clip(s, low, high)
            # circles that do not reach the line add nothing
            found = tanhsinh(lambda r, s: weight(r) * part(r, np.minimum(s, r)), begin, high, args=(s,), rtol=1e-12)
            return np.asarray(found.integral / (total * np.pi))

        return mean

    return {
        "tail": over_radii(lambda r, s: np.arccos(s / r)),
        "moment": over_radii(lambda r, s: np.sqrt((r - s) * (r + s))),
    }


class Cases:
    """The distributions of the experiment, each built when it is first asked for."""

    @cached_property
    def gaussian(self) -> Case:
        """Strictly log-concave: every line meets G once."""
        return Case(title="normal", noise=Gaussian(), **_of_laws((1.0, stats.norm())), with_pairs=(), control=1.2)

    @cached_property
    def ball(self) -> Case:
        """Strictly log-concave and bounded: lines above slope 1 do not meet G at all."""
        law = stats.beta(2, 2, loc=-1, scale=2)
        return Case(
            title="uniform ball, n = 3", noise=UniformBall(dim=3), **_of_laws((1.0, law)), with_pairs=(), control=0.5
        )

    @cached_property
    def student(self) -> Case:
        """A power tail: lines above the lowest F/θ₁ meet G twice."""
        return Case(
            title="Student's t, ν = 3",
            noise=StudentT(dof=3.0),
            **_of_laws((1.0, stats.t(3))),
            with_pairs=(1.2, 2.0),
            control=0.8,
        )

    @cached_property
    def heavy(self) -> Case:
        """A heavier one, with pairs at y ≥ ½."""
        return Case(
            title="Student's t, ν = 1.5",
            noise=StudentT(dof=1.5),
            **_of_laws((1.0, stats.t(1.5))),
            with_pairs=(2.0, 3.0),
            control=1.2,
        )

    @cached_property
    def ring(self) -> Case:
        """A ring in the plane, whose marginal density rises to the edge."""
        noise = RadialProfile(dim=2, profile=lambda r: np.exp(-np.square((r - 1) / RING_WIDTH) / 2))
        return Case(title="thin ring, n = 2", noise=noise, **_of_ring(), with_pairs=(1.05,), control=0.8)

    @cached_property
    def scales(self) -> Case:
        """Two normals of different scale around one center."""

        def profile(r: np.ndarray) -> np.ndarray:
            return (1 - SHARE) * np.exp(-(r**2) / 2) + SHARE * np.exp(-((r / WIDE) ** 2) / 2) / WIDE

        laws = ((1 - SHARE, stats.norm()), (SHARE, stats.norm(scale=WIDE)))
        noise = RadialProfile(dim=1, profile=profile)
        return Case(title="two scales", noise=noise, **_of_laws(*laws), with_pairs=(3.0,), control=10.0)


NAMES = ("gaussian", "ball", "student", "heavy", "ring", "scales")


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


def quick() -> Config:
    """Return a search in 401 places."""
    return Config()


def full() -> Config:
    """Return a finer search, at more distances."""
    return Config(num_places=2001, distances=(0.25, 0.5, 1.0, 2.0, 4.0))


def compute(config: Config, workplace: Workplace) -> Result:
    """Tabulate the curves and count what the lines meet, by theory and by the raw field."""
    cases = Cases()
    tables: dict[str, list[pd.DataFrame]] = {"curves": [], "lines": [], "pairs": [], "counts": [], "laws": []}
    for index, name in enumerate(config.laws):
        case = getattr(cases, name)
        workplace.progress(index / len(config.laws), case.title)
        s = theta1_inverse(case.noise, special.expit(np.linspace(-FARTHEST_LOGIT, FARTHEST_LOGIT, config.num_places)))
        met = {k: line_intersections(case.noise, k) for k in case.lines}
        pairs = _pairs(name, case, s, met)
        curve = _curve(config, name, case)
        tables["curves"].append(for_drawing(curve[["law", "title", "y", "G", "ratio"]]))
        tables["lines"].append(_lines(name, case, s, met))
        tables["pairs"].append(pairs)
        tables["counts"].append(_counts(name, case, s, (*config.distances, *pairs["distance"].tail(1))))
        tables["laws"].append(_law(name, case, curve))
    kept = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    return Result(tables=kept, facts={})


def _curve(config: Config, name: str, case: Case) -> pd.DataFrame:
    """G, its slope and G/y, with the distance of both coordinates from quadrature."""
    y = np.linspace(0, HIGHEST_SHOWN, config.num_levels + 1)[1:]
    s = theta1_inverse(case.noise, y)
    height, density = mean_activation(case.noise, s), case.noise.density(s)
    gap = np.maximum(np.abs(case.mean(s) - height), np.abs(case.mass(s) - y))
    columns = {"y": y, "G": height, "slope": y / density, "ratio": height / y, "density": density, "gap": gap}
    return pd.DataFrame({"law": name, "title": case.title, **columns})


Met = dict[float, np.ndarray]
"""Levels at which the line of each slope meets G."""


def _lines(name: str, case: Case, s: Float[np.ndarray, " S"], met: Met) -> pd.DataFrame:
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


def _pairs(name: str, case: Case, s: Float[np.ndarray, " S"], met: Met) -> pd.DataFrame:
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


def _counts(name: str, case: Case, s: Float[np.ndarray, " S"], distances: tuple[float, ...]) -> pd.DataFrame:
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


def _law(name: str, case: Case, curve: pd.DataFrame) -> pd.DataFrame:
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


def draw(result: Result) -> tuple[Chart, ...]:
    """G with its lines, and the slope of the line to each point of G."""
    curves, lines = result.tables["curves"], result.tables["lines"]
    laws = list(dict.fromkeys(curves["law"]))
    return (
        Chart(
            "figure9",
            "G(y) and lines through zero, for six distributions",
            "Solid: G. Dashed: lines; points: where they meet G. A line that meets G twice gives a critical point of "
            "weights and bias together, if the clusters are as far apart as the two points say; the normal and the "
            "ball have no such line.",
            [_curve_panel(curves[curves["law"] == law], lines[lines["law"] == law]) for law in laws],
        ),
        Chart(
            "figure9-ratio",
            "Slope of the line from zero to each point of G",
            "G(y)/y = F/θ₁. Where it rises throughout no line meets G twice; every turn allows one more intersection.",
            [_ratio_panel(curves[curves["law"] == law]) for law in laws],
        ),
    )


def _curve_panel(curve: pd.DataFrame, lines: pd.DataFrame) -> Panel:
    items = [Line("G", curve["y"], curve["G"], color=0)]
    top = curve["y"].iloc[-1], curve["G"].iloc[-1]
    for color, (k, rows) in enumerate(lines.groupby("k"), start=1):
        met = rows.dropna(subset="y")
        end = min(top[0], top[1] / float(k))
        label = f"slope {k:g} meets {rows['count'].iloc[0]}×" + (" (control)" if rows["is_control"].iloc[0] else "")
        items.append(Line(label, [0.0, end], [0.0, end * float(k)], style="dashed", color=color))
        shown = met[met["y"] <= top[0]]
        if len(shown):
            items.append(Line("", shown["y"], shown["y"] * float(k), style="points", color=color))
    return Panel(str(curve["title"].iloc[0]), "y", "G", items)


def _ratio_panel(curve: pd.DataFrame) -> Panel:
    return Panel(str(curve["title"].iloc[0]), "y", "G(y)/y", [Line("G(y)/y", curve["y"], curve["ratio"])])


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge what Appendix A.3 says of the curve and of the lines."""
    return (_convex(result), _at_most_two(result), _critical(result))


def _convex(result: Result) -> Verdict:
    laws = result.tables["laws"]
    rising, falling = laws[laws["density_rises"]], laws[~laws["density_rises"]]
    check = Evidence(
        name="G and θ₁⁻¹ of every distribution",
        against="quadrature",
        unit="max abs error",
        value=float(laws["gap"].max(skipna=False)),
        threshold=AGREEMENT,
    )
    evidence = Evidence(
        name="largest fall of G' over y > ½, distributions whose density falls away from zero",
        against="enumeration",
        unit="fall of slope",
        value=float(falling["fall_of_slope"].max(skipna=False)),
        threshold=CONVEX,
        control=float(rising["fall_of_slope"].max()) if len(rising) else None,
        control_name=", ".join(rising["title"]),
    )
    if not evidence.holds:
        found = Outcome.REFUTED
    else:
        found = Outcome.CONDITIONAL if evidence.control_holds is False else Outcome.HOLDS
    return Verdict(
        id="fig9-convex",
        title="G is convex for y > ½",
        source="Appendix A.3.1, after Eqn 57, figure 9; Appendix A.4",
        claim="dG/dy = θ₁/p_n > 0, and G is convex for y > ½",
        outcome=found if check.holds else Outcome.INCONCLUSIVE,
        explanation="G' = θ₁/p rises where p falls. The marginal density of a thin ring in the plane rises to its "
        "edge, and G' falls there.",
        correction="G is convex for y > ½ where p falls on s > 0, as for every profile in three or more dimensions",
        evidence=(evidence, check),
        sound=check.holds,
    )


def _at_most_two(result: Result) -> Verdict:
    lines = result.tables["lines"].drop_duplicates(["law", "k"])
    check = Evidence(
        name="lines whose number of intersections differs from the zeros of the raw F − kθ₁",
        against="root finding",
        unit="lines",
        value=float((lines["count"] != lines["count_raw"]).sum()),
        threshold=0.0,
    )
    places = Evidence(
        name="levels at which lines meet G",
        against="root finding",
        unit="max abs error",
        value=float(lines["gap"].max()),
        threshold=AGREEMENT,
    )
    most = lines.groupby("title", sort=False)["count"].max()
    controls = lines[lines["is_control"]]
    evidence = Evidence(
        name="most intersections of a line with G",
        against="enumeration",
        unit="intersections",
        value=float(most.max()),
        threshold=float(AT_MOST),
        control=float(controls["count"].max()),
        control_name="lines outside the slopes that give pairs",
    )
    holding = [count <= AT_MOST for count in most]
    found = Outcome.HOLDS if all(holding) else Outcome.CONDITIONAL if any(holding) else Outcome.REFUTED
    sound = check.holds and places.holds
    return Verdict(
        id="fig9-lines",
        title="A line meets G at most twice",
        source="Appendix A.4",
        claim="there are at most two intersections between G and a straight line through zero",
        outcome=found if sound else Outcome.INCONCLUSIVE,
        explanation="Most intersections found: "
        + ", ".join(f"{count} ({title})" for title, count in most.items())
        + ".",
        correction="at most one more than F/θ₁ has turning points: one for a strictly log-concave density, two for "
        "Student's t, three for two scales and for the ring",
        evidence=(evidence, check, places),
        sound=sound,
    )


def _critical(result: Result) -> Verdict:
    pairs, counts, lines = (result.tables[name] for name in ("pairs", "counts", "lines"))
    check = Evidence(
        name="distributions and distances whose number of critical points differs from the zeros of the raw field",
        against="root finding",
        unit="cases",
        value=float((counts["count"] != counts["count_raw"]).sum()),
        threshold=0.0,
    )
    evidence = Evidence(
        name="raw field at the critical points that the lines give",
        against="quadrature",
        unit="relative to θ₁(s₊)",
        value=float(pairs["field"].max(skipna=False)),
        threshold=AGREEMENT,
        control=float(pairs["field_farther"].min(skipna=False)),
        control_name=f"the same ratio of weights, clusters {FARTHER:g} times as far apart, any hyperplane",
    )
    if not evidence.holds:
        found = Outcome.REFUTED
    else:
        found = Outcome.HOLDS if evidence.control_holds else Outcome.CONDITIONAL
    none = [str(title) for title, rows in lines.groupby("title", sort=False) if rows["count"].max() < PAIR]
    return Verdict(
        id="fig9-critical",
        title="Lines that meet G twice give critical points",
        source="Appendix A.3.1, Eqns 56 to 59",
        claim="if a line meets G at two points and a₋/a₊ = y₁/y₂, there are v and ξ at which both stand still",
        outcome=found if check.holds else Outcome.INCONCLUSIVE,
        explanation=(
            "The field vanishes at the point that a line gives, for clusters as far apart as s₊ − s₋. That distance "
            "belongs to the data, so it forces the ratio of the weights: at another distance the same ratio has no "
            f"critical point. Without any line that meets G twice: {', '.join(none) or 'none'}."
        ),
        correction="the ratio a₋/a₊ is forced by the distance of the clusters: both F/θ₁(s₊) = F/θ₁(s₋) and "
        "s₊ − s₋ = ±D are needed",
        evidence=(evidence, check),
        sound=check.holds,
    )


EXPERIMENT = Experiment(
    id="figure9",
    title="The curve G(y) and the lines that give critical points",
    place="Appendix A.3.1, figure 9",
    question=(
        "For which distributions does a line through zero meet G twice, and is every such line a critical point of "
        "weights and bias?"
    ),
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
    schema=2,
)
