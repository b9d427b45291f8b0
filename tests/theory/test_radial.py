"""Integrals over a radial profile: the power laws outside the panels, and the radii drawn from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from joma.theory.radial import DensityTable, evaluate, log_profile, radial_mesh, resolve


@given(st.sampled_from([1, 2, 5, 20]), st.floats(0.6, 8.0))
@settings(max_examples=5)
def test_radii_are_quantiles_far_into_a_power_tail(n, dof):
    mesh = radial_mesh(log_profile(lambda r: (1 + r**2 / dof) ** (-(n + dof) / 2)), n)
    share = np.array([0.01, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - 1e-9])
    exact = np.sqrt(n * stats.f(n, dof).ppf(share))
    # The table is uniform inside cells of a 64th of a panel; 1 - share is known to 1e-16 only.
    np.testing.assert_allclose(mesh.radii(share), exact, rtol=2e-3)


@given(st.floats(0.5, 8.0), st.floats(0.1, 0.9), st.floats(0.1, 3.0))
@settings(max_examples=10)
def test_jumps_are_found_to_the_last_bit_wherever_they_lie(radius, share, height):
    mesh = radial_mesh(log_profile(lambda r: 1.0 * (r < radius) + height * (r < share * radius)), 2)
    assert mesh.upper[-1] == pytest.approx(radius, rel=1e-14)
    assert np.exp(mesh.log_total) == pytest.approx(radius**2 * (1 + height * share**2) / 2, rel=1e-13)


def test_an_error_in_a_users_function_is_the_users_to_see():
    def broken(x):
        raise ValueError("no such branch")

    with pytest.raises(ValueError, match="no such branch"):
        evaluate(broken, np.ones(3))


@pytest.mark.parametrize(
    ("density", "mass"),
    [
        (lambda y: np.exp(-y), 1 - np.exp(-4)),
        (lambda y: np.sqrt(np.abs(y - 1)), (1 + 3**1.5) * 2 / 3),
        (lambda y: 1.0 * (y < np.sqrt(2)), np.sqrt(2)),
        (lambda y: np.exp(-(((y - 2) / 1e-2) ** 2) / 2), 1e-2 * np.sqrt(2 * np.pi)),
    ],
    ids=["smooth", "root", "jump", "peak"],
)
def test_a_table_integrates_what_it_was_made_of(density, mass):
    table = DensityTable.of(density, *resolve(log_profile(density), np.array([0.01, 1.0, 2.0, 4.0])))
    _, weight = table.nodes(np.array([[0.3, 1.7]]))
    x, gauss = special.roots_legendre(20)
    missing = 0.005 * gauss @ density(0.005 * (1 + x))  # from zero to the first edge
    assert weight.sum() + missing == pytest.approx(mass, rel=1e-12)
