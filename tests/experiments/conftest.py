"""A registry that holds what a test puts there."""

import sys
from copy import deepcopy

import pytest

from experiments import fakes
from joma.experiments import registry


@pytest.fixture
def install(monkeypatch):
    """A function that makes the registry hold the experiments given, and them alone, until the test ends."""
    modules, seconds = dict(registry.MODULES), deepcopy(registry.SECONDS)
    monkeypatch.setattr("joma.store.record.git_commit", lambda: None)
    yield lambda *experiments: fakes.install(list(experiments))
    for module in [name for name in sys.modules if name.startswith("joma.experiments.fake_")]:
        del sys.modules[module]
    registry.MODULES.clear()
    registry.MODULES.update(modules)
    registry.SECONDS.clear()
    registry.SECONDS.update(seconds)
