"""Figures 2 and 3: one layer with softmax attention and linear nodes, trained by SGD."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import linear
from joma.theory.attention import Attention, AttentionKind
from joma.theory.descent import Recipe, train
from joma.theory.layer import Layer, Samples, cross_entropy_gradient, orthonormal_embeddings
from joma.theory.softmax_estimate import Estimate, anchored, estimate, normalised_correlation
from joma.verdicts import Outcome

NUM_CLASSES = 20
NUM_DISTINCT = NUM_COMMON = 10
DIM = 30
WIDTH = 30.0
"""Of the bell by which distinct tokens pass smoothly from class to class."""
LARGEST_FREQUENCY = 0.5
START = 0.01
ATTENTION = Attention(kind=AttentionKind.SOFTMAX, temperature=0.5)
RECIPE = Recipe(num_steps=2000, rate=0.1)
SEEDS = (0, 1)
REPORTED = (100, 500, 1000, 2000)
"""Steps at which correlations are taken."""
LATE, EARLY = 2000, 500
HALFWAY = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """One run of the figures."""

    x: np.ndarray
    """(classes, tokens)"""
    v: np.ndarray
    """(T, K, M)"""
    z: np.ndarray
    """(T, M)"""

    @property
    def parts(self) -> Estimate:
        """Eqn 18 with the mean token frequencies for b̄, as the figure takes it."""
        return estimate(self.v, self.x.mean(axis=0), temperature=ATTENTION.temperature)


@cache
def trained(smooth: bool, seed: int) -> Training:
    """Train the layer of the figures; `smooth` has distinct tokens that pass smoothly from class to class."""
    rng = np.random.default_rng(seed)
    x = _frequencies(smooth, rng)
    num_tokens = x.shape[1]
    layer = Layer(
        embeddings=orthonormal_embeddings(num_tokens, 1, dim=DIM, rng=rng), attention=ATTENTION, activation=linear
    )
    w0, z0 = START * rng.normal(size=(NUM_CLASSES, DIM)), START * rng.normal(size=(1, num_tokens))
    samples = Samples(x=x, q=np.zeros(NUM_CLASSES, dtype=int))
    run = train(layer, w0, z0, samples, cross_entropy_gradient(np.arange(NUM_CLASSES)), RECIPE)
    return Training(x=x, v=layer.embeddings.contextual_part(run["w"]), z=run["z"][:, 0])


def _frequencies(smooth: bool, rng: np.random.Generator) -> np.ndarray:
    """One row of token frequencies for each class."""
    place = NUM_DISTINCT * np.arange(NUM_CLASSES) / NUM_CLASSES
    bell = np.exp(-np.square(np.subtract.outer(place, np.arange(NUM_DISTINCT))) / WIDTH)
    common = rng.uniform(0, LARGEST_FREQUENCY, (NUM_CLASSES, NUM_COMMON))
    distinct = bell if smooth else rng.uniform(0, LARGEST_FREQUENCY, (NUM_CLASSES, NUM_DISTINCT))
    x = np.hstack([distinct, common])
    return x / x.sum(axis=1, keepdims=True)


Part = Callable[[Training], np.ndarray]
"""A run in, its estimate of the logits over time or a component of that out."""


def _estimated(run: Training) -> np.ndarray:
    """Eqn 18 with its constant fixed at the start."""
    return anchored(run.parts.total, run.z[0])


def _correlations(part: Part) -> np.ndarray:
    """Correlation with the logits, (smooth or random, reported step), mean over seeds."""
    steps = list(REPORTED)
    return np.array(
        [
            np.mean(
                [
                    normalised_correlation(part(run)[steps], run.z[steps])
                    for run in (trained(smooth, seed) for seed in SEEDS)
                ],
                axis=0,
            )
            for smooth in (True, False)
        ]
    )


def _lack_of_correlation(part: Part) -> float:
    return float(1 - _correlations(part).min())


def _largest_correlation(part: Part) -> float:
    return float(_correlations(part).max())


def _relative_error(step: int) -> float:
    """Largest relative L2 error of the estimate over all runs."""

    def error(run: Training) -> float:
        return float(np.linalg.norm(_estimated(run)[step] - run.z[step]) / np.linalg.norm(run.z[step]))

    return max(error(trained(smooth, seed)) for smooth in (True, False) for seed in SEEDS)


def _error_early(part: Part) -> float:
    """Largest relative L2 error of an estimate over all runs at step 500."""
    runs = [trained(smooth, seed) for smooth in (True, False) for seed in SEEDS]
    return max(float(np.linalg.norm(part(r)[EARLY] - r.z[EARLY]) / np.linalg.norm(r.z[EARLY])) for r in runs)


def _half_of_the_first_term(run: Training) -> np.ndarray:
    """Theorem 1 as the text prints it, ½Σ_k v_k² − Σ_k ‖v_k‖² b̄: the ½ on the first term alone."""
    return anchored(run.parts.own + 2 * run.parts.mean, run.z[0])


def _with_attention_of_the_moment(run: Training) -> np.ndarray:
    """Eqn 18 with the mean attention b̄(t) that the layer has at each step."""
    mean_attention = ATTENTION.scores(run.z[:, None], run.x[None]).mean(axis=1)
    return anchored(estimate(run.v, mean_attention, temperature=ATTENTION.temperature).total, run.z[0])


def _lack_of_late_correlation(part: Part) -> float:
    return float(1 - _correlations(part)[:, REPORTED.index(LATE)].min())


Winners = Callable[[np.ndarray], tuple[int, ...]]
"""Token frequencies (classes, tokens) in, the tokens whose weights keep growing out."""


def _growth_of_losers(winners: Winners) -> float:
    """Growth of |v_0l| over the second half, largest of all losers over smallest of all winners (smooth case)."""

    def ratio(run: Training) -> float:
        growth = np.abs(run.v[LATE, 0]) - np.abs(run.v[HALFWAY, 0])
        growing = np.isin(np.arange(growth.size), winners(run.x))
        return float(growth[~growing].max() / growth[growing].min())

    return max(ratio(trained(True, seed)) for seed in SEEDS)


def _ends_of_the_distinct_tokens(x: np.ndarray) -> tuple[int, ...]:
    return (0, NUM_DISTINCT - 1)


def _most_salient_token(x: np.ndarray) -> tuple[int, ...]:
    """Theorem 2's winner, the largest ‖Δ_l‖ over nodes, with Δ_kl = E[g_k x_l] at the start."""
    g = np.eye(NUM_CLASSES) - 1 / NUM_CLASSES
    return (int(np.linalg.norm(g.T @ x, axis=0).argmax()),)


FIGURES = (
    Statement(
        id="fig2",
        title="Logits predicted from weights under softmax attention",
        place="Section 3, Figure 2 and the text above Section 3.1",
        printed="ẑ = ẑ₁ + ẑ₂ of Theorem 1 correlates highly with z and predicts it fairly well; ẑ₁ = ½Σ_k v_k² and "
        "ẑ₂ = −½Σ_k ‖v_k‖² b̄ alone do not",
        corrected="ẑ correlates (mean over seeds 0.94 or more) but its relative error grows from 0.2 at step 500 to "
        "several hundred percent at step 2000; ẑ₁ alone correlates nearly as well (0.9 to 0.99 late); only ẑ₂ does not",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "A correlation over tokens is blind to scale. b̄ is taken as the mean token frequencies, but the mean "
            "attention moves by 1.7 in L1 for smooth data and by 1.0 for random data, so Eqn 18's constant b̄ fails "
            "and ẑ overshoots. Over five seeds the correlation at step 2000 is 0.994 (smooth) and 0.948 (random; 0.86"
            " to 0.99), the relative error 7.6 and 3.0, and the same at a tenth of the learning rate. The correlation"
            " with ẑ₁ alone rises from about 0.3 at step 100 to 0.99 (smooth) and 0.9 (random). With the ½ on the "
            "first term alone, as the text prints the theorem, the relative error is 1.4 (smooth) and 3.7 (random) at"
            " step 500 already. With the true mean attention of each step for b̄ the correlation turns to −0.86 and "
            "−0.76 by step 2000: the high correlation is one with a b̄ that the layer does not have. The checks run "
            "two seeds for each kind of data."
        ),
        checks=(
            Check(
                name="1 − correlation of z with ẑ, worst of steps 100 to 2000 and both kinds of data",
                against=Reference.TRAINING,
                measure=_lack_of_correlation,
                formula=_estimated,
                tolerance=0.1,  # what a reader of the figure would call a high correlation: 0.9
                unit="1 − correlation",
                mutation=Mutation(
                    description="tokens shifted by one", formula=lambda run: np.roll(_estimated(run), 1, axis=-1)
                ),
            ),
            Check(
                name="correlation of z with a component alone: ẑ₂ against ẑ₁",
                against=Reference.TRAINING,
                measure=_largest_correlation,
                formula=lambda run: run.parts.mean,
                printed=lambda run: run.parts.own,
                tolerance=0.5,  # below a half of perfect: 'does not correlate'
                unit="correlation",
                mutation=Mutation(description="both components", formula=_estimated),
            ),
            Check(
                name="relative L2 error of ẑ at step 500 against the end, step 2000",
                against=Reference.TRAINING,
                measure=_relative_error,
                formula=EARLY,
                printed=LATE,
                tolerance=0.3,  # a prediction that is off by a third is not 'fairly well'
                unit="relative error",
                mutation=Mutation(description="at step 1000", formula=HALFWAY),
            ),
            Check(
                name="relative L2 error at step 500: the bracket of Eqn 18 against the ½ on the first term alone",
                against=Reference.TRAINING,
                measure=_error_early,
                formula=_estimated,
                printed=_half_of_the_first_term,
                tolerance=0.3,  # as above
                unit="relative error",
                mutation=Mutation(
                    description="no temperature", formula=lambda run: anchored(run.parts.total / 2, run.z[0])
                ),
            ),
            Check(
                name="1 − correlation at step 2000: mean token frequencies for b̄ against the mean attention b̄(t)",
                against=Reference.TRAINING,
                measure=_lack_of_late_correlation,
                formula=_estimated,
                printed=_with_attention_of_the_moment,
                tolerance=0.1,  # as above
                unit="1 − correlation",
                mutation=Mutation(
                    description="tokens shifted by one", formula=lambda run: np.roll(_estimated(run), 1, axis=-1)
                ),
            ),
        ),
    ),
    Statement(
        id="fig3",
        title="Only some components of v_0 keep growing",
        place="Section 3, Figure 3",
        printed="only some components of v_0 grow while the others saturate after initial growth, consistent with "
        "Theorem 2",
        corrected="two components of twenty keep growing for smooth data, the first and the last distinct token, with "
        "opposite signs; Theorem 2 has a single winner, the most salient token",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "Of the four components shown, v_00 grows and v_01, v_02, v_03 saturate. But the last distinct token grows "
            "as much with the other sign, and attention ends shared between the two: a single winner of softmax would "
            "have b = 1 in every sample, and no class could be told from another. Theorem 2 names one winner, the "
            "largest ‖Δ_l‖, here the last token. For random data, trained on to step 12,000, three or four tokens keep "
            "growing, not always the most salient ones."
        ),
        checks=(
            Check(
                name="growth of |v_0l| over steps 1000 to 2000, largest loser over smallest winner, smooth data",
                against=Reference.TRAINING,
                measure=_growth_of_losers,
                formula=_ends_of_the_distinct_tokens,
                printed=_most_salient_token,
                tolerance=0.1,  # saturated: less than a tenth of the growth of the others
                unit="ratio of growths",
                mutation=Mutation(description="the first two tokens", formula=lambda x: (0, 1)),
            ),
        ),
    ),
)
