"""Section 2 and Appendix A.2: the layer, its gradient, what the setting assumes, and the identities of Theorem 1."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import special

from joma import theory
from joma.checks import layers
from joma.checks.check import Mutation, as_printed, check, over, rejects
from joma.checks.layers import NUM_TOKENS, ROUNDING_TOLERANCE, Case, any_queries, ascent, eqn11, make_case, one_query
from joma.checks.reference import DIFFERENTIATION, ENUMERATION, EXACT_RATIONALS, ODE
from joma.theory import AttentionKind, Layer, Samples, linear, stationarity_drift, tanh
from joma.theory.flows import SaliencyFlow

TEXTS = ((0, 1, 1, 3), (2, 2, 2), (3, 0, 1, 2, 2, 0, 0), (1,), (3, 3, 0, 1, 0))  # texts as sequences of token ids
GRADIENT_OF_TEXTS = (3, -2, 1, 5, -4)  # g of one node for each text, whole numbers so that rationals stay exact
LONG = np.linspace(0.0, 5.0, 11)  # times of the flows along which drifts are measured
ONE_UNIT = np.array([0.0, 1.0])
SMALL_START = 0.01


def _text_samples() -> tuple[Samples, np.ndarray]:
    """Token frequencies of every text, and g."""
    counts = [Counter(text) for text in TEXTS]
    x = np.array([[count[token] / count.total() for token in range(NUM_TOKENS)] for count in counts])
    return Samples(x=x, q=np.zeros(len(TEXTS), dtype=int)), np.array(GRADIENT_OF_TEXTS, dtype=float)[:, None]


def _stream_of_present_tokens(layer: Layer, z: np.ndarray, samples: Samples) -> np.ndarray:
    present = (samples.x > 0).astype(float)
    return layers.stream(layer, z, replace(samples, x=present / present.sum(axis=1, keepdims=True)))


@check("eqn1", ENUMERATION, layers.stream, ROUNDING_TOLERANCE, over=one_query)
@rejects("tokens counted once", _stream_of_present_tokens)
def output_against_positions(claimed, case):
    """f of five texts against attention over their positions, with matrices W_Q and W_K."""
    u, attention = case.layer.embeddings, case.layer.attention
    w_query, w_key = np.random.default_rng(1).normal(size=(2, 2, len(u.contextual)))
    z = (w_query @ u.queries).T @ (w_key @ u.contextual)
    expected = []
    for text in TEXTS:
        logits = np.array([(w_query @ u.queries[:, 0]) @ (w_key @ u.contextual[:, token]) for token in text])
        logits /= attention.temperature
        shares = {
            AttentionKind.LINEAR: logits / len(text) / attention.normalisation,
            AttentionKind.EXP: np.exp(logits) / len(text) / attention.normalisation,
            AttentionKind.SOFTMAX: special.softmax(logits),
        }[attention.kind]
        values = [share * u.contextual[:, token] for share, token in zip(shares, text, strict=True)]
        expected.append(np.sum(values, axis=0) + u.queries[:, 0])
    return claimed(case.layer, z, _text_samples()[0]) - np.array(expected)


def _with_value_matrix(rng: np.random.Generator) -> Iterator[Case]:
    """Draw layers whose embeddings U_C are replaced by W_V U_C."""
    for case in one_query(rng):
        u = case.layer.embeddings
        w_value = rng.normal(scale=len(u.contextual) ** -0.5, size=(len(u.contextual),) * 2)
        merged = theory.Embeddings(contextual=w_value @ u.contextual, queries=u.queries)
        yield case.with_gradient_sent_back(layer=replace(case.layer, embeddings=merged))


MERGED = "dv/dt of the merged layer with a random W_V"


def _eqn11_for_any_embeddings(case: Case) -> np.ndarray:
    """E[g h' (U_C^T U_C b + U_C^T u_q)]."""
    f = layers.stream(case.layer, case.z, case.samples)
    return case.mean(case.slope, f @ case.layer.embeddings.contextual, sum_over="ik,il->kl")


@check("value-matrix", DIFFERENTIATION, _eqn11_for_any_embeddings, printed=eqn11, over=_with_value_matrix, name=MERGED)
@check("eqn11", DIFFERENTIATION, eqn11, over=one_query)
def rate_of_weights(v_dot, case):
    """dv/dt for linear, exp and softmax attention."""
    return v_dot(case) - layers.v_dot_of(case)


@check("query-key", DIFFERENTIATION, lambda rate, query, key: rate @ key.T @ key + query.T @ query @ rate)
@over(layers.softmax_only)
@as_printed(lambda rate, query, key: rate)
@rejects("key side only", lambda rate, query, key: rate @ key.T @ key)
def rate_of_factored_logits(z_dot, case):
    """dz/dt when W_Q and W_K are trained."""
    u = case.layer.embeddings
    w_query, w_key = np.random.default_rng(3).normal(size=(2, 2, len(u.contextual)))

    def logits(w_query: np.ndarray, w_key: np.ndarray) -> np.ndarray:
        return (w_query @ u.queries).T @ (w_key @ u.contextual)

    rate = layers.differentiated(lambda q, k: layers.log_likelihood(case, case.w, logits(q, k)), w_query, w_key)
    merged = ascent(replace(case, z=logits(w_query, w_key))).z
    claimed = z_dot(merged, w_query @ u.queries, w_key @ u.contextual)
    return claimed - (logits(rate.w, w_key) + logits(w_query, rate.z))


def _eqn9(case: Case, factor: float = 1.0, moving: bool = False) -> theory.LayerGradient:
    """Gradient of Eqn 9 at a fixed g, or at one that moves with the weights."""
    backprop = theory.cross_entropy_gradient(case.labels)

    def objective(w, z):
        g = backprop(0.0, case.layer.hidden(w, z, case.samples)) if moving else factor * case.g
        return case.layer.objective(w, z, case.samples, g)

    return layers.differentiated(objective, case.w, case.z)


def _eqn2(case: Case, factor: float = 1.0) -> theory.LayerGradient:
    return case.layer.gradient(case.w, case.z, case.samples, factor * case.g)


G_OFF = Mutation("g 1 % off", lambda case: _eqn9(case, 1.01))
OF_EQN_9 = "Gradient of Eqn 9 against that of the log likelihood that sends g back"


@check("eqn9", DIFFERENTIATION, _eqn9, printed=lambda c: _eqn9(c, moving=True), mutation=G_OFF, name=OF_EQN_9)
@check("eqn2", DIFFERENTIATION, _eqn2)
@over(any_queries)
@rejects("g 1 % off", lambda case: _eqn2(case, 1.01))
def gradient_of_log_likelihood(gradient, case):
    """Gradient of a log likelihood: three attentions, six activations, one and three queries."""
    found, true = gradient(case), ascent(case)
    return found.w - true.w, found.z - true.z


def _softmax_case(phi: theory.Activation = linear) -> Case:
    return make_case(AttentionKind.SOFTMAX, phi, temperature=0.8)


def _linear_loss(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Ascent direction of the outputs, given one-hot labels."""
    return labels - 1 / labels.shape[1]


def _cross_entropy(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return labels - special.softmax(outputs, axis=1)


@check("assumption1", ODE, _linear_loss, ROUNDING_TOLERANCE, printed=_cross_entropy, unit="relative drift")
@rejects("1 % of cross-entropy", lambda o, y: _linear_loss(o, y) + 0.01 * _cross_entropy(o, y))
def drift_of_gradient_term(loss):
    """Drift of E[g x] over t = 5 in layer-wise training, loss linear in the output."""
    case = _softmax_case()
    num_nodes = len(case.w)
    upper, labels = np.random.default_rng(4).normal(size=(num_nodes, num_nodes)), np.eye(num_nodes)[case.labels]

    def backprop(_: float, hidden: np.ndarray) -> np.ndarray:
        return loss(hidden @ upper.T, labels) @ upper

    run = case.layer.flow(case.w, case.z, case.samples, backprop, LONG)
    return stationarity_drift(theory.saliency_along(case.layer, run, case.samples, backprop)).overall


CURVED = theory.Activation(
    name="linear with 1 % of tanh",
    value=lambda x: x + 0.01 * tanh.value(x),
    derivative=lambda x: 1 + 0.01 * tanh.derivative(x),
)


@check("assumption1", ODE, linear, ROUNDING_TOLERANCE, printed=tanh, unit="relative drift")
@rejects("activation with 1 % of tanh", CURVED)
def drift_with_fixed_gradient(phi):
    """Drift of E[g h' x] over t = 5 under a fixed g, linear activation."""
    case = _softmax_case(phi)
    run = case.flow(LONG)
    states = [replace(case, w=w, z=z) for w, z in zip(run["w"], run["z"], strict=True)]
    return stationarity_drift(np.stack([theory.saliency(case.samples, state.slope) for state in states])).overall


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


SOME_AT_ZERO = "dz/dt for linear and exp attention, some logits at zero"


@check("eqn10", DIFFERENTIATION, _eqn10, over=one_query)
@check("eqn13", DIFFERENTIATION, _without_division, printed=_eqn13, over=layers.unnormalised, name=SOME_AT_ZERO)
def rate_of_logits(z_dot, case):
    """dz/dt for linear, exp and softmax attention."""
    return z_dot(case) - ascent(case).z[0]


@check("eqn14", DIFFERENTIATION, theory.Attention.score_over_slope, over=layers.unnormalised)
def both_sides_of_eqn14(score_over_slope, case):
    """Both sides of Eqn 14 for linear attention, zero logits included, and exp attention."""
    left = score_over_slope(case.layer.attention, case.z[0]) * ascent(case).z[0]
    return left - (layers.v_dot_of(case) * case.v).sum(axis=0)


def _diagonal_term(case: Case) -> np.ndarray:
    """E[g_k h'_k diag(b)] v_k."""
    return case.mean(case.slope, case.b, np.eye(NUM_TOKENS), case.v, sum_over="ik,il,lj,kj->kl")


def _inner_product(case: Case) -> np.ndarray:
    """E[g_k h'_k b^T] v_k."""
    return case.mean(case.slope, case.b, case.v, sum_over="ik,il,kl->k")


@check("eqn15-16", DIFFERENTIATION, (_diagonal_term, _inner_product), over=layers.softmax_only)
def terms_of_softmax(terms, case):
    """Eqns 15 and 16 for softmax attention."""
    diagonal, inner = (term(case) for term in terms)
    true = layers.v_dot_of(case) * case.v
    return diagonal - true, inner - true.sum(axis=1)


def _one_node(rng: np.random.Generator) -> Sequence[Case]:
    """Draw exp layers of one node with a normalisation other than 1 and T = 1, as Eqn 3 has."""
    options: dict[str, Any] = {"num_nodes": 1, "backprop": "fixed", "normalisation": rng.uniform(1.5, 2.5)}
    return [make_case(AttentionKind.EXP, phi, **options) for phi in (linear, tanh)]


@check("eqn3", DIFFERENTIATION, lambda delta, v, c, A: delta * np.exp(v**2 / 2 + c) / A, over=_one_node)
@as_printed(lambda delta, v, c, A: delta * np.exp(v**2 / 2 + c))
def rate_with_attention_integrated_out(rate, case):
    """dv/dt at t = 0.5 of a flow with A other than 1, linear activation and tanh."""
    end = case.flow(np.array([0.0, 0.5])).at_end()
    c = case.z[0] - case.v[0] ** 2 / 2
    case = replace(case, w=end["w"], z=end["z"])
    delta = case.mean(case.slope[:, 0], case.samples.x, sum_over="i,il->l")
    found = rate(delta, case.v[0], c, case.layer.attention.normalisation)
    return found - case.layer.embeddings.contextual_part(layers.slope_of_objective(case).w)[0]


# Tolerance: a count of tokens
@check("zero-init", ODE, np.full((1, NUM_TOKENS), SMALL_START), 0.0, unit="share of tokens")
@as_printed(np.zeros((1, NUM_TOKENS)))
@rejects("one logit at zero", SMALL_START * (np.arange(NUM_TOKENS) > 0)[None])
def weights_at_rest(z0):
    """Share of contextual tokens without weight at t = 5, linear attention started at w = 0, z = 0.01."""
    case = make_case(AttentionKind.LINEAR, linear, temperature=0.8, normalisation=1.5)
    case = replace(case, w=np.zeros_like(case.w), z=z0)
    v = case.layer.embeddings.contextual_part(case.flow(LONG).at_end()["w"])
    return (np.abs(v).max(axis=0) < ROUNDING_TOLERANCE).mean()


def _escapes(rng: np.random.Generator) -> Iterator[tuple[SaliencyFlow, np.ndarray, np.ndarray]]:
    """Flows, v and z of layers that start near the saddle and elsewhere, with A, T and rates other than 1."""
    for size in (0.0, 0.3):
        A, T, ratio = rng.uniform([1.3, 0.6, 1.4], [1.8, 0.8, 2.2])
        case = make_case(AttentionKind.LINEAR, linear, num_nodes=1, backprop="fixed", normalisation=A, temperature=T)
        case = replace(case, w=size * case.w, z=size * case.z + SMALL_START)
        targets = case.mean(case.g[:, 0], case.samples.x, sum_over="i,il->l")
        start = {"v0": case.v[0], "z0": case.z[0]}
        flow = SaliencyFlow(targets=targets, attention=case.layer.attention, rate_ratio=ratio, **start)
        run = case.flow(LONG, rate_ratio=ratio)
        yield flow, case.layer.embeddings.contextual_part(run["w"])[:, 0], run["z"][:, 0]


@check("zero-init", ODE, SaliencyFlow.exact, over=_escapes)
@rejects("time 1 % off", lambda flow, t: flow.exact(1.01 * t))
def escape_from_the_saddle(exact, flow, v, z):
    """Weights and logits of linear attention from the saddle at zero, and from another start, with A, T and rates."""
    found = exact(flow, LONG)
    return found["v"] - v, found["z"] - z


def _exact_factors() -> tuple[np.ndarray, np.ndarray]:
    """E[g x] and P(token), when a text and then a position in it are drawn uniformly."""
    mass = [[Fraction(Counter(text)[token], len(text) * len(TEXTS)) for text in TEXTS] for token in range(NUM_TOKENS)]
    moments = [sum(p * g for p, g in zip(row, GRADIENT_OF_TEXTS, strict=True)) for row in mass]
    return np.array(moments, dtype=float), np.array([sum(row) for row in mass], dtype=float)


def _factors(samples: Samples, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return theory.discriminancy(samples, g)[0, 0], theory.frequency(samples)[0]


@check("saliency", EXACT_RATIONALS, _factors, ROUNDING_TOLERANCE)
@rejects("texts counted once", lambda s, g: ((g * (s.x > 0)).sum(axis=0) / (s.x > 0).sum(axis=0), s.x.mean(axis=0)))
def factors_of_saliency(factors):
    """Both factors against all occurrences of each token in five texts."""
    found, share = factors(*_text_samples())
    moment, mass = _exact_factors()
    return found - moment / mass, share - mass


@check("saliency", ENUMERATION, theory.saliency, ROUNDING_TOLERANCE, over=any_queries)
def saliency_by_sums(found, case):
    """E[g x] for unequal weights, several nodes and queries, against a loop over the samples."""
    samples, num_queries = case.samples, case.layer.embeddings.num_queries
    expected = np.zeros((num_queries, case.g.shape[1], NUM_TOKENS))
    for m in range(num_queries):
        own = [i for i in range(len(samples.x)) if samples.q[i] == m]
        total = sum(samples.weights[i] for i in own)
        for i in own:
            expected[m] += samples.weights[i] / total * np.outer(case.g[i], samples.x[i])
    return found(samples, case.g) - expected


@check("footnote1", EXACT_RATIONALS, lambda samples, g: np.multiply(*_factors(samples, g)), ROUNDING_TOLERANCE)
@as_printed(lambda samples, g: (g * samples.x).sum(axis=0) * theory.frequency(samples)[0])
def saliency_of_texts(product):
    """Saliency of five texts."""
    return product(*_text_samples()) - _exact_factors()[0]


def _flows(rng: np.random.Generator) -> Sequence[tuple[Case, Case]]:
    """Four layers before and after one unit of training, one with three queries.

    Linear attention is left out where its ReLU slides along a kink.
    """
    cases = any_queries(rng)
    ends = [(case, case.flow(ONE_UNIT).at_end()) for case in (*cases[1:4], cases[5])]
    return [(case, replace(case, w=end["w"], z=end["z"])) for case, end in ends]


@check("implicit-bias", ODE, lambda start, change: start + change, over=_flows)
@as_printed(lambda start, change: change)
@rejects("change 1 % off", lambda start, change: start + 1.01 * change)
def response_from_bias(bias, start, end):
    """w^T f after one unit of training, from v·b and the implicit bias; one query and three."""
    before, after = (theory.implicit_bias(case.layer.embeddings, case.w) for case in (start, end))
    xi = bias(before, after - before)
    true = layers.stream(end.layer, end.z, end.samples) @ end.w.T
    return end.b @ end.v.T + xi.T[end.samples.q] - true


@check("implicit-bias", DIFFERENTIATION, theory.implicit_bias_rate)
@over(lambda rng: [any_queries(rng)[index] for index in (1, 5)])
def rate_of_bias(rate, case):
    """dξ/dt of every query against the derivative of the objective along each query's embedding."""
    slope = layers.slope_of_objective(case).w
    return rate(case.layer, case.w, case.z, case.samples, case.g) - slope @ case.layer.embeddings.queries


@check("eqn60", ODE, theory.weights_from_parts, over=_flows)
@rejects("ξ with a minus sign", lambda u, w0, v, xi: theory.weights_from_parts(u, w0, v, -xi))
def weights_of_parts(rebuilt, start, end):
    """w after one unit of training, from the changes of v and ξ alone; one query and three."""
    u = start.layer.embeddings
    return rebuilt(u, start.w, end.v - start.v, theory.implicit_bias(u, end.w - start.w)) - end.w


PATTERN_TOKENS = theory.orthonormal_embeddings(4, 2, dim=7, rng=np.random.default_rng(5))
PATTERNS = np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])


@check("superposition", ENUMERATION, theory.superpose, unit="wrong decisions")
@as_printed(lambda u, patterns, biases, q: u.contextual @ patterns.sum(axis=0) - u.queries[:, q] @ biases)
@rejects("bias three times as negative", lambda u, p, biases, q: theory.superpose(u, p, 3 * biases, q))
def wrong_decisions(build):
    """Wrong decisions on two patterns and the empty context, ξ = −1.2."""
    queries = np.array([0, 1])
    w = build(PATTERN_TOKENS, PATTERNS, np.array([-1.2, -1.2]), queries)
    wrong = 0
    for pattern, query in zip(PATTERNS, queries, strict=True):
        u_query = PATTERN_TOKENS.queries[:, query]
        context = PATTERN_TOKENS.contextual @ (pattern / pattern.sum())
        wrong += int(w @ u_query > 0) + int(w @ (context + u_query) <= 0)
    return wrong


@check("superposition", ENUMERATION, np.tile([0.4, -0.3, 0.8, 0.1], (2, 1)), ROUNDING_TOLERANCE)
@rejects("second query attends to the other tokens", np.array([[0.4, -0.3, 0.8, 0.1], [0.8, 0.1, 0.4, -0.3]]))
def gate_by_query(z):
    """R₁₁ + R₂₂ − R₁₂ − R₂₁ over 100 random nodes, same logits under both queries."""
    rng, u = np.random.default_rng(6), PATTERN_TOKENS
    w = rng.normal(size=(100, len(u.contextual)))
    x = rng.dirichlet(np.ones(4), size=2)
    # context, query, node
    exact = np.array([[w @ (u.contextual @ (np.exp(z[m]) * each) + u.queries[:, m]) for m in (0, 1)] for each in x])
    layer = Layer(embeddings=u, attention=theory.Attention(kind=AttentionKind.EXP), activation=linear)
    library = theory.response(layer, w[0], z, x)
    gated = exact[0, 0] + exact[1, 1] - exact[0, 1] - exact[1, 0]
    return gated, library - exact[:, :, 0], theory.query_interaction(library)
