"""`python-docs`: the documentation that every Python installation carries, as a text that needs no network.

Documents are the interpreter's help topics and, for every module of its standard library, the docstrings and comments
in their order: about 640,000 words. Packages are training text as a whole, for their modules resemble each other (the
tables of `encodings` above all); single modules and topics are dealt out by a hash of their name, so that a document
stays in its part when others come or go.
"""

import ast
import io
import os
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from joma.data.cache import digest, digest_of_file

_TESTS = {"test", "tests", "idle_test", "__pycache__"}
"""Folders that are left out; those whose name is no identifier, such as site-packages, are no packages anyway."""


def library_folder() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def library_files(folder: Path | None = None) -> dict[str, Path]:
    """Return the library's own Python files by name, sorted; `folder` takes the place of the library's.

    A name is the path below the folder, with forward slashes: those of packages have one.
    """
    root = library_folder() if folder is None else folder
    found = {}
    for place, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name.isidentifier() and name not in _TESTS]
        for path in (Path(place, file) for file in files if file.endswith(".py")):
            name = path.relative_to(root).as_posix()
            if folder is not None or name.split("/")[0].removesuffix(".py") in sys.stdlib_module_names:
                found[name] = path
    return dict(sorted(found.items()))


def decode_source(content: bytes) -> str:
    r"""Decode Python source by its own declaration of encoding, with line ends as \n; SyntaxError if it has none."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return io.TextIOWrapper(io.BytesIO(content), encoding).read()


def parse_quietly(source: str) -> ast.Module:
    """Parse Python source without the warnings of escapes that later versions refuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


TOPICS = "pydoc_data/topics.py"
"""File with the help topics, one dictionary of strings."""
_DEAL = (*("valid",) * 2, *("test",) * 2, *("train",) * 6)
"""Parts of ten single modules or topics: a twelfth each of all words is held out, as packages stay in training."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NESTING = (ast.stmt, ast.excepthandler, ast.match_case)
_LEXEMES = re.compile(
    r"""
    (?: \"{3} (?: [^"\\] | \\. | "(?!"") )* \"{3}  # strings come first: a # inside one begins no comment
      | '{3}  (?: [^'\\] | \\. | '(?!'') )* '{3}
      | "     (?: [^"\\\n] | \\. )* "
      | '     (?: [^'\\\n] | \\. )* '
    )
    | \# (?P<comment> [^\n]* )
    """,
    re.DOTALL | re.VERBOSE,
)


class PythonDocs:
    """The documents of a standard library, read where they are asked for."""

    name = "python-docs"

    def __init__(self, folder: Path | None = None) -> None:
        """Take the running interpreter's library, or the one in `folder`."""
        self._files = library_files(folder)
        if not self._files:
            raise FileNotFoundError(
                "python-docs needs the Python files of the standard library, and this interpreter comes without them. "
                "Pass a folder of train, valid and test files."
            )

    def digest(self) -> str:
        """Return a hash of all files that documents are read from."""
        return digest(*(part for name, path in self._files.items() for part in (name, digest_of_file(path))))

    def blocks(self, split: str) -> Iterator[str]:
        """Return the documents of one part, topics first, each kind sorted by name."""
        if TOPICS in self._files:
            topics = read_topics(decode_source(self._files[TOPICS].read_bytes()))
            yield from (topics[name] for name in sorted(topics) if part_of(name) == split)
        for name, path in self._files.items():
            if split == part_of(name):
                yield read_prose(decode_source(path.read_bytes()))


def part_of(name: str) -> str:
    """Return the part that a file or topic belongs to, a function of its name alone: packages are training text."""
    number = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    return "train" if "/" in name else _DEAL[number % len(_DEAL)]


def read_prose(source: str) -> str:
    r"""Return the docstrings and comments of Python source in their order.

    >>> read_prose('def f():\n    "Add one."\n    return 1  # the #1\n')
    'Add one.\nthe #1'
    """
    pieces = [*_docstrings(source), *_comments(source)]
    return "\n".join(text for _, text in sorted(pieces, key=lambda piece: piece[0]))


def read_topics(source: str) -> dict[str, str]:
    """Return the dictionary of strings that Python source assigns, without running it."""
    dictionaries = (node.value for node in parse_quietly(source).body if isinstance(node, ast.Assign))
    return next(ast.literal_eval(value) for value in dictionaries if isinstance(value, ast.Dict))


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Return the docstrings of a module and all classes and functions in it, with their lines."""
    waiting: list[ast.AST] = [parse_quietly(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
        # no docstring lies below an expression, and most nodes are expressions
        waiting.extend(c for c in ast.iter_child_nodes(node) if isinstance(c, _NESTING))


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Return the comments with their lines; ten times as fast as the tokenizer of the standard library."""
    line, counted = 1, 0
    for match in _LEXEMES.finditer(source):
        if (comment := match["comment"]) is not None:
            line += source.count("\n", counted, match.start())
            counted = match.start()
            if text := comment.strip("# \t"):
                yield line, text
