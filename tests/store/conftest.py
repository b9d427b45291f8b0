"""Settings for the tests of the store."""

import pytest


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    """Asking git for the commit is most of the time that opening a run takes."""
    monkeypatch.setattr("joma.store.record.git_commit", lambda: None)
