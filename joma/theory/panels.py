"""Panels that resolve a function known only by its values: nothing says where its mass lies, or how wide it is.

Quadrature on [0, ∞) walks past a narrow ring or a distant shell. So the mass is located first, by a scan of the
logarithm over many decades; then panels are halved until Gauss-Legendre resolves each of them *relative to itself*,
which keeps a far tail as accurate as the bulk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError

Function = Callable[[np.ndarray], np.ndarray]
"""A function of an array, elementwise; a user's may take one number at a time."""

DECADES = 100
"""The scan looks from 10^-100 to 10^100 ..."""
COARSE_POINTS = 200_001
"""... at a thousand radii a decade, near enough to see a Gaussian ring of relative width 3e-5."""
NEAR_DECADES = 12
NEAR_POINTS = 2_000_001
"""Second look, around r = 1, when the first saw nothing."""
BULK = 12.0
"""Nats below the peak of the mass that the fine scan covers ..."""
MARGIN = np.log(3)
"""... and the factor by which it looks further on either side ..."""
FINE_POINTS = 1_000_001
"""... at this many radii: near enough to see a ring of relative width 2e-6 on a smooth background."""
DEPTH = 690.0
"""Nats below one, or below the peak, at which a function given by its values may have underflowed: taken as zero."""
TEST_ORDER = 12
"""Gauss nodes that must resolve a panel before it is accepted ..."""
ORDER = 32
r"""... and those used afterwards, enough for the square in $r = \sqrt{y^2+l^2}$ and for $l^n$ at n = 20."""
FUNCTION_ORDER = 24
"""Gauss nodes of a panel on which a tabulated density is integrated against a smooth function."""
PANEL_TOLERANCE = 1e-12
"""Relative difference between Gauss on a panel and on its halves."""
END_TOLERANCE = 1e-6
"""Mismatch at the ends and in the middle of a panel, relative to its largest value, that counts as continuous."""
ROUNDINGS = 8
"""Roundings that may add up in a panel's integral, and the width of a panel that cannot be halved."""
SEEN = 1.0
"""Nats by which the nodes of a panel may fall short of what the scan saw in it."""
MOST_PANELS = 20_000
MOST_HALVINGS = 64
TABLE_REACH = 1e25
"""A density table ends at this multiple of the place where most of the mass lies."""


@cache
def gauss(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = special.roots_legendre(order)
    return (nodes + 1) / 2, weights / 2


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
            _refuse_bad_values(values, r, in_log=in_log)
            log_p = values if in_log else np.log(values)
        return log_p if in_log else np.where(log_p < -DEPTH, -np.inf, log_p)

    return logarithm


def cut_below(log_p: Function, floor: float) -> Function:
    """Return the function with everything below the floor at minus infinity."""

    def cut(r: np.ndarray) -> np.ndarray:
        values = log_p(r)
        return np.where(values < floor, -np.inf, values)

    return cut


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


def _refuse_bad_values(values: np.ndarray, r: np.ndarray, *, in_log: bool) -> None:
    bad = np.isnan(values) | (values == np.inf) | ((values < 0) & (not in_log))
    if bad.any():
        raise AssumptionError(
            f"A radial profile must be finite and not negative for r > 0, got {values[bad].flat[0]:g} at "
            f"r = {r[bad].flat[0]:g}. Return 0 where there is no mass."
        )


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
    return (
        np.concatenate([log_r[below], fine_r, log_r[above]]),
        np.concatenate([values[below], fine_values, values[above]]),
    )


def _look(log_p: Function, begin: float, end: float, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    log_r = np.linspace(begin, end, num_points)
    return log_r, log_p(np.exp(log_r))


def resolve(
    log_q: Function, edges: np.ndarray, scanned_r: np.ndarray, scanned: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Halve panels until each is resolved relative to itself; panels without mass are dropped."""
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
    places = np.concatenate([nodes, nodes / 2, (nodes + 1) / 2, [0.0, 0.5, 0.5, 1.0]])
    width = upper - lower
    values = log_q(lower[:, None] + width[:, None] * places)
    values[:, -1] = log_q(upper)  # lower + width may miss it by a rounding, on the wrong side of a jump
    top = values.max(axis=1)
    seen_by_scan = _scan_maximum(lower, upper, scanned_r, scanned)
    empty = np.isneginf(top) & np.isneginf(seen_by_scan)
    top = np.where(np.isneginf(top), 0, top)
    whole, left, right, ends = np.split(
        np.exp(values - top[:, None]), [TEST_ORDER, 2 * TEST_ORDER, 3 * TEST_ORDER], axis=1
    )
    fine = (left + right) @ weights / 2
    noise = ROUNDINGS * _rounding(values, top, upper / width)
    agree = np.abs(whole @ weights - fine) <= (PANEL_TOLERANCE + noise) * fine
    # A jump beyond the outermost nodes of the halves hides from both rules, but not from the values at their ends.
    carried = np.concatenate([left @ _to_the_ends(), right @ _to_the_ends()], axis=1)
    continuous = (np.abs(carried - ends) <= END_TOLERANCE + noise[:, None]).all(axis=1)
    seen = top >= seen_by_scan - SEEN
    indivisible = width <= ROUNDINGS * np.finfo(float).eps * upper
    return empty | (agree & continuous & seen) | indivisible, empty


def _rounding(values: np.ndarray, top: np.ndarray, inverse_width: np.ndarray) -> np.ndarray:
    r"""Relative noise of $p_0$ in a panel: rounding of r times the slope of the logarithm, and of the logarithm."""
    spread = (top[:, None] - np.where(np.isneginf(values), top[:, None], values)).max(axis=1)
    return np.finfo(float).eps * (np.abs(top) + spread * inverse_width)


def _scan_maximum(lower: np.ndarray, upper: np.ndarray, scanned_r: np.ndarray, scanned: np.ndarray) -> np.ndarray:
    """Largest scanned value inside each panel, minus infinity where no point of the scan lies."""
    begin, end = np.searchsorted(scanned_r, lower), np.searchsorted(scanned_r, upper)
    padded = np.append(scanned, -np.inf)
    pairs = np.stack([begin, np.maximum(end, begin)], axis=1).ravel()
    return np.where(end > begin, np.maximum.reduceat(padded, pairs)[::2], -np.inf)


def refined(
    density: Function, edges: Float[np.ndarray, " E"]
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
    """Halve panels between ascending edges until they resolve a density; its features must not hide between edges."""
    nothing = np.empty(0)
    return resolve(log_profile(density), edges, nothing, nothing)


@dataclass(frozen=True, kw_only=True)
class DensityTable:
    """A density on y ≥ 0 as a polynomial on every panel: built once, then evaluated without its integral."""

    lower: Float[np.ndarray, " P"]
    upper: Float[np.ndarray, " P"]
    coefficients: Float[np.ndarray, "P K"]
    """Legendre coefficients on each panel."""

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
        place = (y - self.lower[panel][..., None]) / (self.upper - self.lower)[panel][..., None]
        series = np.moveaxis(self.coefficients[panel], -1, 0)[..., None]
        return y, width * weights * np.polynomial.legendre.legval(2 * place - 1, series, tensor=False)
