r"""Activations $\phi$ and their derivatives $\psi = \phi'$: homogeneous ones given by two slopes, and smooth ones."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from joma.errors import AssumptionError, UnknownNameError, finite
from joma.types import Real


@dataclass(frozen=True, kw_only=True)
class Activation:
    r"""An activation $\phi$ with its derivative $\psi$."""

    name: str
    value: Callable[[Real], np.ndarray]
    r"""$\phi(x)$, elementwise."""
    derivative: Callable[[Real], np.ndarray]
    r"""$\psi(x) = \phi'(x)$, elementwise; at a kink, the slope from the left."""
    slopes: tuple[float, float] | None = None
    r"""$(c_-, c_+)$ of a homogeneous activation, $\phi(x) = c_\pm x$; None for any other."""
    curvature: Callable[[Real], np.ndarray] | None = None
    r"""$\phi''(x)$, elementwise, of a smooth activation; None for one with a kink."""

    def require_homogeneous(self, statement: str) -> tuple[float, float]:
        """Return (c₋, c₊), or refuse the activation on behalf of the statement that needs them."""
        if self.slopes is None:
            raise AssumptionError(f"{statement} needs a homogeneous activation, got {self.name!r}. Use `homogeneous`.")
        return self.slopes


def homogeneous(c_minus: float, c_plus: float, *, name: str | None = None) -> Activation:
    r"""Return $\phi(x) = c_-x$ for $x<0$ and $c_+x$ for $x>0$: every solution of $\phi(x) = \phi'(x)x$ (Lemma 5).

    >>> homogeneous(0.1, 1.0).value(np.array([-2.0, 3.0]))
    array([-0.2,  3. ])
    """
    c_minus, c_plus = float(finite("c_minus", c_minus)), float(finite("c_plus", c_plus))
    return Activation(
        name=name or f"homogeneous({c_minus:g}, {c_plus:g})",
        value=lambda x: np.where(np.asarray(x) > 0, c_plus, c_minus) * x,
        derivative=lambda x: np.where(np.asarray(x) > 0, c_plus, c_minus),
        slopes=(c_minus, c_plus),
    )


def _normal_density(x: Real) -> np.ndarray:
    return np.asarray(np.exp(-np.square(x) / 2) / np.sqrt(2 * np.pi))


linear = homogeneous(1.0, 1.0, name="linear")
relu = homogeneous(0.0, 1.0, name="relu")
# 1 - tanh² = 4 s(2x) s(-2x) with the logistic function s: no overflow and no cancellation at any x.
tanh = Activation(
    name="tanh",
    value=np.tanh,
    derivative=lambda x: 4 * special.expit(2 * np.asarray(x)) * special.expit(-2 * np.asarray(x)),
    curvature=lambda x: -8 * np.tanh(x) * special.expit(2 * np.asarray(x)) * special.expit(-2 * np.asarray(x)),
)
sigmoid = Activation(
    name="sigmoid",
    value=special.expit,
    derivative=lambda x: special.expit(x) * special.expit(-np.asarray(x)),
    curvature=lambda x: special.expit(x) * special.expit(-np.asarray(x)) * (1 - 2 * special.expit(x)),
)
silu = Activation(
    name="silu",
    value=lambda x: x * special.expit(x),
    derivative=lambda x: np.asarray(special.expit(x) * (1 + x * (1 - special.expit(x)))),
    curvature=lambda x: np.asarray(
        special.expit(x) * special.expit(-np.asarray(x)) * (2 + x * (1 - 2 * special.expit(x)))
    ),
)
gelu = Activation(
    name="gelu",
    value=lambda x: x * special.ndtr(x),
    derivative=lambda x: special.ndtr(x) + x * _normal_density(x),
    curvature=lambda x: (2 - np.square(x)) * _normal_density(x),
)
softplus = Activation(
    name="softplus",
    value=lambda x: np.logaddexp(0.0, x),
    derivative=special.expit,
    curvature=lambda x: special.expit(x) * special.expit(-np.asarray(x)),
)
"""The smooth ReLU: its derivative rises from 0 to 1, as Lemma 1 asks."""

ACTIVATIONS = {a.name: a for a in (linear, relu, tanh, sigmoid, silu, gelu)}
"""Activations by name, for the command line."""


def activation(name: str) -> Activation:
    """Look an activation up by name, refusing unknown ones with the nearest match."""
    if name not in ACTIVATIONS:
        raise UnknownNameError("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]
