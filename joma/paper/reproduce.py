"""`reproduce`: computes experiments, judges their claims and draws their charts, into one folder.

The folder, for each experiment by its id:

- `reproduction.json`: the results of all experiments in the folder, in the paper's order.
- `<id>/result.json`: one result (`ExperimentResult`): settings, status, answers to the claims, charts, provenance.
- `<id>/tables/<name>.parquet` and `.csv`, `<id>/charts/<chart>.png`, `.svg` and `.pdf`.
- `work/`: the store that all experiments share, from which an interrupted call goes on.
"""

import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from joma.charts import Chart
from joma.claims import Answer, judge
from joma.errors import MissingExtraError, UnknownNameError, import_extra, positive
from joma.paper.experiment import MODULES, PRESETS, Experiment, Measured, experiment, find
from joma.store.files import demand_writable, remove_leftovers, write_bytes, write_text
from joma.store.lock import alone_in
from joma.store.work import OutOfTime, Store, Task, WorkProgress, provenance

FILE_NAME = "reproduction.json"
RESULT = "result.json"

Progress = Callable[[str, WorkProgress], None]
"""Called with the experiment at work, and how far its tasks are."""


class Status(StrEnum):
    """How far an experiment came."""

    DONE = "done"
    UNFINISHED = "unfinished"
    """Some tasks are left. The same command goes on with them."""
    NOT_RUN = "not run"
    """Something that it needs is missing here, or it has no such preset."""
    FAILED = "failed"


class ChartInfo(BaseModel):
    """Title and caption of a chart; its id names its files."""

    id: str
    title: str
    caption: str


class ExperimentResult(BaseModel):
    """What came of one experiment."""

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")

    id: str
    title: str
    source: str
    question: str
    preset: str
    config: dict[str, Any]
    status: Status
    reason: str = ""
    """Why it is not done."""
    done: int = 0
    """Tasks that are finished."""
    tasks: int = 0
    """Tasks in all."""
    seconds: float = 0.0
    """Time that its tasks took, in earlier calls too."""
    answers: tuple[Answer, ...] = ()
    charts: tuple[ChartInfo, ...] = ()
    tables: tuple[str, ...] = ()
    provenance: tuple[dict[str, Any], ...] = ()
    """For each task: commit, precision, device, versions, seconds and time."""

    @property
    def sound(self) -> bool:
        """Whether nothing of our own went wrong. A refuted claim is sound."""
        return self.status is not Status.FAILED and all(answer.sound for answer in self.answers)

    @property
    def has_texts(self) -> bool:
        """Whether the hand-written texts on its claims speak of this preset."""
        return self.id in MODULES and experiment(self.id).text_preset == self.preset


class Reproduction(BaseModel):
    """What `reproduce` did: a result for each experiment."""

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")

    folder: Path = Path()
    preset: str
    experiments: tuple[ExperimentResult, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing of our own went wrong in any experiment."""
        return all(each.sound for each in self.experiments)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers of all experiments."""
        return tuple(answer for each in self.experiments for answer in each.answers)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each number of each claim."""
        return pd.DataFrame(
            {"experiment": answer.tested_by, "claim": answer.claim, "outcome": answer.outcome.value}
            | number.model_dump(exclude={"seconds"})
            for answer in self.answers
            for number in answer.numbers
        )


def reproduce(
    ids: str | Sequence[str] | None = None,
    *,
    preset: str = "quick",
    out: Path | str,
    device: str | None = None,
    minutes: float | int | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Rebuild figures and tables of the paper, with controls and outcomes; the same call goes on where it stopped.

    Args:
        ids: Experiments by id, one or several; all when None. `joma reproduce --list` shows them.
        preset: `quick` for minutes on two CPU cores, `small` for an hour on one, `full` for the paper's settings on one
            GPU. An experiment that does not have the preset is not run.
        out: Folder for everything; what it holds already is not computed again.
        device: `cpu`, `cuda` or one GPU, `cuda:0`; the GPU if there is one when None.
        minutes: Start only what fits this time. The same call goes on with the rest.
        progress: Called every few seconds.
    """
    from joma.engine.plan import device_named

    wanted, out, begun = find(ids), Path(out), time.monotonic()
    limit = None if minutes is None else float(positive("minutes", minutes))
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    demand_writable(out)
    tell = progress or (lambda id, at: None)
    with alone_in(out):
        remove_leftovers(out, at_any_depth=True)
        there = str(device_named(device))
        found: list[ExperimentResult] = []
        for name in wanted:
            left = None if limit is None else limit - (time.monotonic() - begun) / 60
            found.append(_run(name, preset, out / name, there, left, tell))
            _save(out, preset, found)
    return Reproduction(folder=out, preset=preset, experiments=tuple(found))


def available(ids: Sequence[str], *, device: str | None = None) -> list[dict[str, str]]:
    """Return each experiment with what it lacks here, or about how long it takes, for each preset."""
    from joma.engine.plan import device_named

    there = str(device_named(device))
    rows: list[dict[str, str]] = []
    for name in ids:
        made = experiment(name)
        rows.append({"experiment": name, "title": made.title, "source": made.source})
        for preset in PRESETS:
            missing = made.needs(made.presets[preset], there) if preset in made.presets else "–"
            seconds = made.seconds.get(preset)
            rows[-1][preset] = missing or (f"about {seconds:,.0f} s" if seconds else "runs here")
    return rows


def read_reproduction(folder: Path | str) -> Reproduction:
    """Read what `reproduce` left in a folder."""
    path = Path(folder) / FILE_NAME
    try:
        return Reproduction.model_validate_json(path.read_bytes()).model_copy(update={"folder": Path(folder)})
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} has no {FILE_NAME}. Pass a folder of `joma reproduce --out`.") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path} is damaged at {first['loc']}: {first['msg']}. Run `joma reproduce` again.") from None


def tables_of(folder: Path | str, result: ExperimentResult) -> Measured:
    """Read the tables of an experiment from its folder in a reproduction."""
    place = Path(folder) / result.id / "tables"
    frames = {name: pd.read_parquet(place / f"{name}.parquet") for name in result.tables}
    tables = Measured(frames.pop("facts", None), **frames)
    tables.config = settings(result.config)
    return tables


def charts_of(folder: Path | str, result: ExperimentResult) -> Sequence[Chart]:
    """Draw the charts of an experiment again from its tables."""
    return experiment(result.id).draw(tables_of(folder, result))


def plain(config: Any) -> dict[str, Any]:
    """Return settings as JSON has them."""
    return json.loads(json.dumps(asdict(config), default=str))


def _run(name: str, preset: str, folder: Path, device: str, minutes: float | None, tell: Progress) -> ExperimentResult:
    """Return the result of one experiment, written to its folder; an exception becomes a failed result."""
    made = experiment(name)
    about = {field: getattr(made, field) for field in ("title", "source", "question")}
    base = ExperimentResult(id=name, **about, preset=preset, config={}, status=Status.NOT_RUN)
    if preset not in made.presets:  # what another preset left in the folder stays
        return base.model_copy(update={"reason": f"It has no preset {preset}. Take {' or '.join(made.presets)}."})
    (folder / "error.txt").unlink(missing_ok=True)
    config = made.presets[preset]
    base = base.model_copy(update={"config": plain(config)})
    missing = made.needs(config, device)
    # All experiments share a store, since some need the same trainings. Where something is missing it only reads.
    limit = 0.0 if missing else minutes
    store = Store(folder.parent / "work", device=device, minutes=limit, progress=lambda at: tell(name, at))
    charts: tuple[Chart, ...] = ()
    try:
        found, tables = _computed(made, config, base, store, missing)
        charts = () if tables is None else _drawn(made, tables)
    except Exception as error:
        write_text(folder / "error.txt", "".join(traceback.format_exception(error)))
        reason = f"{type(error).__name__}: {error} (traceback in {folder / 'error.txt'})"
        found, tables = {"status": Status.FAILED, "reason": reason}, None
    found["charts"] = tuple(ChartInfo(id=each.id, title=each.title, caption=each.caption) for each in charts)
    result = base.model_copy(update=found)
    publish(folder, result, tables, charts)
    return result


def _drawn(made: Experiment, tables: Measured) -> tuple[Chart, ...]:
    """Return the charts; none, with a warning, on a machine that only computes."""
    try:
        import_extra("vl_convert", "report")
        return made.draw(tables)
    except MissingExtraError as missing:
        warnings.warn(f"No charts are drawn. {missing}", RuntimeWarning, stacklevel=2)
        return ()


def _computed(
    made: Experiment, config: Any, base: ExperimentResult, store: Store, missing: str
) -> tuple[dict[str, Any], Measured | None]:
    """Compute what there is time for, and judge what is finished; returns fields of the result, and the tables."""
    tables, left = None, missing
    try:
        if made.in_tasks:
            tables = made.compute(config, store)
        else:
            key = {"experiment": made.id, "version": made.version, "config": base.config}
            seconds = made.seconds.get(base.preset, 0.0)
            task = Task(made.id, key, lambda space: made.compute(config, space), seconds, kind=made.id)
            tables = Measured(**store.get(task).tables)
    except OutOfTime as error:
        left = missing or str(error)
    except Exception:
        if not missing:  # without its data an experiment may not even know its tasks
            raise
    if missing and not store.used:
        return {"reason": missing}, None
    made_by = provenance(store.used)
    is_done = tables is not None and not store.left
    fields: dict[str, Any] = {
        "status": Status.DONE if is_done else Status.UNFINISHED,
        "reason": "" if is_done else left,
        "done": len(store.used),
        "tasks": len(store.used) + len(store.left),
        "seconds": float(made_by["seconds"].sum()) if len(made_by) else 0.0,
        "provenance": tuple(made_by.to_dict("records")),
    }
    if tables is not None:
        tables.config = settings(base.config)
        fields |= {"answers": tuple(judge(made.claims, tables, tested_by=made.id)), "tables": tuple(tables)}
    return fields, tables


def publish(folder: Path, result: ExperimentResult, tables: Measured | None, charts: Iterable[Chart]) -> None:
    """Write tables, charts and at last the result of an experiment."""
    for name, frame in (tables or {}).items():
        write_bytes(folder / "tables" / f"{name}.parquet", frame.to_parquet(index=False, compression="zstd"))
        write_text(folder / "tables" / f"{name}.csv", frame.to_csv(index=False))
    for chart in charts:
        chart.save(folder / "charts")
    write_text(folder / RESULT, result.model_dump_json(indent=1) + "\n")


def _save(out: Path, preset: str, found: Sequence[ExperimentResult]) -> None:
    """Write the summary, with earlier results in the folder."""
    known = {each.id: each for each in found}
    for path in out.glob(f"*/{RESULT}"):
        try:
            known[path.parent.name] = ExperimentResult.model_validate_json(path.read_bytes())
        except ValidationError:  # a damaged result of another experiment does not stop this one
            continue
    ordered = tuple(known[name] for name in MODULES if name in known)
    summary = Reproduction(preset=preset, experiments=ordered)
    write_text(out / FILE_NAME, summary.model_dump_json(indent=1, exclude={"folder"}) + "\n")


def settings(config: dict[str, Any]) -> SimpleNamespace:
    """Return plain settings with their names as attributes, as claims and charts read them."""
    return SimpleNamespace(**config)
