"""python-docs: what documents hold, which part they go to, and how much text that is."""

import ast
import io
import sys
import tokenize
from pathlib import Path

import pytest

from joma.data.python_docs import (
    PythonDocs,
    decode_source,
    library_files,
    library_folder,
    part_of,
    read_prose,
    read_topics,
)

SOURCE = '''#!/usr/bin/env python
"""A module."""
x = "# no comment"  # a comment
class A:
    """A class."""
    def f(self):
        r\'\'\'A function,
        on two lines.\'\'\'
        return \'\'\'# no docstring\'\'\'  ## "quoted"
try:
    pass
except ValueError:
    def g(): "In a handler."
#
'''


def make_library(folder: Path) -> Path:
    """A small library: a package, modules, topics, and what does not belong to it."""
    for name, content in {
        "package/__init__.py": '"""In a package."""',
        "package/tests/test_it.py": '"""A test."""',
        "site-packages/other.py": '"""Installed."""',
        "pydoc_data/topics.py": "topics = {'b': 'topic b', 'a': 'topic ' 'a'}",
        **{f"module{i}.py": f"# module {i}" for i in range(40)},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def documents(folder: Path) -> dict[str, list[str]]:
    docs = PythonDocs(folder)
    return {split: list(docs.blocks(split)) for split in ("train", "valid", "test")}


def test_prose_is_docstrings_and_comments_in_order():
    assert read_prose(SOURCE).split("\n") == [
        "!/usr/bin/env python",
        "A module.",
        "a comment",
        "A class.",
        "A function,",
        "on two lines.",
        '"quoted"',
        "In a handler.",
    ]


@pytest.mark.parametrize("name", ["_pydecimal.py", "string.py"])
def test_comments_are_those_of_the_tokenizer(name):
    source = decode_source((library_folder() / name).read_bytes())
    words = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [word.string.strip("# \t") for word in words if word.type == tokenize.COMMENT]
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node))
        for line in text.split("\n")
    }
    found = read_prose(source).split("\n")
    assert [line for line in found if line not in docstrings] == [c for c in comments if c and c not in docstrings]


def test_every_document_is_in_one_part_and_packages_in_training(tmp_path):
    parts = documents(make_library(tmp_path))
    everything = [document for part in parts.values() for document in part]
    assert sorted(everything) == sorted(
        ["", "In a package.", "topic a", "topic b", *(f"module {i}" for i in range(40))]  # "" is the file of topics
    )
    assert "In a package." in parts["train"]
    assert all(parts.values())


def test_documents_stay_in_their_part_and_order_when_others_come(tmp_path):
    before = documents(make_library(tmp_path))
    (tmp_path / "module00.py").write_text("# newcomer")
    after = documents(tmp_path)
    assert {split: [d for d in part if d != "newcomer"] for split, part in after.items()} == before


def test_the_digest_follows_content_and_names(tmp_path):
    make_library(tmp_path)
    digests = [PythonDocs(tmp_path).digest(), PythonDocs(tmp_path).digest()]
    (tmp_path / "module3.py").write_text("# changed")
    digests.append(PythonDocs(tmp_path).digest())
    (tmp_path / "module3.py").rename(tmp_path / "module03.py")
    digests.append(PythonDocs(tmp_path).digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_nothing_is_run(tmp_path):
    (make_library(tmp_path) / "module1.py").write_text("raise SystemExit  # read, not run")
    assert "read, not run" in [text for part in documents(tmp_path).values() for text in part]
    assert read_topics("topics = {'a': 'b'}\nraise SystemExit") == {"a": "b"}


def test_parts_are_dealt_by_name():
    # Golden: a change here would move text from validation into training.
    names = ("argparse.py", "ast.py", "typing.py", "assert", "yield")
    assert [part_of(name) for name in names] == ["valid", "train", "train", "valid", "test"]


def test_the_library_is_the_interpreters_own():
    names = list(library_files())
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert {name.split("/")[0].removesuffix(".py") for name in names} <= sys.stdlib_module_names
    assert not [name for name in names if "site-packages" in name or "/test/" in name or "/tests/" in name]
