"""The generated documents are current."""

from pathlib import Path

import pytest

from joma.statements import documents

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["theorems", "errata"])
def test_docs_are_what_the_registry_says(name):
    assert (DOCS / f"{name}.md").read_text(encoding="utf8") == getattr(documents, name)(), "run `make docs`"


def test_markdown_marks_in_formulas_are_escaped(tmp_path):
    documents.write(tmp_path)
    for line in (tmp_path / "errata.md").read_text(encoding="utf8").splitlines():
        if line.startswith("| ["):
            assert line.replace("\\|", "").count("|") == 5
