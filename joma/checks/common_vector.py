"""A vector that all tokens share: statements of our own, on matrices A that are trained and flows of queries."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from scipy import special

from joma import theory
from joma.checks.check import check, over, rejects
from joma.checks.layers import TIMES, changing, drift, problem
from joma.checks.quadrature import jacobian, solved
from joma.checks.reference import DIFFERENTIATION, ENUMERATION, ODE
from joma.theory import AttentionKind, QueriesFlow, common_invariant, common_velocity, dip_window


def trained_matrices(rng):
    """Draw tokens that share a vector and a loss of their attention; differentiate it in the logits and in A."""
    for num, softmax in ((4, True), (6, True), (5, False)):
        e, (s, s_keys) = np.linalg.qr(rng.normal(size=(num + 1, num + 1)))[0], rng.uniform(0.3, 2.5, 2)
        queries, keys = (e[:, :num] + np.sqrt(norm) * e[:, [num]] for norm in (s, s_keys))
        read, target = rng.normal(size=(3, num)), rng.normal(size=(num, 3))
        temperature, A = rng.uniform(0.5, 0.9), rng.normal(0, 0.4, (num + 1, num + 1))

        def loss(z, read=read, target=target, temperature=temperature, softmax=softmax):
            a = special.softmax(z / temperature, axis=1) if softmax else np.exp(z / temperature)
            return 0.5 * np.square(a @ read.T - target).sum()

        pull = -jacobian(loss, queries.T @ A @ keys)
        A_dot = -jacobian(lambda A, q=queries, k=keys, loss=loss: loss(q.T @ A @ k), A)
        yield pull, s, 0.0 if softmax else s_keys, queries.T @ A_dot @ keys


@check("common-vector", DIFFERENTIATION, lambda pull, s, keys: common_velocity(pull, s, common_keys=keys))
@over(trained_matrices)
@rejects("‖c‖² 1 % off", lambda pull, s, keys: common_velocity(pull, 1.01 * s, common_keys=keys))
@rejects("the keys' vector left out where it counts", lambda pull, s, keys: common_velocity(pull, s))
def velocity_of_the_logits(velocity, pull, s, keys, exact):
    """Velocity of the logits when A is trained, softmax with the vector on the keys too, and exp with two vectors."""
    return velocity(pull, s, keys) - exact


@check("common-vector", DIFFERENTIATION, theory.shared_gain)
@over(lambda rng: list(trained_matrices(rng))[:2])
@rejects("1 + s", lambda s, num: 1 + s)
def gain_of_the_mean(gain, pull, s, _, exact):
    """Mean velocity over queries, and what is left of each query, which has no gain."""
    mean = exact.mean(axis=0)
    return mean - gain(s, len(pull)) * pull.mean(axis=0), exact - mean - (pull - pull.mean(axis=0))


def layers_with_a_matrix(rng):
    """Train weights and A of layers whose queries share a vector: a temperature, unequal rates, g that changes."""
    for phi, num_queries in ((theory.tanh, 2), (theory.gelu, 3), (theory.silu, 3)):
        layer, samples, backprop, w0, _ = problem(changing(rng, AttentionKind.EXP, phi, num_queries))
        u, s, ratio = layer.embeddings, rng.uniform(0.4, 1.5), rng.uniform(0.5, 2.0)
        own = np.hstack([u.contextual, u.queries])
        c = np.linalg.svd(own)[0][:, [-1]] * np.sqrt(s)  # across all embeddings
        layer = replace(layer, embeddings=theory.Embeddings(contextual=u.contextual, queries=u.queries + c))
        queries = layer.embeddings.queries

        def field(time, state, layer=layer, queries=queries, ratio=ratio, samples=samples, backprop=backprop):
            z = queries.T @ state["A"] @ layer.embeddings.contextual
            slope = layer.gradient(state["w"], z, samples, backprop(time, layer.hidden(state["w"], z, samples)))
            return {"w": slope.w, "A": ratio * queries @ slope.z @ layer.embeddings.contextual.T}

        start = {"w": w0, "A": rng.normal(0, 0.4, (len(own), len(own)))}
        run = theory.integrate(field, start, TIMES)
        z = np.einsum("iq,tij,jl->tql", queries, run["A"], u.contextual)
        yield SimpleNamespace(v=run["w"] @ u.contextual, z=z, attention=layer.attention, s=s, ratio=ratio)


@check("thm1-common", ODE, common_invariant, unit="max abs drift", over=layers_with_a_matrix)
@rejects("‖c‖² 1 % off", lambda v, z, attention, s, **r: common_invariant(v, z, attention, 1.01 * s, **r))
@rejects("without the common vector", lambda v, z, attention, s, **r: common_invariant(v, z, attention, 0.0, **r))
def drift_with_a_common_vector(law, run):
    """Drift for each token, two and three queries whose embeddings share a vector, A and w trained."""
    return drift(law(run.v, run.z, run.attention, run.s, rate_ratio=run.ratio))


def queries(rng):
    """Draw flows of three queries with targets, shares, T, A and rates of their own."""
    attentions = [
        theory.Attention(kind=AttentionKind.EXP, temperature=rng.uniform(0.6, 0.9), normalisation=rng.uniform(1.2, 2.0))
        for _ in range(3)
    ]
    return [
        QueriesFlow(
            mu=rng.uniform(0.5, 2.0, (3, 4)) * rng.choice([-1, 1], 4), common=rng.uniform(0.2, 3.0),
            shares=rng.dirichlet(np.full(3, 4.0)), rate_ratio=rng.uniform(0.5, 2.0), attention=attention,
        )
        for attention in attentions
    ]  # fmt: skip


def both_attentions(rng):
    """Those, and one with softmax attention."""
    flows = queries(rng)
    return [*flows, replace(flows[0], attention=theory.Attention(kind=AttentionKind.SOFTMAX, temperature=0.7))]


@check("common-vector-flow", DIFFERENTIATION, QueriesFlow.field, over=both_attentions)
@rejects("‖c‖² 1 % off", lambda flow, *at: replace(flow, common=1.01 * flow.common).field(*at))
def slope_of_the_loss(field, flow):
    """Field of weights and logits against differences of ½ Σ_m p_m ‖μ_m − v∘a_m‖², A trained."""
    rng = np.random.default_rng(flow.mu.size)
    v, z = rng.normal(size=flow.mu.shape[1]), rng.normal(0, 0.5, flow.mu.shape)

    def loss(v, z):
        a = np.exp(z / flow.attention.temperature)
        a /= a.sum(axis=1, keepdims=True) if flow.attention.kind == "softmax" else flow.attention.normalisation
        return 0.5 * flow.shares @ np.square(flow.mu - v * a).sum(axis=1)

    pull = -jacobian(lambda z: loss(v, z), z)
    gram = np.eye(len(z)) + flow.common
    found = field(flow, 0.0, {"v": v, "z": z})
    return found["v"] + jacobian(lambda v: loss(v, z), v), found["z"] - flow.rate_ratio * gram @ pull


AT = np.linspace(0.0, 1.5, 4)
LARGE = 1e11
"""‖c‖² at which the differences between queries are below 1e-10."""


def equal_queries(rng):
    """Flows whose queries have one target and are equally frequent, at any s."""
    flows = queries(rng)
    return [replace(flow, mu=np.tile(flow.mu[:1], (3, 1)), shares=None) for flow in flows]


def queries_that_share_much(rng):
    """Flows with a very large common vector and a learning rate that is as much smaller."""
    return [replace(flow, common=LARGE, rate_ratio=flow.rate_ratio / LARGE) for flow in queries(rng)]


@check("common-vector-flow", ODE, QueriesFlow.limit, over=equal_queries, name="One target, at any ‖c‖²")
@check("common-vector-flow", ODE, QueriesFlow.limit, over=queries_that_share_much)
@rejects("κ 1 % off", lambda flow: replace(flow.limit(), rate_ratio=1.01 * flow.limit().rate_ratio))
@rejects("κ without the common vector", lambda flow: replace(flow.limit(), rate_ratio=flow.rate_ratio / 3))
@rejects("the target 1 % off", lambda flow: replace(flow.limit(), mu=1.01 * flow.limit().mu))
def distance_from_one_query(limit, flow):
    """Weights, and logits of every query, from the flow of a single query, for unequal queries at a large ‖c‖²."""
    run, single = flow.run(AT), limit(flow)
    v = single.solution(AT)
    return run.v - v, run.z - single.logits(v)[:, None]


def steep_flows(rng):
    """Draw targets, of which the second is at least a tenth smaller than the first, a large κ and A."""
    for power in (8, 10, 12):
        mu = np.append(rng.uniform(0.5, 0.9, 5), 1.0) * rng.uniform(0.5, 3.0)
        yield rng.permutation(mu), 10.0**power, rng.uniform(1.3, 2.5)


@check("common-vector-dip", ENUMERATION, dip_window, 0.0, unit="windows missed", over=steep_flows)
@rejects("A left out", lambda mu, gain, normalisation: dip_window(mu, gain))
@rejects("√2 too early", lambda mu, gain, normalisation: dip_window(mu, 2 * gain, normalisation=normalisation))
def dips_outside(window, mu, gain, normalisation):
    """Dips of the entropy outside their window, by the integrated flow."""
    first, second = window(mu, gain, normalisation=normalisation)
    root, times = np.sqrt(gain), np.linspace(0.2, 3.0, 2801)

    def field(u):  # u = √κ v, time in units of A√(π/2κ)/max|μ|
        push = np.exp(np.minimum(u**2 / 2, 700.0))
        return (np.sqrt(np.pi / 2) / mu.max() * push * (mu - u * push / (root * normalisation)),)

    [u] = solved(field, (np.zeros_like(mu),), np.append(0.0, times), method="LSODA", rtol=1e-9, atol=1e-9)
    entropy = theory.attention_entropy(u[1:])
    time = times[entropy.argmin()] * normalisation * np.sqrt(np.pi / (2 * gain)) / mu.max()
    return float(not first <= time <= second)
