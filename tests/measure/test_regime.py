"""The naming of version 0.1, as long as its experiments need it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.measure import regime as module
from joma.measure.regime import Curve, Kind, classify, classify_all

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
