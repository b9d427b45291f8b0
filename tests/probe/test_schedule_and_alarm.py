"""When to measure, and when to raise an alarm."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.probe.alarm import Alarm, AlarmMonitor, AlertKind
from joma.probe.schedule import At, Every, Logarithmic, schedule_of

ANY_STEP = st.integers(min_value=0, max_value=10**9)


def due_steps(schedule, stop):
    return [step for step in range(stop) if schedule.due(step)]


@given(n=st.integers(1, 1000), step=ANY_STEP)
def test_every_n_is_periodic_and_starts_at_zero(n, step):
    schedule = Every(n)
    assert schedule.due(0)
    assert schedule.due(step) == schedule.due(step + n)
    assert sum(schedule.due(step + i) for i in range(n)) == 1


@given(step=ANY_STEP)
def test_logarithmic_looks_the_same_in_every_decade(step):
    schedule = Logarithmic()
    assert schedule.due(10 * step) == schedule.due(step)
    assert not schedule.due(10 * step + 3) or step == 0


def test_logarithmic_goes_1_2_5():
    assert due_steps(Logarithmic(), 2001) == [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    assert due_steps(Logarithmic(points=(1, 3)), 31) == [0, 1, 3, 10, 30]


@given(n=st.integers(1, 50), listed=st.frozensets(ANY_STEP, min_size=1), step=ANY_STEP)
def test_a_joined_schedule_is_due_when_any_part_is(n, listed, step):
    joined = Every(n) | At(listed) | Logarithmic()
    assert joined.due(step) == (Every(n).due(step) or step in listed or Logarithmic().due(step))


def test_reading_a_schedule():
    assert schedule_of(7) == Every(7)
    assert schedule_of("log") == Logarithmic()
    assert schedule_of(range(3)) == At(frozenset({0, 1, 2}))
    assert schedule_of(Every(3)) == Every(3)


@pytest.mark.parametrize("bad", [0, -1, True])
def test_intervals_that_are_refused(bad):
    with pytest.raises(ValueError, match="at least 1, got"):
        schedule_of(bad)


def test_what_is_no_schedule_is_refused():
    with pytest.raises(ValueError, match="in words is \"log\", got 'linear'"):
        schedule_of("linear")
    with pytest.raises(ValueError, match="at least one, got none"):
        schedule_of([])
    with pytest.raises(ValueError, match="from 0 on, at least one, got -1"):
        schedule_of([3, -1])
    with pytest.raises(ValueError, match="digits from 1 to 9"):
        Logarithmic(points=(1, 20))
    with pytest.raises(TypeError):
        Every(3) | 5


STEPS = np.arange(0, 5000, 50)


def alerts(fractions, alarm=None, site="h.0.attn"):
    bell = AlarmMonitor(alarm or Alarm())
    heard = [
        bell.check(int(step), site, 0, fraction=float(fraction), entropy=6 * float(fraction))
        for step, fraction in zip(STEPS, fractions, strict=False)
    ]
    return [alert for alert in heard if alert is not None]


def noisy(curve, seed, size=0.3):
    """Noise on the log-odds: a mean over many rows has little room left near 0 and 1, and keeps away from both."""
    odds = np.log(curve / (1 - curve)) + size * np.random.default_rng(seed).normal(size=len(curve))
    return 1 / (1 + np.exp(-odds))


HEALTHY = {
    "drop and bounce": 0.99 - 0.6 * np.exp(-(((STEPS - 1500) / 600) ** 2)),
    "slow fall": 0.995 - 0.5 * STEPS / 5000,
    "deep dip": 0.98 - 0.85 * np.exp(-(((STEPS - 1000) / 300) ** 2)),
    "broad from start to end": np.full(len(STEPS), 0.985),
    "uniform at first, then it learns": np.where(STEPS < 900, 0.9995, 0.6),
    "low plateau": 0.15 + 0.8 * np.exp(-STEPS / 500),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_curves_are_silent(name):
    assert not alerts(HEALTHY[name])
    for seed in range(20):
        assert not alerts(noisy(HEALTHY[name], seed)), seed


def test_collapse_rings_once_with_step_layer_and_numbers():
    curve = np.where(STEPS < 1000, 0.7, 0.01)
    (alert,) = alerts(curve)
    assert (alert.kind, alert.since, alert.step, alert.num_measurements) == (AlertKind.COLLAPSE, 1000, 1100, 3)
    assert alert.threshold == 0.05
    for part in ("collapsed at step 1100", "layer 0 (h.0.attn)", "0.06 nats", "1 % of its maximum", "below 5 %"):
        assert part in alert.message


def test_attention_that_goes_uniform_rings():
    (alert,) = alerts(np.where(STEPS < 1000, 0.7, 0.9999))
    assert (alert.kind, alert.since, alert.step) == (AlertKind.UNIFORM, 1000, 1100)
    assert "Attention is dead uniform at step 1100" in alert.message
    assert "99.99 % of its maximum, above 99.9 %" in alert.message


def test_attention_that_never_moves_rings_later():
    (alert,) = alerts(np.full(len(STEPS), 0.9999))
    assert (alert.kind, alert.since, alert.step) == (AlertKind.UNIFORM, 0, 19 * 50)


def test_a_layer_can_have_both_troubles_once_each():
    curve = np.concatenate([[0.5] * 5, [0.0] * 10, [0.5] * 5, [1.0] * 10, [0.5] * 5, [0.0] * 10, [1.0] * 10])
    assert [alert.kind for alert in alerts(curve)] == [AlertKind.COLLAPSE, AlertKind.UNIFORM]


def test_every_layer_has_its_own_alarm():
    bell = AlarmMonitor(Alarm(patience=1))
    rung = [bell.check(0, f"h.{i}", i, fraction=0.0, entropy=0.0) for i in range(3)]
    assert [(alert.site, alert.layer) for alert in rung] == [("h.0", 0), ("h.1", 1), ("h.2", 2)]


@given(
    curve=st.lists(st.floats(0, 1), max_size=60),
    patience=st.integers(1, 5),
)
def test_no_alarm_without_a_run_of_bad_measurements(curve, patience):
    """An alert names a run of values that all passed the threshold, as long as the patience demands."""
    for alert in alerts(curve, Alarm(patience=patience)):
        last = int(np.flatnonzero(STEPS == alert.step)[0])
        first = int(np.flatnonzero(STEPS == alert.since)[0])
        run = np.array(curve[first : last + 1])
        assert len(run) == alert.num_measurements >= patience
        assert (run < 0.05).all() if alert.kind is AlertKind.COLLAPSE else (run > 0.999).all()


def test_measurements_that_failed_neither_ring_nor_reset():
    curve = [0.5, 0.01, math.nan, 0.01, math.inf, 0.01]
    (alert,) = alerts(curve)
    assert alert.step == STEPS[5]


def test_thresholds_out_of_order_are_refused():
    with pytest.raises(ValueError, match=r"0 <= collapse < alive <= uniform <= 1, got 0\.5, 0\.4 and 0\.999"):
        Alarm(collapse=0.5, alive=0.4)
    with pytest.raises(ValueError, match="1 <= patience <= stuck, got 0 and 20"):
        Alarm(patience=0)
