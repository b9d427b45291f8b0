"""The precisions a grid can be trained in, and what each switches on while a step runs.

`tf32` rounds the factors of matrix products to 10 bits on a GPU; `bf16` takes them in bfloat16, and leaves gradients in
it, as autocast does; weights and moments are in fp32.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from joma.engine.config import PRECISIONS
from joma.errors import UnknownNameError


def parameter_dtype(precision: str) -> torch.dtype:
    """Dtype of parameters and moments."""
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
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
