"""Lemma 2: the field of a mixture is the gradient of its potential, and what the samples say on average."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.theory import Gaussian, Mixture, StudentT, UniformBall, homogeneous

DISTRIBUTIONS = {
    "Gaussian": lambda n: Gaussian(dim=n, scale=0.8),
    "ball": lambda n: UniformBall(dim=n, radius=1.7),
    "Student": lambda n: StudentT(dim=n, dof=3.0),
}
SLOPES = st.tuples(st.floats(-0.5, 0.9), st.floats(1.0, 2.0))


# Mixtures are built in the tests, not in the strategies: the shape checker draws random numbers of its own.
StepRecipe = Callable[[], Mixture]


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


def joint_field(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    return np.append(*mixture.field(x[:-1], x[-1]))


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


def test_growth_along_the_bias_alone():
    one = Mixture(centers=np.zeros((1, 2)), weights=np.array([1.5]), noise=Gaussian(dim=2))
    assert one.growth().rate == 1.5 and one.growth().xi == 1.0
    silenced = replace(one, weights=np.array([-1.5]))
    assert silenced.growth().rate == 0 and silenced.growth().xi == -1.0
