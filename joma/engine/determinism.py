"""A step that adds in the same order every time, on a GPU too: so a run that fails changes no bit of its neighbours.

Most of it is in how the models are written. What is left are kernels of libraries that are fast in any order or slow in
one: which are used is a switch of torch's, for the whole process, that is on while a step is compiled and captured.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC = (":16:8", ":4096:8")
"""Values of it with which cuBLAS takes products in one order."""
WORKSPACES = {CUBLAS: ":16:8", "CUBLASLT_WORKSPACE_SIZE": "128"}
"""Room that cuBLAS has for parts of a product, 128 KiB: the smaller of the two.

A product that is divided to keep a GPU busy needs more. So a step has no second passes that add such parts up, and as
many kernels for one run as for many."""

for _name, _size in WORKSPACES.items():  # here: they are read when a process takes its first product
    os.environ.setdefault(_name, _size)


@contextmanager
def in_one_order(device: torch.device) -> Iterator[None]:
    """Let kernels that would add in any order be replaced; on a CPU there are none.

    Where torch has no other it raises an error, which is so for nothing that a decoder does. It would warn instead, and
    leave attention over long windows as it is, where a user gives cuBLAS a room with which that is not deterministic.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    is_filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=os.environ[CUBLAS] not in DETERMINISTIC)
    memory.fill_uninitialized_memory = False  # everything that is read has been written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = is_filled
