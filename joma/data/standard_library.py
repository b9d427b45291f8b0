"""The Python sources of the running interpreter's own standard library, without tests and without what is installed.

Nothing is imported: files are found, read and decoded as the interpreter would.
"""

import io
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TESTS = {"test", "tests", "idle_test", "__pycache__"}
"""Folders that are left out; those whose name is no identifier, such as site-packages, are no packages anyway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A Python file of the library."""

    path: Path
    name: str
    """Path below the library's folder, with forward slashes."""

    @property
    def is_in_package(self) -> bool:
        """Whether the file belongs to a package, and is not a module by itself."""
        return "/" in self.name


def library_folder() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def library_files(folder: Path | None = None) -> list[SourceFile]:
    """Return the library's own Python files, sorted by name; `folder` takes the place of the library's."""
    root = library_folder() if folder is None else folder
    named = {path.relative_to(root).as_posix(): path for path in _python_files(root)}
    own = {
        name: path
        for name, path in named.items()
        if folder is not None or name.split("/")[0].removesuffix(".py") in sys.stdlib_module_names
    }
    return [SourceFile(path=own[name], name=name) for name in sorted(own)]


def decode_source(content: bytes) -> str:
    r"""Decode Python source by its own declaration of encoding, with line ends as \n; SyntaxError if it has none."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return io.TextIOWrapper(io.BytesIO(content), encoding).read()


def _python_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name.isidentifier() and name not in _TESTS]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))
