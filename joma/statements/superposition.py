"""Appendix A.4: the implicit bias, Eqn 60 and pattern superposition."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from joma.statements.layer_cases import (
    EXP_CASE,
    ODE_TOLERANCE,
    ROUNDING_TOLERANCE,
    SHARED_CASES,
    SLIGHTLY,
    SOFTMAX_CASE,
    Case,
    gap,
    stream,
)
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.integrate import integrate
from joma.theory.layer import Embeddings, orthonormal_embeddings
from joma.theory.superposition import superpose, weights_from_parts
from joma.verdicts import Outcome


@cache
def _in_parts(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the changes of v and of every ξ_m after one unit of time, by a flow of (v, ξ, z) that never forms w."""
    u, samples = case.layer.embeddings, case.samples
    by_query = samples.by_query(u.num_queries)

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        b = case.layer.attention.scores(state["z"][samples.q], samples.x)
        slope = case.g * case.layer.activation.derivative(b @ state["v"].T + state["xi"].T[samples.q])
        pulled = case.layer.attention.pull_back(state["z"][samples.q], samples.x, slope @ state["v"])
        return {"v": (samples.weights[:, None] * slope).T @ b, "xi": (by_query @ slope).T, "z": by_query @ pulled}

    start = {"v": case.v, "xi": u.query_part(case.w), "z": case.z}
    end = integrate(field, start, np.array([0.0, 1.0])).at_end()
    return end["v"] - start["v"], end["xi"] - start["xi"]


@cache
def _trained(case: Case) -> Case:
    end = case.flow(np.array([0.0, 1.0])).at_end()
    return replace(case, w=end["w"], z=end["z"])


FLOW_CASES = (EXP_CASE, SOFTMAX_CASE, SHARED_CASES[0], SHARED_CASES[2])


def _gap_of_eqn60(rebuilt: Callable[..., np.ndarray]) -> float:
    gaps = [gap(rebuilt(case.layer.embeddings, case.w, *_in_parts(case)), _trained(case).w) for case in FLOW_CASES]
    return max(gaps)


def _gap_of_bias(bias: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Compare v·b + ξ with w·f after training; `bias` gets the implicit bias at the start and its change."""

    def error(case: Case) -> float:
        end = _trained(case)
        xi = bias(case.layer.embeddings.query_part(case.w), _in_parts(case)[1])
        true = stream(end.layer, end.z, end.samples) @ end.w.T
        return gap(end.b @ end.v.T + xi.T[end.samples.q], true)

    return max(error(case) for case in FLOW_CASES)


PATTERN_TOKENS = orthonormal_embeddings(4, 2, dim=7, rng=np.random.default_rng(5))
PATTERNS = np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])
BIASES = np.array([-1.2, -1.2])
OWN_QUERY = np.array([0, 1])

Build = Callable[[Embeddings, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _wrong_decisions(build: Build) -> float:
    """Count errors of one node: fires on its patterns under their queries, silent on an empty context."""
    w = build(PATTERN_TOKENS, PATTERNS, BIASES, OWN_QUERY)
    wrong = 0
    for pattern, query in zip(PATTERNS, OWN_QUERY, strict=True):
        u_query = PATTERN_TOKENS.queries[:, query]
        context = PATTERN_TOKENS.contextual @ (pattern / pattern.sum())
        wrong += int(w @ u_query > 0) + int(w @ (context + u_query) <= 0)
    return float(wrong)


def _printed_superposition(u: Embeddings, patterns: np.ndarray, biases: np.ndarray, queries: np.ndarray) -> np.ndarray:
    return u.contextual @ patterns.sum(axis=0) - u.queries[:, queries] @ biases


def _largest_gate(z: np.ndarray) -> float:
    """Return the largest |R₁₁ + R₂₂ − R₁₂ − R₂₁| of 100 random nodes; R is the response to a context under a query."""
    rng, u = np.random.default_rng(6), PATTERN_TOKENS
    w = rng.normal(size=(100, len(u.contextual)))
    x = rng.dirichlet(np.ones(4), size=2)

    def answer(context: int, query: int) -> np.ndarray:
        return w @ (u.contextual @ (np.exp(z[query]) * x[context]) + u.queries[:, query])

    return float(np.abs(answer(0, 0) + answer(1, 1) - answer(0, 1) - answer(1, 0)).max())


SUPERPOSITION = (
    Statement(
        id="implicit-bias",
        title="The implicit bias",
        place="Appendix A.2 above Eqn 11, and A.3.1 above Eqn 47",
        printed="w_k^T f = v_k^T b + ξ_k with ξ_k(t) = ∫_0^t E_{q=m}[g_k h'_k] dt'",
        corrected="w_k^T f = v_k^T b + ξ_km with ξ_km(t) = w_k(0)^T u_m + ∫_0^t E[1_{q=m} g_k h'_k] dt'",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The bias of node k under query m is w_k^T u_m, so the start w_k(0)^T u_m belongs to it; the printed form "
            "holds when that is zero, as under zero initialisation."
        ),
        checks=(
            Check(
                name="w^T f after one unit of training, one query and three",
                against=Reference.ODE,
                measure=_gap_of_bias,
                formula=lambda start, change: start + change,
                printed=lambda start, change: change,
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(
                    description="change 1 % off", formula=lambda start, change: start + SLIGHTLY * change
                ),
            ),
        ),
    ),
    Statement(
        id="eqn60",
        title="The weights are their parts",
        place="Appendix A.4, Eqn 60",
        printed="w(t) = w(0) + U_C[v(t) − v(0)] + u_m ξ(t)",
        outcome=Outcome.HOLDS,
        explanation=(
            "dw/dt lies in the span of the token embeddings. ξ(t) here is the integral from 0, without w(0)^T u_m. "
            "With several queries that share w the last term is Σ_m u_m ξ_m(t)."
        ),
        checks=(
            Check(
                name="w after one unit of training, from a flow of (v, ξ, z) that never forms w; one query and three",
                against=Reference.ODE,
                measure=_gap_of_eqn60,
                formula=weights_from_parts,
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(
                    description="ξ with a minus sign",
                    formula=lambda u, w0, v_change, xi_change: weights_from_parts(u, w0, v_change, -xi_change),
                ),
            ),
        ),
    ),
    Statement(
        id="superposition",
        title="Pattern superposition",
        place="Appendix A.4",
        printed="w = v_m1 − ξ_m1 u_m1 + v_m2 − ξ_m2 u_m2 matches both pattern 1 and pattern 2 (with ξ < 0)",
        corrected="w = U_C(v_m1 + v_m2) + ξ_m1 u_m1 + ξ_m2 u_m2; it also matches pattern 2 under query 1",
        outcome=Outcome.REFUTED,
        explanation=(
            "By Eqn 60 the bias enters with a plus sign. Printed with a minus, a negative ξ switches the node on under "
            "its queries whatever the context. Nor does the node tie a pattern to its query: the response to context p "
            "under query m is v^T b_p + ξ_m, so R₁₁ + R₂₂ = R₁₂ + R₂₁ for every w, and firing on the diagonal alone is "
            "impossible. Only attention logits that differ between the queries, or contexts that never occur under "
            "the other query, keep the patterns apart."
        ),
        checks=(
            Check(
                name="wrong decisions on two patterns and the empty context, ξ = −1.2",
                against=Reference.ENUMERATION,
                measure=_wrong_decisions,
                formula=superpose,
                printed=_printed_superposition,
                tolerance=0.0,  # a count
                unit="wrong decisions",
                mutation=Mutation(
                    description="bias three times as negative",
                    formula=lambda u, patterns, biases, queries: superpose(u, patterns, 3 * biases, queries),
                ),
            ),
            Check(
                name="R₁₁ + R₂₂ − R₁₂ − R₂₁ over 100 random nodes, same logits under both queries",
                against=Reference.ENUMERATION,
                measure=_largest_gate,
                formula=np.tile([0.4, -0.3, 0.8, 0.1], (2, 1)),
                tolerance=ROUNDING_TOLERANCE,
                mutation=Mutation(
                    description="second query attends to the other tokens",
                    formula=np.array([[0.4, -0.3, 0.8, 0.1], [0.8, 0.1, 0.4, -0.3]]),
                ),
            ),
        ),
    ),
)
