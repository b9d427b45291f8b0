"""The generated documents are current."""

import importlib
import pkgutil
from collections import Counter
from pathlib import Path

import pytest

from joma import theory
from joma.checks import documents
from joma.claims import Outcome, statements

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["theorems", "errata"])
def test_docs_are_what_statements_and_checks_say(name):
    assert (DOCS / f"{name}.md").read_text(encoding="utf8") == getattr(documents, name)(), "run `make docs`"


def test_functions_that_compute_a_statement_exist():
    modules = [importlib.import_module(f"joma.theory.{each.name}") for each in pkgutil.iter_modules(theory.__path__)]
    for statement in statements().values():
        for name in statement.computed_by:
            [first, *rest] = name.split(".")
            [home] = {getattr(module, first) for module in modules if hasattr(module, first)}
            assert not rest or hasattr(home, rest[0]), f"{statement.id}: {name}"


def test_the_page_on_the_theory_counts_what_the_file_holds():
    counts = Counter(statement.outcome for statement in statements().values() if not statement.ours)
    sentence = (
        "Of {} statements checked, {} hold as printed, {} hold under conditions that the paper does not state and {}"
    )
    numbers = [counts[outcome] for outcome in (Outcome.HOLDS, Outcome.CONDITIONAL, Outcome.WRONG)]
    page = " ".join((DOCS / "theory" / "index.md").read_text(encoding="utf8").split())
    assert sentence.format(counts.total(), *numbers) in page


def test_statements_of_our_own_hold():
    assert all(each.outcome is Outcome.HOLDS for each in statements().values() if each.ours)
