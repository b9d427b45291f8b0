"""A trained series for all tests of the scan, made once, a hub to serve it from, and measures that are forgotten."""

import shutil

import pytest
from loopback_hub import REPOSITORY, LoopbackHub
from states import walk

from joma.probe.measures import forget_measure, register_measure


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a small GPT-NeoX's checkpoints, to be read only."""
    from trained_series import train_series  # noqa: PLC0415 (loads the Trainer)

    return train_series(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def text(tmp_path):
    """A file of plain text."""
    from trained_series import TEXT  # noqa: PLC0415 (as above)

    path = tmp_path / "text.txt"
    path.write_text(TEXT[:2000])
    return path


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    """Asking git for the commit is most of the time that opening a record takes."""
    monkeypatch.setattr("joma.store.record.git_commit", lambda: None)


@pytest.fixture
def state():
    """The tensors of a tiny transformer."""
    return walk(1)[0]


@pytest.fixture
def series(trained, tmp_path):
    """A copy of the trained series, to be spoilt."""
    return shutil.copytree(trained, tmp_path / "series")


@pytest.fixture
def hub_at(monkeypatch, tmp_path):
    """Point the client at an address, with a cache of its own."""
    import huggingface_hub.constants  # noqa: PLC0415 (an extra, which the tests of other things do without)

    def point(url):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))

    return point


@pytest.fixture
def serve(hub_at):
    """Serve folders as revisions until the test ends."""
    import huggingface_hub  # noqa: PLC0415 (as above)

    running = []

    def start(revisions, **settings):
        context = LoopbackHub(REPOSITORY, revisions, **settings).running()
        hub = context.__enter__()
        running.append(context)
        hub_at(hub.url)
        return hub

    yield start
    getattr(huggingface_hub, "close_session", lambda: None)()  # versions before 1.0 keep none
    for context in running:
        context.__exit__(None, None, None)


@pytest.fixture
def measure():
    """Register measures for one test."""
    names = []

    def register(name, function, **settings):
        register_measure(name, function, **settings)
        names.append(name)

    yield register
    for name in names:
        forget_measure(name)
