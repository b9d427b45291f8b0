"""Values that every part of joma passes around."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Real = float | int | Float[np.ndarray, "..."]
"""A number or an array of numbers: what an elementwise formula takes."""


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
class Trajectory:
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
