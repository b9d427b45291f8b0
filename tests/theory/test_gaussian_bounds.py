"""Lemmas 6 and 7: the functions against quadrature and forty digits, the constants against both sides of a maximum."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from joma.theory import convergence


@given(st.floats(-30, 30))
def test_functions_are_those_of_the_lemmas(y):
    assert convergence.small_g(y) == pytest.approx(-np.expm1(-(y**2)) / y if y else 0.0, rel=1e-13)
    integral = quad(
        lambda x: np.exp((x - y) * (x + y) / 2), 0, y, epsabs=1e-13, points=[np.sign(y) * max(abs(y) - 1, 0)]
    )[0]
    assert convergence.gaussian_g(y) == pytest.approx(integral, rel=1e-11, abs=1e-13)


@given(st.floats(0, 100))
def test_bounds_hold(y):
    assert 0 <= convergence.small_g(y) <= convergence.SMALL_G_SUP * (1 + 1e-15)
    assert 0 <= convergence.gaussian_g(y) <= convergence.G_SUP * (1 + 1e-15)
    assert convergence.G_SUP < 1 and convergence.SMALL_G_SUP < 1 / np.sqrt(2)


def test_constants_to_the_last_digit():
    with mpmath.workdps(40):
        y = mpmath.sqrt(-mpmath.mpf(1) / 2 - mpmath.lambertw(-mpmath.exp(-mpmath.mpf(1) / 2) / 2, -1))
        assert convergence.SMALL_G_SUP_AT == float(y)
        assert convergence.SMALL_G_SUP == float((1 - mpmath.exp(-(y**2))) / y)
        dawson = lambda x: mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(-(x**2)) * mpmath.erfi(x)  # noqa: E731
        y = mpmath.findroot(lambda y: y * mpmath.sqrt(2) * dawson(y / mpmath.sqrt(2)) - 1, 1.3)
        assert convergence.G_SUP_AT == float(y)
        assert convergence.G_SUP == float(1 / y)
