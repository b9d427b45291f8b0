"""The distributions of figure 9, each beside its marginal by other means, and the lines to try on them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats
from scipy.integrate import tanhsinh

from joma.checks.quadrature import GROWTH, panels
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall

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
