"""Section 2 and Appendix A.1: the layer, its gradient, and what the setting assumes."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from scipy import special

from joma.statements.identities import IDENTITIES
from joma.statements.layer_cases import (
    DIFFERENTIATION_TOLERANCE,
    LABELS,
    LONG,
    NUM_NODES,
    ONE_QUERY_CASES,
    ROUNDING_TOLERANCE,
    SHARED_CASES,
    SLIGHTLY,
    SOFTMAX,
    SOFTMAX_CASE,
    Case,
    ascent,
    differentiated,
    eqn11,
    gap,
    log_likelihood,
    make_case,
    stream,
    v_dot_of,
    with_gradient_sent_back,
)
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.statements.saliency import SALIENCY, TEXTS, text_frequencies
from joma.statements.superposition import SUPERPOSITION
from joma.theory.activations import Activation, linear, tanh
from joma.theory.attention import AttentionKind
from joma.theory.layer import Embeddings, Layer, LayerGradient, Samples, cross_entropy_gradient
from joma.theory.saliency import saliency, saliency_along, stationarity_drift
from joma.types import Real
from joma.verdicts import Outcome


def _query_key(rng: np.random.Generator, dim: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(2, dim)), rng.normal(size=(2, dim))


def _gap_to_positionwise_attention(claimed: Callable[[Layer, np.ndarray, Samples], np.ndarray]) -> float:
    """Compare f with attention over the positions of texts, from query and key matrices, plus the residual."""

    def error(layer: Layer) -> float:
        u = layer.embeddings
        w_query, w_key = _query_key(np.random.default_rng(1), len(u.contextual))
        true = [_positionwise_stream(layer, w_query @ u.queries[:, 0], w_key @ u.contextual, text) for text in TEXTS]
        z = (w_query @ u.queries).T @ (w_key @ u.contextual)
        samples = Samples(x=text_frequencies(), q=np.zeros(len(TEXTS), dtype=int))
        return gap(claimed(layer, z, samples), np.array(true))

    return max(error(case.layer) for case in ONE_QUERY_CASES)


def _positionwise_stream(layer: Layer, query: np.ndarray, keys: np.ndarray, text: tuple[int, ...]) -> np.ndarray:
    """Return Σ_positions share · u_token + u_q, with one query and one key for each position."""
    attention = layer.attention
    logits = np.array([query @ keys[:, token] for token in text]) / attention.temperature
    match attention.kind:
        case AttentionKind.LINEAR:
            shares = logits / len(text) / attention.normalisation
        case AttentionKind.EXP:
            shares = np.exp(logits) / len(text) / attention.normalisation
        case AttentionKind.SOFTMAX:
            shares = special.softmax(logits)
    values = [share * layer.embeddings.contextual[:, token] for share, token in zip(shares, text, strict=True)]
    return np.sum(values, axis=0) + layer.embeddings.queries[:, 0]


def _stream_of_present_tokens(layer: Layer, z: np.ndarray, samples: Samples) -> np.ndarray:
    present = (samples.x > 0).astype(float)
    return stream(layer, z, replace(samples, x=present / present.sum(axis=1, keepdims=True)))


@cache
def _with_value_matrix(case: Case) -> Case:
    """Return the case with U_C replaced by W_V U_C."""
    u = case.layer.embeddings
    dim = len(u.contextual)
    w_value = np.random.default_rng(2).normal(scale=1 / np.sqrt(dim), size=(dim, dim))
    merged = Embeddings(contextual=w_value @ u.contextual, queries=u.queries)
    return with_gradient_sent_back(replace(case, layer=replace(case.layer, embeddings=merged)))


def _gap_with_value_matrix(v_dot: Callable[[Case], np.ndarray]) -> float:
    cases = [_with_value_matrix(case) for case in ONE_QUERY_CASES]
    return max(gap(v_dot(case), v_dot_of(case)) for case in cases)


def _eqn11_for_any_embeddings(case: Case) -> np.ndarray:
    """E[g h' (U_C^T U_C b + U_C^T u_q)]."""
    u = case.layer.embeddings
    return case.mean(case.slope, stream(case.layer, case.z, case.samples) @ u.contextual, sum_over="ik,il->kl")


def _gap_of_trained_query_and_key(z_dot: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Compare with dz/dt when W_Q and W_K are the parameters; `z_dot` gets Eqn 2's rate and both in the token basis."""
    case = SOFTMAX_CASE
    u = case.layer.embeddings
    w_query, w_key = _query_key(np.random.default_rng(3), len(u.contextual))

    def logits(w_query: np.ndarray, w_key: np.ndarray) -> np.ndarray:
        return (w_query @ u.queries).T @ (w_key @ u.contextual)

    rate = differentiated(lambda q, k: log_likelihood(case, case.w, logits(q, k)), w_query, w_key)
    true = logits(rate.w, w_key) + logits(w_query, rate.z)
    eqn2 = ascent(replace(case, z=logits(w_query, w_key))).z
    return gap(z_dot(eqn2, w_query @ u.queries, w_key @ u.contextual), true)


def _gap_of_field(gradient: Callable[..., LayerGradient]) -> float:
    def error(case: Case) -> float:
        found, true = gradient(case.layer, case.w, case.z, case.samples, case.g), ascent(case)
        return max(gap(found.w, true.w), gap(found.z, true.z))

    return max(error(case) for case in ONE_QUERY_CASES + SHARED_CASES)


def _gap_of_surrogate(objective: Callable[[Case, np.ndarray, np.ndarray], float]) -> float:
    def error(case: Case) -> float:
        found, true = differentiated(lambda w, z: objective(case, w, z), case.w, case.z), ascent(case)
        return max(gap(found.w, true.w), gap(found.z, true.z))

    return max(error(case) for case in ONE_QUERY_CASES)


def _eqn9_with_moving_gradient(case: Case, w: np.ndarray, z: np.ndarray) -> float:
    g = cross_entropy_gradient(LABELS)(0.0, case.layer.hidden(w, z, case.samples))
    return case.layer.objective(w, z, case.samples, g)


Loss = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Outputs and one-hot labels in, the ascent direction of the outputs out."""


def _drift_under(loss: Loss) -> float:
    """Return the drift of E[g x] while this layer alone trains under a frozen upper layer."""
    case = make_case(SOFTMAX, linear)
    upper, labels = np.random.default_rng(4).normal(size=(NUM_NODES, NUM_NODES)), np.eye(NUM_NODES)[LABELS]

    def backprop(_: float, hidden: np.ndarray) -> np.ndarray:
        return loss(hidden @ upper.T, labels) @ upper

    run = case.layer.flow(case.w, case.z, case.samples, backprop, LONG)
    return stationarity_drift(saliency_along(case.layer, run, case.samples, backprop)).overall


def _drift_with_curved(phi: Activation) -> float:
    """Return the drift of E[g h' x] while g is held fixed."""
    case = make_case(SOFTMAX, phi)
    run = case.flow(LONG)
    states = [replace(case, w=w, z=z) for w, z in zip(run["w"], run["z"], strict=True)]
    return stationarity_drift(np.stack([saliency(case.samples, state.slope) for state in states])).overall


def _linear_loss(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return labels - 1 / labels.shape[1]


def _cross_entropy(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return labels - special.softmax(outputs, axis=1)


def _slightly_curved(x: Real) -> np.ndarray:
    return x + (SLIGHTLY - 1) * tanh.value(x)


def _slightly_curved_loss(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return _linear_loss(outputs, labels) + (SLIGHTLY - 1) * _cross_entropy(outputs, labels)


SECTION_2 = (
    Statement(
        id="eqn1",
        title="The layer",
        place="Section 2, Eqn 1",
        printed="f = U_C b + u_q with b = σ(z_q)∘x/A, x the token frequencies and z_ql = u_q^T W_Q^T W_K u_l",
        outcome=Outcome.HOLDS,
        explanation=(
            "Without positional encoding, attention over the positions of a text depends on its tokens only through "
            "their frequencies: equal tokens have equal logits, so their shares add up to x_l σ(z_ql)/A. The residual "
            "adds the query's own embedding."
        ),
        checks=(
            Check(
                name="f of five texts against attention over their positions, with matrices W_Q and W_K",
                against=Reference.ENUMERATION,
                measure=_gap_to_positionwise_attention,
                formula=stream,
                tolerance=ROUNDING_TOLERANCE,
                mutation=Mutation(description="tokens counted once", formula=_stream_of_present_tokens),
            ),
        ),
    ),
    Statement(
        id="value-matrix",
        title="The value matrix can be merged into the embeddings",
        place="Section 2, residual connections",
        printed="W_V need not be modelled, since it can be merged into the embedding vectors, u'_l = W_V u_l",
        corrected="dv_k/dt = E[g_k h'_k (U'^T U' b + U'^T u_q)] with U' = W_V U_C; equal to Eqn 11 iff U' is "
        "orthonormal and orthogonal to u_q",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The output is unchanged by the merging, but the proofs need orthonormal embeddings, and W_V u_l are "
            "orthonormal, and orthogonal to u_q, only for special W_V. Otherwise the Gram matrix of the merged "
            "embeddings mixes the tokens in Eqn 11, and all that is built on it."
        ),
        checks=(
            Check(
                name="dv/dt of the merged layer with a random W_V",
                against=Reference.DIFFERENTIATION,
                measure=_gap_with_value_matrix,
                formula=_eqn11_for_any_embeddings,
                printed=eqn11,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(
                    description="1 % off", formula=lambda case: SLIGHTLY * _eqn11_for_any_embeddings(case)
                ),
            ),
        ),
    ),
    Statement(
        id="query-key",
        title="The logits stand for the query and key matrices",
        place="Section 2, residual connections",
        printed="W_K and W_Q are already implicitly modelled by the logits z_ql = u_q^T W_Q^T W_K u_l",
        corrected="training W_Q and W_K moves z by G K^T K + Q^T Q G, with G the dz/dt of Eqn 2, Q = W_Q U_Q, "
        "K = W_K U_C; Eqn 2 is the flow of the merged matrix W_Q^T W_K",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The logits represent what W_Q and W_K compute, but gradient flow on the two factors is another flow: it "
            "multiplies Eqn 2's rate by their Gram matrices, from the left and from the right. Only when the product "
            "W_Q^T W_K is the parameter, with orthonormal embeddings, do the logits move by Eqn 2."
        ),
        checks=(
            Check(
                name="dz/dt when W_Q and W_K are trained",
                against=Reference.DIFFERENTIATION,
                measure=_gap_of_trained_query_and_key,
                formula=lambda rate, query, key: rate @ key.T @ key + query.T @ query @ rate,
                printed=lambda rate, query, key: rate,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="key side only", formula=lambda rate, query, key: rate @ key.T @ key),
            ),
        ),
    ),
    Statement(
        id="assumption1",
        title="Stationary backpropagated gradient",
        place="Section 2, Assumption 1 and the note below it",
        printed="expectation terms involving g_hk (e.g. E[g_hk x]) remain constant; true for layer-wise training",
        corrected="E[g x] is constant when the other layers are frozen and the loss is linear in h; E[g h' x] needs a "
        "linear activation as well",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "Freezing the other layers does not freeze g, which depends on this layer's own output through the loss: "
            "under cross-entropy the error that is sent back shrinks as this layer learns. With cross-entropy on h "
            "itself the drift of E[g x] in our runs is 0.17 at t = 0.5, 0.53 at t = 2, 0.81 at t = 5 and 0.90 from "
            "t = 20 to 100: it becomes stationary once most of it is gone. Terms with h', such as Δ_m of Eqn 3, also "
            "move with a fixed g. Theorem 1 for linear and exp attention does not need the assumption."
        ),
        checks=(
            Check(
                name="drift of E[g x] over t = 5 in layer-wise training, loss linear in the output",
                against=Reference.ODE,
                measure=_drift_under,
                formula=_linear_loss,
                printed=_cross_entropy,
                tolerance=ROUNDING_TOLERANCE,
                unit="relative drift",
                mutation=Mutation(description="loss with 1 % of cross-entropy", formula=_slightly_curved_loss),
            ),
            Check(
                name="drift of E[g h' x] over t = 5 under a fixed g, linear activation",
                against=Reference.ODE,
                measure=_drift_with_curved,
                formula=linear,
                printed=tanh,
                tolerance=ROUNDING_TOLERANCE,
                unit="relative drift",
                mutation=Mutation(
                    description="activation with 1 % of tanh",
                    formula=Activation(
                        name="slightly curved",
                        value=_slightly_curved,
                        derivative=lambda x: 1 + (SLIGHTLY - 1) * tanh.derivative(x),
                    ),
                ),
            ),
        ),
    ),
    Statement(
        id="eqn2",
        title="Training dynamics",
        place="Section 2, Eqn 2",
        printed="dw_k/dt = E[g_k h'_k f], dz_m/dt = E[(∂b/∂z_m)^T U_C^T g_f], g_f = Σ_k g_k h'_k w_k",
        outcome=Outcome.HOLDS,
        explanation=(
            "With g the derivative of the objective by h this is the chain rule: gradient ascent, at equal learning "
            "rates. The paper states it for one query; with several that share w, dw/dt sums over the samples of all "
            "queries and each z_m sees its own."
        ),
        checks=(
            Check(
                name="gradient of a log likelihood: three attentions, six activations, one and three queries",
                against=Reference.DIFFERENTIATION,
                measure=_gap_of_field,
                formula=Layer.gradient,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(
                    description="1 % off",
                    formula=lambda layer, w, z, samples, g: Layer.gradient(layer, w, z, samples, SLIGHTLY * g),
                ),
            ),
        ),
    ),
    Statement(
        id="eqn9",
        title="Per-hidden-node loss",
        place="Appendix A.1, Eqn 9",
        printed="Assumption 1 has an equivalent per-hidden node loss, max E[Σ_k g_k h_k]",
        corrected="Eqn 2 is gradient ascent on E[Σ_k g_k h_k] with every g_k[i] held constant (stop-gradient)",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The gradients agree where g is treated as a constant, sample by sample. If g depends on h, as for any "
            "loss that is not linear, then differentiating the printed objective brings in ∂g/∂h. Nor is it a loss to "
            "maximise: with g constant it has no maximum, it only has the right gradient at the current point."
        ),
        checks=(
            Check(
                name="gradient of Eqn 9 against that of the log likelihood that sends g back",
                against=Reference.DIFFERENTIATION,
                measure=_gap_of_surrogate,
                formula=lambda case, w, z: case.layer.objective(w, z, case.samples, case.g),
                printed=_eqn9_with_moving_gradient,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(
                    description="g 1 % off",
                    formula=lambda case, w, z: case.layer.objective(w, z, case.samples, SLIGHTLY * case.g),
                ),
            ),
        ),
        remark="right with g held constant, a condition that the printed form does not have",
    ),
)

STATEMENTS = (*SECTION_2, *IDENTITIES, *SALIENCY, *SUPERPOSITION)
