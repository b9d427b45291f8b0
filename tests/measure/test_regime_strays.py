"""Points that stand alone at the ends of a curve: the words agree with the numbers, and the confidence is honest."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.measure.regime import MIN_CHANGE, Kind, classify

LEVEL, UPPER, NUM = 4.0, 10.0, 40
STEPS = np.arange(NUM)
SMALLEST = MIN_CHANGE * UPPER
FALLING = np.linspace(8, 4, NUM)
DIP = np.interp(STEPS, [0, 15, NUM - 1], [8, 4, 7])
seeds = st.integers(0, 2**31)
offsets = st.floats(-3.5, 5.5)


def noise(seed: int, num: int = NUM) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=num)


def flat(*ends: float, num: int = NUM) -> np.ndarray:
    """A level curve whose last values are these."""
    return np.concatenate([np.full(num - len(ends), LEVEL), ends])


def test_a_last_point_that_falls_is_told():
    steps = np.array([0, 1, 2, 5, 10, 20, 50, 100, 200])
    values = np.array([30.3] * 5 + [30.29, 30.58, 30.73, 25.16])
    found = classify(steps, values, lower=1.0)
    assert found.kind is Kind.FLAT
    assert (found.num_last_aside, found.last, found.num_first_aside, found.first) == (1, 25.16, 0, 30.3)
    assert found.doubt == "the last point, 25.2, stands alone and may be the beginning of a fall"
    assert found.why.startswith(f"flat up to step 100; {found.doubt}; noise")
    assert found.confidence == 0.5  # nothing tells a spike from a fall


@given(
    num=st.sampled_from([8, 9, 20, 101, 500]),
    seed=seeds,
    deviation=st.sampled_from([0.0, 1e-3, 0.05, 0.3]),
    first=offsets,
    last=offsets,
    upper=st.sampled_from([None, 20.0]),
)
def test_no_change_is_never_said_of_ends_that_differ(num, seed, deviation, first, last, upper):
    values = LEVEL + deviation * noise(seed, num)
    values[0], values[-1] = LEVEL + first, LEVEL + last
    found = classify(np.arange(num), values, lower=-10.0, upper=upper)
    assert (found.first, found.last) == (values[0], values[-1])
    for threshold in re.findall(r"\bno change of (\S+) or more", found.why):
        assert abs(values[-1] - values[0]) < float(threshold)


def test_ends_that_differ_by_noise_are_told_as_such():
    values = LEVEL + 0.5 * noise(1, 400)
    values[0], values[-1] = LEVEL - 0.6, LEVEL + 0.6
    found = classify(np.arange(400), values, upper=UPPER)
    assert found.kind is Kind.FLAT and not found.doubt
    assert re.match(r"no lasting change of \S+ or more, though first and last point differ by 1\.2;", found.why)


@given(seeds, offsets, st.booleans())
def test_words_counts_and_confidence_go_together(seed, offset, is_first):
    values = LEVEL + 0.01 * noise(seed)
    values[0 if is_first else -1] = LEVEL + offset
    found = classify(STEPS, values, upper=UPPER)
    assert found.kind is Kind.FLAT
    num = found.num_first_aside if is_first else found.num_last_aside
    # The curve itself is known to a few hundredths.
    if abs(offset) > SMALLEST + 0.05:
        change = "fall" if (offset > 0) == is_first else "rise"
        assert num == 1 and found.confidence == 0.5
        expected = f"the end of an earlier {change}" if is_first else f"the beginning of a {change}"
        assert found.doubt.endswith(f"stands alone and may be {expected}")
    elif abs(offset) < SMALLEST - 0.05:
        assert num == 0 and not found.doubt and "alone" not in found.why


@given(seeds, st.sampled_from([LEVEL + 0 * STEPS, FALLING, DIP]), st.floats(1.5, 2.0), st.booleans())
def test_the_further_away_a_last_point_is_the_less_sure_is_the_verdict(seed, clean, step, is_above):
    curve = clean + 0.01 * noise(seed)
    away = (1 if is_above else -1) * np.array([0.0, step, 2 * step])
    found = [classify(STEPS, np.append(curve[:-1], curve[-1] + each), upper=20.0, lower=-5.0) for each in away]
    assert len({each.kind for each in found}) == 1  # a single point does not make a regime
    confidences = [each.confidence for each in found]
    # Further than the noise and its clipping reach, the last point changes nothing in the curve.
    assert all(after <= before + 1e-3 for before, after in itertools.pairwise(confidences))
    assert [each.num_last_aside for each in found] == [0, 1, 1]


@pytest.mark.parametrize("way", [-1, 1], ids=["fall", "rise"])
def test_a_point_that_goes_on_leaves_the_confidence(way):
    curve = 12 + way * (12 - FALLING)
    on, back = (classify(STEPS, np.append(curve[:-1], curve[-1] + sign * 3), upper=30.0) for sign in (way, -way))
    kind, what, other = (Kind.FALLING, "fall", "rise") if way < 0 else (Kind.RISING, "rise", "fall")
    assert on.kind is back.kind is kind
    assert on.doubt.endswith(f"a further {what}") and on.confidence > 0.99
    assert back.doubt.endswith(f"the beginning of a {other}") and back.confidence == 0.5
    assert f"up to step {NUM - 2}" in on.why and f"up to step {NUM - 2}" in back.why


def test_spikes_that_came_back_make_another_one_likely():
    values = flat(LEVEL + 2)
    found = [classify(STEPS, values, upper=UPPER)]
    for place in (5, 15, 25):
        values[place] += 2
        found.append(classify(STEPS, values, upper=UPPER))
    assert [each.confidence for each in found] == pytest.approx([1 / 2, 2 / 3, 3 / 4, 4 / 5])
    assert len({each.doubt for each in found}) == 1


@given(seeds, offsets, offsets)
def test_upside_down_and_backwards_swap_the_words(seed, first, last):
    values = 5 + 0.01 * noise(seed)
    values[0], values[-1] = 5 + first, 5 + last
    one, upside_down, backwards = (classify(STEPS, own, upper=15.0, lower=-5.0) for own in
                                   (values, 10 - values, values[::-1]))  # fmt: skip
    swapped = {"fall": "rise", "rise": "fall"}
    assert re.findall("fall|rise", upside_down.doubt) == [swapped[word] for word in re.findall("fall|rise", one.doubt)]
    assert (backwards.num_first_aside, backwards.num_last_aside) == (one.num_last_aside, one.num_first_aside)
    assert upside_down.confidence == pytest.approx(one.confidence) == pytest.approx(backwards.confidence)


def test_two_points_may_stand_alone():
    found = classify(STEPS, flat(LEVEL - 2, LEVEL + 2), upper=UPPER)
    assert found.kind is Kind.FLAT and found.num_last_aside == 2
    assert found.why.startswith(f"flat up to step {NUM - 3}; the last 2 points, 6 at the end, stand alone and may be")


def test_points_of_long_curves_are_counted_as_they_were_measured():
    values = flat(*[LEVEL - 2] * 3, num=1200)
    found = classify(np.arange(1200), values, upper=UPPER)
    assert found.num_last_aside == 3
    assert found.doubt == "the last 3 points, 2 at the end, stand alone and may be the beginning of a fall"


@pytest.mark.parametrize(("level", "kind", "way"), [(0.1, Kind.COLLAPSED, 1), (9.95, Kind.UNIFORM, -1)])
def test_a_point_that_leaves_the_end_of_the_scale_is_told(level, kind, way):
    values = np.append(np.full(NUM - 1, level), level + 5 * way)
    found = classify(STEPS, values, upper=UPPER)
    change = "rise" if way > 0 else "fall"
    assert found.kind is kind and found.confidence == 0.5
    assert found.why.startswith(f"is at {level:.3g} up to step {NUM - 2}, at ")
    assert found.doubt.endswith(f"the beginning of a {change}")
    # The same at the start says nothing of the end.
    early = classify(STEPS, values[::-1], upper=UPPER)
    assert early.kind is kind and not early.doubt and early.confidence > 0.99
