"""Settings for the whole suite."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads: there are as many workers as cores already

import pytest

collect_ignore = [
    "engine/interpreted_triton.py",
    "engine/mortal_train.py",
    "measure/interpreted_triton.py",
    "models/interpreted_triton.py",
    "probe/mortal_scan.py",
    "probe/mortal_watch.py",
    "store/mortal.py",
]
"""Scripts that tests start in processes of their own: importing them here would change this one."""

try:
    from hypothesis import settings
except ModuleNotFoundError:
    pass  # a machine with a GPU may have little else: the tests that need no random cases run there all the same
else:
    # Deadlines measure the machine, not the mathematics; a fixed seed makes a failing run repeatable by anyone.
    settings.register_profile("joma", deadline=None, derandomize=True, max_examples=30)
    settings.load_profile("joma")


@pytest.fixture
def as_a_user_runs_it():
    """Switch the shape checker off, as it is outside the tests, so that joma's own input checks answer."""
    import jaxtyping  # noqa: PLC0415 (nothing else here needs it)

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def width_of_a_log(monkeypatch):
    """Let output be as wide as in a log, whatever width the test runner hands on."""
    monkeypatch.delenv("COLUMNS", raising=False)
