"""Theorem 3: the frozen-bias critical point, and the linear flow around it."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.errors import AssumptionError
from joma.theory.activations import homogeneous
from joma.theory.critical_points import CriticalPoint, LinearisedFlow, critical_points
from joma.theory.integrate import integrate
from joma.theory.isotropic import Gaussian, StudentT, UniformBall
from joma.theory.mixture import Mixture, two_clusters

GAUSSIAN = two_clusters(np.array([1.0, 0.0]), a_minus=4.0, noise=Gaussian(dim=2))
STUDENT = two_clusters(np.array([2.0, 0.0]), a_minus=4.0, noise=StudentT(dim=2, dof=3.0))

DISTRIBUTIONS = {
    "Gaussian": lambda: Gaussian(dim=3),
    "ball": lambda: UniformBall(dim=3, radius=2.5),
    "Student": lambda: StudentT(dim=3, dof=3.0),
    "two widths": lambda: (Gaussian(dim=3), Gaussian(dim=3, scale=1.4)),
}


# Mixtures are built in the tests, not in the strategies: the shape checker draws random numbers of its own.
@st.composite
def recipes(draw) -> Callable[[], Mixture]:
    noise = DISTRIBUTIONS[draw(st.sampled_from(list(DISTRIBUTIONS)))]()
    return partial(
        two_clusters,
        draw(st.floats(0.5, 2)) * np.array([2.0, -1.0, 2.0]) / 3,
        a_plus=draw(st.floats(0.5, 1.5)),
        a_minus=draw(st.floats(3, 10)),
        noise=noise,
        activation=homogeneous(draw(st.floats(0, 0.3)), 1.0),
    )


def found(mixture: Mixture, xi: float) -> tuple[CriticalPoint, ...]:
    """The critical points, none when there are none."""
    try:
        return critical_points(mixture, xi)
    except AssumptionError:
        return ()


def differences(point: CriticalPoint) -> np.ndarray:
    """−∂v̇/∂v at μ by central differences, with a step in proportion to ‖μ‖."""
    step = 1e-5 * point.norm
    columns = [
        (point.mixture.field(point.mu - e, point.xi)[0] - point.mixture.field(point.mu + e, point.xi)[0]) / (2 * step)
        for e in step * np.eye(point.mu.size)
    ]
    return np.stack(columns, axis=-1)


biases = st.floats(0.3, 3).flatmap(lambda size: st.sampled_from([-size, size]))


@given(recipes(), biases)
def test_the_frozen_field_vanishes_and_c_is_its_derivative(recipe, xi):
    mixture = recipe()
    for point in found(mixture, xi):
        size = np.abs(mixture.weights).max()
        np.testing.assert_allclose(mixture.field(point.mu, xi)[0], 0, atol=1e-12 * size)
        matrix = point.linearised.matrix
        np.testing.assert_allclose(matrix, -mixture.jacobian(point.mu, xi)[:-1, :-1], atol=1e-10 * np.abs(matrix).max())
        np.testing.assert_allclose(matrix, differences(point), atol=1e-7 * max(1, np.abs(matrix).max()))


@given(recipes(), biases)
def test_eigenvalues_are_those_of_c(recipe, xi):
    for point in found(recipe(), xi):
        flow = point.linearised
        expected = np.linalg.eigvalsh(flow.matrix)
        np.testing.assert_allclose(np.sort(flow.eigenvalues), expected, atol=1e-12 * np.abs(expected).max())
        assert flow.stable == bool(expected.min() > 0)
        # With c₋ ≥ 0 and a₊ > 0 the sign of β₁ is s_μ: only a point towards x̄₊ can be stable.
        assert np.sign(flow.across) == point.orientation


@given(recipes(), biases, st.floats(0.3, 3))
def test_the_scale_of_the_bias_is_the_scale_of_the_point(recipe, xi, factor):
    mixture = recipe()
    for one, other in zip(found(mixture, xi), found(mixture, factor * xi), strict=True):
        np.testing.assert_allclose(other.mu, factor * one.mu, rtol=1e-9)
        np.testing.assert_allclose(other.linearised.matrix, one.linearised.matrix / factor, rtol=1e-7, atol=1e-12)


@given(recipes(), biases)
def test_every_critical_point_is_found(recipe, xi):
    mixture = recipe()
    direction = mixture.centers[0] / np.linalg.norm(mixture.centers[0])
    norm = np.geomspace(0.05, 50, 4001) * abs(xi)
    for orientation in (1, -1):
        along = mixture.field(orientation * norm[:, None] * direction, xi)[0] @ direction
        scale = np.abs(mixture.weights).max() * 1e-12  # below it the sign is rounding, as for a ball out of reach
        along = along[np.abs(along) > scale]
        inside = [p for p in found(mixture, xi) if p.orientation == orientation and norm[0] < p.norm < norm[-1]]
        assert len(inside) == (np.diff(np.sign(along)) != 0).sum()


def test_golden_numbers_of_the_gaussian_point():
    [point] = critical_points(GAUSSIAN, -1.0)
    assert point.orientation == 1
    assert point.norm == pytest.approx(0.886703, abs=1e-6)
    np.testing.assert_allclose(point.linearised.eigenvalues, [0.644274, 0.506555], atol=1e-6)


@pytest.mark.parametrize(("offset", "which"), [((1e-5, 0.0), 0), ((0.0, 1e-5), 1)], ids=["along", "across"])
def test_measured_decay_rates_are_the_eigenvalues(offset, which):
    [point] = critical_points(GAUSSIAN, -1.0)
    t = np.array([0.0, 3.0, 6.0])
    run = integrate(GAUSSIAN.frozen_flow(-1.0), {"v": point.mu + offset}, t)
    rates = -np.diff(np.log(np.abs(run["v"] - point.mu)[:, which])) / np.diff(t)
    np.testing.assert_allclose(rates, point.linearised.decay_rates[which], rtol=1e-5)  # the offset is 1e-5


@pytest.mark.parametrize(
    "noise",
    [
        (Gaussian(dim=2, scale=0.6), Gaussian(dim=2, scale=1.4)),
        (StudentT(dim=2, dof=4.0), Gaussian(dim=2, scale=0.8)),
        (UniformBall(dim=2, radius=2.0), StudentT(dim=2, dof=3.0, scale=0.7)),
    ],
)
def test_the_linear_flow_is_the_derivative_for_unequal_noises(noise):
    mixture = two_clusters(
        np.array([0.8, -0.6]), a_plus=1.3, a_minus=8.0, noise=noise, activation=homogeneous(0.05, 0.9)
    )
    points = critical_points(mixture, -0.7)
    for point in points:
        np.testing.assert_allclose(mixture.field(point.mu, -0.7)[0], 0, atol=1e-10)
        np.testing.assert_allclose(-mixture.jacobian(point.mu, -0.7)[:2, :2], point.linearised.matrix, atol=1e-9)
        step = 1e-5 * np.eye(2)
        rise = mixture.field(point.mu + step, -0.7)[0] - mixture.field(point.mu - step, -0.7)[0]
        np.testing.assert_allclose(-rise / 2e-5, point.linearised.matrix, atol=1e-7)


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("a_plus", "a_minus"), [(-1.0, 2.8), (1.0, 2.8), (-2.0, -1.0), (1.0, -0.3)])
def test_every_critical_point_of_bounded_clusters_is_one(radius, a_plus, a_minus):
    """Between two balls there are weights that see no sample: a sign that changes across them is no zero."""
    mixture = two_clusters(
        np.array([2.5, 0.0]), a_plus=a_plus, a_minus=a_minus, noise=UniformBall(dim=2, radius=radius)
    )
    for xi in (-2.0, -1.0, 1.0):
        sizes = np.geomspace(1e-3, 1e3, 20_001)
        along = np.array([[1.0, 0.0], [-1.0, 0.0]])[:, None] * sizes[:, None]
        signs = np.sign(mixture.field(along, xi)[0][..., 0])
        expected = sum((line[1:] * line[:-1] < 0).sum() for line in signs)  # a brute search for zeros
        try:
            found = critical_points(mixture, xi)
        except AssumptionError:
            found = ()
        assert len(found) == expected
        for point in found:
            np.testing.assert_allclose(mixture.field(point.mu, xi)[0], 0, atol=1e-9)


def test_of_two_points_one_attracts_and_one_repels():
    repelling, attracting = critical_points(STUDENT, -1.0)
    assert (repelling.linearised.stable, attracting.linearised.stable) == (False, True)
    assert repelling.linearised.across > 0 > repelling.linearised.along  # along μ alone
    away = integrate(STUDENT.frozen_flow(-1.0), {"v": repelling.mu * 1.001}, np.array([0.0, 80.0]))["v"][-1]
    np.testing.assert_allclose(away, attracting.mu, rtol=1e-2)
    with pytest.raises(
        AssumptionError, match=r"Decay rates need a stable critical point: C\(μ\) has the eigenvalue -1"
    ):
        _ = repelling.linearised.decay_rates


@pytest.mark.parametrize("mixture", [GAUSSIAN, STUDENT], ids=["Gaussian", "Student"])
def test_remainder_is_of_second_order(mixture):
    point = critical_points(mixture, -1.0)[-1]
    direction = np.array([0.6, 0.8]) * point.norm

    def remainder(gamma: float) -> float:
        v = point.mu + gamma * direction
        return float(np.linalg.norm(mixture.field(v, -1.0)[0] - point.linearised.field(v)))

    ratio = remainder(1e-2) / remainder(1e-3)
    assert 80 < ratio < 120  # a tenth of the distance, a hundredth of the remainder


def test_remainder_is_no_scalar_factor():
    [point] = critical_points(GAUSSIAN, -1.0)
    v = point.mu + np.array([0.05, 0.05])
    exact, linear_part = GAUSSIAN.field(v, -1.0)[0], point.linearised.field(v)
    factors = exact / linear_part
    assert abs(factors[0] - factors[1]) > 0.02


@given(st.floats(-2, 2), st.floats(-1, 1), st.sampled_from([(0.8, 0.4), (0.5, -0.2), (-0.3, 0.1)]))
def test_linear_solution_solves_the_linear_field(along, across, betas):
    flow = LinearisedFlow(mu=np.array([0.9, 0.3, -0.4]), beta1=betas[0], beta2=betas[1])
    v0 = flow.mu * (1 + along) + across * np.array([0.4, 0.0, 0.9])
    t = np.linspace(0, 3, 4)
    run = integrate(lambda _, s: {"v": flow.field(s["v"])}, {"v": v0}, t)
    np.testing.assert_allclose(flow.solution(v0, t), run["v"], atol=1e-9, rtol=1e-9)


def test_linear_solution_describes_the_flow_near_the_point():
    [point] = critical_points(GAUSSIAN, -1.0)
    v0, t = point.mu + np.array([2e-4, -3e-4]), np.linspace(0, 5, 6)
    run = integrate(GAUSSIAN.frozen_flow(-1.0), {"v": v0}, t)
    np.testing.assert_allclose(run["v"], point.linearised.solution(v0, t), atol=1e-7)  # square of the offset


def test_with_the_bias_trained_the_weights_leave():
    [point] = critical_points(GAUSSIAN, -1.0)
    start = {"v": point.mu * 1.01, "xi": np.array(-1.0)}
    t = np.array([0.0, 50.0])
    frozen = integrate(GAUSSIAN.frozen_flow(-1.0), {"v": start["v"]}, t)["v"][-1]
    trained = integrate(GAUSSIAN.flow, start, t)["v"][-1]
    np.testing.assert_allclose(frozen, point.mu, atol=1e-10)
    assert np.linalg.norm(trained - point.mu) > 1
