"""The multi-layer note: correlations that travel down an edge, and a node with a two-valued input."""

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
from scipy import optimize

from joma import theory
from joma.checks.check import as_printed, check, over, rejects, scaled
from joma.checks.quadrature import jacobian, solved
from joma.checks.reference import DIFFERENTIATION, EXACT_RATIONALS, LINEAR_ALGEBRA, MONTE_CARLO, ODE, OPTIMISATION
from joma.theory import ComputationGraph, TwoValuedInput, cosine, homogeneous, linear, recursed_cosines, sigmoid, tanh

# L-BFGS-B and SLSQP stop when the value moves by less than about 1e-12; corners of the constraints are hit exactly.
OPTIMUM_TOLERANCE = 1e-6
SMALL = 0.1  # a C that the note's theorem would allow


@check("note-eqn1", DIFFERENTIATION, ComputationGraph.weight_gradient)
def gradient_of_every_edge(rule):
    """Derivative by the weight of every edge of a graph with four activations, a residual and two losses."""
    activations, rng = (linear, linear, tanh, theory.silu, sigmoid, tanh), np.random.default_rng(1)
    graph = ComputationGraph(precedents=((), (), (0, 1), (0, 1), (1, 2, 3), (2, 4)), activations=activations)
    w, x, received = rng.standard_normal((6, 6)), rng.standard_normal((2, 7)), np.zeros((6, 7))
    received[[3, 5]] = rng.standard_normal((2, 7))
    exact, forward = jacobian(lambda w: (received * graph.forward(w, x).f).sum(), w), graph.forward(w, x)
    return rule(graph, forward, graph.backward(w, forward, received)) - exact


def random_edges(rng):
    """Signals over four samples: half of them independent, half drawn around each other at every scale of distance."""
    size = 100_000
    z_alpha, z_beta, f, s = rng.standard_normal((4, 2, size, 4))
    spread = rng.uniform(0, 1, size=(3, size, 1))
    z_beta[1] = rng.choice([-1.0, 1.0], (size, 1)) * z_alpha[1] + spread[0] * z_beta[1]
    f[1] = z_beta[1] + spread[1] * f[1]
    s[1] = z_alpha[1] + spread[2] * s[1]
    return [theory.Edge(z_alpha=z_alpha, z_beta=z_beta, f=f, gated_gradient=s)]


@check("note-thm1", MONTE_CARLO, lambda *C: theory.angle_sum(*C) < np.pi / 2, 0.0, unit="share of failures")
@over(random_edges)
@as_printed(lambda *C: np.min(C, axis=0) > SMALL)
@rejects("angles up to 2π/3 allowed", lambda *C: theory.angle_sum(*C) < 2 * np.pi / 3)
def share_of_failures(claimed, edges):
    """Share of random signals over four samples with corr(z_β, g_{j→k}) ≤ 0."""
    C = np.stack(edges.cosines)
    admitted = (C > 0).all(axis=0)
    admitted[admitted] = claimed(*C[:, admitted])
    # w_jk = corr(f_k, s_j), and the gradient w_jk s_j goes down
    passed = (edges.f * edges.gated_gradient).sum(-1) * (edges.z_beta * edges.gated_gradient).sum(-1)
    return (passed[admitted] <= 0).mean()


@check("note-thm1", EXACT_RATIONALS, lambda edge: float(edge.backpropagated_correlation), 0.0)
@as_printed(lambda edge: abs(float(edge.backpropagated_correlation)))
def whole_numbered_counterexample(correlation):
    """corr(z_β, g_{j→k}) of the counterexample, whose three correlations are positive, in whole numbers."""
    edge = theory.counterexample()
    z_alpha, z_beta, f, s = (each.astype(int) for each in (edge.z_alpha, edge.z_beta, edge.f, edge.gated_gradient))
    if min(z_alpha @ s, z_beta @ f, abs(z_alpha @ z_beta)) <= 0:
        return np.inf
    return abs(correlation(edge) - (f @ s) * (z_beta @ s))


@cache
def _smallest_product(C1: float, C2: float, C3: float) -> float:
    """Least cos(f, s) cos(z_β, s) over signals within the three angles, by bounded minimisation.

    Signals are unit vectors of R³: angles from z_α to s and to z_β, from z_β to f, and the two azimuths between them.
    """

    def product(parameters):
        to_s, to_beta, to_f, azimuth_beta, azimuth_f = parameters.tolist()
        beta_s = math.cos(to_s) * math.cos(to_beta) + math.sin(to_s) * math.sin(to_beta) * math.cos(azimuth_beta)
        across = math.sqrt(max(0.0, 1 - beta_s**2))
        return beta_s * (math.cos(to_f) * beta_s + math.sin(to_f) * across * math.cos(azimuth_f))

    tops = np.arccos([C1, C3, C2])
    bounds = [(0, top) for top in tops] + [(None, None)] * 2
    starts = itertools.product((0.4, 0.9), (0.5, 2.5), (0.5, 2.5))
    ends = [[*share * tops, *azimuths] for share, *azimuths in starts]
    return min(float(optimize.minimize(product, x0, method="L-BFGS-B", bounds=bounds).fun) for x0 in ends)


@check("note-thm1-sharp", OPTIMISATION, theory.least_backpropagated_cosine, unit="distance from the optimum")
@over(((0.95, 0.95, 0.95), (0.99, 0.8, 0.98), (0.857, 0.857, 0.857), (0.1, 0.1, 0.1), (0.5, 0.9, 0.7)))
@as_printed(lambda *C: max(0.0, float(theory.least_backpropagated_cosine(*C))))
def least_product(bound, *C):
    """Least product over signals in R³, five triples around the condition, and the signals that attain it."""
    found, edge = _smallest_product(*C), theory.worst_edge(*C)
    correlation = theory.backpropagated_correlation_bound(*C) if found > 0 else found
    within = np.maximum(0, np.subtract(C, np.stack(edge.cosines)))
    return bound(*C) - found, edge.backpropagated_cosine - found, correlation - found, within


def random_gates(rng):
    """cos(z_β, f), cos(z_β, g) and cos(z_β, σ'g) after a ReLU, for random signals over five samples."""
    size = 200_000
    spread = rng.uniform(0, 2, size=(2, size, 1))
    pre = rng.standard_normal((size, 5))
    pre[:, 0] = np.abs(pre[:, 0])  # at least one open gate
    f = np.maximum(pre, 0)
    z = f + spread[0] * rng.standard_normal((size, 5))
    g = z + spread[1] * rng.standard_normal((size, 5))
    return [(cosine(z, f), cosine(z, g), cosine(z, (pre > 0) * g))]


@check("note-recursion", MONTE_CARLO, lambda C2, C4: C2**2 + C4**2 > 1, 0.0, unit="share of failures")
@over(random_gates)
@as_printed(lambda C2, C4: np.minimum(C2, C4) > SMALL)
@rejects("C₂² + C₄² > ½ allowed", lambda C2, C4: 2 * (C2**2 + C4**2) > 1)
def share_of_gated_failures(claimed, C2, C4, gated):
    """Share of random signals after a ReLU with corr(z_β, σ'_k g_k) ≤ 0."""
    admitted = (C2 > 0) & (C4 > 0) & claimed(C2, C4)
    return (gated[admitted] <= 0).mean()


def _least_under(value: Any, constraints: list[Any], starts: np.ndarray, last: list[tuple[float, float]]) -> float:
    """Least value with every constraint ≥ 0, by SLSQP from many starts; infeasible ends are left out.

    Six components of z and g are bounded by 9, since cosines do not depend on the size; those after them by `last`.
    """
    options: dict[str, Any] = {"method": "SLSQP", "options": {"ftol": 1e-13, "maxiter": 300}}
    options |= {"bounds": [(-9.0, 9.0)] * 6 + last, "constraints": [{"type": "ineq", "fun": c} for c in constraints]}
    runs = [optimize.minimize(value, x0, **options) for x0 in starts]
    return float(min(run.fun for run in runs if min(c(run.x) for c in constraints) > -OPTIMUM_TOLERANCE / 10))


@cache
def _smallest_gated(C2: float, C4: float) -> float:
    """Least cos(z, σ'g) after a ReLU with two samples open and one shut; z, g and f end to end."""
    gate = np.array([1.0, 1.0, 0.0])
    starts = np.ones(8) + 0.3 * np.random.default_rng(4).standard_normal((12, 8))
    agrees = [lambda p: cosine(p[:3], np.append(p[6:], 0.0)) - C2, lambda p: cosine(p[:3], p[3:6]) - C4]
    return _least_under(lambda p: float(cosine(p[:3], gate * p[3:6])), agrees, starts, [(1e-3, 9.0)] * 2)


@cache
def _smallest_sloped(C4: float, lowest: float, highest: float) -> float:
    """Least cos(z, σ'g) over slopes within a range, on three samples; z, g and the slopes end to end."""
    rng = np.random.default_rng(5)
    starts = np.hstack([np.ones((12, 6)) + 0.3 * rng.standard_normal((12, 6)), rng.uniform(lowest, highest, (12, 3))])
    agrees = [lambda p: cosine(p[:3], p[3:6]) - C4]
    return _least_under(lambda p: float(cosine(p[:3], p[6:] * p[3:6])), agrees, starts, [(lowest, highest)] * 3)


BOUNDS = (theory.gated_cosine_bound, theory.sloped_cosine_bound, recursed_cosines)


@check("note-recursion", OPTIMISATION, BOUNDS, unit="distance from the optimum")
@over([[(0.9, 0.9), (0.95, 0.5, 1.0)], [(0.8, 0.95), (0.9, 0.8, 1.2)], [(0.99, 0.5), (0.7, 0.3, 0.5)]])
@rejects("after a ReLU 1 % off", (scaled(BOUNDS[0]).formula, *BOUNDS[1:]))
@rejects("after slopes 1 % off", (BOUNDS[0], scaled(BOUNDS[1]).formula, BOUNDS[2]))
@rejects("C₁ of a level 1 % off", (*BOUNDS[:2], lambda C1, *rest: recursed_cosines(0.99 * C1, *rest)))
def least_cosines(bounds, cases):
    """Least cosine after a ReLU, after slopes within a range, and after one level of the recursion after either."""
    gated, sloped, recursion = bounds
    C1, C2, C3, leaky = 0.98, 0.9, 0.97, homogeneous(0.8, 1.2)
    C4 = math.cos(math.acos(C1) + math.acos(C3))  # angles on a sphere add up at most
    level = [recursion(C1, np.array([C2]), np.array([C3]), phi) for phi in (theory.relu, leaky)]
    exact = [[_smallest_gated(C2, C4)], [_smallest_sloped(C4, 0.8, 1.2)]]
    single = gated(*cases[0]) - _smallest_gated(*cases[0]), sloped(*cases[1]) - _smallest_sloped(*cases[1])
    return *single, np.subtract(level, exact)


@check("note-recursion", LINEAR_ALGEBRA, lambda C1, C2, C3: recursed_cosines(C1, C2, C3, linear))
@over(lambda rng: [(rng.uniform(0.99, 1.0), rng.uniform(0.93, 0.97, 4), rng.uniform(0.98, 0.99, 4))])
@rejects("last angle left out", lambda C1, C2, C3: recursed_cosines(C1, C2, np.append(C3[:-1], 1.0), linear))
def levels_of_linear_nodes(recursion, C1, all_C2, all_C3):
    """Four levels of linear nodes that all turn the same way, in the plane."""
    angle, s, found = np.arccos(C1), np.array([1.0, 0.0]), []  # angle from the gradient to the latent of the level
    for C2, C3 in zip(all_C2, all_C3, strict=True):
        angle += np.arccos(C3)
        z_beta, f = (np.array([np.cos(a), np.sin(a)]) for a in (angle, angle + np.arccos(C2)))
        s = (f @ s) * s  # g_{j→k} = corr(f, s) s, and a linear node passes it on
        found.append(float(cosine(z_beta, s)))
    return recursion(C1, all_C2, all_C3) - found


# Tolerance: rounding of a sum of unit vectors
@check("note-recursion", MONTE_CARLO, theory.summed_cosine_bound, 1e-12, unit="shortfall")
@rejects("the mean over parents", lambda C4: np.mean(C4, axis=-1))
def sum_over_parents(bound):
    """How far cos(z_β, Σ_j g_{j→k}) falls below its bound, 20,000 sums of three gradients that agree with z_β."""
    rng = np.random.default_rng(8)
    z, g = rng.standard_normal((20_000, 1, 4)), rng.standard_normal((20_000, 3, 4))
    g *= np.sign((z * g).sum(axis=-1, keepdims=True)) * rng.lognormal(0, 2, (20_000, 3, 1))
    total = cosine(z[:, 0], g.sum(axis=1))
    return max(0.0, (bound(cosine(np.broadcast_to(z, g.shape), g)) - total).max())


def two_valued(rng):
    """Nodes with data of two values and gradients that are spread within each; a weight; the differentiated field."""
    for activation in (sigmoid, theory.silu):
        x_plus, x_minus, w = rng.standard_normal((3, 3))
        label = np.arange(50) < 50 * rng.choice([0.3, 0.6])
        g = np.where(label, 0.7, -0.4) + 0.2 * rng.standard_normal(50)
        x = np.where(label[:, None], x_plus, x_minus)
        means = {"p1": label.mean(), "g_plus": g[label].mean(), "g_minus": g[~label].mean()}
        node = TwoValuedInput(x_plus=x_plus, x_minus=x_minus, activation=activation, **means)
        slope = jacobian(lambda w, x=x, g=g, phi=activation: (g * phi.value(x @ w)).mean(), w)
        yield node, w, slope


def _eqn3(node: TwoValuedInput, w: np.ndarray) -> np.ndarray:
    slope = node.activation.derivative
    return slope(w @ node.x_plus) * node.p1 * node.x_plus - slope(w @ node.x_minus) * (1 - node.p1) * node.x_minus


@check("note-eqn2", DIFFERENTIATION, TwoValuedInput.field, over=two_valued)
@check("note-eqn3", DIFFERENTIATION, TwoValuedInput.field, printed=_eqn3, over=two_valued)
def field_of_a_node(field, node, w, exact):
    """Derivative of E[g σ(w·x)] over 50 samples of two inputs, E[g|z=1] near 0.7 and E[g|z=0] near −0.4."""
    return field(node, w) - exact


FAR = 0.3  # an output this far from its latent at the end of the path has not learned it
PATH_LENGTH = 150.0  # of a flow's path, in the largest component: sigmoid slopes stay above underflow


def sigmoid_runs(rng):
    """Random planar inputs, and whether their outputs end near 0 and 1 when the flow from zero runs at unit speed."""
    for _ in range(60):
        first, second = (np.array([np.cos(angle), np.sin(angle)]) for angle in rng.uniform(-np.pi, np.pi, 2))
        size, p1, g_plus, g_minus = rng.uniform([0.4, 0.2, 0.6, 0.6], [2.5, 0.8, 1.6, 1.6])
        inputs = {"x_plus": first, "x_minus": size * second, "g_plus": g_plus, "g_minus": -g_minus}
        node = TwoValuedInput(**inputs, p1=p1, activation=sigmoid)

        def unit_speed(w, node=node):
            velocity = node.field(w)
            return (velocity / np.abs(velocity).max(),)

        [w] = solved(unit_speed, (np.zeros(2),), [0.0, PATH_LENGTH], method="LSODA", rtol=1e-6, atol=1e-6)
        yield node, bool(np.abs(node.outputs(w[-1]) - [0.0, 1.0]).max() <= FAR)


@check("note-eqn3", ODE, TwoValuedInput.sigmoid_learns, 0.0, unit="broken promises", over=sigmoid_runs)
@as_printed(lambda node: True)
@rejects(
    "x₊·x₋ below the larger norm", lambda n: n.x_plus @ n.x_minus < max(n.x_plus @ n.x_plus, n.x_minus @ n.x_minus)
)
def unlearned_inputs(criterion, node, learned):
    """Sigmoid nodes, of 60 random ones, that do not learn what is promised."""
    return criterion(node) and not learned


def linear_nodes(rng):
    """Two linear nodes, one with a slope and gradients other than ±1."""
    one = TwoValuedInput(x_plus=np.array([1.0]), x_minus=np.array([2.0]), p1=0.8, activation=linear)
    (x_plus, x_minus), slope = rng.normal(size=(2, 3)), homogeneous(1.4, 1.4)
    return [one, TwoValuedInput(x_plus=x_plus, x_minus=x_minus, p1=0.3, activation=slope, g_plus=0.7, g_minus=-1.6)]


@check("note-eqn3", ODE, (TwoValuedInput.linear_gap_rate, theory.sigmoid_learning_time), over=linear_nodes)
def growth_of_the_gap(claims, node):
    """Growth of f_j(x₊) − f_j(x₋) for two linear nodes, and a sigmoid's time to reach a pre-activation over its own."""
    (rate, time), slope, p1 = claims, float(node.activation.derivative(1.0)), node.p1
    w_dot = slope * (p1 * node.g_plus * node.x_plus + (1 - p1) * node.g_minus * node.x_minus)
    [w] = solved(lambda w: (w_dot,), (0 * w_dot,), [0.0, 1.0])
    two = TwoValuedInput(x_plus=np.array([2.0, 0.0]), x_minus=np.array([0.0, 1.5]), p1=0.3, activation=sigmoid)
    end = solved(lambda w: (_eqn3(two, w),), (np.zeros(2),), [0.0, 50.0])[0][-1]
    times = time(float(end @ two.x_plus), 0.3 * 4.0) / 50 - 1, time(float(-end @ two.x_minus), 0.7 * 2.25) / 50 - 1
    return slope * w[-1] @ (node.x_plus - node.x_minus) - rate(node), *times
