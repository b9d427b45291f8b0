"""Lemma 2: the field of a mixture is the gradient of its potential, and what the samples say on average."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import integrate as quadrature

from joma.theory.activations import gelu, homogeneous, linear, relu, sigmoid, silu, tanh
from joma.theory.integrate import integrate
from joma.theory.isotropic import Gaussian, StudentT, UniformBall
from joma.theory.mixture import Mixture, two_clusters

DISTRIBUTIONS = {
    "Gaussian": lambda n: Gaussian(dim=n, scale=0.8),
    "ball": lambda n: UniformBall(dim=n, radius=1.7),
    "Student": lambda n: StudentT(dim=n, dof=3.0),
}
SLOPES = st.tuples(st.floats(-0.5, 0.9), st.floats(1.0, 2.0))
PAIR = two_clusters(np.array([1.0, 0.5]), a_minus=1.4, noise=Gaussian(dim=2))


# Mixtures are built in the tests, not in the strategies: the shape checker draws random numbers of its own.
StepRecipe = Callable[[], Mixture]
Node = tuple[StepRecipe, np.ndarray, float]


@st.composite
def recipes(draw, distribution: str | None = None) -> StepRecipe:
    num_clusters, n = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    distribution = distribution or draw(st.sampled_from(list(DISTRIBUTIONS)))
    return partial(
        Mixture,
        centers=draw(arrays(np.float64, (num_clusters, n), elements=st.floats(-2, 2))),
        weights=draw(arrays(np.float64, num_clusters, elements=st.floats(-2, 2))),
        noise=DISTRIBUTIONS[distribution](n),
        activation=homogeneous(*draw(SLOPES)),
    )


@st.composite
def nodes(draw, distribution: str | None = None) -> Node:
    recipe = draw(recipes(distribution))
    v = draw(arrays(np.float64, recipe.keywords["centers"].shape[1], elements=st.floats(-2, 2)))
    assume(np.linalg.norm(v) > 0.2)
    return recipe, v, draw(st.floats(-2, 2))


def built(node: Node) -> tuple[Mixture, np.ndarray, float]:
    recipe, v, xi = node
    return recipe(), v, xi


def joint_field(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    return np.append(*mixture.field(x[:-1], x[-1]))


def central_differences(function, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Derivatives by every component of x, on the last axis."""
    return np.stack([(function(x + e) - function(x - e)) / (2 * step) for e in step * np.eye(x.size)], axis=-1)


@given(nodes())
def test_field_is_the_gradient_of_the_potential(node):
    mixture, v, xi = built(node)
    differences = central_differences(lambda x: mixture.potential(x[:-1], x[-1]), np.append(v, xi))
    # Rounding 1e-16/1e-5 and the square of the step times third derivatives, which reach 1/‖v‖² near the ball's edge.
    np.testing.assert_allclose(np.append(*mixture.field(v, xi)), differences, atol=1e-7)


@given(nodes("Gaussian"))
def test_field_agrees_with_autograd_of_the_expected_activation(node):
    mixture, v, xi = built(node)
    c_minus, c_plus = mixture.activation.slopes
    scale = mixture.noise.scale
    x = torch.tensor(np.append(v, xi), requires_grad=True)
    r = torch.tensor(mixture.centers) @ x[:-1] + x[-1]
    spread = scale * x[:-1].norm()
    # E max(r + spread·y, 0) for a standard normal y; φ(x) = c₋ x + (c₊ − c₋) max(x, 0).
    hinge = r * torch.special.ndtr(r / spread) + spread * torch.exp(-((r / spread) ** 2) / 2) / np.sqrt(2 * np.pi)
    potential = torch.tensor(mixture.weights) @ (c_minus * r + (c_plus - c_minus) * hinge)
    potential.backward()
    np.testing.assert_allclose(np.append(*mixture.field(v, xi)), x.grad.numpy(), atol=1e-10)
    np.testing.assert_allclose(mixture.potential(v, xi), potential.item(), atol=1e-10)


@given(nodes())
def test_potential_is_homogeneous_of_degree_one(node):
    mixture, v, xi = built(node)
    v_dot, xi_dot = mixture.field(v, xi)
    potential = mixture.potential(v, xi)
    np.testing.assert_allclose(v @ v_dot + xi * xi_dot, potential, atol=1e-12)  # Euler's identity
    np.testing.assert_allclose(mixture.potential(2.5 * v, 2.5 * xi), 2.5 * potential, atol=1e-12)
    np.testing.assert_allclose(np.append(*mixture.field(2.5 * v, 2.5 * xi)), np.append(v_dot, xi_dot), atol=1e-12)


@given(nodes())
def test_jacobian_is_the_derivative_of_the_field_and_blind_along_the_ray(node):
    mixture, v, xi = built(node)
    # Away from the edge of the ball, where the density of a one-dimensional ball jumps.
    edge = np.abs(np.abs(mixture.distances(v, xi)) - 1.7).min()
    assume(not isinstance(mixture.noise, UniformBall) or edge > 0.02)
    jacobian = mixture.jacobian(v, xi)
    differences = central_differences(lambda x: joint_field(mixture, x), np.append(v, xi))
    np.testing.assert_allclose(jacobian, differences, atol=1e-6 * max(1, np.abs(jacobian).max()))
    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-13)
    np.testing.assert_allclose(jacobian @ np.append(v, xi), 0, atol=1e-12)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_potential_is_the_mean_activation_by_quadrature(distribution):
    noise = DISTRIBUTIONS[distribution](3)
    mixture = Mixture(
        centers=np.array([[1.0, -0.5, 0.3], [0.2, 0.4, -1.0]]),
        weights=np.array([1.3, -0.7]),
        noise=noise,
        activation=homogeneous(0.2, 1.0),
    )
    v, xi = np.array([0.6, -0.2, 0.9]), -0.4
    norm = np.linalg.norm(v)

    def mean(center: np.ndarray) -> float:
        r = v @ center + xi
        kink = -r / norm
        halves = [(-np.inf, kink), (kink, np.inf)] if distribution != "ball" else [(-1.7, kink), (kink, 1.7)]
        return sum(
            quadrature.quad(
                lambda y: float(mixture.activation.value(norm * y + r) * noise.density(y)), *half, epsabs=1e-12
            )[0]
            for half in halves
        )

    expected = mixture.weights @ [mean(center) for center in mixture.centers]
    assert mixture.potential(v, xi) == pytest.approx(expected, abs=1e-9)  # quad over a heavy tail


@pytest.mark.parametrize("norm", [0.5, 2.5])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_field_is_what_samples_give(distribution, norm):
    noise = DISTRIBUTIONS[distribution](2)
    mixture = Mixture(
        centers=np.array([[1.0, 0.5], [0.0, 0.0]]), weights=np.array([1.0, -1.5]), noise=noise, activation=relu
    )
    v, xi = norm * np.array([0.8, -0.6]), -0.3
    rng = np.random.default_rng(3)
    pieces = []
    for center, weight in zip(mixture.centers, mixture.weights, strict=True):
        x = np.append(center + noise.sample(rng, 40_000), np.ones((40_000, 1)), axis=1)
        pieces.append(weight * x * (x @ np.append(v, xi) > 0)[:, None])
    total = np.sum(pieces, axis=0)
    errors = (total.mean(axis=0) - np.append(*mixture.field(v, xi))) / (total.std(axis=0) / np.sqrt(len(total)))
    assert np.abs(errors).max() < 4.5  # standard errors, 18 numbers in all


@given(recipes(), st.integers(0, 99))
def test_leading_axes_are_carried_through(recipe, seed):
    mixture = recipe()
    rng = np.random.default_rng(seed)
    v, xi = rng.normal(size=(3, 2, mixture.dim)), rng.normal(size=(3, 2))
    v_dot, xi_dot = mixture.field(v, xi)
    potential, jacobian = mixture.potential(v, xi), mixture.jacobian(v, xi)
    for i in np.ndindex(3, 2):
        one = mixture.field(v[i], xi[i])
        np.testing.assert_allclose(v_dot[i], one[0], atol=1e-13)
        np.testing.assert_allclose(xi_dot[i], one[1], atol=1e-13)
        np.testing.assert_allclose(potential[i], mixture.potential(v[i], xi[i]), atol=1e-13)
        np.testing.assert_allclose(jacobian[i], mixture.jacobian(v[i], xi[i]), atol=1e-11)


@given(nodes())
def test_clusters_add_up_whether_they_share_their_distribution_or_not(node):
    mixture, v, xi = built(node)
    apart = replace(mixture, noise=(mixture.noise,) * mixture.num_clusters)
    single = [
        joint_field(replace(mixture, centers=center[None], weights=weight[None]), np.append(v, xi))
        for center, weight in zip(mixture.centers, mixture.weights, strict=True)
    ]
    np.testing.assert_allclose(joint_field(mixture, np.append(v, xi)), np.sum(single, axis=0), atol=1e-12)
    # The same sums in another order: a rounding apart.
    np.testing.assert_allclose(joint_field(apart, np.append(v, xi)), joint_field(mixture, np.append(v, xi)), rtol=1e-14)


def test_a_linear_activation_leaves_a_constant_field():
    mixture = replace(PAIR, activation=linear)
    v = np.random.default_rng(0).normal(size=(5, 2))
    v_dot, xi_dot = mixture.field(v, np.linspace(-1, 1, 5))
    np.testing.assert_allclose(v_dot, np.tile(mixture.weights @ mixture.centers, (5, 1)), atol=1e-14)
    np.testing.assert_allclose(xi_dot, mixture.weights.sum())


@settings(max_examples=10)
@given(recipes())
def test_growth_is_the_highest_point_of_the_potential_on_the_sphere(recipe):
    mixture = recipe()
    growth = mixture.growth()
    assert np.hypot(np.linalg.norm(growth.v), growth.xi) == pytest.approx(1)
    u = np.random.default_rng(0).normal(size=(2000, mixture.dim + 1))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    assert mixture.potential(u[:, :-1], u[:, -1]).max() <= growth.rate + 1e-9
    if growth.v.any():  # at a maximum on the sphere the gradient is radial, and as long as the rate
        np.testing.assert_allclose(
            joint_field(mixture, np.append(growth.v, growth.xi)),
            growth.rate * np.append(growth.v, growth.xi),
            atol=1e-6,
        )


@pytest.mark.parametrize(("a_minus", "rate"), [(0.7, 1.82677), (1.5, 1.42321), (4.0, 0.660203)])
def test_joint_flow_of_gaussian_clusters_escapes_at_the_growth_rate(a_minus, rate):
    mixture = two_clusters(np.array([2.0, 0.0, 0.0]), a_minus=a_minus, noise=Gaussian(dim=3))
    growth = mixture.growth()
    assert growth.rate == pytest.approx(rate, rel=1e-5)
    start = {"v": np.array([0.3, 0.2, -0.1]), "xi": np.array(0.1)}
    run = integrate(mixture.flow, start, np.array([0.0, 2000.0, 4000.0]))
    size = np.hypot(np.linalg.norm(run["v"], axis=1), run["xi"])
    # The direction still approaches its limit as a power of t; what that leaves of the slope is of order 1/t².
    assert (size[2] - size[1]) / 2000 == pytest.approx(growth.rate, abs=1e-8)
    np.testing.assert_allclose(run["v"][-1] / size[-1], growth.v, atol=1e-4)


def test_growth_along_the_bias_alone():
    one = Mixture(centers=np.zeros((1, 2)), weights=np.array([1.5]), noise=Gaussian(dim=2))
    assert one.growth().rate == 1.5 and one.growth().xi == 1.0
    silenced = replace(one, weights=np.array([-1.5]))
    assert silenced.growth().rate == 0 and silenced.growth().xi == -1.0


def test_growth_does_not_depend_on_the_axes():
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(4, 4)))[0]
    centers = np.random.default_rng(6).normal(size=(3, 4))
    mixture = Mixture(centers=centers, weights=np.array([1.0, -0.6, 0.3]), noise=StudentT(dim=4))
    turned = replace(mixture, centers=centers @ rotation.T)
    np.testing.assert_allclose(turned.growth().rate, mixture.growth().rate, rtol=1e-10)
    np.testing.assert_allclose(turned.growth().v, rotation @ mixture.growth().v, atol=1e-6)


def test_frozen_flow_leaves_the_bias_alone():
    start = np.array([0.4, 0.3])
    frozen = PAIR.frozen_flow(-1.0)(0.0, {"v": start})
    np.testing.assert_array_equal(frozen["v"], PAIR.field(start, -1.0)[0])


@pytest.mark.parametrize("activation", [tanh, sigmoid, silu, gelu], ids=lambda a: a.name)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_smooth_activations_have_a_field_and_a_potential_too(activation, distribution):
    mixture = replace(PAIR, noise=DISTRIBUTIONS[distribution](2), activation=activation)
    x = np.array([0.9, -0.6, 0.3])
    differences = central_differences(lambda x: mixture.potential(x[:-1], x[-1]), x)
    np.testing.assert_allclose(joint_field(mixture, x), differences, atol=1e-8)  # rounding over the step


def test_smooth_activations_agree_with_samples():
    mixture = replace(PAIR, activation=tanh)
    v, xi = np.array([1.5, -0.8]), 0.4
    rng = np.random.default_rng(7)
    total = 0.0
    for center, weight in zip(mixture.centers, mixture.weights, strict=True):
        x = np.append(center + mixture.noise.sample(rng, 40_000), np.ones((40_000, 1)), axis=1)
        total = total + weight * x * tanh.derivative(x @ np.append(v, xi))[:, None]
    errors = (total.mean(axis=0) - joint_field(mixture, np.append(v, xi))) / total.std(axis=0) * np.sqrt(len(total))
    assert np.abs(errors).max() < 4.5  # standard errors
