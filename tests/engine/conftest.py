"""Settings for the tests of the engine."""

import pytest

from joma.runs import description


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    """Asking git for the commit is most of the time that opening a run takes."""
    monkeypatch.setattr(description, "_git_commit", lambda: None)
