"""The precisions a grid can be trained in, and what each switches on while a step runs.

`tf32` rounds the factors of matrix products to 10 bits on a GPU; `bf16` takes them in bfloat16, and leaves gradients in
it, as autocast does; weights and moments are in fp32.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import torch

from joma.engine.config import Precision
from joma.errors import UnknownNameError


def parameter_dtype(precision: str) -> torch.dtype:
    """Dtype of parameters and moments."""
    if precision not in get_args(Precision):
        raise UnknownNameError("precision", precision, get_args(Precision))
    return torch.float64 if precision == "float64" else torch.float32


def product_dtype(precision: str) -> torch.dtype:
    """Dtype of the factors of matrix products, and of gradients."""
    return torch.bfloat16 if precision == "bf16" else parameter_dtype(precision)


@contextmanager
def working_in(precision: str, device: torch.device) -> Iterator[None]:
    """Switch products of float32 matrices to a precision, and back afterwards."""
    before = torch.get_float32_matmul_precision()
    kind = "cpu" if device.type == "meta" else device.type  # where shapes alone are counted, nothing is multiplied
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


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
def limited_threads(num: int | None = None) -> Iterator[None]:
    """Compute on a CPU with so many threads, by default those of OMP_NUM_THREADS, else one.

    Threads of one small product wait for each other at every step: on a busy machine that takes ten times as long as
    one thread alone. A fixed number also gives the same bits on every machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num or int(os.environ.get("OMP_NUM_THREADS") or 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
