"""The generated documents are current."""

from pathlib import Path

import pytest

from joma.statements import documents
from joma.statements.verification import registry
from joma.verdicts import Outcome

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["theorems", "errata"])
def test_docs_are_what_the_registry_says(name):
    assert (DOCS / f"{name}.md").read_text(encoding="utf8") == getattr(documents, name)(), "run `make docs`"


def test_the_readme_counts_what_the_registry_holds():
    outcomes = [statement.outcome for statement in registry().values()]
    counts = [outcomes.count(outcome) for outcome in (Outcome.HOLDS, Outcome.CONDITIONAL, Outcome.REFUTED)]
    sentence = (
        "Of {} statements checked, {} hold as printed, {} hold under conditions that the paper does not state and {}"
    )
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf8").split())
    assert sentence.format(len(outcomes), *counts) in readme


def test_markdown_marks_in_formulas_are_escaped(tmp_path):
    documents.write(tmp_path)
    for line in (tmp_path / "errata.md").read_text(encoding="utf8").splitlines():
        if line.startswith("| ["):
            assert line.replace("\\|", "").count("|") == 5
