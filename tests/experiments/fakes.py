"""Small experiments for the tests of the framework: they walk at random, slowly if asked, and can be interrupted."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd

from joma.experiments import registry
from joma.experiments.experiment import Experiment, Part, Result, Workplace, nothing_missing
from joma.experiments.timetable import Piece
from joma.figures.chart import Chart, Line, Panel
from joma.store.files import write_text
from joma.verdicts import Evidence, Outcome, Verdict

THRESHOLD = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A random walk."""

    num_steps: int = 5
    seeds: tuple[int, ...] = (3, 4)
    pause: float = 0.0
    log: str = ""
    """File that gets a line each time the computation begins."""


def compute(config: Config, workplace: Workplace) -> Result:
    """Walk at random; every step is kept in a file, so that an interrupted walk goes on."""
    if config.log:
        with Path(config.log).open("a", encoding="utf8") as log:
            log.write(f"{workplace.folder.parent.parent.name}\n")
    frames = []
    for number, seed in enumerate(config.seeds):
        for step in range(config.num_steps):
            workplace.progress((number + step / config.num_steps) / len(config.seeds), f"step {step}")
            frames.append(_step(config, workplace.folder / f"{seed}-{step}.json", seed, step))
    return _result(frames)


def compute_in_pieces(config: Config, workplace: Workplace) -> Result:
    """Walk the same way, each seed a piece that is counted to take as long as its steps pause."""
    if config.log:
        with Path(config.log).open("a", encoding="utf8") as log:
            log.write(f"{workplace.folder.parent.parent.name}\n")

    def piece(seed):
        def walk(tell):
            rows = []
            for step in range(config.num_steps):
                tell(step / config.num_steps, f"step {step}")
                rows.append(_step(config, workplace.folder / f"{seed}-{step}.json", seed, step))
            write_text(workplace.folder / f"{seed}.json", json.dumps(rows))

        return Piece(kind="walks", name=f"seed {seed}", seconds=config.num_steps * config.pause, work=walk)

    paths = {seed: workplace.folder / f"{seed}.json" for seed in config.seeds}
    workplace.work_off([piece(seed) for seed, path in paths.items() if not path.exists()])
    return _result([row for path in paths.values() for row in json.loads(path.read_text())])


def walked_so_far(config: Config, workplace: Workplace) -> Part | None:
    """Put together the walks that are finished."""
    paths = [workplace.folder / f"{seed}.json" for seed in config.seeds]
    there = [path for path in paths if path.exists()]
    if not there:
        return None
    rows = [row for path in there for row in json.loads(path.read_text())]
    note = f"The other {len(paths) - len(there)} have not set out."
    return Part(result=_result(rows), num_done=len(there), num_all=len(paths), what="walks", notes=(note,))


def _result(rows: list[dict[str, float]]) -> Result:
    walk = pd.DataFrame(rows)
    walk["place"] = walk.groupby("seed")["move"].cumsum()
    return Result(tables={"walk": walk}, facts={"farthest": float(walk["place"].abs().max()), "lost": float("nan")})


def _step(config: Config, path: Path, seed: int, step: int) -> dict[str, float]:
    if not path.exists():
        time.sleep(config.pause)
        move = float(np.random.default_rng([seed, step]).normal())
        write_text(path, json.dumps(move))
    return {"seed": seed, "step": step, "move": json.loads(path.read_text())}


def draw(result: Result) -> tuple[Chart, ...]:
    """Draw the walks."""
    lines = [Line(f"seed {seed}", walk["step"], walk["place"]) for seed, walk in result.tables["walk"].groupby("seed")]
    return (Chart("walk", "A walk", "It goes up and down.", [Panel("", "step", "place", lines)]),)


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge whether the walk stays near."""
    row = Evidence(
        name="farthest place",
        against="Monte Carlo",
        unit="steps",
        value=result.facts["farthest"],
        threshold=THRESHOLD,
        control=2 * THRESHOLD,
        control_name="a straight walk",
        published=0.5,
    )
    outcome = Outcome.HOLDS if row.holds else Outcome.REFUTED
    return (
        Verdict(
            id="near", title="The walk stays near", source="nowhere", claim="near", outcome=outcome, evidence=(row,)
        ),
    )


def fake(name: str, config: Config | None = None, **changes) -> Experiment:
    """Return an experiment without charts, which take the most time; `changes` replace its parts."""
    parts = {
        "id": name,
        "title": f"Walk {name}",
        "place": "Section 0",
        "question": "Where does it go?",
        "configs": {"quick": lambda: config or Config(), "full": lambda: Config(num_steps=20)},
        "compute": compute,
        "draw": lambda result: (),
        "verdicts": verdicts,
        "missing": nothing_missing,
    }
    return Experiment(**parts | changes)


def fake_in_pieces(name: str, config: Config | None = None, **changes) -> Experiment:
    """Return one that does its work in pieces."""
    return fake(name, config, **{"compute": compute_in_pieces, "in_pieces": True} | changes)


def install(experiments: list[Experiment]) -> None:
    """Make the registry hold these experiments alone."""
    registry.MODULES.clear()
    for experiment in experiments:
        module = ModuleType(f"joma.experiments.fake_{experiment.id}")
        module.EXPERIMENT = experiment
        sys.modules[module.__name__] = module
        registry.MODULES[experiment.id] = f"fake_{experiment.id}"
        for seconds in registry.SECONDS.values():
            seconds[experiment.id] = 1
