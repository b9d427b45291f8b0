"""What every measure asks of its input: finite tensors, and columns that vary."""

import torch
from jaxtyping import Int, Real
from torch import Tensor


def finite_tensor(name: str, value: Tensor) -> Tensor:
    """Return `value` detached, refusing NaN and infinity.

    >>> finite_tensor("h", torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
        ...
    ValueError: `h` must be finite, got nan at index (1,). Remove or replace that entry.
    """
    value = value.detach()
    bad = ~torch.isfinite(value)
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        found = value[index].item()
        raise ValueError(f"`{name}` must be finite, got {found} at index {index}. Remove or replace that entry.")
    return value


def varying(values: Real[Tensor, "N c"], tolerance: float = 0.0) -> Int[Tensor, " kept"]:
    """Return the columns that are not one value throughout, up to a tolerance.

    By default exactly, so that small activations are not taken for none.

    >>> varying(torch.tensor([[1e-30, 5.0], [2e-30, 5.0]]))
    tensor([0])
    """
    lowest, highest = values.amin(dim=0), values.amax(dim=0)
    return ((highest > lowest) & ~(highest - lowest <= tolerance)).nonzero()[:, 0]
