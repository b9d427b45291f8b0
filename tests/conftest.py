"""Settings for the whole suite."""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads: there are as many workers as cores already

import pytest

collect_ignore = [
    "engine/interpreted_triton.py",
    "measure/interpreted_triton.py",
    "models/interpreted_triton.py",
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


@pytest.fixture
def answer_of(request):
    """A function that runs a script of the test's folder in a process of its own, and returns the JSON it prints."""

    def run(script, *options, **variables):
        command = [sys.executable, *options, request.path.with_name(script)]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout or "null")

    return run


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of three workers, each of which takes itself for a machine of its own; started once."""
    ray = pytest.importorskip("ray")
    paths = [str(Path(__file__).parent / "tasks"), os.environ.get("PYTHONPATH", "")]

    def be_a_host():
        from joma.store import lock  # noqa: PLC0415 (in the worker)

        lock._host = lambda: f"host{os.getpid()}"

    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}, "worker_process_setup_hook": be_a_host}
    ray.init(
        num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=2**27, runtime_env=environment
    )
    yield ray
    ray.shutdown()


@pytest.fixture(autouse=True)
def width_of_a_log(monkeypatch):
    """Let output be as wide as in a log, whatever width the test runner hands on."""
    monkeypatch.delenv("COLUMNS", raising=False)
