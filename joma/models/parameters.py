"""All parameters of all runs in one buffer, so that the optimiser is one pass over it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

ALIGNMENT = 64
"""Every parameter starts at a multiple of this many numbers: wide loads, and matrix units read it where it lies."""
TILE = 64
"""Rows of a matrix that a GPU's matrix units take at a time; rows of logits over whole tiles are whole wide loads too,
which 28,782 words are not."""
UNEVEN = 17 * ALIGNMENT
"""Added to a power of two, so that the rows of all runs do not fall on the same channels of the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where each parameter lies in a run's row of the buffer; those that are trained come first."""

    shapes: dict[str, tuple[int, ...]]
    offsets: dict[str, int]
    num_trained: int
    """Length of the front part, which the optimiser moves."""
    size: int
    """Length of a row."""
    trained: tuple[str, ...]
    rooms: dict[str, tuple[int, ...]]
    """Shape of each parameter with the rows that it has room for: of a tiled one whole tiles."""

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]], frozen: Iterable[str] = (), tiled: Collection[str] = ()) -> "Layout":
        """Lay the parameters out in their order, frozen ones last, tiled ones with room for whole tiles of rows.

        >>> Layout.of({"w": (3, 5), "b": (3,)}, frozen=["w"]).offsets
        {'b': 0, 'w': 64}
        """
        unmoved = set(frozen)
        trained = tuple(name for name in shapes if name not in unmoved)
        rooms = {
            name: (_whole(shape[0], TILE), *shape[1:]) if name in tiled else shape for name, shape in shapes.items()
        }
        offsets, at, num_trained = {}, 0, 0
        for name in (*trained, *(name for name in shapes if name in unmoved)):
            offsets[name] = at
            at += _whole(prod(rooms[name]), ALIGNMENT)
            if name in trained:
                num_trained = at
        return Layout(
            shapes=dict(shapes), offsets=offsets, num_trained=num_trained, size=at, trained=trained, rooms=rooms
        )

    @property
    def row_length(self) -> int:
        """Numbers from one run's row to the next, the same for models of about one size.

        What is compiled for a parameter depends on that distance: so models that differ in depth alone share it.
        """
        return 2 ** max(self.size - 1, 1).bit_length() + UNEVEN

    def empty(self, num_runs: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "R P"]:
        """Return room for the parameters of so many runs."""
        return torch.empty((num_runs, self.row_length), dtype=dtype, device=device)[:, : self.size]

    def views(self, buffer: Float[Tensor, "R P"], *, with_room: bool = False) -> dict[str, Tensor]:
        """Each parameter as a view (R, *shape) of the buffer; of its front part alone, the trained ones.

        With room, tiled parameters have the rows after theirs too, which stay zero.
        """
        names = self.shapes if buffer.shape[1] == self.size else self.trained
        shapes = self.rooms if with_room else self.shapes
        return {
            name: buffer[:, self.offsets[name] :][:, : prod(shapes[name])].unflatten(1, shapes[name]) for name in names
        }


def _whole(length: int, unit: int) -> int:
    return -(-length // unit) * unit
