r"""Figure 4: components learned one after another, and the attention entropy that drops and rebounds.

Three flows towards the same targets $\mu$:

- `printed`: $\dot v = (\mu - v)\circ e^{v^2/2}$, Eqn 6, which the caption names;
- `normalised`: $\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/3)$, which the paper's scripts step through;
- `model`: $\dot v = a\circ(\mu - v\circ a)$, $a = e^{v^2/2}$, the flow that the layer of Eqn 1 really has.

Controls: $\dot v = \mu - v$, the same without attention; targets for which the rebound's condition says that there is
none; and the scripts' step size on Eqn 6.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.charts import Chart, lines, points
from joma.claims import Number, claim
from joma.paper.experiment import Experiment, Measured, as_float32
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
    paths = {name: _solved(config, name) for name in FLOWS}
    distances = [path.run.closed_form_distance for path in paths.values() if path.run is not None]
    t = np.concatenate([[0.0], np.geomspace(CONTROL_START, CONTROL_END, config.num_points - 1)])
    mu = np.array(config.targets)
    paths[WITHOUT] = FlowPath(t=t, v=mu + (config.start - mu) * np.exp(-t)[:, None], limit=mu)
    space.progress(0.3, "stepping as the scripts do")
    script, script_facts = scripted_run(config)
    conditions = tried_condition(config, lambda share: space.progress(0.4 + 0.6 * share, "random targets"))
    refused, refused_facts = refused_targets(config)
    entropies = entropies_of(paths)
    facts = {
        "closed form distance": max(each for each in distances if each is not None),
        "largest entropy": float(np.log(mu.size)),
        **{f"entropy moves, {name}": begins_to_move(beside_control(entropies, name)) for name in FLOWS},
    }
    curves, halves = [], []
    for name, path in paths.items():
        halves.append(pd.DataFrame({"flow": name, "target": mu, "half_time": path.half_times()}))
        if name in FLOWS:
            time, component = np.repeat(path.t, mu.size), np.tile(np.arange(mu.size), path.t.size)
            columns = {"flow": name, "t": time, "component": component, "v": path.v.ravel()}
            curves.append(pd.DataFrame(columns))
    return Measured(
        facts=facts | script_facts | refused_facts | condition_facts(conditions),
        paths=as_float32(pd.concat(curves, ignore_index=True)),
        entropies=as_float32(entropies),
        dips=dips_of(paths),
        learning=pd.concat(halves, ignore_index=True),
        script=as_float32(script),
        conditions=conditions,
        no_rebound=as_float32(refused),
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

    def dip(self, temperature: float) -> Rebound:
        """Return the dip of the entropy of softmax(v²/T), searched for between the reported times too."""
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
        """Return when each component has covered half of its way."""
        way = (self.v - self.v[0]) / (self.limit - self.v[0])
        return np.array([np.interp(0.5, np.maximum.accumulate(part), self.t) for part in way.T])


def _solved(config: Figure4Config, flow: str) -> FlowPath:
    options = {"targets": config.targets, "v0": config.start, "num_points": config.num_points}
    if flow == NORMALISED:
        options |= {"temperature": config.temperature, "t1": config.num_steps * config.step_size}
    run = simulate(figure4(flow), **options)
    return FlowPath(t=run.t, v=run.v, limit=np.asarray(run.flow.limits()), run=run)


def entropies_of(paths: dict[str, FlowPath]) -> pd.DataFrame:
    """Return the entropy over time for each flow and T that is shown, and for the control at the same T."""
    shown = (*SHOWN_ENTROPIES, *((WITHOUT, temperature) for temperature in (1.0, 2.0, 3.0)))
    columns = [(name, T, paths[name].t, attention_entropy(paths[name].v, T)) for name, T in shown]
    names = ("flow", "temperature", "t", "entropy")
    return pd.concat([pd.DataFrame(dict(zip(names, each, strict=True))) for each in columns], ignore_index=True)


def beside_control(entropies: pd.DataFrame, flow: str) -> pd.DataFrame:
    """Return the entropies of a flow, and those of the control at the same T."""
    shown = [temperature for name, temperature in SHOWN_ENTROPIES if name == flow]
    own = entropies["flow"] == flow
    return entropies[own | ((entropies["flow"] == WITHOUT) & entropies["temperature"].isin(shown))]


def begins_to_move(panel: pd.DataFrame) -> float:
    """Return the first time after zero at which one of the curves begins to leave its start."""
    begins = []
    for _, curve in panel.groupby(["flow", "temperature"]):
        t, entropy = curve["t"].to_numpy(), curve["entropy"].to_numpy()
        moved = np.flatnonzero(np.abs(entropy - entropy[0]) >= MOVED * entropy[0])
        begins.append(t[max(moved[0] - 1, 1)] if moved.size else t[-1])
    return float(min(begins))


def dips_of(paths: dict[str, FlowPath]) -> pd.DataFrame:
    """Return each dip and the rise of the control at the same T."""
    rows = []
    for name, temperature in SHOWN_ENTROPIES:
        dip, control = paths[name].dip(temperature), paths[WITHOUT].dip(temperature)
        own = {"start": dip.start, "lowest": dip.lowest, "time": dip.time, "end": dip.end, "rise": dip.rise}
        rows.append({"flow": name, "temperature": temperature, **own, "control_rise": control.rise})
    return pd.DataFrame(rows)


def scripted_run(config: Figure4Config) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the scripts' explicit steps with their exact flow, and how many of them last on Eqn 6."""
    mu = np.array(config.targets)
    stepped = _stepped(config, lambda v: normalised_field(v, mu, config.temperature))
    options = {"num_points": config.num_steps + 1, "spacing": "linear", "t1": config.num_steps * config.step_size}
    flow = simulate(
        figure4(NORMALISED), targets=config.targets, v0=config.start, temperature=config.temperature, **options
    )
    own, exact = (attention_entropy(v, config.temperature) for v in (stepped, flow.v[: len(stepped)]))
    table = pd.DataFrame({"step": np.arange(len(stepped)), "entropy": own, "flow": exact})
    dip = rebound(table["step"].to_numpy(dtype=float), own)
    printed = _stepped(config, lambda v: (mu - v) * np.exp(np.square(v) / 2))
    facts = {
        "script lowest entropy": dip.lowest,
        "script lowest at step": dip.time,
        "script final entropy": dip.end,
        "script distance from its flow": float(np.abs(own - exact).max()),
        "script distance of v": float(np.abs(stepped - flow.v[: len(stepped)]).max()),
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


def refused_targets(config: Figure4Config) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the entropy under Eqn 6 for targets that the condition refuses, and how far it rises."""
    rows, rises = [], {}
    for name, mu in REFUSED.items():
        run = simulate(flow=PRINTED, targets=mu, v0=0.0, num_points=config.num_points)
        rows.append(pd.DataFrame({"targets": name, "t": run.t, "entropy": run.entropy}))
        rises[f"rise, {name}"] = rebound(run.t, run.entropy).rise
    return pd.concat(rows, ignore_index=True), rises


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
        yield Number.exact(
            f"rise of the entropy of softmax(v²/{row.temperature:g}) after its dip",
            row.rise,
            unit="nats",
            at_least=least,
            control=row.control_rise,
            control_name="the same targets without attention",
            setting=f"{LABELS[row.flow]}, T = {row.temperature:g}",
            key=f"{row.flow}{row.temperature:g}",
        )
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
    name, distance = (
        "entropy along the scripts' steps, distance from their flow",
        t.facts["script distance from its flow"],
    )
    yield Number.exact(name, distance, at_most=DISCRETISED, unit="nats", sanity=True, key="distance")
    yield Number.exact("steps that stay finite on Eqn 6, number", printed, key="steps")


CLAIMS = (rebound_numbers, order_numbers, condition_numbers, script_numbers)


def charts(t: Measured) -> list[Chart]:
    """Draw components and entropies, and the controls."""
    entropies = []
    for name in FLOWS:
        panel = beside_control(t.entropies, name)
        shown = panel[panel["t"] >= t.facts[f"entropy moves, {name}"]]
        kind = np.where(shown["flow"] == WITHOUT, WITHOUT, "with attention")
        curve = "softmax(v²/" + shown["temperature"].map("{:g}".format) + ")"
        entropies.append(shown.assign(flow=LABELS[name], attention=kind, curve=curve))
    dips = pd.concat(
        t.dips.assign(rise=t.dips[column], attention=name)
        for name, column in (("with attention", "rise"), (WITHOUT, "control_rise"))
    )
    dips["curve"] = dips["flow"].replace(LABELS) + ", T = " + dips["temperature"].map("{:g}".format)
    script = t.script.rename(columns={"entropy": "explicit steps", "flow": "exact flow"})
    labels = {"t": "time", "rise": "rise after the dip (nats)", "curve": ""}
    labels |= dict.fromkeys(("entropy", "nats"), "attention entropy (nats)")
    by_flow: dict[str, Any] = {"facet": "flow", "x_log": True, "share_x": False, "labels": labels}
    return [
        lines(
            t.paths[t.paths["t"] > 0].replace({"flow": LABELS}),
            "t",
            "v",
            color="component",
            id="figure4",
            title="Large components are learned first under all three flows",
            caption="Each line is one component of v; darker to lighter with growing target.",
            **by_flow,
        ),
        lines(
            pd.concat(entropies),
            "t",
            "entropy",
            color="curve",
            dash="attention",
            id="figure4-entropy",
            title="Attention entropy dips and recovers under the printed flow and hardly moves under the model's own",
            caption="Entropy of softmax(v²/T). Dashed: the same targets without attention.",
            **by_flow | {"labels": labels | {"curve": "curve"}},
        ),
        points(
            dips,
            "curve",
            "rise",
            color="attention",
            id="figure4-rise",
            labels=labels,
            title="The rise needs attention",
            caption="How far the entropy rises after its lowest point, with and without attention.",
        ),
        lines(
            t.no_rebound,
            "t",
            "entropy",
            color="targets",
            id="figure4-refused",
            labels=labels,
            title="No rebound where the condition says so",
            caption="Entropy under Eqn 6 for targets that are all equal, and for targets of which one is zero.",
        ),
        lines(
            script.melt("step", ["explicit steps", "exact flow"], "run", "nats"),
            "step",
            "nats",
            color="run",
            dash="run",
            id="figure4-script",
            labels=labels,
            title="The scripts' steps follow their own flow",
            caption="Explicit steps of the scripts' variant and the exact flow. The same steps on Eqn 6 overflow.",
        ),
    ]


EXPERIMENTS = (
    Experiment(
        id="figure4",
        title="Components learned one after another; the attention entropy drops and rebounds",
        source="Section 4, figure 4",
        question="Do salient components come first, and does the attention entropy drop and rebound, under Eqn 6 as "
        "printed, under the variant in the paper's scripts and under the flow that the model really has?",
        presets={"quick": Figure4Config(), "full": Figure4Config(num_draws=400)},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        seconds={"quick": 4.0, "full": 22.0},
    ),
)
