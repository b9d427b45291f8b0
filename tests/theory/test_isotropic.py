"""Isotropic distributions: closed forms, any radial profile, and what each must refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from scipy.integrate import quad

from joma.errors import AssumptionError
from joma.theory.isotropic import Gaussian, RadialProfile, StudentT

DIMS = (1, 2, 3, 5, 20)
QUANTITIES = ("density", "cdf", "upper_moment")

dims = st.sampled_from(DIMS)


def gaussian_profile(r, scale):
    return np.exp(-np.square(r / scale) / 2)


@given(dims, st.floats(-30, 30))
@settings(max_examples=6)
def test_a_gaussian_profile_is_the_gaussian_at_any_scale(n, exponent):
    scale = 10.0**exponent
    p, exact = RadialProfile(dim=n, profile=lambda r: gaussian_profile(r, scale)), Gaussian(dim=n, scale=scale)
    y = scale * np.concatenate([[0.0], np.geomspace(1e-9, 30, 25), -np.geomspace(1e-9, 30, 25)])
    for name in QUANTITIES:
        # Far out the exponent is 450 and its rounding is 450 times that of one.
        np.testing.assert_allclose(getattr(p, name)(y), getattr(exact, name)(y), rtol=1e-12)


@pytest.mark.parametrize("n", DIMS)
@pytest.mark.parametrize("power", [0, 1, 2.5], ids=["jump", "kink", "smooth"])
def test_a_compact_profile_is_found_to_its_edge(n, power):
    """(1 − r²/R²)^k integrates over n − 1 dimensions to (1 − y²/R²)^(k + (n−1)/2)."""
    radius = 0.7
    p = RadialProfile(dim=n, profile=lambda r: np.where(r < radius, np.abs(1 - (r / radius) ** 2) ** power, 0.0))
    y = radius * np.array([0.0, 1e-5, 0.2, 0.9, 0.999, 1.0, 1.5])
    a = power + (n + 1) / 2
    inside = np.clip(1 - (y / radius) ** 2, 0, None)
    peak = 1 / (radius * special.beta(0.5, a))
    if (n, power) != (1, 0):  # the density of the interval jumps at its end
        np.testing.assert_allclose(p.density(y), peak * inside ** (a - 1), rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(p.cdf(-y), special.betainc(a, a, np.clip(1 - y / radius, 0, None) / 2), rtol=1e-11)
    np.testing.assert_allclose(p.upper_moment(y), peak * radius**2 * inside**a / (2 * a), rtol=1e-11)


@pytest.mark.parametrize(
    ("n", "radius", "width"),
    [(2, 3.0, 1e-5), (5, 3.0, 1e-3), (20, 3.0, 1e-5), (5, 4e8, 1e5), (20, 2e-7, 1e-10)],
)
def test_a_narrow_ring_is_the_sphere_wherever_it_is(n, radius, width):
    p = RadialProfile(dim=n, profile=lambda r: np.exp(-(((r - radius) / width) ** 2) / 2))
    y, a = np.array([0.0, 0.3, 0.8]), (n - 1) / 2
    inside, peak = 1 - y**2, 1 / special.beta(0.5, a)
    exact = [peak / radius * inside ** (a - 1), special.betainc(a, a, (1 - y) / 2), radius * peak * inside**a / (2 * a)]
    # A ring differs from the sphere in second order of its width.
    rtol = 1e-11 + 20 * (n * width / radius) ** 2
    for found, right in zip(
        (p.density(radius * y), p.cdf(-radius * y), p.upper_moment(radius * y)), exact, strict=True
    ):
        np.testing.assert_allclose(found, right, rtol=rtol)


def test_a_ring_hidden_in_a_broad_mass_is_found():
    height, width = 1e4, 1e-4
    p = RadialProfile(dim=2, profile=lambda r: gaussian_profile(r, 1) + height * np.exp(-(((r - 4) / width) ** 2) / 2))
    in_ring = height * 4 * width * np.sqrt(2 * np.pi)  # next to a mass of one; each per 2π
    share = in_ring / (1 + in_ring)
    mean = (1 - share) * np.sqrt(2 / np.pi) + share * 2 * 4 / np.pi
    assert 2 * float(p.upper_moment(0.0)) == pytest.approx(mean, rel=1e-9)  # the ring is Gaussian to order width²


def test_a_profile_that_is_singular_at_zero():
    p = RadialProfile(dim=2, profile=lambda r: np.exp(-r) / r)  # ∫ e^-r dr = 1: the radius is exponential
    assert p.density(0.0) == np.inf
    for y in (1e-3, 0.5, 3.0):
        exact = special.k0(y) / np.pi  # ∫ over l of e^-r / r, the Bessel function's own integral
        assert float(p.density(y)) == pytest.approx(exact, rel=1e-12)
        below, _ = quad(lambda x: special.k0(x) / np.pi, y, np.inf, epsabs=0, epsrel=1e-12)
        assert float(p.cdf(-y)) == pytest.approx(below, rel=1e-10)
    assert float(p.upper_moment(0.0)) == pytest.approx(1 / np.pi, rel=1e-12)


def test_logarithms_reach_where_the_profile_underflows():
    n, dof = 100, 1.5
    p = RadialProfile(dim=n, in_log=True, profile=lambda r: -(n + dof) / 2 * np.log1p(r**2 / dof))
    y = np.array([-1e6, -3.0, 0.0, 2.0, 1e3])
    for name in QUANTITIES:
        # ln p0 is of order 10^4 where the tail is followed, with that many roundings.
        np.testing.assert_allclose(getattr(p, name)(y), getattr(StudentT(dof=dof), name)(y), rtol=1e-10)
    with pytest.raises(AssumptionError, match=r"pass its logarithm with `in_log=True`"):
        RadialProfile(dim=n, profile=lambda r: (1 + r**2 / dof) ** (-(n + dof) / 2))


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (lambda r: np.exp(-r) * np.cos(r), r"finite and not negative for r > 0, got -"),
        (lambda r: np.where(r > 5, np.nan, np.exp(-r)), r"got nan at r = 5"),
        (lambda r: np.where(r > 5, np.inf, np.exp(-r)), r"got inf at r = 5"),
        (lambda r: 0 * r, r"needs mass: p0 is zero at 200001 radii"),
        (np.ones_like, r"goes like r\^0 at large r and must fall faster than r\^-2 in 2 dimensions"),
        (lambda r: 1 / (1 + r**2), r"goes like r\^-2 at large r"),
        (lambda r: np.exp(-r) / r**2, r"grows like r\^-2 towards r = 0"),
        (lambda r: np.exp(-r) / r**1.99, r"grows like r\^-1.99 towards r = 0"),
        (lambda r: np.exp(-r) * (1 + 1e-3 * np.sin(1e9 * r)), r"too rough to integrate"),
        (lambda r: (2 + r) ** -2 * np.log(2 + r) ** -2, r"uncertain by"),
    ],
    ids=["negative", "nan", "inf", "zero", "constant", "inverse square", "pole", "near pole", "rough", "slow tail"],
)
def test_a_profile_that_is_no_density_is_refused(profile, message):
    with pytest.raises(AssumptionError, match=message):
        RadialProfile(dim=2, profile=profile)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (StudentT(dof=1.0), r"finite mean: Student's t has one for dof above 1, got 1\. Pass a larger `dof`"),
        (RadialProfile(dim=3, profile=lambda r: (1 + r**2) ** -2), r"finite mean: p0 goes like r\^-4 .* r\^-4 in 3"),
    ],
    ids=["t", "profile"],
)
def test_a_distribution_without_a_mean_has_no_upper_moment(p, message):
    assert 0 < p.cdf(-1.0) < 0.5
    with pytest.raises(AssumptionError, match=message):
        p.upper_moment(0.0)
