"""Settings for the tests of the engine."""

import signal

import pytest


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    """Asking git for the commit is most of the time that opening a run takes."""
    monkeypatch.setattr("joma.store.record.git_commit", lambda: None)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """A cache of the tests' own."""
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def heeding_ctrl_c():
    """Ctrl-C as Python starts with it, also where the tests run in the background and shells have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
