"""When to measure, and when to raise an alarm."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.probe.alarm import Alarm, AlertKind, MetricCurve, alerts_of, forecast
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


@given(n=st.integers(1, 50), listed=st.frozensets(ANY_STEP, min_size=1), step=ANY_STEP)
def test_a_joined_schedule_is_due_when_any_part_is(n, listed, step):
    joined = Every(n) | At(listed) | Logarithmic()
    assert joined.due(step) == (Every(n).due(step) or step in listed or Logarithmic().due(step))


def test_reading_a_schedule():
    assert schedule_of(7) == Every(7)
    assert schedule_of("log") == Logarithmic()
    assert schedule_of(range(3)) == At(frozenset({0, 1, 2}))
    assert schedule_of(Every(3)) == Every(3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        *((each, "at least 1, got") for each in (0, -1, True)),
        ("linear", "in words is \"log\", got 'linear'"),
        ([], "at least one, got none"),
        ([3, -1], "from 0 on, at least one, got -1"),
    ],
    ids=str,
)
def test_what_is_no_schedule_is_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        schedule_of(bad)
    with pytest.raises(TypeError):
        Every(3) | 5


STEPS = np.arange(0, 5000, 50)


def curve(values, steps=STEPS):
    return MetricCurve(layer=0, steps=[int(step) for step in steps[: len(values)]], values=[float(v) for v in values])


def alerts(fractions, alarm=None, **others):
    """Raise the alarm after every measurement, each kind once, as a watch does."""
    heard, grown = {}, {("h.0", "entropy_fraction", -1): MetricCurve(layer=0)}
    given = {("h.0", "entropy_fraction", -1): fractions}
    given |= {("", name, -1) if name == "loss" else ("h.0", name, -1): values for name, values in others.items()}
    for i, step in enumerate(STEPS[: len(fractions)]):
        for key, values in given.items():
            grown.setdefault(key, MetricCurve(layer=0)).add(int(step), float(values[i]))
        for alert in alerts_of(grown, alarm or Alarm()):
            if alert.step == step:
                heard.setdefault(alert.kind, alert)
    return list(heard.values())


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


def test_attention_that_is_uniform_long_after_the_loss_has_fallen_rings():
    uniform, rng = np.full(len(STEPS), 0.9997), np.random.default_rng(0)
    loss = np.where(STEPS < 500, 10.0, 5.0)
    (alert,) = alerts(uniform, loss=loss)
    assert (alert.kind, alert.since, alert.step) == (AlertKind.STILL_UNIFORM, 0, 2000)
    assert not alerts(np.where(STEPS < 1900, 0.9997, 0.9), loss=loss)
    slow = 10.8 * np.exp(-STEPS / 20000) + 0.05 * rng.normal(size=len(STEPS))  # falls by a fifth
    assert not alerts(uniform, loss=slow)
    assert not alerts(uniform)  # nothing is known of the loss


@pytest.mark.parametrize(("bad", "kind"), [(0.01, AlertKind.COLLAPSE), (0.9999, AlertKind.UNIFORM)])
def test_collapse_and_uniform_attention_ring_once_with_step_layer_and_numbers(bad, kind):
    (alert,) = alerts(np.where(STEPS < 1000, 0.7, bad))
    assert (alert.kind, alert.since, alert.step, alert.layer, alert.value) == (kind, 1000, 1100, 0, bad)
    for part in ("1,100", "1,000", "ayer 0 (h.0)"):
        assert part in alert.message


@given(values=st.lists(st.floats(0, 1), max_size=60), patience=st.integers(1, 5))
def test_no_alarm_without_a_run_of_bad_measurements(values, patience):
    """An alert names a run of values that all passed the threshold, as long as the patience demands."""
    for alert in alerts(values, Alarm(patience=patience)):
        last, first = (int(np.flatnonzero(STEPS == step)[0]) for step in (alert.step, alert.since))
        run = np.array(values[first : last + 1])
        assert len(run) >= patience
        assert (run < 0.05).all() if alert.kind is AlertKind.COLLAPSE else (run > 0.999).all()


def test_measurements_that_failed_neither_ring_nor_reset():
    (alert,) = alerts([0.5, 0.01, math.nan, 0.01, math.inf, 0.01])
    assert alert.step == STEPS[5]


GROWTH = {
    "linear": lambda t: 20 + 0.016 * t,  # reaches 100 at step 5000
    "exponential": lambda t: 10 * np.exp(np.log(10) * t / 5000),
    "quadratic": lambda t: 10 + 90 * (t / 5000) ** 2,
}


@pytest.mark.parametrize("name", GROWTH)
def test_growing_logits_are_forecast_and_the_interval_holds_the_step(name):
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(40):
        logits = GROWTH[name](STEPS) * np.exp(0.01 * rng.normal(size=len(STEPS)))
        alert = next(each for each in alerts(np.full(len(STEPS), 0.7), max_logit=logits))
        assert alert.kind is AlertKind.GROWING_LOGITS and alert.step < 4600  # well before
        hits.append(alert.forecast.low <= 5000 <= alert.forecast.high)
    assert np.mean(hits) >= 0.8


def test_fast_growth_is_warned_of_early_and_settings_widen_the_interval():
    alarms = Alarm(logit_faster=1.0, logit_slower=1.0), Alarm(), Alarm(logit_faster=4.0, logit_slower=8.0)
    found = [alerts(np.full(len(STEPS), 0.7), alarm, max_logit=5 * np.exp(STEPS / 500))[0] for alarm in alarms]
    assert all(each.kind is AlertKind.GROWING_LOGITS and 20 < each.value < 30 for each in found)
    exact, usual, wide = (each.forecast for each in found)
    assert usual.low < 500 * np.log(20) < usual.high
    assert wide.low < usual.low < exact.low and exact.high < usual.high < wide.high


def test_a_forecast_is_exact_without_noise_and_wider_with_it():
    line = 20 + 0.016 * STEPS[:20]
    noisy_line = line + np.random.default_rng(0).normal(size=20)
    exact, wide = (forecast(curve(values), 100.0, points=8) for values in (line, noisy_line))
    assert exact.high == pytest.approx(5000)
    assert wide.high - wide.low > exact.high - exact.low
    assert forecast(curve(line[::-1]), 100.0, points=8) is None
    assert forecast(curve(line[:3]), 100.0, points=8) is None


@pytest.mark.parametrize(
    "logits",
    [
        15 + 10 * np.tanh(STEPS / 1000),  # grows and stops
        8 + 0.002 * STEPS,  # slow
        40 + 0.0 * STEPS,  # large and steady
    ],
)
def test_healthy_logits_are_silent(logits):
    rng = np.random.default_rng(1)
    for _ in range(20):
        assert not alerts(np.full(len(STEPS), 0.7), max_logit=logits * np.exp(0.03 * rng.normal(size=len(STEPS))))


def test_logits_above_the_bound_and_a_gradient_that_fell_to_rank_1_ring():
    (alert,) = alerts(np.full(6, 0.7), max_logit=[10, 10, 500, 500, 500, 500])
    assert (alert.kind, alert.since) == (AlertKind.LARGE_LOGITS, STEPS[2])
    (alert,) = alerts(np.full(len(STEPS), 0.7), gradient_stable_rank=np.where(STEPS < 500, 3.0, 1.001))
    assert (alert.kind, alert.since) == (AlertKind.GRADIENT, 500)
    assert not alerts(np.full(len(STEPS), 0.7), gradient_stable_rank=np.full(len(STEPS), 1.001))


def of_heads(fractions, logits):
    """Curves of a layer and its heads (heads, points)."""
    curves = {("h.0", "entropy_fraction", -1): curve(np.mean(fractions, axis=0))}
    for head, (fraction, logit) in enumerate(zip(fractions, logits, strict=True)):
        curves["h.0", "entropy_fraction", head] = curve(fraction)
        curves["h.0", "max_logit", head] = curve(logit)
    return curves


def test_dead_and_duplicated_heads_are_named():
    rng = np.random.default_rng(0)
    fractions, logits = 0.5 + 0.3 * rng.random((4, 20)), 5 + rng.random((4, 20))
    assert not list(alerts_of(of_heads(fractions, logits), Alarm()))
    fractions[2, 10:] = 0.9999
    fractions[3], logits[3] = fractions[1], logits[1]
    found = {alert.kind: alert.heads for alert in alerts_of(of_heads(fractions, logits), Alarm())}
    assert found == {AlertKind.DEAD_HEADS: (2,), AlertKind.SAME_HEADS: (1, 3)}
    same = np.tile(0.9995 - 1e-7 * rng.random(20), (4, 1))  # as all heads are in a fresh model
    assert not list(alerts_of(of_heads(same, logits), Alarm()))


def test_long_curves_are_thinned_and_keep_their_ends():
    long = MetricCurve(layer=0)
    for step in range(5000):
        long.add(step, float(step))
    assert len(long.steps) <= 512 and long.steps[0] == 0
    assert long.steps[-200:] == list(range(4800, 5000)) and long.steps == sorted(set(long.steps))


def test_thresholds_out_of_order_are_refused():
    for settings, message in (
        ({"collapse": 0.5, "alive": 0.4}, r"alive <= uniform <= 1, got collapse=0\.5, alive=0\.4, uniform=0"),
        ({"logit_slower": 0.5}, r"logit_slower >= 1, got logit_faster=2\.0, logit_slower=0\.5"),
        ({"patience": 0}, "patience >= 1 and logit_points >= 4, got patience=0, logit_points=8"),
    ):
        with pytest.raises(ValueError, match=message):
            Alarm(**settings)
