r"""What the paper drops on its way to Eqn 6: $\beta_2\mu\mu^\top$ of Theorem 3's $C = \beta_1I + \beta_2\mu\mu^\top$.

**Without attention** $\dot v = C(\mu - v)$ from zero stays on the line of $\mu$, an eigenvector of C:
$v = (1 - e^{-\lambda_\mu t})\,\mu$ with $\lambda_\mu = \beta_1 + \beta_2\|\mu\|^2$. The term then changes the unit of
time from $1/\beta_1$ to $1/\lambda_\mu$, and nothing else. `LinearisedFlow` is this flow.

**With attention,** $\dot v = e^{v^2/2}\circ C(\mu - v)$, it couples the tokens. With $a = e^{\mu^2/2}$ the rates at
$\mu$ are the eigenvalues of $\mathrm{diag}(a)\,C$, a rank-one change of $\beta_1a$. They interlace with $\beta_1a$, so
all but one lie between neighbours of the flow without the term. But all gaps $\delta_l = 1 - v_l/\mu_l$ end as

$$\delta_l \propto \frac{a_l}{\beta_1a_l - \lambda_1}\,e^{-\lambda_1t},$$

at the slowest rate $\lambda_1$: the ratio of Eqn 7 tends to 1 for any $\beta_2 \ne 0$.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, broadcast, finite, positive, shaped
from joma.theory.convergence import ConvergenceFlow
from joma.theory.integrate import STIFF, integrate
from joma.theory.rebound import attention_entropy
from joma.types import Real, Tabular

Tokens = Float[np.ndarray, "... M"]


def _matrix(mu: np.ndarray, beta1: Real, beta2: Real) -> np.ndarray:
    """C, positive definite."""
    beta1, beta2 = positive("beta1", beta1)[..., None, None], finite("beta2", beta2)[..., None, None]
    along = beta1[..., 0] + beta2[..., 0] * np.square(mu).sum(axis=-1, keepdims=True)
    if (along <= 0).any():
        raise AssumptionError(f"μ must be stable, β₁ + β₂‖μ‖² > 0, got {along.min():g}. Pass a larger `beta2`.")
    return np.asarray(beta1 * np.eye(mu.shape[-1]) + beta2 * mu[..., :, None] * mu[..., None, :])


def kept_field(v: Tokens, mu: Tokens, beta1: Real, beta2: Real) -> Tokens:
    r"""Return $\dot v = e^{v^2/2}\circ C(\mu)(\mu - v)$; Eqn 6 in units of $1/\beta_1$ where $\beta_2 = 0$."""
    v, mu = broadcast(v=finite("v", v), mu=finite("mu", mu)).values()
    gap = (_matrix(mu, beta1, beta2) @ (mu - v)[..., None])[..., 0]
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(np.square(v) / 2) * gap)


def kept_rates(mu: Tokens, beta1: Real, beta2: Real) -> Tokens:
    r"""Return the rates at $\mu$, ascending: the eigenvalues of $\mathrm{diag}(e^{\mu^2/2})\,C(\mu)$.

    They interlace with $\beta_1e^{\mu_l^2/2}$: for $\beta_2 > 0$ each lies between its counterpart and the next, for
    $\beta_2 < 0$ between the one before and its counterpart.

    >>> kept_rates(np.array([1.0, 2.0]), 1.0, np.array([0.0, 0.5, -0.1])).round(3)
    array([[ 1.649,  7.389],
           [ 1.873, 22.767],
           [ 1.327,  4.59 ]])
    """
    mu = finite("mu", mu)
    root = np.exp(np.square(mu) / 4)
    return np.linalg.eigvalsh(root[..., :, None] * _matrix(mu, beta1, beta2) * root[..., None, :])


def kept_gaps(mu: Tokens, beta1: Real, beta2: Real) -> Tokens:
    r"""Return the final proportions of the gaps, $\delta_l/\delta_{l^*}$ over the most salient token $l^*$.

    $\delta_l \propto a_l/(\beta_1a_l - \lambda_1)$ for $\beta_2 \ne 0$; $|\mu_l|$ differ and none is zero. A negative
    one lies on the other side of its target.

    >>> kept_gaps(np.array([1.0, 2.0, 3.0]), 1.0, -0.05).round(3)
    array([5.858, 1.209, 1.   ])
    """
    mu, beta1, beta2 = finite("mu", mu), positive("beta1", beta1), finite("beta2", beta2)
    size = np.sort(np.abs(mu), axis=-1)
    if (beta2 == 0).any() or (size[..., 0] == 0).any() or (np.diff(size, axis=-1) == 0).any():
        raise AssumptionError("Gaps in proportion need β₂ ≠ 0 and targets of different size. Change them.")
    a = np.exp(np.square(mu) / 2)
    gaps = a / (beta1[..., None] * a - kept_rates(mu, beta1, beta2)[..., :1])
    salient = np.broadcast_to(np.abs(mu).argmax(axis=-1, keepdims=True), (*gaps.shape[:-1], 1))
    return np.asarray(gaps / np.take_along_axis(gaps, salient, axis=-1))


@dataclass(frozen=True, kw_only=True)
class DroppedTerm(Tabular):
    """Attention entropy and gaps over time, with the term and without."""

    t: Float[np.ndarray, " T"]
    entropy_kept: Float[np.ndarray, " T"]
    entropy_dropped: Float[np.ndarray, " T"]
    """Without the term, at the same time."""
    gap_kept: Float[np.ndarray, "T M"]
    r"""$\delta = 1 - v/\mu$ of every token."""
    gap_dropped: Float[np.ndarray, "T M"]


def dropped_term(mu: Float[np.ndarray, " M"], beta1: float, beta2: float, t: Float[np.ndarray, " T"]) -> DroppedTerm:
    r"""Integrate Eqn 6 with all of $C(\mu)$ from zero, and solve it with $\beta_1I$ alone.

    >>> found = dropped_term(np.array([1.0, 2.0, 3.0]), 1.0, -0.05, np.linspace(0.0, 4.0, 81))
    >>> [round(float(np.min(entropy)), 3) for entropy in (found.entropy_kept, found.entropy_dropped)]
    [0.36, 0.173]
    """
    mu = shaped("M", mu=mu)
    if not mu.all():
        raise AssumptionError("Gaps need targets other than zero. Leave those tokens out.")
    run = integrate(lambda _, s: {"v": kept_field(s["v"], mu, beta1, beta2)}, {"v": np.zeros_like(mu)}, t, **STIFF)
    kept, dropped = run["v"], ConvergenceFlow(mu=mu).solution(beta1 * run.t)
    entropies = {"entropy_kept": attention_entropy(kept), "entropy_dropped": attention_entropy(dropped)}
    return DroppedTerm(t=run.t, **entropies, gap_kept=1 - kept / mu, gap_dropped=1 - dropped / mu)
