"""Panels and tables of functions that are known by their values alone."""

import numpy as np
import pytest
from scipy import special

from joma.theory.radial import DensityTable, evaluate, refined


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
    table = DensityTable.of(density, *refined(density, np.array([0.01, 1.0, 2.0, 4.0])))
    _, weight = table.nodes(np.array([[0.3, 1.7]]))
    x, gauss = special.roots_legendre(20)
    missing = 0.005 * gauss @ density(0.005 * (1 + x))  # from zero to the first edge
    assert weight.sum() + missing == pytest.approx(mass, rel=1e-12)
