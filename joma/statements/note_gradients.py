"""The multi-layer note, Eqns 1-3: the gradient of an edge, and a node with a two-valued input."""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from scipy import differentiate

from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import linear, sigmoid, silu, tanh
from joma.theory.computation_graph import (
    ComputationGraph,
    TwoValuedInput,
    sigmoid_learning_time,
)
from joma.theory.integrate import integrate
from joma.verdicts import Outcome

# scipy.differentiate reaches its default tolerance on smooth functions of order one.
DIFFERENTIATION_TOLERANCE = 1e-9
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


GRADIENTS = (
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
