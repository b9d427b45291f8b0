"""Section 3, Theorem 1: what training conserves."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from joma.statements.figures2_3 import FIGURES
from joma.statements.joint_runs import Quantity, Run, Setup, drift, flowed, largest_drift, trained
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.statements.softmax_attention import SOFTMAX
from joma.theory.attention import AttentionKind
from joma.theory.descent import SGD, Adam, GradientSteps, Optimiser, Recipe
from joma.theory.invariants import Invariant, momentum_drift_factor, weight_decay_factor
from joma.verdicts import Outcome

# DOP853 at rtol 1e-12 over quantities of order one.
ODE_TOLERANCE = 1e-9
# Rounding of quantities of order one, over one step.
ROUNDING_TOLERANCE = 1e-13
SLIGHTLY = 1.01

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
DECAY = 0.3
NORM = 1.7
MOMENTUM = 0.9
NEAR_ORTHOGONAL = (4e-3, 2e-3)
FINE = Recipe(num_steps=400, rate=5e-3)
BOTH = (AttentionKind.LINEAR, AttentionKind.EXP)


def _for_both(setup: Setup) -> tuple[Setup, ...]:
    return tuple(replace(setup, kind=kind) for kind in BOTH)


def _law(run: Run) -> Invariant:
    """The invariant with the run's temperature, rates and norms of embeddings."""
    gram = run.setup.norm**2 * np.eye(run.v.shape[-1])
    return Invariant(attention=run.layer.attention, rate_ratio=run.setup.rate_ratio, gram=gram)


def _corrected(run: Run) -> np.ndarray:
    return _law(run).value(run.v, run.z)


def _printed(run: Run) -> np.ndarray:
    """Theorem 1 as printed, for each query by itself: z² − Σv² or z − ½Σv²."""
    squares = np.square(run.v).sum(axis=1)[:, None]
    return run.z**2 - squares if run.setup.kind is AttentionKind.LINEAR else run.z - squares / 2


def _weights_off(run: Run) -> np.ndarray:
    law = _law(run)
    return law.value(np.sqrt(SLIGHTLY) * run.v, run.z)


WEIGHTS_OFF = Mutation(description="factor of Σ_k v_k² 1 % off", formula=_weights_off)


def _conserved(setups: tuple[Setup, ...]) -> Callable[[Quantity], float]:
    return lambda quantity: largest_drift(quantity, setups)


# --- several queries ----------------------------------------------------------------------------------------------


def _weighted_by_probability(run: Run) -> np.ndarray:
    share = run.samples.by_query(run.setup.num_queries).sum(axis=1)
    return replace(_law(run), query_weights=share).value(run.v, run.z)


def _own_tokens(run: Run) -> np.ndarray:
    """Each query's own law on the tokens that it alone sees."""
    owner = np.arange(run.v.shape[-1]) % run.setup.num_queries
    return np.take_along_axis(_printed(run), owner[None, None], axis=1)[:, 0]


def _own_nodes(run: Run) -> np.ndarray:
    """Each query's own law with the nodes that it alone trains in the sum over k."""
    owner, queries = np.arange(run.v.shape[1]) % run.setup.num_queries, range(run.setup.num_queries)
    parts = [_printed(replace(run, v=run.v[:, owner == m], z=run.z[:, m : m + 1])) for m in queries]
    return np.concatenate(parts, axis=1)


def _nodes_of_the_other(run: Run) -> np.ndarray:
    return _own_nodes(replace(run, z=run.z[:, ::-1]))


def _tokens_of_the_other(run: Run) -> np.ndarray:
    return _own_tokens(replace(run, z=run.z[:, ::-1]))


# --- steps and optimisers -----------------------------------------------------------------------------------------

StepLaw = Callable[[Invariant, np.ndarray, np.ndarray], np.ndarray]

STEP_RUNS = tuple(
    (setup, Recipe(num_steps=20, rate=0.1, rate_ratio=ratio, batch_size=batch_size))
    for kind in BOTH
    for ratio, batch_size in ((1.0, None), (2.0, 2))
    for setup in (Setup(kind=kind, rate_ratio=ratio, temperature=0.8, seed=5),)
)
"""Full batches at equal rates, and minibatches of two at unequal ones."""


def _gap_of_step_law(law: StepLaw) -> float:
    def error(setup: Setup, recipe: Recipe) -> float:
        run = trained(setup, recipe)
        true = np.diff(_corrected(run), axis=0)
        return float(np.abs(law(_law(run), np.diff(run.v, axis=0), np.diff(run.z, axis=0)) - true).max())

    return max(error(*run) for run in STEP_RUNS)


def _drift_of_training(kind: AttentionKind, recipe: Recipe) -> float:
    return drift(_corrected(trained(Setup(kind=kind), recipe)))


def _gap_of_order(order: float) -> float:
    """Distance of the measured order of the drift in the step from the claimed one."""
    halved = replace(FINE, num_steps=2 * FINE.num_steps, rate=FINE.rate / 2)
    return max(
        abs(float(np.log2(_drift_of_training(kind, FINE) / _drift_of_training(kind, halved))) - order) for kind in BOTH
    )


def _gap_of_momentum_factor(factor: Callable[[float], float]) -> float:
    """Relative distance from the measured ratio of drifts at the same effective rate."""

    def error(kind: AttentionKind) -> float:
        plain = replace(FINE, num_steps=2 * FINE.num_steps, rate=FINE.rate / 2)
        heavy = replace(plain, rate=plain.rate * (1 - MOMENTUM), optimiser=GradientSteps(momentum=MOMENTUM))
        return abs(factor(MOMENTUM) / (_drift_of_training(kind, heavy) / _drift_of_training(kind, plain)) - 1)

    return max(error(kind) for kind in BOTH)


def _drift_in_the_limit(optimiser: Optimiser) -> float:
    """Drift over the movement of the logits, extrapolated to steps of size zero; the larger of both attentions."""

    def relative(kind: AttentionKind, recipe: Recipe) -> float:
        run = trained(Setup(kind=kind), recipe)
        return drift(_corrected(run)) / drift(run.z)

    coarse = replace(FINE, optimiser=optimiser)
    fine = replace(coarse, num_steps=2 * coarse.num_steps, rate=coarse.rate / 2)
    return max(abs(2 * relative(kind, fine) - relative(kind, coarse)) for kind in BOTH)


def _gap_under_decay(shrink: Callable[[np.ndarray, float], np.ndarray]) -> float:
    """Distance of the predicted invariant of linear attention from the flow with weight decay."""
    run = flowed(Setup(kind=AttentionKind.LINEAR, weight_decay=DECAY))
    values = _corrected(run)
    return float(np.abs(shrink(run.t, DECAY)[:, None] * values[0] - values).max())


# --- embeddings ---------------------------------------------------------------------------------------------------


def _drift_off_the_query(tokens: slice) -> float:
    """Drift of the chosen tokens when the query is contextual token 0."""
    return max(drift(_corrected(flowed(setup))[:, tokens]) for setup in _for_both(Setup(query_in_context=True)))


def _gap_of_order_in_overlap(order: float) -> float:
    def error(kind: AttentionKind) -> float:
        coarse, fine = (drift(_corrected(flowed(Setup(kind=kind, overlap=overlap)))) for overlap in NEAR_ORTHOGONAL)
        return abs(float(np.log2(coarse / fine)) - order)

    return max(error(kind) for kind in BOTH)


def _total(run: Run) -> np.ndarray:
    u = run.layer.embeddings.contextual
    return replace(_law(run), gram=u.T @ u).total(run.v, run.z)


def _total_off(run: Run) -> np.ndarray:
    u = run.layer.embeddings.contextual
    return replace(_law(run), gram=u.T @ u).total(np.sqrt(SLIGHTLY) * run.v, run.z)


INVARIANTS = (
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
            Check(
                name="drift along flows of 1 to 17 nodes, five activations, fixed, time-varying and cross-entropy g",
                against=Reference.ODE,
                measure=_conserved(LINEAR_SETUPS),
                formula=_corrected,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=WEIGHTS_OFF,
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
            Check(
                name="drift along flows of 1 to 17 nodes, five activations, fixed, time-varying and cross-entropy g",
                against=Reference.ODE,
                measure=_conserved(EXP_SETUPS),
                formula=_corrected,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=WEIGHTS_OFF,
            ),
        ),
    ),
    Statement(
        id="thm1-temperature",
        title="JoMA with a temperature",
        place="Theorem 1 as used for figure 2, with attention σ(z/T)",
        printed="z_m²(t) = Σ_k v_k²(t) + c (linear), z_m(t) = ½ Σ_k v_k²(t) + c (exp), whatever the temperature",
        corrected="linear: unchanged; exp: z_m(t) = (1/2T) Σ_k v_k²(t) + c",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "σ/σ' is z for linear attention whatever T, and T for exp attention. The paper has T = 1; its figure 2 is "
            "made with T = 0.5."
        ),
        checks=(
            Check(
                name="exp attention at T = 0.5 and T = 3",
                against=Reference.ODE,
                measure=_conserved(tuple(Setup(temperature=temperature) for temperature in TEMPERATURES)),
                formula=_corrected,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=WEIGHTS_OFF,
            ),
            Check(
                name="linear attention at T = 0.5 and T = 3: the printed form",
                against=Reference.ODE,
                measure=_conserved(
                    tuple(Setup(kind=AttentionKind.LINEAR, temperature=temperature) for temperature in TEMPERATURES)
                ),
                formula=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
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
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "A closed relation exists for any pair of learning rates, but it is not the one of Theorem 1: the ratio of "
            "the rates multiplies Σ_k v_k²."
        ),
        checks=(
            Check(
                name="linear and exp attention with logits that learn four times as fast",
                against=Reference.ODE,
                measure=_conserved(_for_both(Setup(rate_ratio=RATIO, temperature=0.8))),
                formula=_corrected,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=WEIGHTS_OFF,
            ),
        ),
    ),
    Statement(
        id="thm1-queries",
        title="JoMA with several queries that share w",
        place="Section 3, Theorem 1, read for every query m of one model",
        printed="z_m(t) = ½ Σ_k v_k²(t) + c_m (exp) and z_m²(t) = Σ_k v_k²(t) + c_m (linear) for every query m",
        corrected="Σ_m z_m(t) = ½ Σ_k v_k²(t) + c (exp), Σ_m z_m²(t) = Σ_k v_k²(t) + c (linear); "
        "with conditional expectations in dz_m/dt the sums are weighted by P(q = m)",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "Section 2 trains on inputs with one query, where the printed form holds. When queries share w, v_k moves "
            "for all of them and z_m for its own samples alone, so only the sum over queries is tied to the weights: "
            "M numbers, not M times the number of queries. Per query z_m = c_m + Σ_k ∫ v_k ∘ dv_k,m depends on the "
            "path, with v_k,m the part of v_k that query m's samples moved. The printed form survives on tokens that "
            "one query alone sees, and with the sum over the nodes that one query alone trains."
        ),
        checks=(
            Check(
                name="three queries, linear and exp attention: the sum over queries against each query alone",
                against=Reference.ODE,
                measure=_conserved(_for_both(Setup(num_queries=3, num_nodes=4))),
                formula=_corrected,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=WEIGHTS_OFF,
            ),
            Check(
                name="three queries with conditional expectations (Eqn 2 for each): the sum weighted by P(q = m)",
                against=Reference.ODE,
                measure=_conserved(_for_both(Setup(num_queries=3, num_nodes=4, conditional=True))),
                formula=_weighted_by_probability,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=Mutation(description="unweighted sum", formula=_corrected),
            ),
            Check(
                name="two queries with contexts of their own: the printed form on each query's own tokens",
                against=Reference.ODE,
                measure=_conserved(_for_both(Setup(num_queries=2, disjoint=True))),
                formula=_own_tokens,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=Mutation(description="tokens of the other query", formula=_tokens_of_the_other),
            ),
            Check(
                name="two queries that train nodes of their own: the printed form with each query's own nodes",
                against=Reference.ODE,
                measure=_conserved(_for_both(Setup(num_queries=2, num_nodes=4, own_nodes=True))),
                formula=_own_nodes,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=Mutation(description="nodes of the other query", formula=_nodes_of_the_other),
            ),
        ),
    ),
    Statement(
        id="thm1-sgd",
        title="JoMA in discrete steps",
        place="Theorem 1 under SGD (Section 7: 'optimized under SGD dynamics')",
        printed="z_m(t) − ½ Σ_k v_k²(t) and z_m²(t) − Σ_k v_k²(t) stay constant",
        corrected="one step of any size on any minibatch changes z − (η_z/2η_wT)Σ_k v_k² by exactly "
        "−(η_z/2η_wT)Σ_k (Δv_k)², and z² − (η_z/η_w)Σ_k v_k² by (Δz)² − (η_z/η_w)Σ_k (Δv_k)²",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The terms of first order cancel sample by sample, so noise of minibatches enters at second order too: the "
            "change is of second order in one step and of first order over a run. Under exp attention it is never "
            "positive, as z follows the sum Σ v_k ∘ Δv_k with v_k taken before each step."
        ),
        checks=(
            Check(
                name="change of the invariant in each of 20 steps, full batch and minibatches of two at unequal rates",
                against=Reference.TRAINING,
                measure=_gap_of_step_law,
                formula=Invariant.step_change,
                printed=lambda law, delta_v, delta_z: np.zeros_like(delta_z[:, 0]),
                tolerance=ROUNDING_TOLERANCE,
                mutation=Mutation(
                    description="Δv 1 % off",
                    formula=lambda law, delta_v, delta_z: law.step_change(SLIGHTLY * delta_v, delta_z),
                ),
            ),
            Check(
                name="order of the drift over a run in the size of the step",
                against=Reference.TRAINING,
                measure=_gap_of_order,
                formula=1.0,
                tolerance=0.02,  # terms of second order at steps of 5e-3 and 2.5e-3
                unit="distance from the order",
                mutation=Mutation(description="second order", formula=2.0),
            ),
        ),
    ),
    Statement(
        id="thm1-optimisers",
        title="JoMA under momentum, Adam and weight decay",
        place="Theorem 1, for the optimisers with which transformers are trained (Section 6 uses Adam)",
        printed="z_m(t) = ½ Σ_k v_k²(t) + c and z_m²(t) = Σ_k v_k²(t) + c along training",
        corrected="momentum β: first order in the step, (1+β)/(1−β) times the drift of SGD at the same effective rate; "
        "weight decay λ: z² − Σ_k v_k² shrinks as exp(−2λt) under linear attention, no closed form under exp; Adam: "
        "broken",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "Momentum follows the same flow as the step goes to zero, lagging by β/(1−β) steps. Adam divides the "
            "gradients of v and of z by different numbers, so the terms that cancel under SGD no longer do: its drift "
            "is a sizeable part of the movement of z at any step size. With weight decay dI/dt = −2λI for linear "
            "attention and dI/dt = −λI + (λ/2T)Σ_k v_k² for exp."
        ),
        checks=(
            Check(
                name="drift with momentum 0.9 over the drift of SGD at the same effective rate of 2.5e-3",
                against=Reference.TRAINING,
                measure=_gap_of_momentum_factor,
                formula=momentum_drift_factor,
                tolerance=0.1,  # the velocity warms up over 10 of 800 steps, and the factor is of leading order
                unit="relative error",
                mutation=Mutation(description="1/(1 − β)", formula=lambda momentum: 1 / (1 - momentum)),
            ),
            Check(
                name="drift over movement of z, extrapolated to steps of size zero: SGD against Adam",
                against=Reference.TRAINING,
                measure=_drift_in_the_limit,
                formula=SGD,
                printed=Adam(),
                tolerance=1e-3,  # what is left of the drift is of second order in steps of 5e-3
                unit="relative drift",
                mutation=Mutation(description="weight decay 0.3", formula=GradientSteps(weight_decay=DECAY)),
            ),
            Check(
                name="linear attention with weight decay 0.3",
                against=Reference.ODE,
                measure=_gap_under_decay,
                formula=weight_decay_factor,
                printed=lambda t, weight_decay: np.ones_like(t),
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(
                    description="rate λ for 2λ", formula=lambda t, weight_decay: np.exp(-weight_decay * t)
                ),
            ),
        ),
    ),
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
            Check(
                name="orthogonal embeddings of norm 1.7",
                against=Reference.ODE,
                measure=_conserved(_for_both(Setup(norm=NORM))),
                formula=_corrected,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=WEIGHTS_OFF,
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
            Check(
                name="sum over tokens with embeddings mixed by ε = 0.5",
                against=Reference.ODE,
                measure=_conserved(_for_both(Setup(overlap=0.5))),
                formula=_total,
                printed=_printed,
                tolerance=ODE_TOLERANCE,
                unit="max abs drift",
                mutation=Mutation(description="factor of v_kᵀG⁺v_k 1 % off", formula=_total_off),
            ),
        ),
    ),
)

STATEMENTS = (*INVARIANTS, *SOFTMAX, *FIGURES)
