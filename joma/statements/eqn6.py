"""Eqn 6: what adding exp attention to the flow of Theorem 3 does to its critical point and its rates."""

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import special
from scipy.differentiate import jacobian

from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import tanh
from joma.theory.attention_flow import AttentionFlow
from joma.theory.integrate import integrate
from joma.verdicts import Outcome

# A layer with three contextual tokens and six samples whose field under uniform attention has a stable zero.
POSITIVE = np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.6]])
X = np.concatenate([POSITIVE, 0.4 * POSITIVE])
G = np.array([3.0, 3.0, 3.0, -3.0, -2.5, -2.0])
A = 1.5
SETTLED = np.array([0.0, 2000.0])

# The layer's end is integrated at rtol 1e-12 until nothing moves any more.
ODE_TOLERANCE = 1e-9


def _uniform_field(u: np.ndarray) -> np.ndarray:
    """E[g φ'(u·x) x] over the six samples: the raw field of the layer when attention does not learn."""
    return (G * tanh.derivative(u @ X.T)) @ X


def joint_field(phi: Callable[[np.ndarray], np.ndarray], normalisation: float, y: np.ndarray) -> np.ndarray:
    """Eqn 2 for (v, z) under exp attention, end to end in one vector; neither Theorem 1 nor Eqn 6 is used."""
    v, z = np.split(y, 2)
    a = np.exp(z) / normalisation
    v_dot = a * phi(v * a)
    return np.concatenate([v_dot, v * v_dot])


@cache
def _layer_ends() -> tuple[np.ndarray, np.ndarray]:
    """Where the raw layer ends from zero: v under frozen uniform attention, and (v, z) with attention that learns."""
    uniform = integrate(lambda _, s: {"v": _uniform_field(s["v"])}, {"v": np.zeros(3)}, SETTLED, method="LSODA")
    joint = integrate(
        lambda _, s: {"y": joint_field(_uniform_field, A, s["y"])}, {"y": np.zeros(6)}, SETTLED, method="LSODA"
    )
    return uniform["v"][-1], joint["y"][-1]


def _critical_point_gap(critical_point: Callable[[np.ndarray, float], np.ndarray]) -> float:
    mu, end = _layer_ends()
    return float(np.abs(critical_point(mu, A) - end[:3]).max())


def _critical_point(mu: np.ndarray, normalisation: float) -> np.ndarray:
    return AttentionFlow(mu=mu, normalisation=normalisation).critical_point()


def _jacobian_rates(phi: Callable[[np.ndarray], np.ndarray], normalisation: float, end: np.ndarray) -> np.ndarray:
    """Rates of the joint (v, z) flow at its end: minus the eigenvalues that are not the zeros of the invariants."""

    def columns(points: np.ndarray) -> np.ndarray:
        flat = points.reshape(end.size, -1)
        values = [joint_field(phi, normalisation, point) for point in flat.T]
        return np.stack(values, axis=1).reshape(end.size, *points.shape[1:])

    eigenvalues = np.linalg.eigvals(jacobian(columns, end).df).real
    return np.sort(-eigenvalues)[end.size // 2 :]


Rates = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def _rate_gap(rates: Rates) -> float:
    """Relative error of the rates for C = I at μ = 1 and 4, and for the layer, whose C is not diagonal."""
    mu = np.array([1.0, 4.0])
    v = np.sqrt(special.lambertw(mu**2).real)
    simple = _jacobian_rates(lambda u: mu - u, 1.0, np.concatenate([v, v**2 / 2]))
    layer_mu, end = _layer_ends()
    C = -jacobian(lambda u: np.moveaxis(_uniform_field(np.moveaxis(u, 0, -1)), -1, 0), layer_mu).df
    layer = _jacobian_rates(_uniform_field, A, end)
    pairs = ((rates(mu, np.eye(2), 1.0), simple), (rates(layer_mu, C, A), layer))
    return max(float(np.abs(np.sort(claimed) / found - 1).max()) for claimed, found in pairs)


def _rates(mu: np.ndarray, C: np.ndarray, normalisation: float) -> np.ndarray:
    return np.linalg.eigvals(-AttentionFlow(mu=mu, normalisation=normalisation).jacobian(C)).real


def _printed_rates(mu: np.ndarray, C: np.ndarray, normalisation: float) -> np.ndarray:
    return np.linalg.eigvals(np.exp(mu**2 / 2)[:, None] * C / normalisation).real


EQN_6 = (
    Statement(
        id="eqn6",
        title="Attention leaves the critical point where it is",
        place="Section 4, Eqn 6 and the sentence after it",
        printed="dv/dt = (μ−v)∘exp(v²/2); the critical point v* = μ does not change after adding the term exp(v²)",
        corrected="dv/dt = a∘Φ(v∘a) with a = exp(v²/2)/A; its critical point is v* = sgn(μ)√W(A²μ²), Lambert's W",
        outcome=Outcome.REFUTED,
        explanation=(
            "Attention multiplies the input as well as its gradient: the node sees h = v·b with b = a∘x, so the field "
            "of v is a∘Φ(v∘a), where Φ is the field under uniform attention, and vanishes where v∘exp(v²/2)/A = μ, not "
            "where v = μ. Squaring gives v²exp(v²) = A²μ². Eqn 6 keeps the factor in front and drops the one inside; "
            "it stands here as a model of its own. (The sentence also writes exp(v²) for exp(v²/2).)"
        ),
        checks=(
            Check(
                name="end of the raw (v, z) flow of a tanh layer, μ being its end under frozen uniform attention",
                against=Reference.ODE,
                measure=_critical_point_gap,
                formula=_critical_point,
                printed=lambda mu, normalisation: mu,
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(
                    description="A² left out of Lambert's argument", formula=lambda mu, _: _critical_point(mu, 1.0)
                ),
            ),
        ),
    ),
    Statement(
        id="eqn6-rate",
        title="Rates near the critical point",
        place="Section 4, Eqn 6",
        printed="near the critical point v_j converges at the rate exp(μ_j²/2)",
        corrected="the rates are those of diag(a)·C·diag(a∘(1+W)), a = μ/v*; (1+W)μ²/W with W = W(A²μ²) for C = I",
        outcome=Outcome.REFUTED,
        explanation=(
            "The derivative of a∘Φ(v∘a) at v* brings a factor a from the front and a(1+v*²) from inside. At A = 1 and "
            "C = I this is 23.79 for μ = 4 where Eqn 6 gives 2981, and 2.763 for μ = 1 where it gives 1.649: salient "
            "components still converge faster, by a power of μ and not exponentially in μ²."
        ),
        checks=(
            Check(
                name="eigenvalues of the raw (v, z) flow: μ = 1 and 4 with C = I, and a tanh layer",
                against=Reference.LINEAR_ALGEBRA,
                measure=_rate_gap,
                formula=_rates,
                printed=_printed_rates,
                tolerance=1e-6,  # the layer's end is integrated, and its Jacobian taken by differences
                unit="max relative error",
                mutation=Mutation(description="rates 1 % off", formula=lambda *args: 1.01 * _rates(*args)),
            ),
        ),
    ),
)
