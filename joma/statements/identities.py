"""Appendix A.2: the identities behind Theorem 1 (Eqns 10-16), Eqn 3, and zero initialisation."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from joma.statements.layer_cases import (
    DIFFERENTIATION_TOLERANCE,
    EXP,
    EXP_CASE,
    LINEAR,
    LINEAR_CASE,
    LONG,
    NUM_TOKENS,
    ODE_TOLERANCE,
    ONE_QUERY_CASES,
    RESTING_CASE,
    ROUNDING_TOLERANCE,
    SLIGHTLY,
    SMALL_START,
    SOFTMAX_CASE,
    WARM_SOFTMAX_CASE,
    Case,
    ascent,
    differentiated,
    eqn11,
    gap,
    make_case,
    v_dot_of,
)
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import Activation, linear, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.verdicts import Outcome


def _gap_of_context_rate(v_dot: Callable[[Case], np.ndarray]) -> float:
    return max(gap(v_dot(case), v_dot_of(case)) for case in ONE_QUERY_CASES)


def _gap_of_logit_rate(z_dot: Callable[[Case], np.ndarray], cases: tuple[Case, ...]) -> float:
    return max(gap(z_dot(case), ascent(case).z[0]) for case in cases)


def _eqn10(case: Case) -> np.ndarray:
    """Σ_k E[g_k h'_k L^T v_k]."""
    pulled = case.layer.attention.pull_back(case.z, case.samples.x, case.slope @ case.v)
    return case.mean(pulled, sum_over="il->l")


def _without_division(case: Case) -> np.ndarray:
    """σ'(z) ∘ E[Σ_k g_k h'_k v_k ∘ x]/A."""
    attention, z = case.layer.attention, case.z[0] / case.layer.attention.temperature
    slope = (np.exp(z) if attention.kind == AttentionKind.EXP else 1.0) / attention.temperature
    return slope * case.mean(case.slope, case.v, case.samples.x, sum_over="ik,kl,il->l") / attention.normalisation


def _eqn13(case: Case) -> np.ndarray:
    """diag(σ'/σ) Σ_k v̇_k∘v_k."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (eqn11(case) * case.v).sum(axis=0) / case.layer.attention.score_over_slope(case.z[0])


def _gap_of_eqn14(score_over_slope: Callable[[Attention, np.ndarray], np.ndarray]) -> float:
    def error(case: Case) -> float:
        left = score_over_slope(case.layer.attention, case.z[0]) * ascent(case).z[0]
        return gap(left, (v_dot_of(case) * case.v).sum(axis=0))

    return max(error(case) for case in (LINEAR_CASE, RESTING_CASE, EXP_CASE))


def _gap_of_softmax_terms(terms: Callable[[Case], tuple[np.ndarray, np.ndarray]]) -> float:
    def error(case: Case) -> float:
        product, inner = terms(case)
        true = v_dot_of(case) * case.v
        return max(gap(product, true), gap(inner, true.sum(axis=1)))

    return max(error(case) for case in (SOFTMAX_CASE, WARM_SOFTMAX_CASE))


def _softmax_terms(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """E[g_k h'_k diag(b)] v_k and E[g_k h'_k b^T] v_k."""
    diagonal = case.mean(case.slope, case.b, np.eye(NUM_TOKENS), case.v, sum_over="ik,il,lj,kj->kl")
    return diagonal, case.mean(case.slope, case.b, case.v, sum_over="ik,il,kl->k")


def _softmax_rate(case: Case) -> np.ndarray:
    """(1/T)[Σ_k v̇_k∘v_k − E(b b^T Σ_k g_k h'_k v_k)]."""
    spread = case.mean(case.b, case.b, case.slope, case.v, sum_over="il,ij,ik,kj->l")
    return ((eqn11(case) * case.v).sum(axis=0) - spread) / case.layer.attention.temperature


def _gap_of_eqn3(rate: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]) -> float:
    """Compare with dv/dt at the end of a flow of one node, linear and not, with A = 2."""

    def error(phi: Activation) -> float:
        case = make_case(Attention(kind=AttentionKind.EXP, normalisation=2.0), phi, num_nodes=1)
        end = case.flow(np.array([0.0, 0.5])).at_end()
        c = case.z[0] - case.v[0] ** 2 / 2
        case = replace(case, w=end["w"], z=end["z"])
        slopes = differentiated(lambda w, z: case.layer.objective(w, z, case.samples, case.g), case.w, case.z)
        delta = case.mean(case.slope[:, 0], case.samples.x, sum_over="i,il->l")
        found = rate(delta, case.v[0], c, case.layer.attention.normalisation)
        return gap(found, case.layer.embeddings.contextual_part(slopes.w)[0])

    return max(error(phi) for phi in (linear, tanh))


def _share_of_weights_at_rest(z0: np.ndarray) -> float:
    """Return the share of contextual tokens that linear attention never learns from w = 0 and these logits."""
    case = make_case(LINEAR, linear)
    case = replace(case, w=np.zeros_like(case.w), z=z0)
    v = case.layer.embeddings.contextual_part(case.flow(LONG).at_end()["w"])
    return float((np.abs(v).max(axis=0) < ROUNDING_TOLERANCE).mean())


def _gap_of_escape(solution: Callable[[np.ndarray, np.ndarray, float], np.ndarray]) -> float:
    case = make_case(LINEAR, linear, num_nodes=1)
    case = replace(case, w=np.zeros_like(case.w), z=np.full_like(case.z, SMALL_START))
    v = case.layer.embeddings.contextual_part(case.flow(LONG).at_end()["w"])[0]
    delta = case.mean(case.g[:, 0], case.samples.x, sum_over="i,il->l")
    return gap(solution(delta, case.z[0], LONG[-1]), v)


def _gap_of_constant(constant: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Compare c of exp attention with z − ½Σv² at the end of flows from zero and from elsewhere."""

    def error(scale: float) -> float:
        case = make_case(EXP, tanh)
        case = replace(case, w=scale * case.w, z=scale * case.z)
        end = case.flow(np.array([0.0, 1.0])).at_end()
        v = case.layer.embeddings.contextual_part(end["w"])
        return gap(constant(case.v, case.z[0]), end["z"][0] - (v**2).sum(axis=0) / 2)

    return max(error(0.0), error(0.5))


IDENTITIES = (
    Statement(
        id="eqn10",
        title="Logits through the Jacobian of the scores",
        place="Appendix A.2, Eqn 10",
        printed="dz_m/dt = Σ_k E_{q=m}[g_k h'_k L^T v_k], L = ∂b/∂z_m",
        outcome=Outcome.HOLDS,
        explanation="U_C^T g_f = Σ_k g_k h'_k v_k, as v_k = U_C^T w_k; L^T is applied to it without forming L.",
        checks=(
            Check(
                name="dz/dt for linear, exp and softmax attention",
                against=Reference.DIFFERENTIATION,
                measure=lambda z_dot: _gap_of_logit_rate(z_dot, ONE_QUERY_CASES),
                formula=_eqn10,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda case: SLIGHTLY * _eqn10(case)),
            ),
        ),
    ),
    Statement(
        id="eqn11",
        title="Contextual part of the weights",
        place="Appendix A.2, Eqn 11",
        printed="dv_k/dt = E_{q=m}[g_k h'_k b]",
        outcome=Outcome.HOLDS,
        explanation="U_C^T f = b for embeddings that are orthonormal, query tokens included (U_C^T u_m = 0).",
        checks=(
            Check(
                name="dv/dt for linear, exp and softmax attention",
                against=Reference.DIFFERENTIATION,
                measure=_gap_of_context_rate,
                formula=eqn11,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda case: SLIGHTLY * eqn11(case)),
            ),
        ),
    ),
    Statement(
        id="eqn13",
        title="Logits of unnormalised attention, divided form",
        place="Appendix A.2, Eqns 12 and 13",
        printed="dz_m/dt = diag(σ'(z_m)/σ(z_m)) Σ_k dv_k/dt ∘ v_k",
        corrected="where σ(z_ml) ≠ 0; everywhere, dz_m/dt = σ'(z_m) ∘ E[Σ_k g_k h'_k v_k ∘ x]/A, or Eqn 14",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "For linear attention at z_ml = 0, the start that the paper uses, the scores vanish with z_ml and the form "
            "reads 0/0, while dz_ml/dt is σ'·E[Σ_k g_k h'_k v_kl x_l]/A, in general not zero. Eqn 14 is the form "
            "without division."
        ),
        checks=(
            Check(
                name="dz/dt for exp attention, and for linear attention with two logits at zero",
                against=Reference.DIFFERENTIATION,
                measure=lambda z_dot: _gap_of_logit_rate(z_dot, (RESTING_CASE, EXP_CASE)),
                formula=_without_division,
                printed=_eqn13,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda case: SLIGHTLY * _without_division(case)),
            ),
        ),
    ),
    Statement(
        id="eqn14",
        title="Logits and weights move together",
        place="Appendix A.2, Eqn 14",
        printed="diag(σ(z_m)/σ'(z_m)) dz_m/dt = Σ_k dv_k/dt ∘ v_k for attention with constant A",
        outcome=Outcome.HOLDS,
        explanation=(
            "∂b/∂z_m is diagonal and equals diag(σ'/σ) diag(b). The ratio is z_m for linear attention and T for "
            "exp(z/T), which integrate to Theorem 1. Neither the loss, nor φ, nor a constant g is used."
        ),
        checks=(
            Check(
                name="both sides of Eqn 14 for linear attention, zero logits included, and exp attention at T = 0.7",
                against=Reference.DIFFERENTIATION,
                measure=_gap_of_eqn14,
                formula=Attention.score_over_slope,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(
                    description="ratio 1 % off",
                    formula=lambda attention, z: SLIGHTLY * Attention.score_over_slope(attention, z),
                ),
            ),
        ),
    ),
    Statement(
        id="eqn15-16",
        title="The two terms of softmax attention",
        place="Appendix A.2, Eqns 15 and 16",
        printed="E[g_k h'_k diag(b)] U_C^T w_k = dv_k/dt ∘ v_k and E[g_k h'_k b^T] U_C^T w_k = (dv_k/dt)^T v_k",
        outcome=Outcome.HOLDS,
        explanation=(
            "Both follow from Eqn 11. With them dz_m/dt = (1/T)[Σ_k dv_k/dt ∘ v_k − E(b b^T Σ_k g_k h'_k v_k)], "
            "exactly; Eqn 17 replaces the last expectation by a product, which is an assumption."
        ),
        checks=(
            Check(
                name="Eqns 15 and 16 for softmax attention at T = 1 and T = 1.5",
                against=Reference.DIFFERENTIATION,
                measure=_gap_of_softmax_terms,
                formula=_softmax_terms,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(
                    description="inner product 1 % off",
                    formula=lambda case: (_softmax_terms(case)[0], SLIGHTLY * _softmax_terms(case)[1]),
                ),
            ),
            Check(
                name="dz/dt of softmax attention before any assumption, at T = 1 and T = 1.5",
                against=Reference.DIFFERENTIATION,
                measure=lambda z_dot: _gap_of_logit_rate(z_dot, (SOFTMAX_CASE, WARM_SOFTMAX_CASE)),
                formula=_softmax_rate,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda case: SLIGHTLY * _softmax_rate(case)),
            ),
        ),
    ),
    Statement(
        id="zero-init",
        title="Zero initialisation",
        place="Section 3 and Appendix A.2, last line of Theorem 1",
        printed="under zero-initialisation (w_k(0) = 0, z_m(0) = 0) the constant c = 0",
        corrected="c = 0 there, but linear attention never leaves v = z = 0: start it elsewhere, e.g. v = 0 and z = ε, "
        "from where one node has v = ε sinh(Δt)",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "For exp and softmax attention zero is a fine start. For linear attention the scores b = z∘x are zero, so "
            "dv/dt = 0, and v = 0 makes dz/dt = 0: only the component of w along u_m moves. It is a saddle, left at "
            "the rate |Δ_l|, so learning from ε takes a time of order ln(1/ε)/|Δ_l|."
        ),
        checks=(
            Check(
                name="share of contextual tokens without weight at t = 5, linear attention started at w = 0, z = 0.01",
                against=Reference.ODE,
                measure=_share_of_weights_at_rest,
                formula=np.full((1, NUM_TOKENS), SMALL_START),
                printed=np.zeros((1, NUM_TOKENS)),
                tolerance=0.0,  # a count of tokens
                unit="share of tokens",
                mutation=Mutation(
                    description="one logit at zero", formula=SMALL_START * (np.arange(NUM_TOKENS) > 0)[None]
                ),
            ),
            Check(
                name="escape of linear attention from the saddle",
                against=Reference.ODE,
                measure=_gap_of_escape,
                formula=lambda delta, z0, t: z0 * np.sinh(delta * t),
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(
                    description="rate 1 % off", formula=lambda delta, z0, t: z0 * np.sinh(SLIGHTLY * delta * t)
                ),
            ),
            Check(
                name="c of exp attention, from zero and from elsewhere",
                against=Reference.ODE,
                measure=_gap_of_constant,
                formula=lambda v0, z0: z0 - np.square(v0).sum(axis=0) / 2,
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(description="c = z(0)", formula=lambda v0, z0: z0),
            ),
        ),
    ),
    Statement(
        id="eqn3",
        title="Weights with the attention integrated out",
        place="Section 3.1, Eqn 3",
        printed="dv/dt = Δ_m ∘ exp(z_m) = Δ_m ∘ exp(v²/2 + c)",
        corrected="dv/dt = Δ_m ∘ exp(v²/2 + c)/A, as in Eqns 19 and 20",
        outcome=Outcome.REFUTED,
        explanation=(
            "The constant A of exp attention is dropped; Eqns 19 and 20 have it, and it cancels in the ratio of Eqn "
            "21. Where it matters is time: the blow-up of Theorem 2 comes A times later. With Δ_m = E[g h' x] taken "
            "along the way, the corrected form holds for any activation."
        ),
        checks=(
            Check(
                name="dv/dt at t = 0.5 of a flow with A = 2, linear activation and tanh",
                against=Reference.DIFFERENTIATION,
                measure=_gap_of_eqn3,
                formula=lambda delta, v, c, normalisation: delta * np.exp(v**2 / 2 + c) / normalisation,
                printed=lambda delta, v, c, normalisation: delta * np.exp(v**2 / 2 + c),
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(
                    description="1 % off",
                    formula=lambda delta, v, c, normalisation: SLIGHTLY * delta * np.exp(v**2 / 2 + c) / normalisation,
                ),
            ),
        ),
    ),
)
