r"""Integrals over a radial profile $p_0(r)$ in n dimensions that is known only by its values.

Quadrature on [0, ∞) walks past a narrow ring or a distant shell. So the mass is located first, by a scan of the
logarithm over many decades. Panels are then halved until Gauss-Legendre resolves each of them *relative to itself*,
which keeps a far tail as accurate as the bulk. Outside the panels the profile is continued by power laws. scipy's
`quad_vec` and `tanhsinh` miss a shell of width 0.01 at r = 8 with 0.1 % of the mass; panels are off by 4e-15.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError
from joma.types import Real

Function = Callable[[np.ndarray], np.ndarray]
"""A function of an array, elementwise; a user's may take one number at a time."""

DECADES = 100  # the scan looks from 10^-100 to 10^100 ...
COARSE_POINTS = 200_001  # ... at a thousand radii a decade, near enough to see a Gaussian ring of relative width 3e-5
NEAR_DECADES = 12
NEAR_POINTS = 2_000_001  # second look, around r = 1, when the first saw nothing
BULK = 12.0  # nats below the peak of the mass that the fine scan covers ...
MARGIN = np.log(3)  # ... and the factor by which it looks further on either side ...
FINE_POINTS = 1_000_001  # ... at this many radii: near enough to see a ring of relative width 2e-6
DEPTH = 690.0  # nats below one, or below the peak, where values may have underflowed: they count as zero
TEST_ORDER = 12  # Gauss nodes that must resolve a panel before it is accepted ...
ORDER = 32  # ... and those used afterwards, enough for the square in r = √(y² + l²) and for lⁿ at n = 20
FUNCTION_ORDER = 24  # Gauss nodes of a panel on which a tabulated density is integrated against a smooth function
PANEL_TOLERANCE = 1e-12  # relative difference between Gauss on a panel and on its halves
END_TOLERANCE = 1e-6  # mismatch at ends and middle of a panel, over its largest value, that counts as continuous
ROUNDINGS = 8  # roundings that may add up in a panel's integral, and the width of a panel that cannot be halved
SEEN = 1.0  # nats by which the nodes of a panel may fall short of what the scan saw in it
MOST_PANELS = 20_000
MOST_HALVINGS = 64
TABLE_REACH = 1e25  # a density table ends at this multiple of the radius with most of the mass


@cache
def gauss(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [0, 1], with a Newton step in extended precision.

    The library's rule is off by some twenty roundings near the ends.
    """
    legendre = np.polynomial.Legendre.basis(order)
    x = special.roots_legendre(order)[0].astype(np.longdouble)
    x -= legendre(x) / legendre.deriv()(x)
    weights = 2 / ((1 - x**2) * legendre.deriv()(x) ** 2)
    return ((x + 1) / 2).astype(np.float64), (weights / 2).astype(np.float64)


@cache
def _to_the_ends() -> np.ndarray:
    """Weights that carry values at the test nodes of [0, 1] on to 0 and to 1, by the polynomial through them."""
    nodes, _ = gauss(TEST_ORDER)
    vander = np.polynomial.legendre.legvander
    at_nodes, at_ends = (vander(2 * np.asarray(x) - 1, TEST_ORDER - 1) for x in (nodes, [0.0, 1.0]))
    return np.linalg.solve(at_nodes.T, at_ends.T)


def log_profile(profile: Function, *, in_log: bool = False) -> Function:
    r"""Wrap a user's $p_0$, or with `in_log` $\ln p_0$, as $\ln p_0$ of an array; refuse negative values and NaN."""

    def logarithm(r: np.ndarray) -> np.ndarray:
        # Overflow and 0/0 far outside the mass are the user's formula at radii that they never meant.
        with np.errstate(all="ignore"):
            values = evaluate(profile, r)
            bad = np.isnan(values) | (values == np.inf) | ((values < 0) & (not in_log))
            if bad.any():
                raise AssumptionError(
                    f"A radial profile must be finite and not negative for r > 0, got {values[bad].flat[0]:g} at "
                    f"r = {r[bad].flat[0]:g}. Return 0 where there is no mass."
                )
            log_p = values if in_log else np.log(values)
        return log_p if in_log else np.where(log_p < -DEPTH, -np.inf, log_p)

    return logarithm


def evaluate(function: Function, x: np.ndarray) -> np.ndarray:
    """Return a user's function of every entry of an array, in a loop if it takes one number at a time.

    >>> evaluate(lambda x: 1.0 if x < 2 else 0.0, np.array([1.0, 3.0]))
    array([1., 0.])
    """
    try:
        values = np.asarray(function(x), dtype=np.float64)
        if values.shape == x.shape:
            return values
    except (TypeError, ValueError):
        pass  # the loop below meets the same error if it is one
    return np.array([function(one) for one in x.flat], dtype=np.float64).reshape(x.shape)


def scan(log_p: Function, dim: int) -> tuple[np.ndarray, np.ndarray]:
    r"""$\ln r$ in ascending order and $\ln p_0$ there: over all decades, and finely over the bulk."""
    log_r, values = _look(log_p, -DECADES * np.log(10), DECADES * np.log(10), COARSE_POINTS)
    if np.isneginf(values).all():
        log_r, values = _look(log_p, -NEAR_DECADES * np.log(10), NEAR_DECADES * np.log(10), NEAR_POINTS)
    if np.isneginf(values).all():
        raise AssumptionError(
            f"A radial profile needs mass: p0 is zero at {COARSE_POINTS} radii from 1e-{DECADES} to 1e{DECADES} and at "
            f"{NEAR_POINTS} from 1e-{NEAR_DECADES} to 1e{NEAR_DECADES}. Widen its features."
        )
    mass = values + dim * log_r
    bulk = log_r[mass > mass.max() - BULK]
    fine_r, fine_values = _look(log_p, bulk[0] - MARGIN, bulk[-1] + MARGIN, FINE_POINTS)
    below, above = log_r < fine_r[0], log_r > fine_r[-1]
    log_r = np.concatenate([log_r[below], fine_r, log_r[above]])
    return log_r, np.concatenate([values[below], fine_values, values[above]])


def _look(log_p: Function, begin: float, end: float, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    log_r = np.linspace(begin, end, num_points)
    return log_r, log_p(np.exp(log_r))


def resolve(
    log_q: Function, edges: np.ndarray, scanned_r: np.ndarray | None = None, scanned: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Halve panels until each is resolved relative to itself; panels without mass are dropped.

    Features between edges are seen through the values of a scan, if there was one.
    """
    scanned_r, scanned = (np.empty(0) if values is None else values for values in (scanned_r, scanned))
    lower, upper = edges[:-1], edges[1:]
    accepted: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(MOST_HALVINGS):
        resolved, empty = _is_resolved(log_q, lower, upper, scanned_r, scanned)
        accepted.append((lower[resolved & ~empty], upper[resolved & ~empty]))
        lower, upper = lower[~resolved], upper[~resolved]
        if lower.size == 0 or sum(part[0].size for part in accepted) + lower.size > MOST_PANELS:
            break
        middle = (lower + upper) / 2
        lower, upper = np.append(lower, middle), np.append(middle, upper)
    if lower.size:
        raise AssumptionError(
            f"The profile is too rough to integrate: {lower.size} panels near r = {lower[0]:.6g} are not resolved. "
            "Smooth the profile, or give it fewer jumps."
        )
    begin, end = (np.concatenate(parts) for parts in zip(*accepted, strict=True))
    order = np.argsort(begin)
    return begin[order], end[order]


def _is_resolved(
    log_q: Function, lower: np.ndarray, upper: np.ndarray, scanned_r: np.ndarray, scanned: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether Gauss on a panel agrees with Gauss on its halves, and whether the panel holds no mass at all."""
    nodes, weights = gauss(TEST_ORDER)
    points = np.concatenate([nodes, nodes / 2, (nodes + 1) / 2, [0.0, 0.5, 0.5, 1.0]])
    width = upper - lower
    values = log_q(lower[:, None] + width[:, None] * points)
    values[:, -1] = log_q(upper)  # lower + width may miss it by a rounding, on the wrong side of a jump
    top = values.max(axis=1)
    # The largest scanned value inside each panel, minus infinity where the scan has no point.
    begin, end = np.searchsorted(scanned_r, lower), np.searchsorted(scanned_r, upper)
    pairs = np.stack([begin, np.maximum(end, begin)], axis=1).ravel()
    largest = np.maximum.reduceat(np.append(scanned, -np.inf), pairs)[::2]
    seen_by_scan = np.where(end > begin, largest, -np.inf)
    empty = np.isneginf(top) & np.isneginf(seen_by_scan)
    top = np.where(np.isneginf(top), 0, top)
    coarse, left, right, ends = np.split(
        np.exp(values - top[:, None]), [TEST_ORDER, 2 * TEST_ORDER, 3 * TEST_ORDER], axis=1
    )
    fine = (left + right) @ weights / 2
    # Relative noise of p0: rounding of r times the slope of the logarithm, and of the logarithm.
    spread = (top[:, None] - np.where(np.isneginf(values), top[:, None], values)).max(axis=1)
    noise = ROUNDINGS * np.finfo(float).eps * (np.abs(top) + spread * upper / width)
    agree = np.abs(coarse @ weights - fine) <= (PANEL_TOLERANCE + noise) * fine
    # A jump beyond the outermost nodes of the halves hides from both rules, but not from the values at their ends.
    carried = np.concatenate([left @ _to_the_ends(), right @ _to_the_ends()], axis=1)
    continuous = (np.abs(carried - ends) <= END_TOLERANCE + noise[:, None]).all(axis=1)
    seen = top >= seen_by_scan - SEEN
    indivisible = width <= ROUNDINGS * np.finfo(float).eps * upper
    return empty | (agree & continuous & seen) | indivisible, empty


@dataclass(frozen=True, kw_only=True)
class DensityTable:
    """A density on y ≥ 0 as a polynomial on every panel: built once, then evaluated without its integral."""

    lower: Float[np.ndarray, " P"]
    upper: Float[np.ndarray, " P"]
    coefficients: Float[np.ndarray, "P K"]  # Legendre coefficients on each panel

    @classmethod
    def of(cls, density: Function, lower: Float[np.ndarray, " P"], upper: Float[np.ndarray, " P"]) -> "DensityTable":
        """Tabulate a density on panels that resolve it, up to far beyond the bulk of the mass."""
        nodes, weights = gauss(ORDER)
        width = (upper - lower)[:, None]
        # c_k = (2k + 1) ∫₀¹ density P_k(2x - 1) dx, exact for the polynomial through the nodes
        basis = np.polynomial.legendre.legvander(2 * nodes - 1, ORDER - 1) * (2 * np.arange(ORDER) + 1)
        near = upper <= TABLE_REACH * upper[np.argmax(density(upper) * upper)]
        coefficients = density((lower[:, None] + width * nodes)[near]) @ (weights[:, None] * basis)
        return cls(lower=lower[near], upper=upper[near], coefficients=coefficients)

    @property
    def end(self) -> float:
        """Where the table ends."""
        return float(self.upper[-1])

    def nodes(self, edges: Float[np.ndarray, "N E"]) -> tuple[np.ndarray, np.ndarray]:
        """Gauss nodes between ascending edges, refined so that none spans two panels, and weights times density."""
        own = np.union1d(self.lower, self.upper)
        own = np.broadcast_to(own, (edges.shape[0], own.size))
        edges = np.sort(np.concatenate([np.clip(edges, 0, self.end), own], axis=1), axis=1)
        begin, width = edges[:, :-1, None], np.diff(edges, axis=1)[..., None]
        middle = begin[..., 0] + width[..., 0] / 2
        panel = np.clip(np.searchsorted(self.lower, middle, side="right") - 1, 0, None)
        width = np.where(((middle > self.lower[panel]) & (middle < self.upper[panel]))[..., None], width, 0)
        nodes, weights = gauss(FUNCTION_ORDER)
        y = begin + width * nodes
        share = (y - self.lower[panel][..., None]) / (self.upper - self.lower)[panel][..., None]
        series = np.moveaxis(self.coefficients[panel], -1, 0)[..., None]
        return y, width * weights * np.polynomial.legendre.legval(2 * share - 1, series, tensor=False)


LogWeight = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
r"""$\ln w(y, l, r)$ with $r^2 = y^2 + l^2$."""

MARGIN_OF_UNDERFLOW = 30.0  # a profile that jumps to zero from this far above underflow has a compact support
INNER_REACH = 40.0  # nats below the peak of rⁿ⁻¹p₀ where panels begin: what is left out is e⁻⁴⁰ of the mass
OUTER_REACH = 750.0  # nats below the peak of rⁿ⁺¹p₀ where panels end: everything beyond underflows
PRUNED = 75.0  # nats below the largest panel at which a panel is left out of an integral
TAIL_TOLERANCE = 1e-10  # largest error that the extrapolated tail may bring into an integral
SMALLEST_GAP = 1e-6  # a tail exponent this near to its limit counts as divergent
POWER_LAW = 1e-3  # a tail whose exponent changes by more than this over an octave is not a power law
FAR = 1e9  # beyond this multiple of y the power law is integrated with y neglected, an error of its inverse square
TABLE_CELLS = 64  # cells of a panel in the table that samples are drawn from; radii are uniform inside a cell
CHUNK = 1 << 20  # function values held at once


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    r"""$p_0(r) = p_0(R)\,(r/R)^a$ outside the panels, below the first or beyond the last of them."""

    start: float  # R, where the panels begin or end
    log_p: float  # ln p₀(R)
    exponent: float  # a
    doubt: float = 0.0  # change of the exponent over one octave: zero for an exact power law

    def log_value(self, r: Real) -> np.ndarray:
        r"""$\ln p_0(r)$."""
        return np.asarray(self.log_p + self.exponent * np.log(r / self.start))

    def log_integral(self, radius: float, power: int, *, outward: bool) -> float:
        r"""$\ln\int p_0\,r^{power-1}\,dr$ from `radius` to infinity, or down to zero; infinite if that diverges."""
        gap = self.gap(power, outward=outward)
        return float(self.log_value(radius) + power * np.log(radius) - np.log(gap)) if gap > SMALLEST_GAP else np.inf

    def gap(self, power: int, *, outward: bool) -> float:
        """How far the exponent is on the safe side of divergence."""
        return (-1 if outward else 1) * (self.exponent + power)


@dataclass(frozen=True, kw_only=True)
class RadialMesh:
    r"""Panels in r that resolve $p_0$, and integrals over $r > |y|$ on them."""

    log_p: Function
    dim: int
    lower: Float[np.ndarray, " P"]
    upper: Float[np.ndarray, " P"]
    inner: PowerLaw | None  # the profile below the first panel; None where it is zero
    tail: PowerLaw | None  # the profile beyond the last panel; None where it is zero, or underflows

    def integrate(self, y: Float[np.ndarray, " N"], log_weight: LogWeight, power: int) -> Float[np.ndarray, " N"]:
        r"""$\int_0^\infty p_0(\sqrt{y^2+l^2})\,w(y, l, r)\,dl$ over the total mass, for $y \ge 0$.

        In $l$ the integrand is smooth at $r = y$, where in $r$ it has a root or a pole. For $r \gg y$ the weight
        must be $r^{power-1}$.
        """
        lower, upper, log_mass = self._panels_up_to(float(y.max(initial=0)))
        first = np.searchsorted(upper, y, side="right")
        total = np.zeros_like(y)
        for index in np.unique(first[first < upper.size]):
            here = np.flatnonzero(first == index)
            # What matters compared with the largest after the first panel, which may be cut short by y.
            largest = log_mass[:, index + (index + 1 < upper.size) :].max(axis=1, keepdims=True)
            kept = np.union1d(index, index + np.flatnonzero((log_mass[:, index:] > largest - PRUNED).any(axis=0)))
            for part in np.array_split(here, 1 + here.size * kept.size * ORDER // CHUNK):
                total[part] = self._over(y[part], lower[kept], upper[kept], log_weight)
        if self.tail is not None:
            total = total + np.exp(self.tail.log_integral(upper[-1], power, outward=True) - self.log_total)
        return total

    def _over(self, y: np.ndarray, lower: np.ndarray, upper: np.ndarray, log_weight: LogWeight) -> np.ndarray:
        """Sum over the panels for every y, in the variable l."""
        nodes, weights = gauss(ORDER)
        # √(r² − y²), zero for r < y, without cancellation or overflow
        column = y[:, None]
        begin, end = (np.sqrt(np.clip(edge - column, 0, None)) * np.sqrt(edge + column) for edge in (lower, upper))
        width = (end - begin)[..., None]
        leg = begin[..., None] + width * nodes
        y = y[:, None, None]
        r = np.hypot(y, leg)
        log_values = self.extended(r) + log_weight(y, leg, r) - self.log_total
        return np.einsum("ypk,k->y", np.exp(log_values) * width, weights)

    def extended(self, r: np.ndarray) -> np.ndarray:
        r"""$\ln p_0$, continued by the power law beyond the last panel."""
        log_p = self.log_p(r)
        if self.tail is None:
            return log_p
        return np.where(r > self.tail.start, self.tail.log_value(r), log_p)

    @cached_property
    def log_total(self) -> float:
        r"""$\ln\int_0^\infty p_0\,r^{n-1}\,dr$."""
        return float(np.logaddexp.reduce([self._log_within(self.dim), *self.log_outside(self.dim)]))

    def log_outside(self, power: int) -> tuple[float, float]:
        r"""$\ln\int p_0\,r^{power-1}\,dr$ below the first panel, and beyond the last."""
        below = -np.inf if self.inner is None else self.inner.log_integral(self.inner.start, power, outward=False)
        beyond = -np.inf if self.tail is None else self.tail.log_integral(self.tail.start, power, outward=True)
        return below, beyond

    def shares_outside(self, power: int) -> tuple[float, float]:
        r"""Parts of $\int p_0\,r^{power-1}\,dr$ that the two power laws carry; one where that diverges."""
        below, beyond = self.log_outside(power)
        within = self._log_within(power)
        return float(special.expit(below - within)), float(special.expit(beyond - within))

    def _log_within(self, power: int) -> float:
        return float(special.logsumexp(self._log_masses[power - self.dim + 1]))

    @cached_property
    def _log_masses(self) -> Float[np.ndarray, "3 P"]:
        return self._masses_of(self.lower, self.upper)

    def _masses_of(self, lower: np.ndarray, upper: np.ndarray) -> Float[np.ndarray, "3 P"]:
        r"""$\ln\int p_0 r^{k-1}dr$ of every panel for $k = n-1, n, n+1$: density, mass and first moment."""
        nodes, weights = gauss(ORDER)
        width = (upper - lower)[:, None]
        r = lower[:, None] + width * nodes
        log_p = self.extended(r)
        powers = self.dim + np.array([-2, -1, 0])[:, None, None]
        with np.errstate(divide="ignore"):
            return special.logsumexp(log_p + powers * np.log(r) + np.log(width * weights), axis=-1)

    def _panels_up_to(self, largest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Panels with their masses, carried on in octaves along the power law to far beyond the largest y."""
        if self.tail is None:
            return self.lower, self.upper, self._log_masses
        octaves = int(np.ceil(np.log2(FAR * max(largest / self.tail.start, 1))))
        more = self.tail.start * 2.0 ** np.arange(octaves + 1)
        masses = self._masses_of(more[:-1], more[1:])
        masses = np.concatenate([self._log_masses, masses], axis=1)
        return np.append(self.lower, more[:-1]), np.append(self.upper, more[1:]), masses

    def radii(self, share: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Radii below which the given shares of the mass lie."""
        r, cumulative = self._quantiles
        inside = np.interp(share, cumulative, r)
        if self.tail is None:
            return inside
        # P(radius > r) = beyond · (r/R)^(a + n), with beyond = P(radius > R)
        _, beyond = self.shares_outside(self.dim)
        outside = self.tail.start * ((1 - share) / beyond) ** (1 / (self.tail.exponent + self.dim))
        return np.where(1 - share < beyond, outside, inside)

    @cached_property
    def _quantiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Radii in every panel, and the share of the mass below each."""
        fractions = np.linspace(0, 1, TABLE_CELLS + 1)
        edges = self.lower[:, None] + (self.upper - self.lower)[:, None] * fractions
        log_mass = self._masses_of(edges[:, :-1].ravel(), edges[:, 1:].ravel())[1]
        below = np.cumsum(np.exp(log_mass - self.log_total)).reshape(-1, TABLE_CELLS)
        start = np.append(0.0, below[:-1, -1])[:, None]
        return edges.ravel(), np.concatenate([start, below], axis=1).ravel()


def radial_mesh(log_p: Function, dim: int, *, depth: float = DEPTH) -> RadialMesh:
    """Locate the mass of a profile in `dim` dimensions, resolve it in panels, and continue it beyond them.

    Logarithms more than `depth` below their peak count as minus infinity.
    """
    log_r, values = scan(log_p, dim)
    floor = values.max() - depth
    values = np.where(values < floor, -np.inf, values)

    def cut(r: np.ndarray) -> np.ndarray:
        found = log_p(r)
        return np.where(found < floor, -np.inf, found)

    inner, outer = values + max(dim - 1, 1) * log_r, values + (dim + 1) * log_r
    first = max(int(np.argmax(inner > inner.max() - INNER_REACH)) - 1, 0)
    last = int(np.flatnonzero(outer > outer.max() - OUTER_REACH)[-1])
    r = np.exp(log_r)
    tail = _power_tail(cut, r, values, last, max(floor, -depth))
    end = r[last] if tail is not None else r[min(last + 1, r.size - 1)]
    edges = np.geomspace(r[first], end, 2 + int(np.log2(end / r[first])))
    lower, upper = resolve(lambda r: cut(r) + (dim - 1) * np.log(r), edges, r, values + (dim - 1) * log_r)
    core = _inner_law(r, values, first)
    mesh = RadialMesh(log_p=cut, dim=dim, lower=lower, upper=upper, inner=core, tail=tail)
    share, _ = mesh.shares_outside(dim)
    if core is not None and share > TAIL_TOLERANCE:
        raise AssumptionError(
            f"The profile cannot be normalised: p0 grows like r^{core.exponent:.6g} towards r = 0, near or past "
            f"the r^-{dim} at which {dim} dimensions cease to bear it. Cut the profile off near zero."
        )
    require_tail(mesh, dim, "The profile cannot be normalised")
    negligible = tail is not None and tail.doubt > POWER_LAW and mesh.shares_outside(dim + 1)[1] < PANEL_TOLERANCE
    return replace(mesh, tail=None) if negligible else mesh


def require_tail(mesh: RadialMesh, power: int, trouble: str) -> None:
    r"""Refuse a profile whose tail makes $\int p_0\,r^{power-1}\,dr$ diverge, or leaves it in doubt."""
    if mesh.tail is None:
        return
    gap = mesh.tail.gap(power, outward=True)
    if gap < SMALLEST_GAP and mesh.tail.doubt < POWER_LAW:
        raise AssumptionError(
            f"{trouble}: p0 goes like r^{mesh.tail.exponent:.6g} at large r and must fall faster than r^-{power} "
            f"in {mesh.dim} dimensions. Cut the profile off, or give it a lighter tail."
        )
    _, share = mesh.shares_outside(power)
    error = share * min(1.0, mesh.tail.doubt / max(gap, SMALLEST_GAP))
    if error > TAIL_TOLERANCE:
        raise AssumptionError(
            f"{trouble}: p0 is followed to r = {mesh.tail.start:.3g}; the tail beyond is uncertain by {error:.1e}. "
            "Where p0 underflows, pass its logarithm with `in_log=True`; else give it a lighter tail."
        )


def _inner_law(r: np.ndarray, values: np.ndarray, first: int) -> PowerLaw | None:
    """The power law at the first scanned point, by the octave below it (above it where the scan begins)."""
    other = int(np.searchsorted(r, r[first] * (2 if first == 0 else 0.5)))
    if np.isneginf(values[[first, other]]).any():
        return None
    exponent = (values[other] - values[first]) / np.log(r[other] / r[first])
    return PowerLaw(start=float(r[first]), log_p=float(values[first]), exponent=float(exponent))


def _power_tail(log_p: Function, r: np.ndarray, values: np.ndarray, last: int, floor: float) -> PowerLaw | None:
    """The power law at the last scanned point, or None where the profile ends there (a compact support)."""
    if last + 1 < r.size and np.isneginf(values[last + 1]) and values[last] > floor + MARGIN_OF_UNDERFLOW:
        return None
    at = log_p(r[last] / np.array([1.0, 2.0, 4.0]))
    if np.isneginf(at).any():
        return None
    near, before = (at[0] - at[1]) / np.log(2), (at[1] - at[2]) / np.log(2)
    return PowerLaw(start=float(r[last]), log_p=float(at[0]), exponent=float(near), doubt=float(abs(near - before)))
