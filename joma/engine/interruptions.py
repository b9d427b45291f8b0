"""Ctrl-C as a question that is asked between steps, so that no step is torn."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C was pressed; a second one does not wait to be asked for.

    One that came behind the last question is raised at the end, so that whatever would come next is not begun.
    """
    asked = threading.Event()
    before: Any = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and before is signal.default_int_handler

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if is_ours:
        signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt
