"""What every measure asks of its input: tensors, finite ones, and columns that vary."""

import torch
from jaxtyping import Int, Real
from torch import Tensor


def required_tensor(name: str, value: object) -> Tensor:
    """Return `value`, refusing arrays, lists and whatever else is not a tensor.

    >>> required_tensor("w", [[1.0]])
    Traceback (most recent call last):
        ...
    TypeError: `w` must be a torch tensor, got list. Pass `torch.as_tensor(w)`.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a torch tensor, got {type(value).__name__}. Pass `torch.as_tensor({name})`.")
    return value


def tensor_with_axes(name: str, value: object, axes: str) -> Tensor:
    """Return `value`, refusing what is not a tensor with one axis for each name in `axes`.

    >>> tensor_with_axes("h", torch.zeros(3), "N J")
    Traceback (most recent call last):
        ...
    ValueError: `h` must have the axes (N, J), got shape (3,). Reshape it.
    """
    tensor, names = required_tensor(name, value), axes.split()
    if tensor.ndim != len(names):
        raise ValueError(
            f"`{name}` must have the axes ({', '.join(names)}), got shape {tuple(tensor.shape)}. Reshape it."
        )
    return tensor


def finite_tensor(name: str, value: Tensor) -> Tensor:
    """Return `value` detached, refusing NaN and infinity.

    >>> finite_tensor("h", torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
        ...
    ValueError: `h` must be finite, got nan at index (1,). Remove or replace that entry.
    """
    value = required_tensor(name, value).detach()
    bad = ~torch.isfinite(value)
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        found = value[index].item()
        raise ValueError(f"`{name}` must be finite, got {found} at index {index}. Remove or replace that entry.")
    return value


def working_dtype(tensor: Tensor) -> torch.dtype:
    """Half precision is computed in float32: rounding its results would cost more than the method does."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def varying(values: Real[Tensor, "N c"], tolerance: float = 0.0) -> Int[Tensor, " kept"]:
    """Return the columns that are not one value throughout, up to a tolerance.

    By default exactly, so that small activations are not taken for none.

    >>> varying(torch.tensor([[1e-30, 5.0], [2e-30, 5.0]]))
    tensor([0])
    """
    lowest, highest = values.amin(dim=0), values.amax(dim=0)
    return ((highest > lowest) & ~(highest - lowest <= tolerance)).nonzero()[:, 0]
