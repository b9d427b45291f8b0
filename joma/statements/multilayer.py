"""The multi-layer note at the end of the paper's text: computation graphs and the gradients that they send down."""

import itertools
import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
from scipy import differentiate, optimize

from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import linear, sigmoid, silu, tanh
from joma.theory.computation_graph import (
    ComputationGraph,
    Edge,
    TwoValuedInput,
    angle_sum,
    cosine,
    gated_cosine_bound,
    least_backpropagated_cosine,
    recursed_cosines,
    sigmoid_learning_time,
    sloped_cosine_bound,
)
from joma.theory.integrate import integrate
from joma.verdicts import Outcome

# scipy.differentiate reaches its default tolerance on smooth functions of order one.
DIFFERENTIATION_TOLERANCE = 1e-9
# L-BFGS-B and SLSQP stop when the value moves by less than about 1e-12; corners of the constraints are hit exactly.
OPTIMUM_TOLERANCE = 1e-6
# DOP853 at rtol 1e-12.
ODE_TOLERANCE = 1e-9

GRAPH = ComputationGraph(
    precedents=((), (), (0, 1), (0, 1), (1, 2, 3), (2, 4)), activations=(linear, linear, tanh, silu, sigmoid, tanh)
)
"""Two inputs, two hidden nodes, one above both, and an output that also takes a residual connection."""
EDGES_OF_GRAPH = [(j, k) for j, below in enumerate(GRAPH.precedents) for k in below]


@cache
def _graph_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    received = np.zeros((6, 7))
    received[5] = rng.standard_normal(7)
    return rng.standard_normal((6, 6)), rng.standard_normal((2, 7)), received


def _derivative(function: Callable[[float], float], at: float) -> float:
    """Derivative of a function of one number by scipy's adaptive differences."""
    found = differentiate.derivative(
        np.vectorize(function, otypes=[float]), at, tolerances={"atol": 1e-12, "rtol": 1e-12}
    )
    return float(found.df)


@cache
def _differentiated_weights() -> np.ndarray:
    """Derivative of Σ_i g[i] f_out[i] with respect to the weight of every edge, by finite differences."""
    w, x, received = _graph_data()
    gradient = np.zeros((6, 6))
    for edge in EDGES_OF_GRAPH:

        def objective(value: float, edge: tuple[int, int] = edge) -> float:
            moved = w.copy()
            moved[edge] = value
            return float((received * GRAPH.forward(moved, x).f).sum())

        gradient[edge] = _derivative(objective, w[edge])
    return gradient


def _weight_gradient_gap(rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Distance of the rule (signal of k, gated gradient of j) from the derivative of every edge's weight."""
    w, x, received = _graph_data()
    forward = GRAPH.forward(w, x)
    gated = forward.slope * GRAPH.backward(w, forward, received)
    claimed = np.zeros((6, 6))
    for j, k in EDGES_OF_GRAPH:
        claimed[j, k] = rule(forward.f[k], gated[j])
    return float(np.abs(claimed - _differentiated_weights()).max())


# Theorem 1 of the note

Condition = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""C₁, C₂, C₃ in; whether the theorem is claimed for them."""


@cache
def _random_edges() -> Edge:
    """Signals over four samples: half of them independent, half drawn around each other at every scale of distance."""
    rng = np.random.default_rng(1)
    size = 100_000
    z_alpha, z_beta, f, s = rng.standard_normal((4, 2, size, 4))
    spread = rng.uniform(0, 1, size=(3, size, 1))
    z_beta[1] = rng.choice([-1.0, 1.0], (size, 1)) * z_alpha[1] + spread[0] * z_beta[1]
    f[1] = z_beta[1] + spread[1] * f[1]
    s[1] = z_alpha[1] + spread[2] * s[1]
    return Edge(z_alpha=z_alpha, z_beta=z_beta, f=f, gated_gradient=s)


def _share_of_failures(claimed: Condition) -> float:
    """Share of random signals, among those that the condition admits, with corr(z_β, g_{j→k}) ≤ 0."""
    edges = _random_edges()
    C1, C2, C3 = edges.cosines
    positive = (C1 > 0) & (C2 > 0) & (C3 > 0)
    admitted = positive.copy()
    admitted[positive] = claimed(C1[positive], C2[positive], C3[positive])
    return float((edges.backpropagated_correlation[admitted] <= 0).mean())


SMALL = 0.1
"""A C that the note's theorem would allow."""

TRIPLES = [(0.95, 0.95, 0.95), (0.99, 0.8, 0.98), (0.857, 0.857, 0.857), (0.1, 0.1, 0.1), (0.5, 0.9, 0.7)]
"""C₁, C₂, C₃ on either side of the condition."""


@cache
def _smallest_product(C1: float, C2: float, C3: float) -> float:
    """Least cos(f, s) cos(z_β, s) over signals within the three angles, by bounded minimisation.

    Signals are unit vectors of R³: angles from z_α to s and to z_β, from z_β to f, and the two azimuths between them.
    """

    def product(parameters: np.ndarray) -> float:
        to_s, to_beta, to_f, azimuth_beta, azimuth_f = parameters.tolist()
        beta_s = math.cos(to_s) * math.cos(to_beta) + math.sin(to_s) * math.sin(to_beta) * math.cos(azimuth_beta)
        across = math.sqrt(max(0.0, 1 - beta_s**2))
        return beta_s * (math.cos(to_f) * beta_s + math.sin(to_f) * across * math.cos(azimuth_f))

    tops = np.arccos([C1, C3, C2])
    bounds = [(0, top) for top in tops] + [(None, None)] * 2
    starts = [
        np.append(share * tops, azimuths)
        for share in (0.4, 0.9)
        for azimuths in itertools.product((0.5, 2.5), repeat=2)
    ]
    return min(float(optimize.minimize(product, x0, method="L-BFGS-B", bounds=bounds).fun) for x0 in starts)


def _bound_gap(bound: Callable[[float, float, float], float]) -> float:
    return max(abs(float(bound(*C)) - _smallest_product(*C)) for C in TRIPLES)


# The recursion


@cache
def _random_gates() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """cos(z_β, f), cos(z_β, g) and cos(z_β, σ'g) behind a ReLU, for random signals over five samples."""
    rng = np.random.default_rng(3)
    size = 200_000
    spread = rng.uniform(0, 2, size=(2, size, 1))
    pre = rng.standard_normal((size, 5))
    pre[:, 0] = np.abs(pre[:, 0])  # at least one open gate
    f = np.maximum(pre, 0)
    z = f + spread[0] * rng.standard_normal((size, 5))
    g = z + spread[1] * rng.standard_normal((size, 5))
    return cosine(z, f), cosine(z, g), cosine(z, (pre > 0) * g)


def _share_of_gated_failures(claimed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    C2, C4, gated = _random_gates()
    admitted = (C2 > 0) & (C4 > 0) & claimed(C2, C4)
    return float((gated[admitted] <= 0).mean())


GATED_PAIRS = [(0.9, 0.9), (0.8, 0.95), (0.99, 0.5)]
SLOPED_CASES = [(0.95, 0.5, 1.0), (0.9, 0.8, 1.2), (0.7, 0.3, 0.5)]
BOX = 9.0
"""Largest component of a signal in the search; cosines do not depend on the size."""


def _least_under(
    value: Callable[[np.ndarray], float],
    constraints: list[Callable[[np.ndarray], float]],
    starts: np.ndarray,
    bounds: list[tuple[float, float]],
) -> float:
    """Least value with every constraint ≥ 0, by SLSQP from many starts; infeasible ends are left out."""
    runs = [
        optimize.minimize(
            value,
            x0,
            method="SLSQP",
            bounds=bounds,
            constraints=[{"type": "ineq", "fun": c} for c in constraints],
            options={"ftol": 1e-13, "maxiter": 300},
        )
        for x0 in starts
    ]
    feasible = [run.fun for run in runs if min(c(run.x) for c in constraints) > -OPTIMUM_TOLERANCE / 10]
    return float(min(feasible))


@cache
def _smallest_gated(C2: float, C4: float) -> float:
    """Least cos(z, σ'g) behind a ReLU with two samples open and one shut."""
    gate = np.array([1.0, 1.0, 0.0])

    def signals(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z, g, f = np.split(parameters, [3, 6])
        return z, g, np.append(f, 0.0)

    def value(parameters: np.ndarray) -> float:
        z, g, _ = signals(parameters)
        return float(cosine(z, gate * g))

    constraints = [
        lambda p: float(cosine(signals(p)[0], signals(p)[2])) - C2,
        lambda p: float(cosine(signals(p)[0], signals(p)[1])) - C4,
    ]
    rng = np.random.default_rng(4)
    starts = np.ones(8) + 0.3 * rng.standard_normal((12, 8))
    return _least_under(value, constraints, starts, [(-BOX, BOX)] * 6 + [(1e-3, BOX)] * 2)


@cache
def _smallest_sloped(C4: float, lowest: float, highest: float) -> float:
    """Least cos(z, σ'g) over slopes within a range, on three samples."""

    def value(parameters: np.ndarray) -> float:
        z, g, slopes = np.split(parameters, 3)
        return float(cosine(z, slopes * g))

    rng = np.random.default_rng(5)
    starts = np.concatenate(
        [np.ones((12, 6)) + 0.3 * rng.standard_normal((12, 6)), rng.uniform(lowest, highest, (12, 3))], axis=1
    )
    constraints = [lambda p: float(cosine(p[:3], p[3:6])) - C4]
    return _least_under(value, constraints, starts, [(-BOX, BOX)] * 6 + [(lowest, highest)] * 3)


def _gated_bound_gap(bound: Callable[[float, float], float]) -> float:
    return max(abs(float(bound(*C)) - _smallest_gated(*C)) for C in GATED_PAIRS)


def _sloped_bound_gap(bound: Callable[[float, float, float], float]) -> float:
    return max(abs(float(bound(*case)) - _smallest_sloped(*case)) for case in SLOPED_CASES)


LEVELS = 4
LEVEL_C1, LEVEL_C2, LEVEL_C3 = 0.995, np.full(LEVELS, 0.95), np.full(LEVELS, 0.985)


def _worst_chain_gap(recursion: Callable[[float, np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Distance from a planar chain of linear nodes in which every level turns its gradient the same way."""
    angle, found = np.arccos(LEVEL_C1), []  # angle from the gradient to the latent of the level
    s = np.array([1.0, 0.0])
    for C2, C3 in zip(LEVEL_C2, LEVEL_C3, strict=True):
        angle += np.arccos(C3)
        z_beta, f = (np.array([np.cos(a), np.sin(a)]) for a in (angle, angle + np.arccos(C2)))
        s = (f @ s) * s  # g_{j→k} = corr(f, s) s, and a linear node passes it on
        found.append(float(cosine(z_beta, s)))
    return float(np.abs(recursion(LEVEL_C1, LEVEL_C2, LEVEL_C3) - found).max())


# Equations 2 and 3

X_PLUS, X_MINUS, P1 = np.array([1.2, -0.4, 0.3]), np.array([-0.5, 0.8, 0.9]), 0.6
Field = Callable[[TwoValuedInput, np.ndarray], np.ndarray]


@cache
def _two_valued_case() -> tuple[TwoValuedInput, np.ndarray, np.ndarray]:
    """A node with data of two values and gradients that are spread within each; a weight; the differentiated field."""
    rng = np.random.default_rng(6)
    label = np.arange(50) < P1 * 50
    g = np.where(label, 0.7, -0.4) + 0.2 * rng.standard_normal(50)
    x = np.where(label[:, None], X_PLUS, X_MINUS)
    w = rng.standard_normal(3)

    def gain(value: float, component: int) -> float:
        moved = w.copy()
        moved[component] = value
        return float((g * sigmoid.value(x @ moved)).mean())

    field = np.array([_derivative(partial(gain, component=i), w[i]) for i in range(3)])
    node = TwoValuedInput(
        x_plus=X_PLUS,
        x_minus=X_MINUS,
        p1=P1,
        activation=sigmoid,
        g_plus=float(g[label].mean()),
        g_minus=float(g[~label].mean()),
    )
    return node, w, field


def _field_gap(field: Field) -> float:
    node, w, exact = _two_valued_case()
    return float(np.abs(field(node, w) - exact).max())


def _printed_eqn3(node: TwoValuedInput, w: np.ndarray) -> np.ndarray:
    slope = node.activation.derivative
    return slope(w @ node.x_plus) * node.p1 * node.x_plus - slope(w @ node.x_minus) * (1 - node.p1) * node.x_minus


NUM_INPUTS = 60
PATH_LENGTH = 150.0
"""Length of a flow's path, in the largest component; pre-activations stay where sigmoid slopes are above underflow."""


def _at_angle(angle: float) -> np.ndarray:
    return np.array([np.cos(angle), np.sin(angle)])


@cache
def _sigmoid_runs() -> list[tuple[TwoValuedInput, float]]:
    """Random planar inputs, and how far from [0, 1] their outputs end when the flow from zero runs at unit speed."""
    rng = np.random.default_rng(7)
    runs = []
    for _ in range(NUM_INPUTS):
        first, second = rng.uniform(-np.pi, np.pi, 2)
        node = TwoValuedInput(
            x_plus=_at_angle(first),
            x_minus=rng.uniform(0.4, 2.5) * _at_angle(second),
            p1=float(rng.uniform(0.2, 0.8)),
            activation=sigmoid,
        )

        def field(_: float, state: dict[str, np.ndarray], node: TwoValuedInput = node) -> dict[str, np.ndarray]:
            velocity = node.field(state["w"])
            return {"w": velocity / np.abs(velocity).max()}

        t = np.array([0.0, PATH_LENGTH])
        w = integrate(field, {"w": np.zeros(2)}, t, method="LSODA", rtol=1e-6, atol=1e-6)["w"][-1]
        runs.append((node, float(np.abs(node.outputs(w) - [0.0, 1.0]).max())))
    return runs


FAR = 0.3
"""An output this far from its latent at the end of the path has not learned it."""


def _unlearned_inputs(criterion: Callable[[TwoValuedInput], bool]) -> float:
    """Number of random inputs for which the criterion promises f_j → z_α and the flow does not keep it."""
    return float(sum(distance > FAR for node, distance in _sigmoid_runs() if criterion(node)))


LINEAR_NODE = TwoValuedInput(x_plus=np.array([1.0]), x_minus=np.array([2.0]), p1=0.8, activation=linear)


def _gap_rate_error(rate: Callable[[TwoValuedInput], float]) -> float:
    run = integrate(lambda _, s: {"w": LINEAR_NODE.field(s["w"])}, {"w": np.zeros(1)}, np.array([0.0, 1.0]))
    off, on = LINEAR_NODE.outputs(run["w"][-1])
    return abs(float(on - off) - rate(LINEAR_NODE))


def _learning_time_error(time: Callable[[float, float], float]) -> float:
    """Relative error of the time to reach the pre-activation that the integrated flow has at t = 50."""
    node = TwoValuedInput(x_plus=np.array([2.0, 0.0]), x_minus=np.array([0.0, 1.5]), p1=0.3, activation=sigmoid)
    t = 50.0
    w = integrate(lambda _, s: {"w": node.field(s["w"])}, {"w": np.zeros(2)}, np.array([0.0, t]))["w"][-1]
    plus = time(float(w @ node.x_plus), 0.3 * 4.0)
    minus = time(float(-w @ node.x_minus), 0.7 * 2.25)
    return max(abs(plus / t - 1), abs(minus / t - 1))


STATEMENTS = (
    Statement(
        id="note-eqn1",
        title="The gradient rule of a computation graph",
        place="Note, Eqn 1 and proof of Theorem 1",
        printed="f_j = σ_j(Σ_k w_jk f_k); w_jk = corr(f_k, σ'_j g_j) by gradient rule; g_k = Σ_j σ'_j w_jk g_j",
        outcome=Outcome.HOLDS,
        explanation=(
            "corr(f_k, σ'_j g_j) is the derivative of the objective by w_jk, for any graph and any mixture of "
            "activations. It is the weight itself after one step of unit rate from zero; the note says as much ('w_jk "
            "should be a function of time')."
        ),
        checks=(
            Check(
                name="derivative by the weight of every edge of a graph with four activations and a residual",
                against=Reference.DIFFERENTIATION,
                measure=_weight_gradient_gap,
                formula=lambda f, gated: float(f @ gated),
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda f, gated: 1.01 * float(f @ gated)),
            ),
        ),
    ),
    Statement(
        id="note-thm1",
        title="Back-propagated gradient",
        place="Note, Theorem 1",
        printed="corr(z_α,σ'g_j) > C₁ > 0, corr(z_β,f_k) > C₂ > 0, |corr(z_α,z_β)| > C₃ > 0 ⇒ corr(z_β,g_jk) > C₄ > 0",
        corrected="true for normalised correlations with A₁+A₂+A₃ < π/2, A_i = arccos C_i, and for no weaker condition",
        outcome=Outcome.REFUTED,
        explanation=(
            "z_α = (1,0), z_β = (1,2), f_k = (3,0), σ'_j g_j = (1,−2) have correlations 1, 3 and 1, but "
            "corr(z_β, g_{j→k}) = 3·(−3) = −9; of independent signals over four samples with normalised correlations "
            "above 0.1, 33 % fail. Positive correlation is not transitive: angles may add up past π/2. Three equal "
            "correlations must exceed √3/2. C₁ = 1 alone (a node next to the loss) or C₂ = 1 alone (next to the input) "
            "is not enough: the other two angles still have to sum to less than π/2."
        ),
        checks=(
            Check(
                name="share of random signals over four samples with corr(z_β, g_{j→k}) ≤ 0",
                against=Reference.MONTE_CARLO,
                measure=_share_of_failures,
                formula=lambda C1, C2, C3: angle_sum(C1, C2, C3) < np.pi / 2,
                printed=lambda C1, C2, C3: np.minimum(np.minimum(C1, C2), C3) > SMALL,
                tolerance=0.0,  # not one
                unit="share of failures",
                mutation=Mutation(
                    description="angles up to 2π/3 allowed",
                    formula=lambda C1, C2, C3: angle_sum(C1, C2, C3) < 2 * np.pi / 3,
                ),
            ),
        ),
    ),
    Statement(
        id="note-thm1-sharp",
        title="Size of the back-propagated correlation",
        place="Note, proof of Theorem 1, its Figure 1",
        printed="corr(f_k, σ'_j g_j) and corr(z_β, σ'_j g_j) are of the same sign, given the conditions of the theorem",
        corrected="product of cosines ≥ ½[C₂ + cos min(π, 2A₁+A₂+2A₃)]; = cos(A₁+A₃)cos(A₁+A₂+A₃) > 0 iff ΣA < π/2",
        outcome=Outcome.REFUTED,
        explanation=(
            "Let a be the angle between z_β and σ'_j g_j, at most A₁+A₃. The product is least with f_k in their plane, "
            "A₂ beyond z_β: cos a·cos(a+A₂) = ½[cos A₂ + cos(2a+A₂)]. The bound is attained by planar signals, so no "
            "constant C₄ > 0 exists without the condition: at C = 0.1 the product reaches −0.45."
        ),
        checks=(
            Check(
                name="least product over signals in R³, five triples on either side of the condition",
                against=Reference.OPTIMISATION,
                measure=_bound_gap,
                formula=least_backpropagated_cosine,
                printed=lambda C1, C2, C3: max(0.0, float(least_backpropagated_cosine(C1, C2, C3))),
                tolerance=OPTIMUM_TOLERANCE,
                unit="distance from the optimum",
                mutation=Mutation(
                    description="bound 1 % off", formula=lambda *C: 1.01 * float(least_backpropagated_cosine(*C))
                ),
            ),
        ),
    ),
    Statement(
        id="note-recursion",
        title="The recursion over layers",
        place="Note, after Theorem 1",
        printed="from corr(z_β,f_k) > C₂ and corr(z_β,g_k) > C₄, corr(z_β,σ'g_k) is large too: the recursion goes on",
        corrected="ReLU: ≥ √(C₂²+C₄²−1) if C₂²+C₄² > 1; slopes in [l,h]: ≥ cos(A₄+arcsin((h−l)/(h+l))); A₄ = A₁+A₃",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The sum over parents is harmless: it keeps the least cosine. The gate σ'_k is not: it may remove the "
            "samples in which g_k agrees with z_β. Behind a ReLU f_k vanishes where the gate is shut, so C₂ limits the "
            "damage, and with C₄ = cos(A₁+A₃) the condition is again A₁+A₂+A₃ < π/2. Even for linear nodes the angles "
            "A₃ of all levels add up, so a fixed C₃ < 1 carries the recursion through finitely many levels only."
        ),
        checks=(
            Check(
                name="share of random signals behind a ReLU with corr(z_β, σ'_k g_k) ≤ 0",
                against=Reference.MONTE_CARLO,
                measure=_share_of_gated_failures,
                formula=lambda C2, C4: C2**2 + C4**2 > 1,
                printed=lambda C2, C4: np.minimum(C2, C4) > SMALL,
                tolerance=0.0,  # not one
                unit="share of failures",
                mutation=Mutation(description="C₂² + C₄² > ½ allowed", formula=lambda C2, C4: 2 * (C2**2 + C4**2) > 1),
            ),
            Check(
                name="least cosine behind a ReLU, three pairs C₂, C₄",
                against=Reference.OPTIMISATION,
                measure=_gated_bound_gap,
                formula=gated_cosine_bound,
                tolerance=OPTIMUM_TOLERANCE,
                unit="distance from the optimum",
                mutation=Mutation(description="1 % off", formula=lambda *C: 1.01 * float(gated_cosine_bound(*C))),
            ),
            Check(
                name="least cosine behind slopes within a range, three cases",
                against=Reference.OPTIMISATION,
                measure=_sloped_bound_gap,
                formula=sloped_cosine_bound,
                tolerance=OPTIMUM_TOLERANCE,
                unit="distance from the optimum",
                mutation=Mutation(
                    description="1 % off", formula=lambda *case: 1.01 * float(sloped_cosine_bound(*case))
                ),
            ),
            Check(
                name="four levels of linear nodes that all turn the same way",
                against=Reference.LINEAR_ALGEBRA,
                measure=_worst_chain_gap,
                formula=lambda C1, C2, C3: recursed_cosines(C1, C2, C3, linear),
                tolerance=1e-12,  # rounding of arccos and cos
                mutation=Mutation(
                    description="the angle that the last level adds left out",
                    formula=lambda C1, C2, C3: recursed_cosines(C1, C2, np.append(C3[:-1], 1.0), linear),
                ),
            ),
        ),
    ),
    Statement(
        id="note-eqn2",
        title="The weights of a node with a two-valued input",
        place="Note, Eqn 2",
        printed="dw_j/dt = σ'(w·x₊)E[g|z=1]P[z=1]x₊ + σ'(w·x₋)E[g|z=0]P[z=0]x₋ if z_α determines x = x₊ or x₋",
        outcome=Outcome.HOLDS,
        explanation=(
            "σ'(w·x) is constant where x is, so only the conditional means of g enter, whatever its spread. It needs "
            "the two values: with x spread out given z_α the mean of the product is not the product of the means."
        ),
        checks=(
            Check(
                name="derivative of E[g σ(w·x)] over 50 samples of two inputs, sigmoid",
                against=Reference.DIFFERENTIATION,
                measure=_field_gap,
                formula=TwoValuedInput.field,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda node, w: 1.01 * TwoValuedInput.field(node, w)),
            ),
        ),
    ),
    Statement(
        id="note-eqn3",
        title="The node learns its latent",
        place="Note, Eqn 3",
        printed="dw_j/dt ≈ σ'(w·x₊)P[z=1]x₊ − σ'(w·x₋)P[z=0]x₋, integrated from w = 0; therefore f_j → z_α",
        corrected="if E[g|1] = 1, E[g|0] = −1; a sigmoid learns z_α if x₊·x₋ < min(‖x₊‖²,‖x₋‖²), a linear node never",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "A high correlation of z_α with the gradient does not fix the two conditional means, so Eqn 3 is Eqn 2 "
            "with numbers put in. As for f_j → z_α: a linear node grows without bound, its gap at the rate "
            "P₁‖x₊‖²+P₀‖x₋‖²−x₊·x₋, which is −0.4 for x₊ = 1, x₋ = 2, P₁ = 0.8; a ReLU with slope zero at zero never "
            "starts. A sigmoid without bias does learn its latent when neither input hides in the other; else both "
            "outputs may end at the same value. For orthogonal inputs the flow integrates to t = 2(a + sinh a)/(P‖x‖²) "
            "with a = ±w·x, so 1 − f_j falls as 1/(P‖x‖²t)."
        ),
        checks=(
            Check(
                name="field when E[g|z=1] = 0.7 and E[g|z=0] = −0.4",
                against=Reference.DIFFERENTIATION,
                measure=_field_gap,
                formula=TwoValuedInput.field,
                printed=_printed_eqn3,
                tolerance=DIFFERENTIATION_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda node, w: 1.01 * TwoValuedInput.field(node, w)),
            ),
            Check(
                name="sigmoid nodes, among 60 random inputs, that do not learn what is promised",
                against=Reference.ODE,
                measure=_unlearned_inputs,
                formula=TwoValuedInput.sigmoid_learns,
                printed=lambda node: True,
                tolerance=0.0,  # not one
                unit="nodes",
                mutation=Mutation(
                    description="x₊·x₋ below the larger of the two squared norms",
                    formula=lambda node: (
                        node.x_plus @ node.x_minus < max(node.x_plus @ node.x_plus, node.x_minus @ node.x_minus)
                    ),
                ),
            ),
            Check(
                name="growth of f_j(x₊) − f_j(x₋) for a linear node with x₊ = 1, x₋ = 2, P₁ = 0.8",
                against=Reference.ODE,
                measure=_gap_rate_error,
                formula=TwoValuedInput.linear_gap_rate,
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda node: 1.01 * node.linear_gap_rate()),
            ),
            Check(
                name="time to reach a pre-activation, orthogonal inputs, sigmoid",
                against=Reference.ODE,
                measure=_learning_time_error,
                formula=sigmoid_learning_time,
                tolerance=ODE_TOLERANCE,
                unit="relative error",
                mutation=Mutation(description="1 % off", formula=lambda a, pull: 1.01 * sigmoid_learning_time(a, pull)),
            ),
        ),
    ),
)
