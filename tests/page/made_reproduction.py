"""A reproduction made up for the tests: an experiment with every kind of chart, one not run, one that failed."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from joma.errors import UnknownNameError
from joma.experiments.experiment import Experiment, Result, nothing_missing
from joma.experiments.publication import publish
from joma.experiments.record import Record, Reproduction, Status, save
from joma.figures.chart import Bars, Chart, HeatMap, Line, Panel
from joma.store.record import plain
from joma.verdicts import Evidence, Outcome, Verdict

from .made_runs import HOSTILE, watched

RATES = (1e-4, 1e-3, 1e-2)
SETTINGS = ("20 classes, 2 latents", "20 classes, 3 latents", "30 classes, 2 latents", "30 classes, 3 latents")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of the made experiments."""

    num_steps: int = 200
    seeds: tuple[int, ...] = (1, 2, 3)


def curves(config):
    """Dip and rebound of five layers at three rates, with an error over seeds."""
    steps = np.unique(np.geomspace(1, config.num_steps, 40).astype(int))
    rows = []
    for rate in RATES:
        for layer in range(5):
            dip = np.exp(-((np.log(steps) - 3 - 0.3 * layer) ** 2)) * (1 - 0.25 * np.log10(rate))
            rows.append(
                pd.DataFrame(
                    {"rate": rate, "layer": layer, "step": steps, "entropy": 4 - dip, "error": 0.05 + dip / 20}
                )
            )
    return pd.concat(rows, ignore_index=True)


def compute(config, workplace):
    """Return the result of an experiment."""
    scores = pd.DataFrame(
        {
            "setting": SETTINGS,
            "trained": [0.61, 0.58, 0.66, 0.7],
            "untrained": [0.6, 0.55, 0.67, 0.64],
            "published": [0.99, 0.96, 0.99, 0.97],
            "note": ["", "", HOSTILE, ""],
        }
    )
    attention = pd.DataFrame(
        np.abs(np.sin(np.arange(15.0))).reshape(3, 5), columns=["the", "cat", "sat", "on", HOSTILE]
    )
    tables = {"curves": curves(config), "scores": scores, "attention": attention}
    return Result(tables=tables, facts={"dip": 1.2345, "collapsed": False, "never": float("nan"), "text": HOSTILE})


def draw(result):
    """Draw small multiples, bars with points over them, and a heat map."""
    table, scores, attention = (result.tables[name] for name in ("curves", "scores", "attention"))
    panels = [
        Panel(
            f"learning rate {rate:g}",
            "training step",
            "attention entropy, nats",
            [
                Line(
                    f"layer {layer}",
                    own["step"],
                    own["entropy"],
                    low=own["entropy"] - own["error"],
                    high=own["entropy"] + own["error"],
                    shade=layer,
                )
                for layer, own in group.groupby("layer")
            ],
            log_x=True,
        )
        for rate, group in table.groupby("rate")
    ]
    bars = [Bars(name, scores["setting"], scores[name], errors=[0.02] * 4) for name in ("trained", "untrained")]
    points = Line("published", range(4), scores["published"], style="points")
    heat = HeatMap("attention", list(attention.columns), ["layer 0", "layer 1", "layer 2"], attention)
    return (
        Chart("entropy", "Attention entropy over training", "Bands are standard errors over three seeds.", panels),
        Chart(
            "scores", f"Scores {HOSTILE}", HOSTILE, [Panel("", "setting", "normalised correlation", [*bars, points])]
        ),
        Chart("attention", "Attention", "What the last query looks at.", [Panel("", "key", "", [heat])]),
    )


def verdicts(result, config):
    """Judge: one claim of each outcome."""
    return tuple(
        Verdict(
            id=f"claim-{place}",
            title=title,
            source="Section 4, figure 6",
            claim="Attention entropy dips and comes back in every layer.",
            outcome=outcome,
            explanation="The control dips as much, which the claim does not allow for. " * 2,
            evidence=(evidence(place), evidence(place + 4)) if outcome is not Outcome.NOT_RUN else (),
        )
        for place, (outcome, title) in enumerate(
            zip(Outcome, ("Entropy dips", "The dip comes back", "Training adds", "Best rate", HOSTILE), strict=True)
        )
    )


def evidence(place):
    """Return a number of its own for each place."""
    return Evidence(
        name=f"rebound over dip, layer {place}",
        against="an untrained network",
        unit="share",
        value=[0.9, 0.5, 10.25, 0.04, float("nan")][place % 5],
        threshold=0.5,
        control=[0.1, 0.6, 0.2, 0.3, None][place % 5],
        control_name="linear activation",
        at_least=True,
        published=[None, 5.357, None, 0.9, None][place % 5],
    )


EXPERIMENT = Experiment(
    id="figure6",
    title="Attention entropy over training",
    place="Section 5, figure 6",
    question="Does the attention of every layer grow sparse and then dense again?",
    configs={"quick": Config, "full": Config},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
)


def experiment(name):
    """Stand in for the registry."""
    if name != EXPERIMENT.id:
        raise UnknownNameError("experiment", name, [EXPERIMENT.id])
    return EXPERIMENT


def reproduced(root, preset="quick"):
    """Write the folder of a reproduction: one experiment done, one unknown by now, one not run, one failed."""
    config = Config()
    result = compute(config, None)
    charts = draw(result)
    common = {"preset": preset, "device": "cpu", "seconds": 83.2, "config": plain(config), "seeds": config.seeds}
    done = Record(
        **common,
        **{name: getattr(EXPERIMENT, name) for name in ("id", "title", "place", "question")},
        status=Status.DONE,
        notes=("Went on from an earlier call.",),
        verdicts=verdicts(result, config),
        charts=tuple(chart.id for chart in charts),
        tables=tuple(result.tables),
    )
    gone = Record(
        **common,
        id="figure99",
        title="Drawn by another version",
        place="nowhere",
        question="Is what an older version wrote still shown?",
        status=Status.DONE,
        charts=("attention",),
        tables=("attention",),
    )
    needs = "Needs the Hugging Face hub, which cannot be reached from here."
    not_run = Record(
        **common, id="figure7", title="Checkpoints of OPT", place="p", question="q", status=Status.NOT_RUN, reason=needs
    )
    failed = Record(
        **common,
        id="table1",
        title="Latents found",
        place="p",
        question="q",
        status=Status.FAILED,
        reason=f"KeyError {HOSTILE}",
    )
    about = {"versions": {"torch": "2.13"}, "git_commit": "abc123", "computed": "2024-05-01T10:00:00+00:00"}
    publish(root / done.id, done, about, result, charts)
    kept = Result(tables={"attention": result.tables["attention"]}, facts={})
    publish(root / gone.id, gone, about, kept, charts[2:])
    watched(root / done.id / "work" / "run", num_layers=2, num_steps=3)
    save(
        Reproduction(
            folder=root,
            preset=preset,
            started="2024-05-01T10:00:00+00:00",
            seconds=200.0,
            experiments=(done, gone, not_run, failed),
        )
    )
    return root
