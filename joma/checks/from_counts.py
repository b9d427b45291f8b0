"""From co-occurrence to μ: saliency and target of every query and next token, from counts alone."""

import numpy as np
from scipy import optimize

from joma import theory
from joma.checks.check import as_printed, check, rejects
from joma.checks.quadrature import jacobian, noises, raw_field
from joma.checks.reference import DIFFERENTIATION, ENUMERATION, LINEAR_ALGEBRA, ROOT_FINDING
from joma.errors import AssumptionError
from joma.theory import saliency_from_counts, target_direction

LENGTH, QUERIES, NEXT, TOKENS = 6, 2, 3, 4


def texts(rng):
    """Draw windows whose contexts depend on the next token, and a prediction, and count: x, query, next, π, counts."""
    for _ in range(3):
        chances = rng.dirichlet(np.full(TOKENS, 0.7), size=(QUERIES, NEXT))
        query, after = rng.integers(QUERIES, size=80), rng.choice(NEXT, p=[0.5, 0.3, 0.2], size=80)
        x = np.array([rng.multinomial(LENGTH, chances[each]) for each in zip(query, after, strict=True)])
        counts = np.zeros((QUERIES, NEXT, TOKENS))
        np.add.at(counts, (query, after), x)
        yield x / LENGTH, query, after, rng.dirichlet(np.full(NEXT, 3.0), size=QUERIES), counts


@check("saliency-counts", DIFFERENTIATION, saliency_from_counts, over=texts)
@rejects("a uniform prediction", lambda counts, pi: saliency_from_counts(counts))
@rejects("the counts of a token alone", lambda counts, pi: saliency_from_counts(counts, 0 * pi))
def slope_of_the_log_likelihood(saliency, x, query, after, pi, counts):
    """Gradient of the log likelihood in the weights, window by window, from a prediction without context."""

    def log_likelihood(v):
        logits = np.log(pi[query]) + np.einsum("nl,nkl->nk", x, v[query])
        chosen = logits[np.arange(len(x)), after] - np.log(np.exp(logits).sum(axis=1))
        return np.bincount(query, chosen) / np.bincount(query)

    slopes = jacobian(log_likelihood, np.zeros(counts.shape))
    return saliency(counts, pi) - slopes[np.arange(QUERIES), np.arange(QUERIES)]


@check("saliency-counts", LINEAR_ALGEBRA, lambda counts: np.subtract(*theory.centers_from_counts(counts)), over=texts)
def distance_of_the_centers(between, x, query, after, _, counts):
    """Centers' difference times P(1 − P) against the covariance of the next token with the context, by windows."""
    chance = np.array([[(after[query == m] == k).mean() for k in range(NEXT)] for m in range(QUERIES)])
    found = between(counts) * (chance * (1 - chance))[..., None]
    calibrated = saliency_from_counts(counts, chance)
    each = [
        [np.cov(x[query == m].T, after[query == m] == k, bias=True)[-1, :-1] for k in range(NEXT)]
        for m in range(QUERIES)
    ]
    return found - each, calibrated - each


def nodes(rng):
    """Clusters of one node, for a prediction that is too large, and where its weights rest, found in all directions."""
    for *_, counts in list(texts(rng)):
        pi = np.full((QUERIES, NEXT), 0.9)
        noise = noises(rng, TOKENS)[0]
        mixture = theory.clusters_from_counts(counts, 1, 2, noise, prediction=pi)
        start = mixture.centers[0] / np.linalg.norm(mixture.centers[0]) + rng.normal(0, 0.2, TOKENS)
        stable = [point for point in theory.critical_points(mixture, -0.7) if point.linearised.stable]
        start *= np.linalg.norm(stable[0].mu) / np.linalg.norm(start)
        rest = optimize.root(lambda v, mix=mixture: raw_field(mix, v, -0.7)[:-1], start, tol=1e-13).x
        yield counts, rest / np.linalg.norm(rest)


def _by_frequency(counts):
    """Along P(l|m), as the paper's remark reads."""
    total = counts.sum(axis=1, keepdims=True)
    return np.broadcast_to(total / np.linalg.norm(total, axis=-1, keepdims=True), counts.shape)


@check("sec4-mu", ROOT_FINDING, target_direction, over=nodes)
@as_printed(_by_frequency)
@rejects("P(l|m,k) alone", lambda counts: counts / np.linalg.norm(counts, axis=-1, keepdims=True))
def direction_of_rest(direction, counts, rest):
    """Direction in which a node's weights rest, found among all directions."""
    return direction(counts)[1, 2] - rest


def over_and_under(rng):
    """Clusters of one node under predictions on both sides of the truth, and whether it has an aligned rest point."""
    for *_, counts in list(texts(rng)):
        chance = float(counts[1, 2].sum() / counts[1].sum())
        for pi in (0.3 * chance, chance, *rng.uniform(chance, 1, 6)):
            noise, prediction = noises(rng, TOKENS)[0], np.full((QUERIES, NEXT), pi)
            mixture = theory.clusters_from_counts(counts, 1, 2, noise, prediction=prediction)
            try:
                rests = theory.critical_points(mixture, -0.7)
            except AssumptionError:  # there is none
                rests = ()
            yield pi, chance, any(point.mu @ mixture.centers[0] > 0 for point in rests)


@check("sec4-mu", ENUMERATION, lambda pi, chance: pi > chance, unit="broken promises", over=over_and_under)
@rejects("π > ½(1 + P)", lambda pi, chance: pi > (1 + chance) / 2)
def aligned_rest_points(possible, pi, chance, found):
    """Nodes with a rest point along the difference of their centers though their next token is not over-predicted."""
    return found and not possible(pi, chance)
