"""Does the alarm of `joma.watch` warn before attention collapses, and is it quiet otherwise?

Small language models are trained on the text that every Python carries. Healthy runs have a moderate rate, warm-up and
clipping; driven runs have a large rate, no warm-up or large weights at the start. An event is a loss 10 % above its
lowest value so far (means of 20 steps), or an entropy of a layer below 5 % of its largest. The control is the plain
rule "the largest logit is above 50". Thresholds were set on seeds below 100; judged are seeds from 101. Models with
norms after each part and torch's encoder keep their entropy at these rates, so only healthy runs have them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from joma.charts import Chart, bars, lines
from joma.claims import Number, claim
from joma.data import load_text
from joma.paper.experiment import (
    Experiment,
    Measured,
    as_float32,
    caption,
    catalogue,
    gathered,
    joined,
    one_thread,
    select,
)
from joma.paper.neox import transformers_missing
from joma.paper.small_models import ARCHITECTURES, LENGTH, OF_TRANSFORMERS, VOCABULARY, EngineModel, build
from joma.probe import watch
from joma.probe.alarm import Alarm
from joma.store import Store, Task, Workspace

BATCH = 8
PLAIN_BOUND = 50.0
"""Largest logit of the plain rule."""
LOSS_ABOVE, SMOOTHED, COLLAPSED = 1.1, 20, 0.05
"""Event: factor above the lowest loss, steps of its mean, and part of the largest entropy."""
WARNED, CONTAINED = 0.9, 0.8
"""Least share of collapses that are warned of, and of forecasts whose interval contains the true step."""
DRIVES: dict[str, dict[str, float]] = {
    "healthy": {"lr": 1e-3, "warmup": 50, "scale": 1.0, "clip": 1.0},
    "large rate": {"lr": 8e-2, "warmup": 50, "scale": 1.0, "clip": math.inf},
    "no warm-up": {"lr": 5e-2, "warmup": 0, "scale": 1.0, "clip": math.inf},
    "large start": {"lr": 3e-2, "warmup": 0, "scale": 2.5, "clip": math.inf},
}
CURES: dict[str, dict[str, Any]] = {
    "none": {},
    "QK norm": {"qk_norm": True},
    "soft-cap": {"softcap": 10.0},
    "QK-clip": {"qk_clip": 10.0},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AlarmConfig:
    """Runs: healthy ones of all architectures, driven ones of those that collapse, and cured ones of joma's decoder."""

    architectures: tuple[str, ...] = ARCHITECTURES
    collapsing: tuple[str, ...] = ("decoder", *OF_TRANSFORMERS)
    drives: tuple[str, ...] = ("large rate", "no warm-up", "large start")
    healthy_seeds: tuple[int, ...] = (101, 102, 103, 104, 105, 106)
    driven_seeds: tuple[int, ...] = (101, 102, 103)
    steps: int = 150
    every: int = 2


QUICK = AlarmConfig(
    architectures=("decoder", "encoder"), collapsing=("decoder",), drives=("no warm-up",), healthy_seeds=(1, 2),
    driven_seeds=(1, 2), steps=80,
)  # fmt: skip


def watched_run(config: AlarmConfig, architecture: str, drive: str, cure: str, seed: int) -> dict[str, pd.DataFrame]:
    """Train one model under `joma.watch`; return its row, its forecasts and its curves."""
    how, text = DRIVES[drive], load_text("python-docs", vocabulary_cap=VOCABULARY).train
    model = build(architecture, seed, **CURES[cure])
    blocks = [tensor for tensor in model.parameters() if tensor.ndim == 2 and VOCABULARY not in tensor.shape]  # noqa: PLR2004
    for tensor in blocks:
        tensor.data.mul_(how["scale"])
    adam, windows = torch.optim.AdamW(model.parameters(), weight_decay=0.0), torch.Generator().manual_seed(seed)
    seen, losses = watch(model, every=config.every), []
    for step in range(config.steps):
        adam.param_groups[0]["lr"] = how["lr"] * min(1.0, (step + 1) / max(how["warmup"], 1))
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=windows)
        tokens = text[starts + torch.arange(LENGTH + 1)]
        found = model(tokens[:, :-1])
        logits = found if isinstance(found, Tensor) else found.logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), how["clip"])
        adam.step()
        if isinstance(model, EngineModel):
            model.clip(tokens[:, :-1])
        losses.append(loss.item())
        seen.step(step, loss=losses[-1])
    seen.close()
    table = seen.frame()
    sites = {
        name: table[(table["head"] == -1) & (table["metric"] == name)].pivot_table("value", "step", "site")
        for name in ("max_logit", "entropy_fraction")
    }
    smooth = pd.Series(losses).rolling(SMOOTHED).mean()
    worse = smooth.index[~(smooth <= LOSS_ABOVE * smooth.cummin()) & (smooth.index >= SMOOTHED)]
    largest, lowest = sites["max_logit"].max(axis=1), sites["entropy_fraction"].min(axis=1)
    run = {"architecture": architecture, "drive": drive, "cure": cure, "seed": seed}
    row = run | {
        "alarm": min((each.step for each in seen.alerts), default=math.inf),
        "plain": min(largest.index[largest > PLAIN_BOUND], default=math.inf),
        "event": min([*worse, *lowest.index[lowest < COLLAPSED]], default=math.inf),
        "loss_event": min(worse, default=math.inf),
        "kinds": ", ".join(dict.fromkeys(each.kind.value for each in seen.alerts)),
        "largest_logit": largest.max(),
        "lowest_entropy": lowest.min(),
        "last_loss": smooth.iloc[-1],
    }
    forecasts = []
    for alert in seen.alerts:
        if alert.forecast is None:
            continue
        curve = sites["max_logit"][alert.site]
        reached = min(curve.index[(curve >= alert.threshold) & (curve.index > alert.step)], default=math.inf)
        low, high = alert.forecast.low, alert.forecast.high
        forecasts.append(run | {"made": alert.step, "low": low, "high": high, "reached": float(reached)})
    curves = pd.DataFrame({"largest_logit": largest, "lowest_entropy": lowest, "loss": smooth.reindex(largest.index)})
    named = as_float32(curves.reset_index()).assign(**run)
    columns = [*run, "made", "low", "high", "reached"]
    return {"runs": pd.DataFrame([row]), "forecasts": pd.DataFrame(forecasts, columns=columns), "curves": named}


def compute(config: AlarmConfig, store: Store) -> Measured:
    """Train all runs: a task for each architecture, drive and cure."""
    plan = [(architecture, "healthy", "none", config.healthy_seeds) for architecture in config.architectures]
    plan += [(each, drive, "none", config.driven_seeds) for each in config.collapsing for drive in config.drives]
    plan += [("decoder", drive, cure, config.driven_seeds) for cure in [*CURES][1:] for drive in config.drives]

    def task(architecture: str, drive: str, cure: str, seeds: Sequence[int]) -> Task:
        def work(space: Workspace) -> dict[str, pd.DataFrame]:
            found = []
            with one_thread():
                for done, seed in enumerate(seeds):
                    space.progress(done / len(seeds), f"seed {seed}")
                    found.append(watched_run(config, architecture, drive, cure, seed))
            return joined(found)

        about = {"drive": DRIVES[drive], "cure": CURES[cure], "alarm": asdict(Alarm())}
        key = about | {"architecture": architecture, "seeds": seeds, "steps": config.steps, "every": config.every}
        seconds = 0.015 * config.steps * len(seeds)
        return Task(f"{architecture}, {drive}, {cure}", key, work, seconds=seconds, kind="alarm", precision="fp32")

    return gathered(store, [task(*each) for each in plan])


def driven(t: Measured) -> pd.DataFrame:
    """Return the driven runs, cured ones too."""
    return t.runs[t.runs["drive"] != "healthy"]


PLAIN: dict[str, Any] = {"control_name": "largest logit above 50", "paired": True}


@claim("alarm-quiet", "No alarm in healthy runs", source="Our question", ours=True)
def quiet_numbers(t: Measured) -> Iterator[Number]:
    """on at least 30 healthy runs of six architectures there is no alarm"""
    runs = select(t.runs, drive="healthy")
    alarm, plain = (np.isfinite(runs[name]).astype(float) for name in ("alarm", "plain"))
    about = PLAIN | {"control": plain, "unit": "share", "key": "false"}
    yield Number.mean("healthy runs with an alarm", alarm, at_most=0.0, **about)
    yield Number.exact("healthy runs", len(runs), key="runs")
    yield Number.exact("healthy runs with an event", np.isfinite(runs["event"]).sum(), key="events")


@claim("alarm-warns", "The alarm warns before attention collapses", source="Our question", ours=True)
def warning_numbers(t: Measured) -> Iterator[Number]:
    """on at least 30 runs driven into collapse the alarm warns in at least 90 % before the event"""
    uncured = select(driven(t), cure="none")
    runs = uncured[np.isfinite(uncured["event"])]
    before = {name: (runs[name] < runs["event"]).astype(float) for name in ("alarm", "plain")}
    name, about = "collapses warned of before the event", PLAIN | {"unit": "share", "key": "warned"}
    yield Number.mean(name, before["alarm"], control=before["plain"], at_least=WARNED, **about)
    lead = {name: (runs["event"] - runs[name]).clip(lower=0) for name in ("alarm", "plain")}
    name = "steps from the warning to the event, 0 without one"
    yield Number.mean(name, lead["alarm"], control=lead["plain"], unit="steps", key="lead", **PLAIN)
    yield Number.exact("driven runs with an event", len(runs), key="runs")
    yield Number.exact("driven runs", len(uncured), key="driven")


@claim("alarm-forecast", "Forecasts contain the true step", source="Our question", ours=True)
def forecast_numbers(t: Measured) -> Iterator[Number]:
    """the interval of a forecast contains the step at which the logit reaches its bound in at least 80 %"""
    table, config = t.forecasts.astype(dict.fromkeys(("made", "low", "high", "reached"), float)), t.config
    table = table[np.isfinite(table["reached"]) | (table["high"] < config.steps - config.every)]
    waits = table[["low", "high"]].sub(table["made"], axis=0)
    # The step is known up to the measurement before. The control waits as long as the forecast before it said.
    inside = {
        name: ((low <= table["reached"]) & (high >= table["reached"] - config.every)).astype(float)
        for name, low, high in (
            ("own", table["low"], table["high"]),
            ("other", *(table["made"] + np.roll(waits[end], 1) for end in ("low", "high"))),
        )
    }
    name, control = "forecasts whose interval contains the true step", "the interval of another forecast"
    fields: dict[str, Any] = {"control_name": control, "paired": True, "unit": "share", "key": "contained"}
    yield Number.mean(name, inside["own"], control=inside["other"], at_least=CONTAINED, **fields)
    yield Number.exact("forecasts", len(table), key="forecasts")
    yield Number.exact("half width of the interval", float((waits["high"] - waits["low"]).median() / 2), key="half")


@claim("alarm-cures", "What QK norm, soft-cap and QK-clip change", source="Our question", primary=False, ours=True)
def cure_numbers(t: Measured) -> Iterator[Number]:
    """settings that bound the logits keep the same runs from collapsing"""
    runs = select(driven(t), architecture="decoder")
    plain = select(runs, cure="none")
    for cure, own in runs[runs["cure"] != "none"].groupby("cure", sort=False):
        key = cure.replace(" ", "_").replace("-", "_").lower()
        fields: dict[str, Any] = {"control_name": "without a cure", "paired": True, "setting": cure}
        for name, column, unit in (("runs with an event", "event", "share"), ("last loss", "last_loss", "nats")):
            values = [np.isfinite(each[column]) * 1.0 if column == "event" else each[column] for each in (own, plain)]
            yield Number.mean(name, values[0], control=values[1], unit=unit, key=f"{key}_{column}", **fields)


CLAIMS = (quiet_numbers, warning_numbers, forecast_numbers, cure_numbers)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the largest logit of every run, and the events with each cure."""
    curves = select(t.curves, cure="none")
    curves = curves.assign(run=curves["architecture"] + " " + curves["seed"].astype(str))
    by: dict[str, Any] = {"color": "architecture", "detail": "run", "facet": "drive", "y_log": True}
    yield lines(curves, "step", "largest_logit", **by, **caption("alarm"))
    runs = driven(t).assign(event=np.isfinite(driven(t)["event"]) * 1.0)
    shares = select(runs, architecture="decoder").groupby(["cure", "drive"], as_index=False, sort=False)["event"].mean()
    yield bars(shares, "cure", "event", color="drive", **caption("alarm-cures"))


EXPERIMENTS = (
    Experiment(
        **catalogue("alarm"),
        presets={"quick": QUICK, "full": AlarmConfig()},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        needs=lambda config, device: transformers_missing() if {*OF_TRANSFORMERS} & {*config.architectures} else "",
        in_tasks=True,
    ),
)
