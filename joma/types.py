"""Values that every part of joma passes around."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float

Real = float | int | Float[np.ndarray, "..."]
"""A number or an array of numbers: what an elementwise formula takes."""


def keep(value: Any, **fields: Any) -> None:
    """Set fields of a frozen dataclass, for its `__post_init__`."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


def as_columns(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return named numbers and arrays as columns of a table: the first axis is the rows, others become columns.

    >>> as_columns({"t": [0.0, 1.0], "v": [[1.0, 2.0], [3.0, 4.0]], "T": 0.5})
    {'t': array([0., 1.]), 'v_0': array([1., 3.]), 'v_1': array([2., 4.]), 'T': array([0.5, 0.5])}
    """
    arrays = {name: np.asarray(value) for name, value in values.items()}
    num_rows = max((len(array) for array in arrays.values() if array.ndim), default=1)
    columns = {}
    for name, array in arrays.items():
        rows = array if array.ndim else np.full(num_rows, array)
        if len(rows) != num_rows:
            raise ValueError(f"Columns must have one length, got {num_rows} and {len(rows)} for `{name}`. Cut one.")
        for index in np.ndindex(rows.shape[1:]):
            columns["_".join([name, *map(str, index)])] = rows[(slice(None), *index)]
    return columns


class Tabular:
    """A result whose fields are columns of a table."""

    __slots__ = ()

    def columns(self) -> dict[str, np.ndarray]:
        """Return the fields by name, one row for each entry of their first axis."""
        return as_columns({field.name: getattr(self, field.name) for field in fields(self)})  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlowUp:
    """Where and when a flow left every bound."""

    time: float
    """Time at which the threshold was crossed."""
    state: str
    """Name of the state that crossed it."""
    component: tuple[int, ...]
    """Index of the component within that state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory(Tabular):
    """States of a flow at reported times, cut short at a blow-up."""

    t: Float[np.ndarray, " T"]
    """Reported times, ascending."""
    states: dict[str, np.ndarray]
    """Each named state with time as its first axis."""
    blow_up: BlowUp | None = None
    """Set when the flow crossed the threshold given to the integrator."""
    num_evaluations: int = 0
    """How often the field was evaluated."""

    def __getitem__(self, name: str) -> np.ndarray:
        """Return one state over time, shape (T, *state)."""
        return self.states[name]

    def at_end(self) -> dict[str, np.ndarray]:
        """Return every state at the last reported time."""
        return {name: values[-1] for name, values in self.states.items()}

    def columns(self) -> dict[str, np.ndarray]:
        """Return times and states as columns, such as `t`, `v_0`, `v_1`."""
        return as_columns({"t": self.t, **self.states})
