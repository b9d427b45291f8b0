"""How many threads of the CPU an experiment takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """Run small models on one thread of the CPU: they gain nothing from more, and give the same numbers anywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
