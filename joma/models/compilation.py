"""Compiling functions of tensors for a GPU, for as many shapes as a grid has."""

from collections.abc import Callable
from typing import Any

import torch

MOST_SHAPES = 1000
"""Settings and shapes that one process may compile a function for; torch stops at 8, and a grid has more."""
AS_WRITTEN: dict[str, Any] = {"shape_padding": False, "comprehensive_padding": False, "pattern_matcher": False}
"""Settings of Inductor that leave shapes, strides and products as they are, whatever the number of runs. It would pad
shapes by what a timing says, pad strides, which costs a copy wherever something needs them dense, and take the product
of a single run for another operation: a quarter more kernels in a block, and not as many for one run as for sixteen."""


def compiled(function: Callable[..., Any], backend: str = "inductor") -> Callable[..., Any]:
    """Return the function as one graph for each shape that it meets; where it cannot be one, that is an error."""
    limits = {"recompile_limit": MOST_SHAPES, "accumulated_recompile_limit": MOST_SHAPES}
    options = AS_WRITTEN if backend == "inductor" else None
    graph = torch.compile(function, dynamic=False, fullgraph=True, backend=backend, options=options)
    return torch._dynamo.config.patch(limits)(graph)
