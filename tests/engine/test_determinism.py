"""One order of sums: torch's switch is on for a step on a GPU alone, and what a user has set is left as it was."""

import os
import subprocess
import sys

import pytest
import torch

from joma.engine.precision import CUBLAS, WORKSPACES, in_one_order


def switches():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.fixture(params=[False, True], ids=["off", "strict"])
def before(request):
    """What was set before a step, one of two ways."""
    default = switches()
    torch.use_deterministic_algorithms(request.param)
    yield switches()
    torch.use_deterministic_algorithms(default[0], warn_only=default[1])


@pytest.mark.parametrize(("room", "is_warned"), [(":16:8", False), (":4096:8", False), (":4096:2:16:8", True)])
def test_the_switch_is_on_for_a_step_on_a_gpu_alone(before, monkeypatch, room, is_warned):
    monkeypatch.setenv(CUBLAS, room)
    with in_one_order(torch.device("cpu")):
        assert switches() == before
    with in_one_order(torch.device("cuda")):
        assert switches() == (True, is_warned, False)
    assert switches() == before


def test_the_switch_goes_back_when_a_step_fails(before):
    with pytest.raises(RuntimeError, match="out of memory"), in_one_order(torch.device("cuda")):
        raise RuntimeError("out of memory")
    assert switches() == before


@pytest.mark.parametrize("own", [{}, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}], ids=["nothing set", "set by a user"])
def test_the_room_of_cublas_is_set_unless_a_user_has_set_it(own):
    code = f"import os, joma.engine.step; print(*(os.environ[name] for name in {list(WORKSPACES)}))"
    bare = {name: value for name, value in os.environ.items() if name not in WORKSPACES}
    done = subprocess.run([sys.executable, "-c", code], env=bare | own, capture_output=True, text=True, check=True)
    assert done.stdout.split() == list((WORKSPACES | own).values())


def test_watching_a_training_of_ones_own_leaves_cublas_alone():
    code = "import sys, joma; joma.watch, joma.scan, joma.stable_rank; print('joma.engine.precision' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
