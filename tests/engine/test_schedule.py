"""When to measure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.engine.config import TrainingConfig
from joma.engine.schedule import due_steps, next_due

SPACING = st.sampled_from(["linear", "log", "early"])


@given(steps=st.integers(1, 5000), every=st.integers(1, 700), spacing=SPACING)
def test_start_and_end_are_measured_and_steps_ascend(steps, every, spacing):
    due = due_steps(TrainingConfig(steps=steps, measure_every=every, measure_spacing=spacing), steps)
    assert (due[0], due[-1]) == (0, steps)
    assert (np.diff(due) > 0).all()


@given(steps=st.integers(1, 3000), more=st.integers(0, 3000), every=st.integers(1, 500), spacing=SPACING)
def test_a_longer_run_measures_where_the_shorter_one_did_but_for_its_end(steps, more, every, spacing):
    config = TrainingConfig(steps=steps, measure_every=every, measure_spacing=spacing)
    shorter, longer = due_steps(config, steps), due_steps(config, steps + more)
    assert shorter[:-1] == tuple(step for step in longer if step < steps)


def test_log_spacing_has_as_many_points_in_a_decade_as_asked_for():
    due = due_steps(TrainingConfig(steps=10**6, measure_every=10, measure_spacing="log"), 10**6)
    for decade in (100, 1000, 10_000):
        assert sum(decade <= step < 10 * decade for step in due) == 10


def test_early_spacing_is_close_at_first_and_never_wider_than_asked_for():
    due = np.array(due_steps(TrainingConfig(steps=58_560, measure_every=1000, measure_spacing="early"), 58_560))
    assert np.diff(due).max() <= 1000
    for decade in (10, 100):
        assert ((decade <= due) & (due < 10 * decade)).sum() == 10
    assert set(range(5000, 58_560, 1000)) <= set(due.tolist())
    assert len(due) < 100


@pytest.mark.parametrize(("step", "expected"), [(-1, 0), (0, 4), (3, 4), (4, 9), (9, None), (50, None)])
def test_next(step, expected):
    assert next_due((0, 4, 9), step) == expected
