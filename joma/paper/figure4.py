r"""Figure 4: components learned one after another, and the attention entropy that drops and rebounds.

Three flows towards the same targets $\mu$:

- `printed`: $\dot v = (\mu - v)\circ e^{v^2/2}$, Eqn 6, which the caption names;
- `normalised`: $\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/3)$, which the paper's scripts step through;
- `model`: $\dot v = a\circ(\mu - v\circ a)$, $a = e^{v^2/2}$, the flow that the layer of Eqn 1 really has.

Controls: $\dot v = \mu - v$, the same without attention; targets for which the rebound's condition says that there is
none; and the scripts' step size on Eqn 6.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.charts import Chart, lines, points
from joma.claims import Number, claim
from joma.paper.experiment import Experiment, Measured, as_float32, caption, catalogue, crossed
from joma.store.work import Workspace
from joma.theory.convergence import ConvergenceFlow, normalised_field
from joma.theory.integrate import integrate
from joma.theory.rebound import Rebound, attention_entropy, entropy_finally_rises, entropy_rebound, rebound
from joma.theory.simulation import FIGURE_4_START, FIGURE_4_TARGETS, NUM_DIP_POINTS, Simulation, figure4, simulate

PRINTED, NORMALISED, MODEL, WITHOUT = "printed", "normalised", "model", "without attention"
FLOWS = (PRINTED, NORMALISED, MODEL)
LABELS = {PRINTED: "Eqn 6 as printed", NORMALISED: "the scripts' variant", MODEL: "the model's own flow"}
SHOWN_ENTROPIES = ((PRINTED, 1.0), (PRINTED, 2.0), (NORMALISED, 3.0), (MODEL, 2.0))
"""Flow and T of softmax(v²/T): the caption's T = 1, Theorem 1's T = 2, the scripts' T = 3."""
CONTROL_START, CONTROL_END = 0.01, 30.0
"""Time before which a flow at rate one has hardly begun, and after which it has ended."""
MOVED = 1e-3
"""Relative change of an entropy at which its panel begins: before that there is nothing to see."""
REFUSED = {"all targets equal": (2.0,) * 10, "one target zero": (0.0, 2.0)}
"""Targets without a rebound."""
LATE_EFOLDS, LAST_PART = 60.0, 1e-4
"""Time at which only the slowest component still moves, in units of its rate, and the part of the way then left."""
VISIBLE = 0.05
"""Rise of the entropy that can be seen in the figure, as a share of its axis from 0 to ln M."""
ONE_AFTER_ANOTHER = 1.5
"""Time to half way of the slowest component over that of the fastest, from which on one comes after the other."""
CLOSED_FORM = 1e-8
"""Largest distance of the closed form from the integrated flow: the integrator's error."""
DISCRETISED = 0.05
"""Nats by which the discretised run may differ from its flow and still show the same curve."""
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure4Config:
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


def compute(config: Figure4Config, space: Workspace) -> Measured:
    """Solve the three flows, step through the scripts' run, and try the condition on random targets."""
    space.progress(0.0, "solving the three flows")
    mu, paths = np.array(config.targets), {name: _solved(config, name) for name in FLOWS}
    distances = [path.run.closed_form_distance for path in paths.values() if path.run is not None]
    t = np.concatenate([[0.0], np.geomspace(CONTROL_START, CONTROL_END, config.num_points - 1)])
    paths[WITHOUT] = FlowPath(t=t, v=mu + (config.start - mu) * np.exp(-t)[:, None], limit=mu)
    shown = (*SHOWN_ENTROPIES, *((WITHOUT, temperature) for temperature in (1.0, 2.0, 3.0)))
    entropies = pd.concat([paths[name].entropies(T).assign(flow=name) for name, T in shown], ignore_index=True)
    curves = [crossed(flow=[name], t=paths[name].t, component=range(mu.size)) for name in FLOWS]
    curves = [curve.assign(v=paths[name].v.ravel()) for name, curve in zip(FLOWS, curves, strict=True)]
    halves = [{"flow": name, "target": mu, "half_time": path.half_times()} for name, path in paths.items()]
    dips = pd.DataFrame(
        {"flow": name, "temperature": T, **asdict(dip), "rise": dip.rise, "control_rise": paths[WITHOUT].dip(T).rise}
        for name, T, dip in ((name, T, paths[name].dip(T)) for name, T in SHOWN_ENTROPIES)
    )
    space.progress(0.3, "stepping as the scripts do")
    script, script_facts = scripted_run(config)
    conditions = tried_condition(config, lambda share: space.progress(0.4 + 0.6 * share, "random targets"))
    refused = {
        name: simulate(flow=PRINTED, targets=mu, v0=0.0, num_points=config.num_points) for name, mu in REFUSED.items()
    }
    no_rebound = [{"targets": name, "t": run.t, "entropy": run.entropy} for name, run in refused.items()]
    facts = {
        "closed form distance": max(each for each in distances if each is not None),
        "largest entropy": float(np.log(mu.size)),
        **{f"entropy moves, {name}": begins_to_move(with_control(entropies, name)) for name in FLOWS},
        **script_facts,
        **{f"rise, {name}": rebound(run.t, run.entropy).rise for name, run in refused.items()},
        **condition_facts(conditions),
    }
    return Measured(
        facts=facts,
        paths=as_float32(pd.concat(curves, ignore_index=True)),
        entropies=as_float32(entropies[["flow", "temperature", "t", "entropy"]]),
        dips=dips,
        learning=pd.concat(map(pd.DataFrame, halves), ignore_index=True),
        script=as_float32(script),
        conditions=conditions,
        no_rebound=as_float32(pd.concat(map(pd.DataFrame, no_rebound), ignore_index=True)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowPath:
    """One flow from start to end."""

    t: Float[np.ndarray, " T"]
    v: Float[np.ndarray, "T M"]
    limit: Float[np.ndarray, " M"]
    """Where it ends."""
    run: Simulation | None = None
    """What solved it; None for a formula."""

    def entropies(self, temperature: float) -> pd.DataFrame:
        """Return the entropy of softmax(v²/T) over time."""
        entropy = attention_entropy(self.v, temperature)
        return pd.DataFrame({"temperature": temperature, "t": self.t, "entropy": entropy})

    def dip(self, temperature: float) -> Rebound:
        """Return the dip of the entropy of softmax(v²/T), searched for between the reported times too."""
        entropy = attention_entropy(self.v, temperature)
        coarse, lowest = rebound(self.t, entropy), int(entropy.argmin())
        if self.run is None or lowest in (0, self.t.size - 1):
            return coarse
        before, after = float(self.t[lowest - 1]), float(self.t[lowest + 1])
        around = {"v0": self.run.v[lowest - 1], "z0": self.run.z[lowest - 1], "t1": after - before}
        fine = simulate(self.run.config, **around, spacing="linear", num_points=NUM_DIP_POINTS)
        within = rebound(before + fine.t, attention_entropy(fine.v, temperature))
        return replace(coarse, lowest=within.lowest, time=within.time)

    def half_times(self) -> Float[np.ndarray, " M"]:
        """Return when each component has covered half of its way."""
        way = (self.v - self.v[0]) / (self.limit - self.v[0])
        return np.array([np.interp(0.5, np.maximum.accumulate(part), self.t) for part in way.T])


def _solved(config: Figure4Config, flow: str) -> FlowPath:
    options = {"targets": config.targets, "v0": config.start, "num_points": config.num_points}
    if flow == NORMALISED:
        options |= {"temperature": config.temperature, "t1": config.num_steps * config.step_size}
    run = simulate(figure4(flow), **options)
    return FlowPath(t=run.t, v=run.v, limit=np.asarray(run.flow.limits()), run=run)


def with_control(entropies: pd.DataFrame, flow: str) -> pd.DataFrame:
    """Return the entropies of a flow, and those of the control at the same T."""
    shown = [temperature for name, temperature in SHOWN_ENTROPIES if name == flow]
    own, control = (entropies["flow"] == name for name in (flow, WITHOUT))
    return entropies[own | (control & entropies["temperature"].isin(shown))]


def begins_to_move(panel: pd.DataFrame) -> float:
    """Return the first time after zero at which one of the curves begins to leave its start."""
    begins = []
    for _, curve in panel.groupby(["flow", "temperature"]):
        t, entropy = curve["t"].to_numpy(), curve["entropy"].to_numpy()
        moved = np.flatnonzero(np.abs(entropy - entropy[0]) >= MOVED * entropy[0])
        begins.append(t[max(moved[0] - 1, 1)] if moved.size else t[-1])
    return float(min(begins))


def scripted_run(config: Figure4Config) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the scripts' explicit steps with their exact flow, and how many of them last on Eqn 6."""
    mu, T = np.array(config.targets), config.temperature
    stepped = _stepped(config, lambda v: normalised_field(v, mu, T))
    printed = _stepped(config, lambda v: (mu - v) * np.exp(np.square(v) / 2))
    options = {"num_points": config.num_steps + 1, "spacing": "linear", "t1": config.num_steps * config.step_size}
    flow = simulate(figure4(NORMALISED), targets=config.targets, v0=config.start, temperature=T, **options)
    exact = flow.v[: len(stepped)]
    table = pd.DataFrame({"step": np.arange(len(stepped)), "entropy": attention_entropy(stepped, T)})
    table["flow"] = attention_entropy(exact, T)
    dip = rebound(table["step"].to_numpy(dtype=float), table["entropy"].to_numpy())
    facts = {
        "script lowest entropy": dip.lowest,
        "script lowest at step": dip.time,
        "script final entropy": dip.end,
        "script distance from its flow": float((table["entropy"] - table["flow"]).abs().max()),
        "script distance of v": float(np.abs(stepped - exact).max()),
        "script steps survived": len(stepped) - 1,
        "Eqn 6 steps survived": len(printed) - 1,
    }
    return table.iloc[:: max(1, config.num_steps // config.num_points)].reset_index(drop=True), facts


def _stepped(config: Figure4Config, field: Callable[[np.ndarray], np.ndarray]) -> Float[np.ndarray, "T M"]:
    """Take explicit Euler steps as long as everything is finite."""
    path = [np.full(len(config.targets), config.start)]
    for _ in range(config.num_steps):
        with np.errstate(over="ignore", invalid="ignore"):
            after = path[-1] + config.step_size * field(path[-1])
        if not np.isfinite(after).all():
            break
        path.append(after)
    return np.stack(path)


def tried_condition(config: Figure4Config, progress: Callable[[float], None]) -> pd.DataFrame:
    """Return for random targets, half of them with zeros, what the condition says and what the ODE shows."""
    rng = np.random.default_rng(config.seed)
    rows = []
    for draw in range(config.num_draws):
        progress(draw / config.num_draws)
        mu = rng.uniform(0.5, 2.5, size=8) * rng.choice([-1.0, 1.0], size=8)
        mu[: draw % 2 * rng.integers(4, 8)] = 0.0
        said, found = entropy_finally_rises(mu), _finally_rises(mu)
        rise = entropy_rebound(ConvergenceFlow(mu=mu)).rise
        rows.append({"draw": draw, "zeros": int((mu == 0).sum()), "predicted": said, "rises": found, "rise": rise})
    return pd.DataFrame(rows)


def _finally_rises(mu: Float[np.ndarray, " M"]) -> bool:
    """Whether the entropy of softmax(v²/2) rises at the very end, by the ODE of y = ln(1/δ), which loses nothing."""
    late = LATE_EFOLDS * np.exp(-np.square(mu[mu != 0]).min() / 2)
    start, times = {"y": np.zeros(mu.size)}, np.array([0.0, float(late)])
    efolds = integrate(lambda _, s: {"y": np.exp(np.square(mu * np.expm1(-s["y"])) / 2)}, start, times)["y"][1]
    # v²/2 = μ²/2 − way with way ∝ μ²δ, scaled to a small part for the slowest component
    way = np.square(mu) * np.exp(efolds[mu != 0].min() - efolds)
    before, after = (attention_entropy(np.sqrt(np.square(mu) - 2 * part * way)) for part in (LAST_PART, 0.0))
    return bool(after > before)


def condition_facts(conditions: pd.DataFrame) -> dict[str, float]:
    """Return how often the entropy rises at the end, and how often the condition is wrong."""
    without_zeros, refused = conditions[conditions["zeros"] == 0], conditions[~conditions["predicted"]]
    return {
        "draws": len(conditions),
        "draws judged wrongly": int((conditions["predicted"] != conditions["rises"]).sum()),
        "draws refused": len(refused),
        "rising share": float(conditions["rises"].mean()),
        "rising share without zeros": float(without_zeros["rises"].mean()),
        "rising share of refused": float(refused["rises"].mean()) if len(refused) else float("nan"),
        "median rise without zeros": float(without_zeros["rise"].median()),
    }


def _solver_check(t: Measured) -> Number:
    name, value = "closed form of Eqn 6 and of the model's flow, against the ODE", t.facts["closed form distance"]
    return Number.exact(name, value, at_most=CLOSED_FORM, sanity=True, unit="max relative error")


@claim("fig4-rebound", "Attention entropy drops, then rebounds", source="Section 4, figure 4, Eqn 6")
def rebound_numbers(t: Measured) -> Iterator[Number]:
    """the entropy of softmax(v²) drops when salient components are learned first, and then rebounces when other
    components catch up
    """
    least = VISIBLE * t.facts["largest entropy"]
    for row in t.dips.itertuples():
        T, control = f"{row.temperature:g}", {"control_name": "the same targets without attention", "unit": "nats"}
        about = {"setting": f"{LABELS[row.flow]}, T = {T}", "key": f"{row.flow}{T}", **control}
        name = f"rise of the entropy of softmax(v²/{T}) after its dip"
        yield Number.exact(name, row.rise, at_least=least, control=row.control_rise, **about)
    yield _solver_check(t)


@claim("fig4-order", "Salient components are learned first", source="Section 4, figure 4")
def order_numbers(t: Measured) -> Iterator[Number]:
    """components with large |μ| are learned first, followed by non-salient ones"""
    flows = {name: rows.sort_values("target")["half_time"] for name, rows in t.learning.groupby("flow", sort=False)}
    spread = {name: float(times.max() / times.min()) for name, times in flows.items()}
    limits = {"at_least": ONE_AFTER_ANOTHER, "control": spread[WITHOUT], "control_name": WITHOUT, "unit": "ratio"}
    for flow in FLOWS:
        name = "time to half way, slowest component over fastest"
        yield Number.exact(name, spread[flow], setting=LABELS[flow], key=flow, **limits)
        name, wrong = "neighbouring components learned in the wrong order", (np.diff(flows[flow]) > ROUNDING).sum()
        yield Number.exact(name, wrong, unit="pairs", at_most=0.0, setting=LABELS[flow])
    yield _solver_check(t)


@claim("fig4-condition", "When the entropy rebounds", source="Section 4; first sentence of Section 5")
def condition_numbers(t: Measured) -> Iterator[Number]:
    """in the nonlinear case the non-salient components still grow, and the entropy bounces back"""
    facts = t.facts
    refused = {"control": facts["rising share of refused"], "control_name": "targets that the condition refuses"}
    for fact, setting, key in (
        ("rising share without zeros", "no target is zero", "without_zeros"),
        ("rising share", "half of the targets have zeros", "all"),
    ):
        name, about = "random targets whose entropy rises at the end", {"setting": setting, "key": key, **refused}
        yield Number.exact(name, facts[fact], at_least=1.0, unit="share", **about)
    name, unit = "random targets whose final trend the condition gets wrong", f"of {facts['draws']:.0f}"
    yield Number.exact(name, facts["draws judged wrongly"], at_most=0.0, unit=unit, sanity=True)
    yield Number.exact("median rise without zeros", facts["median rise without zeros"], unit="nats", key="median")


@claim("fig4-script", "Figure 4 shows Eqn 6", source="Caption of figure 4")
def script_numbers(t: Measured) -> Iterator[Number]:
    """figure 4 shows the dynamics of Eqn 6"""
    printed, steps = t.facts["Eqn 6 steps survived"], t.config.num_steps
    unit = f"share of {steps:,} steps of size {t.config.step_size:g}"
    yield Number.exact("steps that stay finite on Eqn 6", printed / steps, at_least=1.0, unit=unit, key="printed")
    name, share = "steps that stay finite on the scripts' variant", t.facts["script steps survived"] / steps
    yield Number.exact(name, share, unit=unit, key="script")
    name = "entropy along the scripts' steps, distance from their flow"
    yield Number.exact(
        name, t.facts["script distance from its flow"], at_most=DISCRETISED, unit="nats", sanity=True, key="distance"
    )
    yield Number.exact("steps that stay finite on Eqn 6, number", printed, key="steps")


CLAIMS = (rebound_numbers, order_numbers, condition_numbers, script_numbers)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw components and entropies, and the controls."""
    by: dict[str, Any] = {"facet": "flow", "x_log": True, "share_x": False}
    paths = t.paths[t.paths["t"] > 0].replace({"flow": LABELS})
    yield lines(paths, "t", "v", color="component", **by, **caption("figure4"))
    panels = {name: with_control(t.entropies, name) for name in FLOWS}
    shown = pd.concat(
        panel[panel["t"] >= t.facts[f"entropy moves, {name}"]].assign(flow=LABELS[name], own=panel["flow"])
        for name, panel in panels.items()
    )
    shown["attention"] = np.where(shown["own"] == WITHOUT, WITHOUT, "with attention")
    shown["curve"] = "softmax(v²/" + shown["temperature"].map("{:g}".format) + ")"
    yield lines(shown, "t", "entropy", color="curve", dash="attention", **by, **caption("figure4-entropy"))
    dips = t.dips.assign(curve=t.dips["flow"].replace(LABELS) + ", T = " + t.dips["temperature"].map("{:g}".format))
    without = dips.assign(attention=WITHOUT, rise=dips["control_rise"])
    both = pd.concat([dips.assign(attention="with attention"), without])
    yield points(both, "curve", "rise", color="attention", **caption("figure4-rise"))
    yield lines(t.no_rebound, "t", "entropy", color="targets", **caption("figure4-refused"))
    script = t.script.rename(columns={"entropy": "explicit steps", "flow": "exact flow"})
    script = script.melt("step", ["explicit steps", "exact flow"], "run", "nats")
    yield lines(script, "step", "nats", color="run", dash="run", **caption("figure4-script"))


EXPERIMENTS = (
    Experiment(
        **catalogue("figure4"),
        presets={"quick": Figure4Config(), "full": Figure4Config(num_draws=400)},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
    ),
)
