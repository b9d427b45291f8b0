"""Pages that several test files read."""

from pathlib import Path

import pytest

from joma.page.report import report


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """The kept results on pages."""
    return report(Path(__file__).parents[2] / "results", out=tmp_path_factory.mktemp("kept")).parent
