"""Section 3, Theorem 1: what training conserves, and with which constants."""

from dataclasses import replace

import numpy as np

from joma.statements.figures2_3 import FIGURES
from joma.statements.joint_runs import Run, Setup, drift, flowed
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.statements.softmax_attention import SOFTMAX
from joma.statements.theorem1_laws import (
    BOTH,
    ODE_TOLERANCE,
    SLIGHTLY,
    conservation,
    corrected,
    for_both,
    law_of,
    printed,
)
from joma.statements.theorem1_queries import QUERIES
from joma.statements.theorem1_steps import STEPS
from joma.theory.attention import AttentionKind
from joma.verdicts import Outcome

LINEAR_SETUPS = (
    Setup(kind=AttentionKind.LINEAR, phi="linear", num_nodes=1, seed=1),
    Setup(kind=AttentionKind.LINEAR, phi="relu", seed=0),
    Setup(kind=AttentionKind.LINEAR, phi="tanh", num_nodes=17, backprop="cross-entropy", seed=2),
    Setup(kind=AttentionKind.LINEAR, phi="gelu", num_nodes=5, backprop="time-varying", seed=3),
    Setup(kind=AttentionKind.LINEAR, phi="sigmoid", num_nodes=2, backprop="cross-entropy", seed=4),
)
EXP_SETUPS = tuple(
    replace(setup, kind=AttentionKind.EXP, seed=3 if setup.phi == "relu" else setup.seed) for setup in LINEAR_SETUPS
)
"""One and many nodes, five activations, gradients that stand still, change over time or come from a loss.

Most flows of ReLU nodes under a fixed gradient end up sliding along a kink, where solvers stall; these two do not.
"""
TEMPERATURES = (0.5, 3.0)
RATIO = 4.0
NORM = 1.7
NEAR_ORTHOGONAL = (4e-3, 2e-3)


def _drift_off_the_query(tokens: slice) -> float:
    """Drift of the chosen tokens when the query is contextual token 0."""
    return max(drift(corrected(flowed(setup))[:, tokens]) for setup in for_both(Setup(query_in_context=True)))


def _gap_of_order_in_overlap(order: float) -> float:
    def error(kind: AttentionKind) -> float:
        coarse, fine = (drift(corrected(flowed(Setup(kind=kind, overlap=overlap)))) for overlap in NEAR_ORTHOGONAL)
        return abs(float(np.log2(coarse / fine)) - order)

    return max(error(kind) for kind in BOTH)


def _total(run: Run) -> np.ndarray:
    u = run.layer.embeddings.contextual
    return replace(law_of(run), gram=u.T @ u).total(run.v, run.z)


def _total_off(run: Run) -> np.ndarray:
    u = run.layer.embeddings.contextual
    return replace(law_of(run), gram=u.T @ u).total(np.sqrt(SLIGHTLY) * run.v, run.z)


CONSTANTS = (
    Statement(
        id="thm1-linear",
        title="JoMA, linear attention",
        place="Section 3 and Appendix A.2, Theorem 1",
        printed="z_m²(t) = Σ_k v_k²(t) + c",
        outcome=Outcome.HOLDS,
        explanation=(
            "z_m ∘ dz_m/dt = Σ_k v_k ∘ dv_k/dt holds sample by sample, so the backpropagated gradient may change over "
            "time (Assumption 1 is not needed) and the activation and the data are free. It needs gradient flow, equal "
            "learning rates, orthonormal embeddings, one query, and every consumer of f among the K nodes. It fixes "
            "|z| alone: where c < 0 a logit may pass through zero."
        ),
        checks=(
            conservation(
                "drift along flows of 1 to 17 nodes, five activations, fixed, time-varying and cross-entropy g",
                LINEAR_SETUPS,
                as_printed=None,
            ),
        ),
    ),
    Statement(
        id="thm1-exp",
        title="JoMA, exp attention",
        place="Section 3 and Appendix A.2, Theorem 1",
        printed="z_m(t) = ½ Σ_k v_k²(t) + c",
        outcome=Outcome.HOLDS,
        explanation=(
            "dz_m/dt = Σ_k v_k ∘ dv_k/dt, again sample by sample: any activation, any data, any gradient that is sent "
            "back, also one that changes over time. The hypotheses are those of linear attention, and temperature 1."
        ),
        checks=(
            conservation(
                "drift along flows of 1 to 17 nodes, five activations, fixed, time-varying and cross-entropy g",
                EXP_SETUPS,
                as_printed=None,
            ),
        ),
    ),
    Statement(
        id="thm1-temperature",
        title="JoMA with a temperature",
        place="Theorem 1 as used for figure 2, with attention σ(z/T)",
        printed="z_m²(t) = Σ_k v_k²(t) + c (linear), z_m(t) = ½ Σ_k v_k²(t) + c (exp), with no T in either",
        corrected="linear: unchanged; exp: z_m(t) = (1/2T) Σ_k v_k²(t) + c",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "σ/σ' is z for linear attention whatever T, and T for exp attention. The paper has T = 1; its figure 2 is "
            "made with T = 0.5."
        ),
        checks=(
            conservation(
                "exp attention at T = 0.5 and T = 3",
                tuple(Setup(temperature=temperature) for temperature in TEMPERATURES),
            ),
            conservation(
                "linear attention at T = 0.5 and T = 3: the printed form",
                tuple(Setup(kind=AttentionKind.LINEAR, temperature=temperature) for temperature in TEMPERATURES),
                printed,
                as_printed=None,
                mutation=Mutation(
                    description="Σ_k v_k² divided by T",
                    formula=lambda run: run.z[:, 0] ** 2 - np.square(run.v).sum(axis=1) / run.setup.temperature,
                ),
            ),
        ),
    ),
    Statement(
        id="thm1-rates",
        title="JoMA with unequal learning rates",
        place="Slides, remarks to Theorem 1",
        printed="joint dynamics works for any learning rates between self-attention and MLP layer",
        corrected="z_m²(t) = (η_z/η_w) Σ_k v_k²(t) + c (linear), z_m(t) = (η_z/2η_wT) Σ_k v_k²(t) + c (exp)",
        outcome=Outcome.REFUTED,
        explanation=(
            "The slide says it of Theorem 1, whose relations hold at equal rates alone. A closed relation exists for "
            "any pair of learning rates, but it is another one: the ratio of the rates multiplies Σ_k v_k²."
        ),
        checks=(
            conservation(
                "linear and exp attention with logits that learn four times as fast",
                for_both(Setup(rate_ratio=RATIO)),
            ),
            conservation(
                "the same at T = 0.8",
                for_both(Setup(rate_ratio=RATIO, temperature=0.8)),
                as_printed=None,  # it would be off by the temperature as well
            ),
        ),
    ),
)

EMBEDDINGS = (
    Statement(
        id="thm1-embeddings",
        title="JoMA with embeddings that are not orthonormal",
        place="Section 2 (embedding vectors) and Section 7 (almost orthogonal embeddings)",
        printed="z_m(t) = ½ Σ_k v_k²(t) + c; almost orthogonal embeddings add ε-related terms, left to future work",
        corrected="norm s: z = Σ_k v_k²/2s² + c; query = token l: all tokens but l; overlaps of size ε: a drift of "
        "first order in ε per token, while 1ᵀz − ½ Σ_k v_kᵀG⁺v_k with G = U_CᵀU_C is conserved exactly",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "dv_k/dt = G E[g h' b] with the Gram matrix G of the contextual embeddings, so what moves z is "
            "Σ_k v_k ∘ G⁻¹dv_k/dt: integrable token by token only if G is diagonal. Its sum over tokens is the "
            "derivative of ½ Σ_k v_kᵀG⁺v_k, half the squared norm of w_k within the span of the contextual embeddings, "
            "for any G, also with fewer dimensions than tokens (linear attention: 1ᵀz², and no ½). The queries must be "
            "orthogonal to the contextual tokens; a query that is one of them feeds its own token through the residual."
        ),
        checks=(
            conservation(
                "orthogonal embeddings of norm 1.7",
                for_both(Setup(norm=NORM)),
            ),
            Check(
                name="query = contextual token 0: the tokens on which the law holds",
                against=Reference.ODE,
                measure=_drift_off_the_query,
                formula=slice(1, None),
                printed=slice(None),
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=Mutation(description="the query's own token", formula=slice(0, 1)),
            ),
            Check(
                name="order in ε of the drift per token, ε = 0.004 and 0.002",
                against=Reference.ODE,
                measure=_gap_of_order_in_overlap,
                formula=1.0,
                tolerance=0.02,  # terms of second order in ε
                unit="distance from the order",
                mutation=Mutation(description="second order", formula=2.0),
            ),
            conservation(
                "sum over tokens with embeddings mixed by ε = 0.5",
                for_both(Setup(overlap=0.5)),
                _total,
                mutation=Mutation(description="factor of v_kᵀG⁺v_k 1 % off", formula=_total_off),
            ),
        ),
    ),
)

STATEMENTS = (*CONSTANTS, *QUERIES, *STEPS, *EMBEDDINGS, *SOFTMAX, *FIGURES)
