"""Regimes: known curves get their names under noise, monotone ones are not called rebounding, the docs are current."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.measure import regime as module
from joma.measure.regime import Curve, Kind, classify, classify_all

ROOT = Path(__file__).parents[2]
UPPER = 7.0
X = np.linspace(0, 1, 101)
DIP = np.interp(X, [0, 0.3, 1], [5, 3, 4.5])
CLEAN = {
    Kind.FLAT: np.full(101, 4.0),
    Kind.FALLING: 5 - 2 * X,
    Kind.RISING: 3 + 2 * X,
    Kind.REBOUNDING: DIP,
    Kind.PEAKING: 8 - DIP,
    Kind.COLLAPSED: 5 * np.exp(-8 * X),
    Kind.UNIFORM: UPPER - 3 * np.exp(-20 * X),
}
kinds = st.sampled_from(list(CLEAN))
seeds = st.integers(0, 2**31)


def noise(seed: int, num: int = 101, phi: float = 0.0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=num + 100)
    for i in range(1, len(drawn)):
        drawn[i] = phi * drawn[i - 1] + np.sqrt(1 - phi**2) * drawn[i]
    return drawn[100:]


def noisy(kind: Kind, seed: int, deviation: float = 0.05) -> np.ndarray:
    return np.clip(CLEAN[kind] + deviation * noise(seed), 0, UPPER)


@pytest.mark.parametrize("kind", CLEAN)
def test_clean_curves_get_their_names(kind):
    found = classify(X, CLEAN[kind], upper=UPPER)
    assert found.kind is kind
    # Bends look like noise to second differences, of the size of the curvature between neighbouring points.
    assert found.confidence > 0.99 and found.noise < 0.05


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_tensors_and_lists_are_curves_too(dtype):
    values = torch.tensor(DIP, dtype=dtype, requires_grad=True)
    wanted = classify(X, values.detach().double().numpy(), upper=UPPER)
    assert classify(torch.tensor(X), values, upper=UPPER) == wanted
    assert classify(X.tolist(), values.tolist(), upper=UPPER) == wanted


@given(kinds, seeds)
def test_noisy_curves_get_their_names(kind, seed):
    found = classify(X, noisy(kind, seed), upper=UPPER)
    if found.kind is not kind:  # of some 200 draws one or two flat ones show a change, and say that they are unsure
        assert kind is Kind.FLAT and found.confidence < 0.95


def test_a_clean_dip_is_located_and_sized():
    found = classify(1000 * X, DIP, upper=UPPER)
    assert found.dip_step == pytest.approx(300)
    # Two bends among 101 points leave their trace in the noise, and the noise in the sizes.
    assert found.dip_depth == pytest.approx(2, abs=0.01) and found.rebound == pytest.approx(1.5, abs=0.01)
    assert found.why.startswith("falls by 2 to step 300, then rises by 1.5")


@given(seeds, st.floats(0.02, 0.2))
def test_a_noisy_dip_is_located_and_sized(seed, deviation):
    found = classify(X, DIP + deviation * noise(seed), upper=UPPER)
    assert found.kind is Kind.REBOUNDING
    # Tip and ends are sharp, one or two points each; and 5 % where the bends are taken for noise.
    assert abs(found.dip_depth - 2) < 4 * deviation + 0.1 and abs(found.rebound - 1.5) < 4 * deviation + 0.1
    # The same in time, by slopes of 6.7 and 2.1.
    assert 0.3 - 4 * deviation / 6 <= found.dip_step <= 0.3 + 4 * deviation / 2


@given(kinds, seeds, st.floats(0.01, 100), st.floats(-50, 50))
def test_units_and_origin_change_nothing(kind, seed, factor, shift):
    values = noisy(kind, seed)
    one = classify(X, values, upper=UPPER)
    other = classify(X, factor * values + shift, upper=factor * UPPER + shift, lower=shift)
    assert other.kind is one.kind
    assert other.noise == pytest.approx(factor * one.noise, rel=1e-6)
    np.testing.assert_allclose(other.dip_depth, factor * one.dip_depth, rtol=1e-6)


@given(kinds, seeds)
def test_only_the_order_of_steps_matters(kind, seed):
    values = noisy(kind, seed)
    one, other = classify(X, values, upper=UPPER), classify(10 ** (6 * X), values, upper=UPPER)
    assert (other.kind, other.confidence, other.rebound) == pytest.approx(
        (one.kind, one.confidence, one.rebound), nan_ok=True
    )
    np.testing.assert_allclose(other.dip_step, 10 ** (6 * one.dip_step))


MIRRORED = {
    Kind.FALLING: Kind.RISING,
    Kind.RISING: Kind.FALLING,
    Kind.REBOUNDING: Kind.PEAKING,
    Kind.PEAKING: Kind.REBOUNDING,
    Kind.FLAT: Kind.FLAT,
}


@given(st.sampled_from(list(MIRRORED)), seeds)
def test_upside_down_swaps_the_names(kind, seed):
    values = noisy(kind, seed)
    one, other = classify(X, values, upper=UPPER), classify(X, UPPER - values, upper=UPPER)
    assert other.kind is MIRRORED[one.kind]
    assert other.noise == pytest.approx(one.noise, rel=1e-9)


@given(st.sampled_from([Kind.FALLING, Kind.RISING, Kind.REBOUNDING, Kind.PEAKING]), seeds)
def test_backwards_swaps_fall_and_rise(kind, seed):
    values = noisy(kind, seed)
    one, other = classify(X, values, upper=UPPER), classify(X, values[::-1], upper=UPPER)
    assert other.kind is (MIRRORED[one.kind] if one.kind in (Kind.FALLING, Kind.RISING) else one.kind)
    np.testing.assert_allclose((other.dip_depth, other.rebound), (one.rebound, one.dip_depth), rtol=1e-6)


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
def test_noise_is_read_off_the_curve(phi):
    x = np.linspace(0, 1, 400)
    found = [classify(x, 4 + np.exp(-3 * x) + 0.1 * noise(seed, 400, phi), upper=UPPER) for seed in range(20)]
    # The noisiest third is taken, which adds about 5 %; autocorrelation has a spread of 0.07 a curve.
    assert np.mean([each.noise for each in found]) == pytest.approx(0.105, rel=0.1)
    assert np.mean([each.autocorrelation for each in found]) == pytest.approx(phi, abs=0.08)


def test_confidence_falls_with_noise_and_stays_above_one_half():
    means = []
    for deviation in (0.05, 0.3, 0.8):
        found = [classify(X, np.abs(DIP + deviation * noise(seed))) for seed in range(20)]
        assert all(0.5 <= each.confidence <= 1 for each in found)
        means.append(np.mean([each.confidence for each in found if each.kind is Kind.REBOUNDING]))
    assert means[0] > means[1] > means[2]


@pytest.mark.parametrize(
    ("knots", "levels", "expected"),
    [
        ([0, 0.3, 0.5, 1], [5, 3, 4, 1.5], Kind.FALLING),
        ([0, 0.3, 0.5, 1], [1.5, 4, 3, 5], Kind.RISING),
        ([0, 0.3, 0.6, 1], [5, 3, 5, 4.5], Kind.REBOUNDING),
        ([0, 0.2, 0.5, 1], [4.5, 5, 3, 4.5], Kind.REBOUNDING),
        ([0, 0.5, 1], [5, 3, 3.1], Kind.FALLING),
        ([0, 0.5, 1], [3.1, 3, 5], Kind.RISING),
        ([0, 0.5, 1], [5, 4.95, 5], Kind.FLAT),
    ],
    ids=[
        "a bump on the way down",
        "a wobble on the way up",
        "a rebound that partly goes",
        "a rise before the dip",
        "a rebound of a twentieth",
        "a dip of a twentieth of the rise",
        "a dip of 0.7 % of the scale",
    ],
)
def test_what_counts_as_a_rebound(knots, levels, expected):
    values = np.interp(X, knots, levels)
    assert classify(X, values, upper=UPPER).kind is expected
    assert classify(X, values + 0.01 * noise(0), upper=UPPER).kind is expected


def test_spikes_make_no_dip():
    values = noisy(Kind.FALLING, 0)
    values[[20, 60, 61, 99]] = [0.5, 0.4, 0.3, 6.9]
    assert classify(X, values, upper=UPPER).kind is Kind.FALLING


@pytest.mark.parametrize("num", [401, 1000, 20_000])
def test_long_curves_are_averaged_first(num):
    x = np.linspace(0, 1, num)
    found = classify(x, np.interp(x, X, DIP) + 0.2 * noise(1, num), upper=UPPER)
    assert found.kind is Kind.REBOUNDING
    assert found.dip_step == pytest.approx(0.3, abs=0.1) and found.dip_depth == pytest.approx(2, abs=0.4)


@pytest.mark.parametrize("together", [3, module.MAX_TOGETHER], ids=["in several turns", "at once"])
def test_many_curves_get_what_each_gets_alone(together, monkeypatch):
    monkeypatch.setattr(module, "MAX_TOGETHER", together)
    curves = [
        Curve(steps=np.arange(num) + seed, values=noisy(kind, seed)[:num], upper=upper, lower=lower)
        for seed, kind in enumerate(CLEAN)
        for num, upper, lower in ((101, UPPER, 0.0), (101, None, -1.0), (40, None, 0.0), (5, UPPER, 0.0))
    ]
    curves += [Curve(steps=np.arange(1000), values=4 + noise(seed, 1000) / 9) for seed in range(2)]
    alone = [classify(curve.steps, curve.values, upper=curve.upper, lower=curve.lower) for curve in curves]
    assert {regime.kind for regime in alone} == set(Kind)
    # As text, in which NaN equals itself and floats are exact to the last bit.
    assert [repr(regime) for regime in classify_all(curves)] == [repr(regime) for regime in alone]
    assert classify_all([]) == []


def test_without_an_upper_bound_sizes_are_the_curves_own():
    assert classify(X, 1e-3 * DIP).kind is Kind.REBOUNDING
    assert classify(X, CLEAN[Kind.COLLAPSED]).kind is Kind.COLLAPSED
    assert classify(X, CLEAN[Kind.UNIFORM]).kind is Kind.RISING
    assert classify(X, np.full(101, 0.01)).kind is Kind.FLAT
    assert classify(X, np.full(101, 0.01), upper=UPPER).kind is Kind.COLLAPSED
    assert classify(X, np.zeros(101)).kind is Kind.FLAT


@pytest.mark.parametrize("upper", [1e-300, np.log(16), np.log(512), 4096.0, 1e300])
@pytest.mark.parametrize("num", [8, 101, 1000])
@pytest.mark.filterwarnings("error")
def test_zeros_alone_are_named_without_a_warning(num, upper):
    steps, zeros = np.arange(num), np.zeros(num)
    collapsed, uniform = classify(steps, zeros, upper=upper), classify(steps, zeros, lower=-upper, upper=0.0)
    assert (collapsed.kind, uniform.kind) == (Kind.COLLAPSED, Kind.UNIFORM)
    assert collapsed.confidence == uniform.confidence == 1.0
    assert classify(steps, zeros, lower=-upper, upper=upper).kind is Kind.FLAT
    assert classify(steps, zeros).kind is classify(steps, zeros, lower=-upper).kind is Kind.FLAT


def test_a_stable_rank_collapses_to_one():
    ranks = 1 + 200 * np.exp(-9 * X)
    assert classify(X, ranks, lower=1.0).kind is Kind.COLLAPSED
    assert classify(X, 20 + ranks, lower=1.0).kind is Kind.FALLING


def test_too_few_points_and_too_much_noise_are_unclear():
    short = classify(np.arange(7), np.arange(7.0))
    assert short.kind is Kind.UNCLEAR and short.why == "7 points, 8 are needed"
    assert classify(np.array([3]), np.array([2.0])).end == 2
    loud = classify(X[:20], np.clip(3.5 + 2 * noise(2, 20), 0, UPPER), upper=UPPER)
    assert loud.kind is Kind.UNCLEAR and "would not be seen" in loud.why


@pytest.mark.parametrize("num", range(module.MIN_POINTS, 20))
def test_short_curves_are_named_without_noise(num):
    steps = np.arange(num)
    assert classify(steps, 1.0 + steps).kind is Kind.RISING
    assert classify(steps, 1.0 + np.abs(steps - num // 2)).kind is Kind.REBOUNDING


@pytest.mark.parametrize(
    ("steps", "values", "bounds", "message"),
    [
        ([0, 1, 1], [1.0, 2, 3], {}, r"`steps` must ascend, got 1 before 1"),
        ([0, 1, 2], [1.0, np.nan, 3], {}, r"`values` must be finite, got nan at index \(1,\)"),
        ([0, 1], [1.0, 2, 3], {}, r"Shapes must agree, got `steps` \(2,\), `values` \(3,\)"),
        ([], [], {}, r"one axis and a point, got shape \(0,\)"),
        ([0, 1], [1.0, 2], {"upper": 1.5}, r"between `lower` 0 and `upper` 1.5, got 1 to 2"),
        ([0, 1], [-1.0, 2], {}, r"between `lower` 0 and `upper` inf, got -1 to 2"),
    ],
    ids=["steps", "nan", "shapes", "empty", "above", "below"],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_bad_input_is_refused(steps, values, bounds, message):
    with pytest.raises(ValueError, match=message):
        classify(np.array(steps), np.array(values), **bounds)


# The rates of error that docs/regimes.md states.


@pytest.fixture(scope="module")
def confusion():
    spec = importlib.util.spec_from_file_location("regime_confusion", ROOT / "benchmarks/regime_confusion.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    yield script
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def results(confusion):
    return confusion.measured(confusion.cases())


@pytest.fixture(scope="module")
def hardest(confusion):
    return confusion.measured(confusion.hardest_cases())


def share(verdicts) -> float:
    verdicts = list(verdicts)
    return sum(verdicts) / len(verdicts)


def test_false_rebounds_stay_below_five_percent(confusion, results, hardest):
    monotone = [each for each in results if each[0].kind not in (Kind.REBOUNDING, Kind.PEAKING)]
    for drawn in (monotone, hardest):
        for noise_name in confusion.NOISES:
            own = (regime.kind is Kind.REBOUNDING for case, regime in drawn if case.noise == noise_name)
            assert share(own) <= 0.05, noise_name


def test_rebounds_are_found_where_they_can_be_seen(confusion, results):
    for case, regime in results:
        if case.kind is Kind.REBOUNDING and len(case.steps) == 400 and case.level < 0.2 * confusion.rebound_of(case):
            assert regime.kind is Kind.REBOUNDING


def test_the_document_is_current(confusion, results, hardest):
    text = confusion.DOCUMENT.read_text()
    measured = text.split(confusion.BEGIN)[1].split(confusion.END)[0]
    assert measured.strip() == confusion.report(results, hardest), "run: python benchmarks/regime_confusion.py --write"
