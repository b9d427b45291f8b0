"""One integrator for every flow of the theory: scipy's `solve_ivp` with named states and blow-up as an event."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from joma.errors import finite, shaped
from joma.types import BlowUp, Trajectory

State = dict[str, np.ndarray]
Field = Callable[[float, State], Mapping[str, np.ndarray]]
"""Time and named states in, the time derivative of each state out."""

TOLERANCE = 1e-12  # default relative and absolute tolerance: tight enough that a closed form is judged, not the solver
STIFF: dict[str, Any] = {"method": "LSODA", "atol": 1e-13}
"""Options for flows whose rates differ by orders of magnitude: those of attention, once a token has settled."""

FEWEST_TIMES = 2
EVENT = 1  # `solve_ivp`'s status for a terminal event


def integrate(
    field: Field,
    start: Mapping[str, np.ndarray],
    t: Float[np.ndarray, " T"],
    *,
    method: str = "DOP853",
    rtol: float = TOLERANCE,
    atol: float = TOLERANCE,
    blow_up: float | None = None,
    **options: Any,
) -> Trajectory:
    """Solve d(state)/dt = field(t, state) from `start` at `t[0]` and report the states at every time of `t`.

    `method` is any of `solve_ivp`'s; Radau or BDF for stiff flows. With `blow_up`, the integration ends where
    the largest absolute component crosses that threshold, or where steps shrink to nothing before it does, and the
    trajectory says when and which. `options` go to the method, such as `jac`, or the bands of the Jacobian.

    >>> decay = integrate(lambda t, s: {"v": -s["v"]}, {"v": np.array([1.0])}, np.array([0.0, 1.0]))
    >>> bool(abs(decay["v"][-1, 0] - np.exp(-1)) < 1e-11)
    True
    """
    t = shaped("T", t=t)
    if t.size < FEWEST_TIMES or (np.diff(t) <= 0).any():
        raise ValueError(f"`t` must be ascending, two times or more, got {t.size}. Sort them and remove repeats.")
    arrays = {name: finite(name, value) for name, value in start.items()}
    ends = np.cumsum([value.size for value in arrays.values()])

    def flatten(states: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(np.asarray(states[name], dtype=np.float64)) for name in arrays])

    def unflatten(y: np.ndarray) -> State:
        parts = zip(arrays.items(), np.split(y, ends[:-1], axis=-1), strict=True)
        return {name: part.reshape((*y.shape[:-1], *value.shape)) for (name, value), part in parts}

    y0 = flatten(arrays)
    latest = [t[0], y0]  # where the field was last evaluated

    def flat_field(time: float, y: np.ndarray) -> np.ndarray:
        latest[:] = time, y
        return flatten(field(time, unflatten(y)))

    def crossing(time: float, y: np.ndarray) -> float:
        return (blow_up or 0.0) - float(np.abs(y).max())

    crossing.terminal = True  # type: ignore[attr-defined]
    # Overflow inside a step that the solver will reject is part of approaching a blow-up, not an error.
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lsoda: ")  # `solution` reports the same
        events = None if blow_up is None else crossing
        solution = solve_ivp(
            flat_field, (t[0], t[-1]), y0, method=method, t_eval=t, rtol=rtol, atol=atol, events=events, **options
        )
    if not solution.success and blow_up is None:
        raise ArithmeticError(
            f"The integrator stopped at t = {latest[0]:.6g} before {t[-1]:.6g}: {solution.message} "
            "Pass `blow_up` if the flow diverges, or a stiff method."
        )
    diverged = None
    if not solution.success or solution.status == EVENT:  # steps shrink below the spacing of floats where it diverges
        time, y = (solution.t_events[0][0], solution.y_events[0][0]) if solution.success else latest
        sizes = unflatten(np.abs(np.nan_to_num(y)))
        name = max(sizes, key=lambda each: sizes[each].max(initial=0))  # of the largest component
        component = np.unravel_index(sizes[name].argmax(), sizes[name].shape)
        diverged = BlowUp(time=float(time), state=name, component=tuple(map(int, component)))
    return Trajectory(
        t=np.asarray(solution.t, dtype=np.float64),
        states=unflatten(np.reshape(solution.y, (y0.size, -1)).T),
        blow_up=diverged,
        num_evaluations=solution.nfev,
    )
