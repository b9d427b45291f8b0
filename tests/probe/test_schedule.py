"""Schedules are pure functions of the step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.probe.schedule import At, Every, Logarithmic, schedule_of

STEPS = st.integers(min_value=0, max_value=10**9)


def due_steps(schedule, stop):
    return [step for step in range(stop) if schedule.due(step)]


@given(n=st.integers(1, 1000), step=STEPS)
def test_every_n_is_periodic_and_starts_at_zero(n, step):
    schedule = Every(n)
    assert schedule.due(0)
    assert schedule.due(step) == schedule.due(step + n)
    assert sum(schedule.due(step + i) for i in range(n)) == 1


@given(step=STEPS)
def test_logarithmic_looks_the_same_in_every_decade(step):
    schedule = Logarithmic()
    assert schedule.due(10 * step) == schedule.due(step)
    assert not schedule.due(10 * step + 3) or step == 0


def test_logarithmic_goes_1_2_5():
    assert due_steps(Logarithmic(), 2001) == [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    assert due_steps(Logarithmic(points=(1, 3)), 31) == [0, 1, 3, 10, 30]


@given(n=st.integers(1, 50), listed=st.frozensets(STEPS, min_size=1), step=STEPS)
def test_a_joined_schedule_is_due_when_any_part_is(n, listed, step):
    joined = Every(n) | At(listed) | Logarithmic()
    assert joined.due(step) == (Every(n).due(step) or step in listed or Logarithmic().due(step))


def test_reading_a_schedule():
    assert schedule_of(7) == Every(7)
    assert schedule_of("log") == Logarithmic()
    assert schedule_of(range(3)) == At(frozenset({0, 1, 2}))
    assert schedule_of(Every(3)) == Every(3)


def test_schedules_in_words():
    assert str(Every(1) | Every(100)) == "every step, every 100 steps"
    assert str(Logarithmic()) == "steps 0, 1, 2, 5, 10 and so on"
    assert str(schedule_of([3, 1])) == "steps 1, 3"
    assert str(schedule_of(range(20))) == "steps 0, 1, 2, 3, 4, 5 to 19"


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
