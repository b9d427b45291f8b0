"""Lemma 2: where the joint flow of a mixture escapes; `joma verify lemma2 eqn50 existence` has the rest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.theory import Gaussian, Mixture, StudentT, UniformBall, homogeneous

LAWS = [
    lambda n: Gaussian(dim=n, scale=0.8),
    lambda n: UniformBall(dim=n, radius=1.7),
    lambda n: StudentT(dim=n, dof=3.0),
]
sizes = st.integers(1, 4)


@settings(max_examples=10)
@given(sizes, sizes, st.sampled_from(LAWS), st.floats(-0.5, 0.9), st.floats(1.0, 2.0), st.integers(0, 999))
def test_growth_is_the_highest_point_of_the_potential_on_the_sphere(num_clusters, n, law, c_minus, c_plus, seed):
    rng = np.random.default_rng(seed)
    centers, weights = rng.uniform(-2, 2, (num_clusters, n)), rng.uniform(-2, 2, num_clusters)
    mixture = Mixture(centers=centers, weights=weights, noise=law(n), activation=homogeneous(c_minus, c_plus))
    growth = mixture.growth()
    assert np.hypot(np.linalg.norm(growth.v), growth.xi) == pytest.approx(1)
    u = rng.normal(size=(2000, n + 1))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    assert mixture.potential(u[:, :-1], u[:, -1]).max() <= growth.rate + 1e-9
    if growth.v.any():  # at a maximum on the sphere the gradient is radial, and as long as the rate
        gradient, direction = np.append(*mixture.field(growth.v, growth.xi)), np.append(growth.v, growth.xi)
        np.testing.assert_allclose(gradient, growth.rate * direction, atol=1e-6)


def test_growth_along_the_bias_alone():
    one = Mixture(centers=np.zeros((1, 2)), weights=np.array([1.5]), noise=Gaussian(dim=2))
    assert one.growth().rate == 1.5 and one.growth().xi == 1.0
    silenced = replace(one, weights=np.array([-1.5]))
    assert silenced.growth().rate == 0 and silenced.growth().xi == -1.0
