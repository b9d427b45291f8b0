"""Settings for the tests of the engine."""

import pytest
import torch

from joma.runs import description


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    """Asking git for the commit is most of the time that opening a run takes."""
    monkeypatch.setattr(description, "_git_commit", lambda: None)
