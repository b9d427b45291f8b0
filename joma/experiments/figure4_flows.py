"""The flows of figure 4: solved, stepped through as the scripts do, and what is read off them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.errors import positive, whole, with_axes
from joma.theory.convergence import normalised_field
from joma.theory.rebound import Rebound, attention_entropy, rebound
from joma.theory.simulation import FIGURE_4_START, FIGURE_4_TARGETS, NUM_DIP_POINTS, Simulation, figure4, simulate

PRINTED, NORMALISED, MODEL, WITHOUT = "printed", "normalised", "model", "without attention"
FLOWS = (PRINTED, NORMALISED, MODEL)
LABELS = {
    PRINTED: "Eqn 6 as printed",
    NORMALISED: "the scripts' variant",
    MODEL: "the model's own flow",
    WITHOUT: "without attention",
}
SHOWN_ENTROPIES = ((PRINTED, 1.0), (PRINTED, 2.0), (NORMALISED, 3.0), (MODEL, 2.0))
"""Flow and T of softmax(v²/T): the caption's T = 1, Theorem 1's T = 2, the scripts' T = 3."""
CONTROL_START, CONTROL_END = 0.01, 30.0
"""Time before which a flow at rate one has hardly begun, and after which it has ended."""
MOVED = 1e-3
"""Part of its start by which an entropy has changed when its panel begins: before that there is nothing to see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The setting of the paper's scripts."""

    targets: tuple[float, ...] = FIGURE_4_TARGETS
    start: float = FIGURE_4_START
    num_steps: int = 5000
    step_size: float = 0.02
    temperature: float = 3.0
    """T of the scripts' softmax(v²/T)."""
    num_points: int = 400
    """Reported times of each flow."""
    num_draws: int = 60
    """Random targets on which the condition for a rebound is tried; half of them have zeros."""
    seed: int = 0
    """Of the random targets."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        with_axes("targets", self.targets, "M")
        for name in ("start", "step_size", "temperature"):
            positive(name, getattr(self, name))
        for name, low in (("num_steps", 1), ("num_points", 3), ("num_draws", 2)):
            whole(name, getattr(self, name), low=low)

    @property
    def mu(self) -> Float[np.ndarray, " M"]:
        """The targets."""
        return np.array(self.targets)


@dataclass(frozen=True, kw_only=True, eq=False)
class Path:
    """One flow from start to end."""

    t: Float[np.ndarray, " T"]
    v: Float[np.ndarray, "T M"]
    limit: Float[np.ndarray, " M"]
    """Where it ends."""
    run: Simulation | None = None
    """What solved it; None for a formula."""

    def dip(self, temperature: float) -> Rebound:
        """Dip of the entropy of softmax(v²/T), its lowest point searched for between the reported times.

        So does `simulate` for the T of the flow itself; here it may be another one.
        """
        entropy = attention_entropy(self.v, temperature)
        coarse = rebound(self.t, entropy)
        lowest = int(entropy.argmin())
        if self.run is None or lowest in (0, self.t.size - 1):
            return coarse
        before, after = float(self.t[lowest - 1]), float(self.t[lowest + 1])
        around = {"v0": self.run.v[lowest - 1], "z0": self.run.z[lowest - 1], "t1": after - before}
        fine = simulate(self.run.config, **around, spacing="linear", num_points=NUM_DIP_POINTS)
        within = rebound(before + fine.t, attention_entropy(fine.v, temperature))
        return replace(coarse, lowest=within.lowest, time=within.time)

    def half_times(self) -> Float[np.ndarray, " M"]:
        """When each component has covered half of its way."""
        way = (self.v - self.v[0]) / (self.limit - self.v[0])
        return np.array([np.interp(0.5, np.maximum.accumulate(part), self.t) for part in way.T])


def solved(config: Config, flow: str) -> Simulation:
    """One of the three flows, from start to end."""
    options = {"targets": config.targets, "v0": config.start, "num_points": config.num_points}
    if flow == NORMALISED:
        options |= {"temperature": config.temperature, "t1": config.num_steps * config.step_size}
    return simulate(figure4(flow), **options)


def path_of(run: Simulation) -> Path:
    """A solved flow as a path, with its limit."""
    limits = run.flow.limits()
    assert limits is not None
    return Path(t=run.t, v=run.v, limit=limits, run=run)


def without_attention(config: Config) -> Path:
    r"""$\dot v = \mu - v$."""
    t = np.concatenate([[0.0], np.geomspace(CONTROL_START, CONTROL_END, config.num_points - 1)])
    return Path(t=t, v=config.mu + (config.start - config.mu) * np.exp(-t)[:, None], limit=config.mu)


def path_table(name: str, path: Path) -> pd.DataFrame:
    """Every component at every reported time."""
    num_components = path.v.shape[1]
    return pd.DataFrame(
        {
            "flow": name,
            "t": np.repeat(path.t, num_components),
            "component": np.tile(np.arange(num_components), path.t.size),
            "v": path.v.ravel(),
        }
    )


def entropies_of(paths: dict[str, Path]) -> pd.DataFrame:
    """Entropy over time, for each flow and T that is shown, and for the control at the same T."""
    shown = (*SHOWN_ENTROPIES, *((WITHOUT, temperature) for temperature in (1.0, 2.0, 3.0)))
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "flow": name,
                    "temperature": temperature,
                    "t": paths[name].t,
                    "entropy": attention_entropy(paths[name].v, temperature),
                }
            )
            for name, temperature in shown
        ],
        ignore_index=True,
    )


def beside_control(entropies: pd.DataFrame, flow: str) -> pd.DataFrame:
    """The entropies of a flow, and those of the control at the same T."""
    shown = [temperature for name, temperature in SHOWN_ENTROPIES if name == flow]
    own = entropies["flow"] == flow
    return entropies[own | ((entropies["flow"] == WITHOUT) & entropies["temperature"].isin(shown))]


def begin_of(flow: str) -> str:
    """Name of the fact that says from when on the entropies of a flow are worth a look."""
    return f"entropy moves, {flow}"


def begins_to_move(panel: pd.DataFrame) -> float:
    """Reported time, after zero, at which the first of the curves begins to leave its start."""
    begins = []
    for _, curve in panel.groupby(["flow", "temperature"]):
        t, entropy = curve["t"].to_numpy(), curve["entropy"].to_numpy()
        moved = np.flatnonzero(np.abs(entropy - entropy[0]) >= MOVED * entropy[0])
        begins.append(t[max(moved[0] - 1, 1)] if moved.size else t[-1])
    return float(min(begins))


def dips_of(paths: dict[str, Path]) -> pd.DataFrame:
    """Each dip beside that of the control."""
    rows = []
    for name, temperature in SHOWN_ENTROPIES:
        dip, control = paths[name].dip(temperature), paths[WITHOUT].dip(temperature)
        own = {"start": dip.start, "lowest": dip.lowest, "time": dip.time, "end": dip.end, "rise": dip.rise}
        rows.append({"flow": name, "temperature": temperature, **own, "control_rise": control.rise})
    return pd.DataFrame(rows)


def half_times_of(config: Config, paths: dict[str, Path]) -> pd.DataFrame:
    """When each component is half learned."""
    return pd.concat(
        [
            pd.DataFrame({"flow": name, "target": config.mu, "half_time": path.half_times()})
            for name, path in paths.items()
        ],
        ignore_index=True,
    )


def scripted_run(config: Config) -> tuple[pd.DataFrame, dict[str, float | int]]:
    """The scripts' explicit steps beside the flow that they discretise, and the same steps on Eqn 6."""
    steps = np.arange(config.num_steps + 1)
    stepped = _stepped(config, lambda v: normalised_field(v, config.mu, config.temperature))
    options = {"num_points": steps.size, "spacing": "linear", "t1": config.num_steps * config.step_size}
    flow = simulate(
        figure4(NORMALISED), targets=config.targets, v0=config.start, temperature=config.temperature, **options
    )
    entropies = [attention_entropy(v, config.temperature) for v in (stepped, flow.v)]
    table = pd.DataFrame({"step": steps[: len(stepped)], "entropy": entropies[0], "flow": entropies[1][: len(stepped)]})
    dip = rebound(table["step"].to_numpy(dtype=float), entropies[0])
    printed = _stepped(config, lambda v: (config.mu - v) * np.exp(np.square(v) / 2))
    facts = {
        "script lowest entropy": dip.lowest,
        "script lowest at step": int(dip.time),
        "script final entropy": dip.end,
        "script distance from its flow": float(np.abs(table["entropy"] - table["flow"]).max()),
        "script distance of v": float(np.abs(stepped - flow.v[: len(stepped)]).max()),
        "script steps survived": len(stepped) - 1,
        "Eqn 6 steps survived": len(printed) - 1,
    }
    every = max(1, config.num_steps // config.num_points)
    return table.iloc[::every].reset_index(drop=True), facts


def _stepped(config: Config, field: Callable[[np.ndarray], np.ndarray]) -> Float[np.ndarray, "T M"]:
    """Explicit Euler steps, as long as everything is finite."""
    path = [np.full(len(config.targets), config.start)]
    for _ in range(config.num_steps):
        with np.errstate(over="ignore", invalid="ignore"):
            after = path[-1] + config.step_size * field(path[-1])
        if not np.isfinite(after).all():
            break
        path.append(after)
    return np.stack(path)
