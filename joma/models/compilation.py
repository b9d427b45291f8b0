"""Compiling functions of tensors for a GPU, for as many shapes as a grid has."""

from collections.abc import Callable
from typing import Any

import torch

MOST_SHAPES = 1000
"""Settings and shapes that one process may compile a function for; torch stops at 8, and a grid has more."""


def compiled(
    function: Callable[..., Any], backend: str = "inductor", options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Return the function as one graph for each shape that it meets; where it cannot be one, that is an error.

    `options` are settings of Inductor.
    """
    limits = {"recompile_limit": MOST_SHAPES, "accumulated_recompile_limit": MOST_SHAPES}
    graph = torch.compile(function, dynamic=False, fullgraph=True, backend=backend, options=options)
    return torch._dynamo.config.patch(limits)(graph)
