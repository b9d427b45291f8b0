"""What dropping β₂μμᵀ does on the way to Eqn 6."""

import numpy as np

from joma import theory
from joma.checks.check import as_printed, check, rejects, scaled
from joma.checks.quadrature import jacobian, solved
from joma.checks.reference import DIFFERENTIATION, ENUMERATION, ODE
from joma.theory import LinearisedFlow, kept_field, kept_gaps, kept_rates

ROUNDING = 1e-12
"""Of eigenvalues, relative to the largest."""


def matrices(rng):
    """Draw targets of distinct sizes with either sign, β₁ ≠ 1, and β₂ of either sign."""
    for sign in (1, -1, 1, -1):
        mu = rng.permutation([0.6, 1.55, 2.2] * rng.uniform(0.95, 1.05, 3)) * rng.choice([-1, 1], 3)
        beta1 = rng.uniform(0.6, 1.6)
        yield mu, beta1, sign * rng.uniform(0.3, 0.8) * beta1 / (mu @ mu)


def _pull(v, mu, beta1, beta2):
    """C(μ)(μ − v), written out."""
    return beta1 * (mu - v) + beta2 * mu * (mu @ (mu - v))


def _field(v, *matrix):
    return np.exp(v**2 / 2) * _pull(v, *matrix)


@check("sec4-shift", ODE, LinearisedFlow.solution, over=matrices)
@rejects("rate β₁", lambda flow, *at: LinearisedFlow(mu=flow.mu, beta1=flow.beta1, beta2=0.0).solution(*at))
def path_without_attention(solution, mu, beta1, beta2):
    """Weights from zero without attention, the term included."""
    t, flow = np.linspace(0.0, 2.0, 5), LinearisedFlow(mu=mu, beta1=beta1, beta2=beta2)
    [v] = solved(lambda v: (_pull(v, mu, beta1, beta2),), (0 * mu,), t)
    return solution(flow, 0 * mu, t) - v


def _slowest(mu, beta1, beta2):
    return np.full_like(mu, kept_rates(mu, beta1, beta2)[0])


# Tolerance: the next mode and the second order of the flow have decayed to 1e-10 of the slowest mode
@check("sec4-shift", ODE, (_slowest, kept_gaps), 1e-8, over=matrices)
@as_printed((lambda mu, beta1, beta2: beta1 * np.exp(np.square(mu) / 2), kept_gaps))
@rejects("rates 1 % off", (scaled(_slowest).formula, kept_gaps))
@rejects("equal gaps", (_slowest, lambda mu, *betas: np.ones_like(mu)))
def late_gaps(claims, mu, beta1, beta2):
    """Rates at which the gaps of all tokens shrink late in Eqn 6 with all of C(μ), and their proportions."""

    def field(gap):  # of the gaps themselves, for full relative accuracy
        return (-np.exp((mu - gap) ** 2 / 2) * (beta1 * gap + beta2 * mu * (mu @ gap)),)

    t = np.array([0.0, 26.0 / kept_rates(mu, beta1, beta2)[0]])
    gap = solved(field, (mu,), t, method="LSODA", rtol=1e-12, atol=1e-100)[0][-1]
    rates, gaps = (claim(mu, beta1, beta2) for claim in claims)
    return rates + field(gap)[0] / gap, gaps - (gap / mu) / (gap / mu)[np.abs(mu).argmax()]


@check("sec4-interlace", DIFFERENTIATION, (kept_rates, kept_field), 1e-8, over=matrices)
def rates_at_the_target(functions, mu, *betas):
    """Eigenvalues at μ against differences of the field, and the field against C(μ) written out."""
    (rates, field), v = functions, 0.3 * mu + 0.1
    slope = jacobian(lambda v: _field(v, mu, *betas), mu)
    return np.sort(-np.linalg.eigvals(slope).real) - rates(mu, *betas), field(v, mu, *betas) - _field(v, mu, *betas)


def many_matrices(rng):
    """Draw 200 targets of one to eight tokens with β₂ down to the edge of stability."""
    for _ in range(200):
        mu, beta1 = rng.uniform(-3, 3, rng.integers(2, 9)), rng.uniform(0.5, 2.0)
        yield mu, beta1, rng.uniform(-0.99, 4.0) * beta1 / (mu @ mu)


def _neighbours(mu, beta1, beta2):
    """Lowest and highest value of every rate: its counterpart without the term, and the next one."""
    alone = np.sort(beta1 * np.exp(np.square(mu) / 2))
    return (alone, np.append(alone[1:], np.inf)) if beta2 > 0 else (np.append(0.0, alone[:-1]), alone)


@check("sec4-interlace", ENUMERATION, _neighbours, unit="rates outside", over=many_matrices)
@rejects(
    "no rate moves by more than a quarter",
    lambda mu, beta1, _: np.multiply.outer([0.75, 1.25], kept_rates(mu, beta1, 0.0)),
)
def rates_outside(neighbours, mu, beta1, beta2):
    """Rates that do not lie between their neighbours without the term, of 200 random targets."""
    (low, high), rates = neighbours(mu, beta1, beta2), kept_rates(mu, beta1, beta2)
    slack = ROUNDING * rates.max()
    return float(((rates < low - slack) | (rates > high + slack)).sum())


@check("sec4-interlace", ODE, theory.dropped_term, over=matrices)
@rejects("β₁ 1 % off", lambda mu, beta1, *rest: theory.dropped_term(mu, 1.01 * beta1, *rest))
def both_flows(run, mu, beta1, beta2):
    """Gaps and entropies over time with the term and without, by integration."""
    t = np.linspace(0.0, 1.5, 4)
    found = run(mu, beta1, beta2, t).columns()
    for term, b in (("kept", beta2), ("dropped", 0.0)):
        [v] = solved(lambda v, b=b: (_field(v, mu, beta1, b),), (0 * mu,), t)
        p = np.exp(v**2 / 2) / np.exp(v**2 / 2).sum(axis=1, keepdims=True)
        yield np.transpose([found[f"gap_{term}_{token}"] for token in range(mu.size)]) - (1 - v / mu)
        yield found[f"entropy_{term}"] + (p * np.log(p)).sum(axis=1)
