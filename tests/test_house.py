"""The house rules that no linter holds: lightness of imports, names, one symbol table."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import joma

ROOT = Path(__file__).parents[1]
TESTED_WITH = {"flows": "simulation"} | dict.fromkeys(("layer", "learned_embeddings", "superposition"), "api")
TESTED_WITH |= dict.fromkeys(("from_counts", "kept_term", "layer_order"), "beyond_eqn6")
"""Modules that are tested with others: by their statements, and there what the statements leave open."""


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_joma_loads_nothing_heavy():
    assert not modules_after("import joma") & {"torch", "numpy", "scipy", "pandas", "altair", "pydantic"}


def test_the_command_line_is_there_without_torch():
    assert "torch" not in modules_after("import joma.cli")


def test_the_theory_never_imports_torch():
    every = "; ".join(f"import joma.theory.{path.stem}" for path in sorted((ROOT / "joma/theory").glob("[a-z]*.py")))
    assert not modules_after(every) & {"torch", "pandas", "altair", "pydantic", "typer"}


def test_verbs_are_listed_and_found():
    for verb in joma.__all__:
        assert verb in dir(joma)
        assert callable(getattr(joma, verb))


def test_tests_mirror_the_house():
    for path in sorted((ROOT / "joma/theory").glob("[a-z]*.py")):
        home = TESTED_WITH.get(path.stem, path.stem)
        assert (ROOT / "tests/theory" / f"test_{home}.py").exists(), f"{path.name} has no test file"


def test_no_class_name_is_used_twice():
    names = Counter(
        node.name
        for path in (ROOT / "joma").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
