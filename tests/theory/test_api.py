"""What all of `joma.theory` promises: an API that is exported, lists for arrays, tables, no NaN from extreme input."""

import subprocess
import sys
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

import joma.theory as jt
from joma.types import Tabular, as_columns

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

V, Z, X = np.array([[1.0, 2.0]]), np.array([[0.5, -0.5]]), np.array([[0.7, 0.3], [0.2, 0.8]])
T2 = np.array([0.1, 0.3])


def test_everything_public_is_exported_and_nothing_else():
    assert sorted(jt.__all__) == sorted(set(jt.__all__)) and all(hasattr(jt, name) for name in jt.__all__)
    assert {"LinearFlow", "ConvergenceFlow", "AttentionFlow", "entropy_rebound"} <= set(jt.__all__)


def test_theory_imports_without_anything_but_numpy_scipy_and_jaxtyping():
    heavy = ["torch", "pandas", "pydantic", "altair", "matplotlib", "typer", "rich", "filelock", "scipy.stats"]
    code = f"import sys, joma.theory; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def layer(embeddings, w):
    u = jt.Embeddings(contextual=embeddings[0], queries=embeddings[1])
    built = jt.Layer(embeddings=u, attention=jt.Attention(kind=jt.AttentionKind.EXP), activation=jt.tanh)
    samples = jt.Samples(x=[[0.7, 0.3], [0.2, 0.8]], q=[0, 0])
    z = np.stack([Z[0], Z[0]]) if isinstance(w, np.ndarray) else [*Z.tolist(), *Z.tolist()]
    return [built.hidden(w, z, samples), built.gradient(w, z, samples, [[1.0], [2.0]])]


def mixture(centers, weights, v):
    made = jt.Mixture(centers=centers, weights=weights, noise=jt.Gaussian(dim=2))
    return [made.field(v, -1.0), made.potential(v, -1.0), made.jacobian(v, -1.0), made.distances(v, 0.5)]


def tied(cls):
    def call(mu, v0, t):
        flow = cls(mu=mu, v0=v0, temperature=2.0)
        return [flow.solution(t), flow.field(v0), flow.logits(v0), flow.local_rates(), jt.entropy_rebound(flow)]

    return call


def tree(parents, rho, p, zero, nodes):
    made = jt.LatentTree(parents=parents, rho=rho, class_probabilities=p, zero_given_class=zero)
    return [made.heights, made.leaves, made.joint_ones(nodes), made.cooccurrence_matrix(), made.marginals(nodes)]


def graph(w, x, g):
    made = jt.ComputationGraph(precedents=((), (0,)), activations=(jt.linear, jt.tanh))
    forward = made.forward(w, x)
    return [forward, made.backward(w, forward, g), made.weight_gradient(forward, g)]


EXP = jt.Attention(kind=jt.AttentionKind.EXP)
SOFTMAX = jt.Attention(kind=jt.AttentionKind.SOFTMAX)
COUNTS = np.array([[[6.0, 2.0, 8.0], [2.0, 5.0, 7.0]]])
SAMPLES = jt.Samples(x=X, q=np.array([0, 0]))
U = jt.Embeddings(contextual=np.eye(3)[:, :2], queries=np.eye(3)[:, 2:])
UNIT = np.array([1.0, 0.0])
PHIS = (jt.relu, jt.sigmoid, jt.tanh, jt.silu, jt.gelu)
CALLS = {
    "activations": (lambda x: [f(x) for p in PHIS for f in (p.value, p.derivative, p.curvature) if f], [T2]),
    "scores": (EXP.scores, [Z, X]),
    "pull_back": (EXP.pull_back, [Z, X, V]),
    "score_over_slope": (EXP.score_over_slope, [Z]),
    "layer": (layer, [np.array([np.eye(3)[:, :2], np.eye(3)[:, 1:]]), np.array([[1.0, 2.0, 0.5]])]),
    "saliency": (lambda g: jt.saliency(SAMPLES, g), [np.array([[1.0], [-1.0]])]),
    "discriminancy": (lambda g: jt.discriminancy(SAMPLES, g), [np.array([[1.0], [-1.0]])]),
    "drift of saliency": (jt.stationarity_drift, [np.ones((2, 1, 1, 2))]),
    "implicit bias": (lambda w: jt.implicit_bias(U, w), [np.ones((1, 3))]),
    "superpose": (lambda p, b, q: jt.superpose(U, p, b, q), [X, T2, np.array([0, 0])]),
    "weights from parts": (lambda *a: jt.weights_from_parts(U, *a), [np.ones((1, 3)), V, np.ones((1, 1))]),
    "query interaction": (jt.query_interaction, [X]),
    "invariant": (jt.Invariant(attention=EXP).value, [V, Z]),
    "invariant logits": (jt.Invariant(attention=EXP).logits, [V, V, Z[0]]),
    "step change": (jt.Invariant(attention=EXP).step_change, [V, Z]),
    "total": (lambda g, v, z: jt.Invariant(attention=EXP, gram=g).total(v, z), [2 * np.eye(2), V, Z]),
    "drift": (lambda v, z: jt.invariant_drift(v, z, jt.Invariant(attention=EXP)), [V[None], Z[None]]),
    "logit sums": (jt.logit_sums, [Z]),
    "weight decay": (lambda t: jt.weight_decay_factor(t, 0.1), [T2]),
    "logit velocity": (jt.logit_velocity, [V, V, UNIT]),
    "estimate": (jt.estimate, [V, UNIT]),
    "moving mean": (jt.moving_mean_term, [np.arange(9.0), np.ones((9, 1, 2)), np.ones((9, 2))]),
    "anchored": (jt.anchored, [Z, UNIT]),
    "correlation": (jt.normalised_correlation, [np.array([[1.0, 2.0, 4.0]]), np.array([[1.0, 3.0, 4.0]])]),
    "Theorem 2": (lambda d, t, v: [(f := jt.LinearFlow(delta=d, v0=v)).solution(t), f.field(v)], [V / 4, T2, V]),
    "theta": (lambda s: [f(jt.StudentT(), s) for f in (jt.theta1, jt.theta2, jt.mean_activation, jt.mean_ratio)], [T2]),
    "slopes": (lambda s: [jt.theta2_slope(jt.Gaussian(), s), jt.mean_ratio_slope(jt.Gaussian(), s)], [T2]),
    "levels": (lambda y: [jt.mean_at_level(jt.Gaussian(), y), jt.mean_at_level_slope(jt.Gaussian(), y)], [T2]),
    "gates": (
        lambda r, n: [f(jt.Gaussian(), r, norm=n, phi=jt.softplus) for f in (jt.gate_mean, jt.gate_moment_slope)],
        [T2, T2],
    ),
    "gate levels": (lambda y: jt.gate_mean_at_level_slope(jt.Gaussian(), y, phi=jt.softplus), [T2]),
    "half space": (lambda v, c: jt.half_space_mean(jt.Gaussian(dim=2), v, center=c), [V, UNIT]),
    "reflect": (jt.reflect, [V, UNIT]),
    "mixture": (mixture, [X, np.array([1.0, -2.0]), V]),
    "Theorem 3": (lambda mu, v, t: jt.LinearisedFlow(mu=mu, beta1=1.0, beta2=0.5).solution(v, t), [V[0], UNIT, T2]),
    "two clusters": (lambda x: jt.two_clusters(x, noise=jt.Gaussian(dim=2)).growth(), [V[0]]),
    "Eqn 6": (tied(jt.ConvergenceFlow), [V[0], UNIT, T2]),
    "attention flow": (tied(jt.AttentionFlow), [V[0], UNIT, T2]),
    "linear attention": (
        lambda mu, v, t: [(f := jt.LinearAttentionFlow(mu=mu, v0=v)).solution(t), f.field(v)],
        [V[0], UNIT, T2],
    ),
    "Theorem 4": (lambda t, mu: [jt.convergence_ratio(t, mu, 1.0), jt.fraction_learned(t, mu)], [T2, V[0]]),
    "F": (lambda r, mu: [jt.learning_time(r, mu), jt.rho(r, mu), jt.zeta(r, mu), jt.time_to_efolds(r, mu)], [T2, V[0]]),
    "shared": (lambda t, v, mu: [jt.shared_solution(t, mu), jt.shared_field(v, mu)], [T2, V, V]),
    "normalised": (jt.normalised_field, [V, UNIT]),
    "Lemmas 6, 7": (lambda y: [jt.small_g(y), jt.gaussian_g(y), jt.efolds_to_asymptote(y)], [T2]),
    "rebound": (jt.rebound, [np.arange(3.0), np.array([2.0, 1.0, 3.0])]),
    "entropy": (lambda v: [jt.attention_entropy(v), jt.entropy_gradient(v), jt.entropy_finally_rises(v[0])], [V]),
    "stable rank": (jt.stable_rank, [X]),
    "tree": (
        tree,
        [np.array([-1, 0, 1, 1]), np.array([1, 1, 0.5, 0.25]), np.array([0.5, 0.5]), X[:, :1], np.array([2, 3])],
    ),
    "Theorem 5": (
        lambda H, rho: [jt.cooccurrence(H, 4, rho, 0.2), jt.cooccurrence_limit(H, 4), jt.cooccurrence_slope(H, 4)],
        [np.array([1, 2]), T2],
    ),
    "pairs": (lambda rho: [jt.pair_distribution(rho, rho, rho), jt.chain_parameter(rho), jt.edge_matrix(rho)], [T2]),
    "roots": (lambda p, z: [jt.root_parameter(p, z), jt.root_cooccurrence(3, 0.5, p, z, z)], [X[0], T2]),
    "note": (lambda c: jt.backpropagated_correlation_bound(c, c, c), [np.array([0.95, 0.99])]),
    "recursion": (lambda c: jt.recursed_cosines(1.0, c, c, jt.linear), [np.array([0.99, 0.99])]),
    "bounds": (
        lambda c: [jt.summed_cosine_bound(c), jt.gated_cosine_bound(c, c), jt.sloped_cosine_bound(c, 1.0, 2.0)],
        [np.array([0.9, 0.95])],
    ),
    "edge": (
        lambda a, b, f, g: [(e := jt.Edge(z_alpha=a, z_beta=b, f=f, gated_gradient=g)).gradient, e.cosines],
        [UNIT, V[0], V[0], UNIT + 1],
    ),
    "two-valued": (
        lambda p, m, w: jt.TwoValuedInput(x_plus=p, x_minus=m, p1=0.4, activation=jt.linear).field(w),
        [V[0], UNIT, V],
    ),
    "sigmoid": (jt.sigmoid_learning_time, [T2, T2 + 1]),
    "counts": (lambda c: [jt.saliency_from_counts(c), jt.target_direction(c), jt.tokens_of_node(c, 0, 0)], [COUNTS]),
    "clusters": (lambda c: jt.clusters_from_counts(c, 0, 0, jt.Gaussian(dim=3)).centers, [COUNTS]),
    "dropped term": (lambda v, mu: [jt.kept_field(v, mu, 1.0, 0.1), jt.kept_gaps(mu, 1.0, 0.1)], [T2, V[0]]),
    "both flows": (lambda mu, t: jt.dropped_term(mu, 1.0, 0.1, t), [V[0], T2]),
    "layers": (lambda mu, t: jt.LayerChain(mu=mu).run(t).v, [X, T2]),
    "common vector": (lambda z: [jt.common_velocity(z, 0.5), jt.common_invariant(V, z, EXP, 0.5)], [X]),
    "queries": (lambda mu, p, t: jt.QueriesFlow(mu=mu, shares=p).run(t).z, [X, T2, T2]),
    "dips": (lambda mu: jt.dip_window(mu, 10.0), [V]),
    "graph": (graph, [np.array([[0.0, 0.0], [0.5, 0.0]]), np.array([[1.0, 2.0]]), np.ones((2, 2))]),
}


def flattened(result):
    """All numbers of a result, in order."""
    if is_dataclass(result):
        return [number for field in fields(result) for number in flattened(getattr(result, field.name))]
    if isinstance(result, (list, tuple)):
        return [number for each in result for number in flattened(each)]
    return [] if isinstance(result, (str, dict)) else np.ravel(np.asarray(result, dtype=float)).tolist()


@pytest.mark.parametrize(("call", "arrays"), CALLS.values(), ids=CALLS)
def test_lists_do_what_arrays_do(call, arrays):
    from_arrays = flattened(call(*arrays))
    assert from_arrays and flattened(call(*(array.tolist() for array in arrays))) == from_arrays


RING = jt.RadialProfile(dim=2, profile=lambda r: np.exp(-(((r - 3) / 0.1) ** 2) / 2))
UNEVEN = jt.Mixture(centers=np.eye(3), weights=np.ones(3), noise=(jt.Gaussian(dim=3), *[jt.StudentT(dim=3)] * 2))


def half_spaces(v, xi):
    means = [jt.half_space_mean(RING, v, xi=xi, center=np.array([0.4, -0.7]), psi=psi) for psi in (jt.relu, jt.silu)]
    return [part for each in means for part in (each.mass, each.mean)]


def mixtures(v, xi):
    return [part for m in (THREE, UNEVEN) for part in (*m.field(v, xi), m.potential(v, xi), m.jacobian(v, xi))]


ROWS = {
    "mixtures": (mixtures, [(3,), ()]),
    "half space": (half_spaces, [(2,), ()]),
    "kept rates": (lambda mu, b: [jt.kept_rates(mu, 1.5, b), jt.kept_gaps(mu, 1.5, b)], [(3,), ()]),
    "common velocity": (lambda z, s: [jt.common_velocity(z, s, common_keys=0.3)], [(3, 4), ()]),
    "dip window": (jt.dip_window, [(4,), ()]),
    "scores": (lambda z, x: [EXP.scores(z, x), SOFTMAX.scores(z, x), SOFTMAX.pull_back(z, x, z)], [(4,), (4,)]),
    "token invariant": (lambda z, u: [jt.token_invariant(z, u, EXP)], [(2, 4), (3, 4)]),
    "balance": (lambda w, u, q: [jt.balance(w, u, q)], [(2, 3), (3, 4), (3, 2)]),
}


@pytest.mark.parametrize(("call", "shapes"), ROWS.values(), ids=ROWS)
def test_one_call_takes_many(call, shapes):
    """Leading axes are carried through."""
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(0.1, 1.0, (3, 2, *shape)) for shape in shapes]
    for place in np.ndindex(3, 2):
        one = call(*(array[place] for array in arrays))
        for together, alone in zip(call(*arrays), one, strict=True):
            np.testing.assert_allclose(together[place], alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "flow",
    [
        jt.LinearFlow(delta=V / 4),
        jt.ConvergenceFlow(mu=V[0]),
        jt.AttentionFlow(mu=V[0]),
        jt.LinearAttentionFlow(mu=V[0], v0=T2),
    ],
    ids=lambda flow: type(flow).__name__,
)
def test_times_may_be_one_several_or_a_table(flow):
    table = flow.solution([[0.1, 0.2], [0.3, 0.4]])
    np.testing.assert_allclose(table[1, 0], flow.solution(0.3), rtol=1e-14)
    np.testing.assert_allclose(table[1], flow.solution([0.3, 0.4]), rtol=1e-14)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e300, 1e-300])
def test_theorem_2_knows_no_scale(scale):
    """Squares of the saliencies leave the range of floats."""
    flow, unit = jt.LinearFlow(delta=[[scale, scale / 2], [scale, 0.0]]), jt.LinearFlow(delta=[[1.0, 0.5], [1.0, 0.0]])
    assert flow.blow_up_time() * scale == pytest.approx(unit.blow_up_time())
    np.testing.assert_allclose(
        flow.solution(0.5 * flow.blow_up_time()), unit.solution(0.5 * unit.blow_up_time()), rtol=1e-12
    )
    np.testing.assert_allclose(flow.limits(), unit.limits(), rtol=1e-12)


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_lemma_2_knows_weights_of_any_size(size):
    """The field of a homogeneous activation depends on the direction of (v, ξ) alone."""
    clusters = jt.Mixture(centers=[[2.0, 0.5], [0.0, 0.0]], weights=[1.0, -4.0], noise=jt.Gaussian(dim=2))
    for scaled, unit in zip(clusters.field([size, size], -size), clusters.field([1.0, 1.0], -1.0), strict=True):
        np.testing.assert_allclose(scaled, unit, rtol=1e-12)


def test_nothing_is_nan_at_the_ends():
    F = [jt.mean_activation(p, [-np.inf, np.inf]) for p in (jt.StudentT(), jt.Gaussian(), jt.UniformBall())]
    assert np.array_equal(F, [[0.0, np.inf]] * 3)
    assert jt.mean_activation(jt.StudentT(), -np.inf, jt.homogeneous(0.1, 1.0)) == -np.inf
    assert jt.convergence_ratio(1.0, [1.0, 40.0, 40.0], [40.0, 1.0, 40.0]).tolist() == [0.0, np.inf, 1.0]
    assert np.isfinite(jt.rate_correction(1.0, 1.0, 40.0)) and jt.ConvergenceFlow(mu=[40.0]).local_rates() == np.inf
    assert np.isfinite(list(jt.entropy_rebound(jt.ConvergenceFlow(mu=[40.0, 1.0])).columns().values())).all()


def test_results_are_tables():
    rng = np.random.default_rng(0)
    run = jt.integrate(lambda t, s: {"v": -s["v"]}, {"v": rng.random((2, 3))}, np.array([0.0, 1.0]))
    assert list(run.columns()) == ["t", *(f"v_{k}_{m}" for k in range(2) for m in range(3))]
    np.testing.assert_array_equal(run.columns()["v_1_2"], run["v"][:, 1, 2])
    many = jt.entropy_rebound(jt.ConvergenceFlow(mu=rng.uniform(1, 3, (2, 3, 4)))).columns()
    assert {column.shape for column in many.values()} == {(6,)} and {"drop", "rise", "time"} <= set(many)
    one = jt.two_clusters([1.0, 0.0], a_minus=0.5, noise=jt.Gaussian(dim=2)).growth().columns()
    assert {name: column.shape for name, column in one.items()} == dict.fromkeys(["rate", "v_0", "v_1", "xi"], (1,))
    assert jt.QueriesFlow(mu=X).run(T2).columns()["query_1"].shape == (2,)
    for result in (
        jt.half_space_mean(jt.Gaussian(dim=2), V, center=UNIT),
        jt.estimate(V, UNIT),
        jt.stationarity_drift(np.ones((3, 2, 1, 2))),
        jt.critical_pairs(jt.StudentT(), 2.0)[0],
    ):
        lengths = {len(column) for column in result.columns().values()}
        assert isinstance(result, Tabular) and len(lengths) == 1


def test_a_table_refuses_columns_of_different_lengths():
    with pytest.raises(ValueError, match="length"):
        as_columns({"a": np.ones(2), "b": np.ones(3)})
    assert as_columns({"a": 1.0})["a"].tolist() == [1.0]


UNCHECKED = {"activations", "Eqn 6", "attention flow", "linear attention", "score_over_slope"}
"""Fields and what they call: an integrator's trial step may overflow."""


@pytest.mark.parametrize(("call", "arrays"), [CALLS[name] for name in CALLS if name not in UNCHECKED])
def test_nan_and_wrong_shapes_get_our_errors(call, arrays):
    """Every argument in turn: NaN, one entry too many, an axis too many."""
    for place, array in enumerate(arrays):
        spoilt = np.array(array, dtype=float)
        spoilt.flat[0] = np.nan
        for bad in (spoilt, np.concatenate([array, array[..., :1]], axis=-1), np.full((2, 3, 1, *array.shape), array)):
            try:
                call(*arrays[:place], bad, *arrays[place + 1 :])
                assert not np.isnan(bad).any()  # more axes may broadcast, NaN may not
            except (ValueError, TypeError) as error:
                assert "`" in str(error) or "needs" in str(error) or "must" in str(error), error


SCALED = {
    jt.Attention: {"kind": jt.AttentionKind.EXP},
    jt.LinearFlow: {"delta": V},
    jt.ConvergenceFlow: {"mu": V},
    jt.AttentionFlow: {"mu": V},
    jt.LinearAttentionFlow: {"mu": V},
    jt.Invariant: {"attention": EXP},
    jt.Gaussian: {},
    jt.UniformBall: {},
    jt.StudentT: {},
    jt.StepRecipe: {"num_steps": 1, "rate": 0.1},
    jt.LearningRates: {},
    jt.SimulationConfig: {},
}
SCALES = {"temperature", "normalisation", "rate_ratio", "scale", "radius", "dof", "rate", "dim", "num_steps", "w", "z"}


@pytest.mark.parametrize("cls", SCALED)
def test_scales_must_be_positive(cls):
    names = {field.name for field in fields(cls)} & SCALES
    assert names
    for name in names:
        for bad in (0.0, -1.0, np.nan, "much"):
            with pytest.raises(ValueError, match=f"`{name}`"):
                cls(**SCALED[cls] | {name: bad})


TREE = {"parents": [-1, 0, 1, 1], "rho": [1, 1, 0.5, 0.25], "class_probabilities": [0.5, 0.5]}
TREE |= {"zero_given_class": [[0.1], [0.9]]}
PAIR = jt.two_clusters(UNIT, a_minus=4.0, noise=jt.Gaussian(dim=2))
THREE = jt.Mixture(centers=np.eye(3), weights=np.ones(3), noise=jt.StudentT(dim=3))
NODE = {"x_plus": UNIT, "x_minus": UNIT + 1, "p1": 0.5, "activation": jt.sigmoid}
LINEAR = jt.Attention(kind=jt.AttentionKind.LINEAR)
LAYER = jt.Layer(embeddings=U, attention=EXP, activation=jt.relu)
BENT = jt.AttentionFlow(mu=UNIT, uniform_field=np.negative)
REFUSED = [
    lambda: jt.ConvergenceFlow(mu=[1.0, 2.0], v0=[1.0, 2.0, 3.0]),
    lambda: jt.ConvergenceFlow(
        mu=[1.0, 2.0], temperature=[[1.0], [2.0]], z0=np.zeros((3, 2, 2)), v0=np.ones((2, 2, 2))
    ),
    lambda: jt.activation("rleu"),
    lambda: jt.Attention(kind="softmx"),
    lambda: jt.Attention(kind=jt.AttentionKind.SOFTMAX, normalisation=2.0),
    lambda: SOFTMAX.scores([0.0, 0.0], [0.5, -0.5]),
    lambda: SOFTMAX.scores([0.0, 0.0], [0.0, 0.0]),
    lambda: SOFTMAX.score_over_slope(UNIT),
    lambda: BENT.solution(1.0),
    lambda: jt.gate_level(jt.Gaussian(), 0.9, phi=jt.sigmoid),
    lambda: jt.token_invariant(Z, V, SOFTMAX),
    lambda: jt.LearningRates(queries=-0.1),
    BENT.local_rates,
    lambda: jt.ConvergenceFlow(mu=UNIT).solution(-1.0),
    lambda: jt.LinearFlow(delta=V).solution(2.0),
    lambda: jt.learning_time(1.0, 2.0),
    lambda: jt.time_to_efolds(-1.0, 2.0),
    lambda: jt.stable_rank(np.zeros((2, 2))),
    lambda: jt.rank_rebound(jt.ConvergenceFlow(mu=[0.0, 0.0])),
    lambda: jt.GradientSteps(momentum=2.0),
    lambda: jt.momentum_drift_factor(1.0),
    lambda: jt.minibatch_drift_factor(1.0, 1.0, 0),
    lambda: jt.Invariant(attention=EXP, query_weights=[0.5, 0.5]).value(V, Z),
    lambda: jt.Invariant(attention=EXP, gram=np.diag([1.0, 0.0])),
    lambda: jt.Invariant(attention=EXP, gram=[[1.0, 0.5], [0.1, 1.0]]),
    lambda: jt.Invariant(attention=SOFTMAX).value(V, Z),
    lambda: jt.Invariant(attention=LINEAR).logits(V, V, Z[0]),
    lambda: jt.Invariant(attention=EXP, gram=[[1.0, 0.5], [0.5, 1.0]]).value(V, Z),
    lambda: jt.common_invariant(V, Z, SOFTMAX, 0.5),
    lambda: jt.QueriesFlow(mu=X, attention=SOFTMAX).limit(),
    *(lambda kept=kept: jt.QueriesFlow(mu=X, **kept) for kept in ({"attention": LINEAR}, {"common": -1.0})),
    lambda: jt.dip_window([2.0, -2.0, 1.0], 1e3),
    lambda: jt.saliency_from_counts(-COUNTS),
    lambda: jt.centers_from_counts(COUNTS * [[1.0], [0.0]]),
    lambda: jt.clusters_from_counts(COUNTS, 0, 0, jt.Gaussian(dim=3), prediction=[[1.5, 0.5]]),
    lambda: jt.kept_rates([1.0, 2.0], 1.0, -0.3),
    *(lambda mu=mu, b=b: jt.kept_gaps(mu, 1.0, b) for mu, b in (([1, -1], 0.1), ([1, 0], 0.1), ([1, 2], 0.0))),
    lambda: jt.dropped_term([0.0, 1.0], 1.0, 0.1, T2),
    *(lambda mu=mu, gain=gain: jt.LayerChain(mu=mu, gain=gain) for mu, gain in (([[1], [0]], 1.0), ([[1]], -1.0))),
    lambda: jt.layer_invariant(replace(LAYER, embeddings=replace(U, queries=U.contextual[:, :1]))),
    lambda: jt.moving_mean_term(np.arange(3.0), np.ones((3, 1, 2)), np.ones((3, 2))),
    lambda: jt.Samples(x=X, q=[0.0, 0.5]),
    lambda: jt.Samples(x=X, q=[0, 0], weights=[1.0, 1.0]),
    lambda: LAYER.hidden(np.ones((1, 3)), Z, jt.Samples(x=X, q=[0, 1])),
    lambda: LAYER.hidden(np.ones((1, 2)), Z, SAMPLES),
    lambda: LAYER.gradient(np.ones((1, 3)), Z, SAMPLES, np.ones((3, 1))),
    lambda: jt.cross_entropy_gradient(np.array([3]))(0.0, np.zeros((1, 3))),
    lambda: jt.orthonormal_embeddings(4, 2, dim=5, rng=np.random.default_rng(0)),
    lambda: jt.train(LAYER, np.ones((1, 3)), Z, SAMPLES, None, jt.StepRecipe(num_steps=1, rate=0.1, batch_size=2)),
    lambda: jt.saliency(jt.Samples(x=X, q=[0, 2]), [[1.0], [2.0]]),
    lambda: jt.frequency(jt.Samples(x=2 * X, q=[0, 0])),
    lambda: jt.superpose(U, X, T2, [0, 2]),
    lambda: jt.theta1(jt.Gaussian(), 0.0, jt.tanh),
    lambda: jt.theta1_inverse(jt.Gaussian(), 0.5, jt.linear),
    lambda: jt.theta1_inverse(jt.Gaussian(), 1.0),
    lambda: jt.gate_mass(jt.Gaussian(), 0.0, psi=lambda x: np.where(x > 1, np.nan, x)),
    lambda: jt.gate_moment(jt.StudentT(dof=1.0), 0.0, psi=jt.tanh),
    lambda: jt.gate_mass_slope(jt.Gaussian(), 0.0, phi=jt.Activation(name="mine", value=np.sin, derivative=np.cos)),
    lambda: jt.half_space_mean(jt.Gaussian(dim=2), np.ones(3), center=np.ones(3)),
    lambda: jt.half_space_mean(jt.Gaussian(dim=2), np.ones(3), center=np.ones(3), basis=np.ones((3, 2))),
    lambda: jt.reflect(V, [0.0, 0.0]),
    lambda: jt.Mixture(centers=X, weights=[1.0, 1.0], noise=(jt.Gaussian(dim=2),)),
    lambda: jt.Mixture(centers=X, weights=[1.0, 1.0], noise=jt.Gaussian(dim=3)),
    lambda: PAIR.field([[1.0, 0.0], [0.0, 0.0]], 1.0),
    lambda: jt.two_clusters(UNIT, x_minus=UNIT, noise=jt.Gaussian(dim=2)).opposed_weights("Lemma 4"),
    lambda: replace(PAIR, activation=jt.tanh).growth(),
    lambda: jt.critical_points(replace(PAIR, centers=[[1.0, 0.0], [0.5, 0.0]]), -1.0),
    lambda: jt.critical_points(replace(PAIR, activation=jt.tanh), -1.0),
    lambda: jt.critical_points(replace(PAIR, activation=jt.linear), -1.0),
    lambda: jt.critical_points(replace(PAIR, weights=[0.0, -1.0]), -1.0),
    lambda: jt.critical_points(replace(PAIR, weights=[1.0, -1.0]), -1.0),
    lambda: jt.critical_points(PAIR, 0.0),
    *(
        lambda xi=xi, phi=phi: jt.rest_points(replace(PAIR, activation=phi), xi)
        for xi, phi in ((0, jt.relu), (1, jt.linear))
    ),
    lambda: jt.lowest_slope(jt.Gaussian(), jt.homogeneous(-1.0, 1.0)),
    lambda: jt.LinearisedFlow(mu=[0.0, 0.0], beta1=1.0, beta2=0.0),
    lambda: jt.critical_rays(THREE),
    lambda: jt.straddling_distance(jt.Gaussian()),
    *(lambda H=H: jt.cooccurrence_limit(H, 3) for H in (0, 3)),
    *(lambda L=L, rho=rho: jt.root_cooccurrence(L, rho, [1.0], [0.5], [0.0]) for L, rho in ((0, 0.5), (2, -1.0))),
    lambda: jt.cooccurrence(1, 3, 1.0, 1.0),
    lambda: jt.root_parameter([0.5, 0.5], [0.1, 0.2, 0.3]),
    lambda: jt.regular_tree(3, (2, 2), 0.5, class_probabilities=[1.0], zero_given_class=[0.5]),
    lambda: jt.regular_tree(0, 2, 0.5, class_probabilities=[1.0], zero_given_class=[0.5]),
    lambda: jt.LatentTree(**TREE).joint(0, 1),
    *(
        lambda parents=parents: jt.LatentTree(**TREE | {"parents": parents})
        for parents in ([0, 0, 1, 1], [-1], [-1, 0, 3, 1])
    ),
    *(lambda rho=rho: jt.LatentTree(**TREE | {"rho": rho}) for rho in ([1, 1, 0.5], [0.5] * 4, [1, 1, 0.5, np.nan])),
    *(lambda p=p: jt.LatentTree(**TREE | {"class_probabilities": p}) for p in ([0.5, 0.6], [1.0])),
    lambda: jt.backpropagated_correlation_bound(0.8, 0.8, 0.8),
    lambda: jt.gated_cosine_bound(0.7, 0.7),
    lambda: jt.sloped_cosine_bound(0.5, 0.01, 1.0),
    lambda: jt.sloped_cosine_bound(0.9, 0.0, 1.0),
    lambda: jt.recursed_cosines(1.0, [0.8] * 3, [0.9] * 3, jt.linear),
    lambda: jt.recursed_cosines(1.0, [0.99], [0.99], jt.tanh),
    lambda: jt.TwoValuedInput(**NODE | {"g_minus": 0.5}).sigmoid_learns(),
    lambda: jt.TwoValuedInput(**NODE).linear_gap_rate(),
    lambda: jt.ComputationGraph(precedents=((), (1,)), activations=(jt.linear, jt.linear)),
    lambda: jt.ComputationGraph(precedents=((), (0,)), activations=(jt.linear,)),
    lambda: graph(np.zeros((2, 2)), np.ones((2, 3)), np.ones((2, 3))),
    lambda: jt.integrate(lambda _, s: s, {"v": np.ones(1)}, [1.0, 0.5]),
]


@pytest.mark.parametrize("call", REFUSED)
def test_what_a_statement_cannot_take_is_refused_with_advice(call):
    with pytest.raises(ValueError, match=r"`|\. [A-Z]"):  # names an argument, or gives advice
        call()
