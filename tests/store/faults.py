"""Failing, or dying, at the n-th operation on the disk that the record makes."""

import builtins
import errno
import os
import re
import signal
from collections.abc import Callable
from typing import Any

from joma.store import files

OPERATIONS = ("fsync", "replace", "unlink")


def die(operation: str) -> None:
    """End the process by kill -9: nothing is flushed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """While it is entered, the operation number `at` fails with `code`, or calls `then`; all are noted in `trace`.

    A write that fails has written half of its content. Removing a file that is not there is no operation.
    """

    def __init__(self, at: int, code: int = errno.EIO, then: Callable[[str], None] | None = None) -> None:
        """Wait for operation number `at`; 0 never comes."""
        self.at = at
        self.trace: list[str] = []
        self.kinds: list[str] = []
        """The same operations, each with the kind of file that it concerns."""
        self._kind = ""
        self._then = then or self._fail
        self._code = code
        self._real: dict[str, Any] = {}

    def __enter__(self) -> "Faults":
        self._real = {name: getattr(os, name) for name in OPERATIONS}
        for name, real in self._real.items():
            setattr(os, name, self._counted(name, real))
        files.open = self._open  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        del files.open  # type: ignore[attr-defined]

    def count(self, operation: str) -> None:
        self.trace.append(operation)
        self.kinds.append(f"{operation} {self._kind}")
        if len(self.trace) == self.at:
            self._then(operation)

    def _note(self, path: Any) -> None:
        """Keep folder and name of a file, without numbers and what hides it."""
        self._kind = re.sub(r"\.[0-9a-f]{8}\.part$|\d|^.*/(?=[^/]*/[^/]*$)", "", str(path)).replace("/.", "/")

    def _fail(self, operation: str) -> None:
        raise OSError(self._code, os.strerror(self._code), operation)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name in ("replace", "unlink"):
                self._note(args[-1])
            if name != "unlink" or os.path.exists(args[0]):
                self.count(name)
            return None if name == "fsync" else real(*args, **kwargs)  # what is written survives a process

        return call

    def _open(self, *args: Any, **kwargs: Any) -> "_File":
        self._note(args[0])
        self.count("open")
        return _File(builtins.open(*args, **kwargs), self)


class _File:
    """A file whose writes and flushes are counted."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: bytes) -> None:
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        self._faults.count("write")
        self._file.write(content[len(content) // 2 :])

    def flush(self) -> None:
        self._faults.count("flush")
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()
