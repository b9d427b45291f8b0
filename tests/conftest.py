"""Settings for the whole suite."""

import jaxtyping
import pytest
from hypothesis import settings

collect_ignore = ["measure/interpreted_triton.py"]
"""Started by a test in a process of its own, with Triton's interpreter on."""

# Deadlines measure the machine, not the mathematics; a fixed seed makes a failing run repeatable by anyone.
settings.register_profile("joma", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("joma")


@pytest.fixture
def as_a_user_runs_it():
    """Switch the shape checker off, as it is outside the tests, so that joma's own input checks answer."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
