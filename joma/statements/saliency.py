"""Section 3.1: saliency as discriminancy times frequency, checked on texts in exact arithmetic."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from joma.statements.layer_cases import NUM_TOKENS, ROUNDING_TOLERANCE, SLIGHTLY, gap
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.layer import Samples
from joma.theory.saliency import discriminancy, frequency
from joma.verdicts import Outcome

# Texts as sequences of token ids.
TEXTS = ((0, 1, 1, 3), (2, 2, 2), (3, 0, 1, 2, 2, 0, 0), (1,), (3, 3, 0, 1, 0))


def text_frequencies() -> np.ndarray:
    """Return x of every text."""
    counts = [Counter(text) for text in TEXTS]
    return np.array([[count[token] / count.total() for token in range(NUM_TOKENS)] for count in counts])


GRADIENT_OF_TEXTS = (3, -2, 1, 5, -4)
"""g of one node for each text, whole numbers so that rationals stay exact."""


def _text_samples() -> tuple[Samples, np.ndarray]:
    samples = Samples(x=text_frequencies(), q=np.zeros(len(TEXTS), dtype=int))
    return samples, np.array(GRADIENT_OF_TEXTS, dtype=float)[:, None]


def _occurrences(token: int) -> list[Fraction]:
    """P(text i, token l) when a text and then a position in it are drawn uniformly."""
    return [Fraction(Counter(text)[token], len(text) * len(TEXTS)) for text in TEXTS]


def _exact_saliency() -> np.ndarray:
    parts = [zip(_occurrences(token), GRADIENT_OF_TEXTS, strict=True) for token in range(NUM_TOKENS)]
    return np.array([float(sum(p * g for p, g in part)) for part in parts])


def _gap_of_factors(factors: Callable[[Samples, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> float:
    """Compare with the mean of g over the occurrences of a token, and with the share of those occurrences."""
    mass = [sum(_occurrences(token)) for token in range(NUM_TOKENS)]
    found, share = factors(*_text_samples())
    exact = _exact_saliency() / np.array(mass, dtype=float)
    return max(gap(found, exact), gap(share, np.array(mass, dtype=float)))


def _gap_of_chain(product: Callable[[Samples, np.ndarray], np.ndarray]) -> float:
    return gap(product(*_text_samples()), _exact_saliency())


def _factors(samples: Samples, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return discriminancy(samples, g)[0, 0], frequency(samples)[0]


def _product(samples: Samples, g: np.ndarray) -> np.ndarray:
    return np.multiply(*_factors(samples, g))


def _printed_footnote(samples: Samples, g: np.ndarray) -> np.ndarray:
    """Σ_i g[i] P(l|q=m,i) P(l|q=m)."""
    return (g * samples.x).sum(axis=0) * frequency(samples)[0]


SALIENCY = (
    Statement(
        id="saliency",
        title="Saliency is discriminancy times frequency",
        place="Section 3.1, beyond distinct/common tokens",
        printed="Δ_lm = E_{l,q=m}[g_k] P(l|m), a product of token discriminancy and token frequency",
        outcome=Outcome.HOLDS,
        explanation=(
            "Draw a text with query m and a position in it: P(l|m) is the probability that the token there is l, and "
            "E_{l,q=m}[g] the mean of g over those occurrences. Their product is E_{q=m}[g x_l]."
        ),
        checks=(
            Check(
                name="both factors against all occurrences of each token in five texts",
                against=Reference.EXACT_RATIONALS,
                measure=_gap_of_factors,
                formula=_factors,
                tolerance=ROUNDING_TOLERANCE,
                mutation=Mutation(
                    description="texts that hold the token, each counted once",
                    formula=lambda samples, g: (
                        (g * (samples.x > 0)).sum(axis=0) / (samples.x > 0).sum(axis=0),
                        frequency(samples)[0],
                    ),
                ),
            ),
        ),
    ),
    Statement(
        id="footnote1",
        title="The derivation of the saliency",
        place="Section 3.1, footnote 1",
        printed="Δ_lm = Σ_i g[i] P(l|q=m,i) P(l|q=m) = Σ_i g[i] P(l|q=m,l) P(l|q=m) = E_{l,q=m}[g] P(l|m)",
        corrected="Δ_lm = Σ_i g[i] P(l|q=m,i) P(i|q=m) = Σ_i g[i] P(i|q=m,l) P(l|q=m) = E_{l,q=m}[g] P(l|m)",
        outcome=Outcome.REFUTED,
        explanation=(
            "A slip that leaves both ends of the chain intact: in the middle, the probability of a sample is printed "
            "as that of a token. Bayes' rule turns one corrected sum into the other."
        ),
        checks=(
            Check(
                name="Δ of five texts",
                against=Reference.EXACT_RATIONALS,
                measure=_gap_of_chain,
                formula=_product,
                printed=_printed_footnote,
                tolerance=ROUNDING_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda samples, g: SLIGHTLY * _product(samples, g)),
            ),
        ),
    ),
)
