r"""Table 1: do hidden neurons learn the latents of a hierarchy, and how much of that is there without training?

NCorr(s) is the mean over the latents of level s of the correlation with the best hidden neuron of block s. Controls:
the same network untrained, latents dealt to other inputs, and neurons assigned to latents one to one. The sources leave
the learning rate and the hidden width open; all four combinations are trained.

The hierarchy is deterministic, with at most C different inputs, so a wide random layer separates them anyhow. The
question is asked again on latent trees HBLT(ρ) with ρ < 1, where inputs vary within a class, for all three levels.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from joma.engine.config import HIERARCHY, TREES
from joma.experiments.experiment import NOT_FINISHED, Experiment, Part, Result, Workplace
from joma.experiments.table1_finished import finished
from joma.experiments.table1_measure import Config, by_choice, by_setting, grids_of, score_runs, with_lowest_losses
from joma.experiments.table1_seeds import (
    DIVERGED,
    NUM_PLANNED,
    SETTING,
    diverged_runs,
    of_planned,
    planned_numbers,
    setting_in_words,
    told,
)
from joma.experiments.table1_verdicts import SOURCE, verdicts
from joma.figures.chart import Bars, Chart, Line, Panel
from joma.figures.numbers import fewest_letters

IN_PART = "settings_in_part"
"""Table of settings whose open choice is not finished: drawn, and not judged."""


def quick() -> Config:
    """Two settings, two seeds, a narrow network and few steps: a minute on a CPU."""
    return Config(
        is_paper_size=False,
        num_children=(2,),
        num_classes=(20,),
        lrs=(1e-3,),
        hiddens=(64,),
        width=128,
        seeds=(1, 2),
        steps=200,
        rhos=(0.8,),
        tree_hiddens=(64,),
        tree_steps=120,
        batch=64,
        precision="fp32",
        num_samples=640,
        num_shuffles=10,
    )


def full() -> Config:
    """The paper's twelve settings and five seeds, both open choices."""
    return Config()


def compute(config: Config, workplace: Workplace) -> Result:
    """Train and score all runs; average over seeds."""
    planned = planned_numbers(run.config for runs in grids_of(config) for run in runs)
    return _result(score_runs(config, workplace), planned, config)


def so_far(config: Config, workplace: Workplace) -> Part | None:
    """Average what is finished, as `table1_finished` says; None until a setting has all its seeds."""
    found = finished(config, workplace)
    if found is None or (found.whole.empty and found.in_part.empty):
        return None
    whole = _result(found.whole, found.whole_planned, config)
    in_part = {IN_PART: by_setting(found.in_part, found.in_part_planned)} if len(found.in_part_planned) else {}
    left = "; ".join(found.absent)
    notes = [
        f"Means and verdicts rest on the open choices of which all settings and seeds are finished. Not yet: {left}."
    ]
    if in_part:
        notes.append(f"Of these, settings with all their seeds are shown by themselves, in the table {IN_PART}.")
    return Part.of(
        replace(whole, tables={**whole.tables, **in_part}),
        num_done=found.num_done,
        num_all=found.num_all,
        left=left,
        num_waiting=found.num_waiting,
        notes=notes,
    )


def missing(config: Config, workplace: Workplace) -> str:
    """Return that a GPU is missing for the runs of the paper's size; nothing where they are all measured."""
    if not config.is_paper_size or workplace.device != "cpu":
        return ""
    found = finished(config, workplace)
    if found is not None and found.num_done == found.num_all:
        return ""
    return "It needs a GPU: on a CPU the runs of Table 1 would take weeks."


def _result(runs: pd.DataFrame, planned: pd.DataFrame, config: Config) -> Result:
    settings, choices, diverged = by_setting(runs, planned), by_choice(runs, planned), diverged_runs(runs, planned)
    fits = _fits(settings)
    best = min(fits, key=lambda choice: fits[choice]) if fits else None
    facts: dict[str, float | int | str | bool] = {
        "num_runs": len(runs[["seed", *SETTING]].drop_duplicates()),
        NUM_PLANNED: len(planned[["seed", *SETTING]].drop_duplicates()),
        "num_diverged": len(diverged),
        "is_paper_size": config.is_paper_size,
    }
    if best is not None:
        facts |= {"best_hidden": best[0], "best_lr": best[1]}
        facts |= {f"distance_hidden{hidden}_lr{lr:g}": fit for (hidden, lr), fit in fits.items()}
    tables = {"runs": with_lowest_losses(runs, config), "settings": settings, "choices": choices}
    return Result(tables=tables | ({DIVERGED: diverged} if len(diverged) else {}), facts=facts)


def _fits(settings: pd.DataFrame) -> dict[tuple[int, float], float]:
    """Return the mean distance from the published numbers for each open choice."""
    known = settings.dropna(subset=["published", "trained"])
    distance = (known["trained"] - known["published"]).abs()
    means = distance.groupby([known["hidden"], known["lr"]]).mean()
    return {(int(hidden), float(lr)): float(value) for (hidden, lr), value in means.items()}


def draw(result: Result) -> tuple[Chart, ...]:
    """Show every setting beside its control, and what training adds on the two kinds of data, as far as finished."""
    settings, choices = result.tables["settings"], result.tables["choices"]
    is_small = not result.facts["is_paper_size"]
    scores = [*_score_panels(settings), *_score_panels(result.tables.get(IN_PART, settings[:0]), " (some settings)")]
    adds = [_excess_panel(own, data) for data in (HIERARCHY, TREES) if len(own := choices[choices["data"] == data])]
    note = f" {told(result)}".rstrip() + (" Small size: not the paper's settings." if is_small else "")
    if NOT_FINISHED in result.facts:
        note += " Open choices that are not finished are left out, or shown by some settings alone."
    score_words = (
        "Each setting is classes / children / latents; networks have a causal mask, as in the public script. The "
        "untrained network is the same one at its start; shuffled latents are dealt to other inputs, for the trained "
        "one. Bars have the standard error between seeds. What is not above the control was not learned."
    )
    adds_words = (
        "Trained less untrained, averaged over settings, with the standard error between seeds, on the paper's "
        "deterministic hierarchy and on latent trees whose inputs vary within a class."
    )
    drawn = (
        ("table1", "NCorr of latents and hidden neurons", score_words, scores),
        ("table1-training", "What training adds to NCorr", adds_words, adds),
    )
    return tuple(Chart(name, title, words + note, panels) for name, title, words, panels in drawn if panels)


def _score_panels(settings: pd.DataFrame, remark: str = "") -> Iterator[Panel]:
    own = settings[settings["data"] == HIERARCHY]
    for (hidden, lr, level), part in own.groupby(["hidden", "lr", "level"]):
        yield _score_panel(part, f"s = {level}, hidden {hidden}, learning rate {fewest_letters(lr)}{remark}")


def _score_panel(part: pd.DataFrame, title: str) -> Panel:
    names = [_setting_name(row) for row in part.to_dict("records")]
    items: list[Bars | Line] = [
        Bars("trained", names, part["trained"], errors=part["trained_error"].fillna(0.0)),
        Bars("untrained", names, part["untrained"], errors=part["untrained_error"].fillna(0.0)),
        Bars("shuffled latents", names, part["shuffled"]),
    ]
    if part["published"].notna().any():
        items.append(Line("published", list(range(len(part))), part["published"], style="points"))
    return Panel(title, "setting", "NCorr", items)


def _setting_name(row: dict[Any, Any]) -> str:
    name = setting_in_words(row)
    return name + of_planned(row["num_seeds"], row["num_seeds_planned"], "seed") if "num_seeds" in row else name


def _excess_panel(part: pd.DataFrame, data: str) -> Panel:
    items = []
    for (hidden, lr), own in part.groupby(["hidden", "lr"]):
        names = [f"level {level}" for level in own["level"]]
        errors = own["excess_error"].fillna(0.0)
        items.append(Bars(f"hidden {hidden}, rate {fewest_letters(lr)}", names, own["excess"], errors=errors))
    title = "hierarchy of Table 1" if data == HIERARCHY else "latent trees"
    return Panel(title, "level of latents, from the tokens up", "trained − untrained NCorr", items)


EXPERIMENT = Experiment(
    id="table1",
    title="Latents and hidden neurons",
    place=SOURCE,
    question="Do hidden neurons learn the latents of a hierarchy, or does an untrained network score the same? And on "
    "latent trees, where inputs vary within a class?",
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=missing,
    in_pieces=True,
    so_far=so_far,
    schema=2,
)
