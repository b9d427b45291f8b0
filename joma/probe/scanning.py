"""`scan`: a series of checkpoints measured and audited, into a record that the next call goes on with."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from jaxtyping import Int
from pydantic import TypeAdapter
from torch import Tensor

from joma.formatting import counted, printable
from joma.probe import fingerprint
from joma.probe.audit import NO_FLAG, audit, flags
from joma.probe.findings import Fault, Finding
from joma.probe.fingerprint import Fingerprint, TensorPrint
from joma.probe.hub import download_tokenizer
from joma.probe.inspection import ENTROPY, RANKS, Inspection, InspectionTask, inspect_checkpoint
from joma.probe.measurement import Row
from joma.probe.series import Checkpoint, find_series
from joma.probe.structure import demand_pattern
from joma.probe.summary import SCANNED, as_html, chart_of, effects_of, first_lowest_last, layer_lines
from joma.probe.text import DEFAULT_NUM_WINDOWS, windows_of
from joma.store import RunWriter, demand_closed, demand_writable, info, open_run, read, read_events
from joma.store.files import remove_leftovers
from joma.tasks.run import run_tasks

if TYPE_CHECKING:
    import pandas

    from joma.charts import Chart

DOWNLOADS = "downloads"
AUDIT = "audit"
_COST = "cost"
_JOIN = "; "
_FLUSH_SECONDS = 1e9  # rows are written checkpoint by checkpoint, not by time


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What a scan did and found; the values are in the record, `joma.read(folder)`."""

    folder: Path
    num_checkpoints: int
    num_measured: int  # checkpoints measured by this call
    num_known: int  # checkpoints whose values were in the record already
    not_loaded: tuple[str, ...]
    """Checkpoints of which nothing could be read, in this call or before; the findings say why."""
    without_values: tuple[str, ...]  # checkpoints that were read and show nothing to measure, in this call or before
    findings: tuple[Finding, ...]
    failures: Mapping[str, str]
    """Checkpoints that could not be reached, with the reason; the next call tries them again."""

    @property
    def sound(self) -> bool:
        """Whether every checkpoint was reached, and no measured value is to be distrusted."""
        return not self.failures and not self.grave

    @property
    def grave(self) -> tuple[Finding, ...]:
        """Findings by which a checkpoint was not loaded, or its values are not to be trusted."""
        return tuple(finding for finding in self.findings if finding.kind not in NO_FLAG)

    @property
    def is_empty(self) -> bool:
        """Whether there is no value of any checkpoint."""
        return not self.num_measured and not self.num_known

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON; first, lowest and last value, fall and rise of each metric and layer."""
        table = self._trusted()
        effects, layers = effects_of(table), first_lowest_last(table, SCANNED).to_dict("records")
        for each in layers:
            found = effects.get((each["metric"], each["layer"]))
            each["effect"] = None if found is None else {"fall": found.fall.value, "rise": found.rise.value}
        return TypeAdapter(Scan).dump_python(self, mode="json") | {"sound": self.sound, "layers": layers}

    def to_frame(self) -> "pandas.DataFrame":
        """Return all rows of the record: step, site, layer, head, metric and value."""
        return read(self.folder)

    def _trusted(self) -> "pandas.DataFrame":
        table = self.to_frame()
        return table[table["flag"] == ""]

    def summary(self) -> str:
        """Return the values of every layer as a table, then what is wrong. Values that a finding flags are left out."""
        grave, mild = self.grave, [each for each in self.findings if each.kind in NO_FLAG]
        lines = [*layer_lines(self._trusted(), SCANNED), ""]
        for title, findings in (("problem", grave), ("remark", mild)):
            if findings:
                lines.append(counted(len(findings), title))
                lines += [f"  step {each.step:,}  {each.kind.value}: {each.message}" for each in findings]
        lines += [f"Not reached: {name}: {reason}" for name, reason in self.failures.items()]
        return "\n".join(map(printable, lines)).strip("\n")

    __str__ = summary

    def plot(self) -> "Chart":
        """Draw entropy and ranks of every layer over the steps."""
        otherwise = "There is nothing to draw: no checkpoint has a value. `summary` says what is wrong with them."
        return chart_of(self.to_frame(), SCANNED, self.folder.name, otherwise=otherwise)

    def _repr_html_(self) -> str:
        remarks = (f"Step {each.step:,}: {each.message}" for each in self.findings)
        return as_html(self._trusted(), remarks, SCANNED)


def scan(  # noqa: PLR0913, PLR0915 (a scan has that many settings)
    sources: str | Path | Sequence[str | Path],
    *,
    out: Path | str | None = None,
    revisions: str | None = None,
    steps: str | Sequence[int] | None = None,
    text: Path | str | None = None,
    tokenizer: Path | str | None = None,
    window: int | None = None,
    num_windows: int = DEFAULT_NUM_WINDOWS,
    per_head: bool = False,
    mlp_pattern: str | None = None,
    keep: bool = False,
    on: str = "local",
    progress: Callable[[str, int, int], object] = lambda name, done, total: None,
) -> Scan:
    """Measure every checkpoint of a series, audit the series, and record both in the folder `out`.

    Ranks are taken from the weights alone; with `text` the models are built too, and entropy measured. A second call
    measures what is missing: checkpoints that are new, have changed, or were not reached. Nothing is written when there
    is nothing to scan.

    Args:
        sources: Folders of checkpoints, single checkpoints (folders or files), or hub repositories.
        out: Folder of the record; `NAME-scan` in the current folder when None, NAME being that of the first source.
        revisions: Branches and tags of a hub repository, as a pattern such as `step*`.
        steps: Steps of the checkpoints in the order of their names, as numbers or as "0,1000,2000", or a regular
            expression whose group is the step; read off the names when None.
        text: Text on which attention is measured; without one no model is built.
        tokenizer: Folder of the tokenizer; the checkpoint's own when None.
        window: Tokens of a window; 512, or as many as the model takes, when None.
        num_windows: Windows of the text to measure.
        per_head: Record every head as well as their mean.
        mlp_pattern: Regular expression that picks the lower matrices by the names of tensors.
        keep: Leave downloads in the hub's cache.
        on: "local", or "ray" to spread the checkpoints over a Ray cluster.
        progress: Called with the name of the checkpoint that was just inspected, how many are done, and of how many.
    """
    if text is None and (tokenizer is not None or window is not None or per_head):
        raise ValueError("`tokenizer`, `window` and `per_head` are for the entropy on a text. Pass `text` too.")
    demand_pattern("mlp_pattern", mlp_pattern)
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    checkpoints, findings = find_series(listed, revisions=revisions, steps=steps)
    out = _default_folder(listed) if out is None else Path(out)
    demand_writable(out)
    demand_closed(out)
    windows = None if text is None else _windows(checkpoints, Path(text), tokenizer, window, num_windows)
    settings: dict[str, Any] = {"windows": windows, "mlp_pattern": mlp_pattern, "per_head": per_head, "keep": keep}
    downloads = (out / DOWNLOADS).resolve()
    wanted = [InspectionTask(checkpoint=each, downloads=downloads, **settings) for each in checkpoints]
    tasks = list(_missing(wanted, out))
    config = {
        "sources": list(map(str, listed)),
        "steps": steps if steps is None or isinstance(steps, str) else list(steps),
        "text": text and Path(text),
        "tokenizer": tokenizer and Path(tokenizer),
        **{"on": on, "revisions": revisions, "window": window, "num_windows": num_windows},
        **{"per_head": per_head, "mlp_pattern": mlp_pattern, "keep": keep},
    }
    about = {"checkpoints": {str(checkpoint.step): checkpoint.name for checkpoint in checkpoints}}
    failures: dict[str, str] = {}
    measured: set[str] = set()
    """Checkpoints that gave values in this call; an earlier one may have left some of another file."""
    held: list[Inspection] = []
    """What waits for a record: a new folder is made when there is a value to write, or all is known."""
    run: RunWriter | None = None
    reference = next((each.tensors for each in fingerprint.load(out).values() if each.tensors), {})
    with ExitStack() as stack:
        stack.callback(_remove_downloads, out)

        def opened() -> RunWriter:
            run = open_run(out, kind="scan", config=config, about=about, flush_seconds=_FLUSH_SECONDS)
            # what could not be written for want of space is not tried once more when the program ends
            stack.push(lambda kind, error, trace: run.abandon() if isinstance(error, OSError) else None)
            stack.enter_context(run)
            remove_leftovers(out / fingerprint.FOLDER)
            return run

        if (out / "run.json").exists():
            run = opened()
        progress("", 0, len(tasks))
        for done, (position, inspection) in enumerate(run_tasks(inspect_checkpoint, tasks, on=on), start=1):
            name = tasks[position].checkpoint.name
            held.append(inspection)
            if inspection.error:
                failures[name] = inspection.error
            if inspection.rows:
                measured.add(name)
                run = run or opened()
            while run is not None and held:
                reference = _write(run, held.pop(0), reference)
            progress(name, done, len(tasks))
        if run is None:
            _demand_something(held, failures)
            run = opened()
        for inspection in held:
            reference = _write(run, inspection, reference)
        series = list(fingerprint.load(out).values())
        findings += audit(series)
        _write_audit(run, series, findings)
        run.close("failed" if failures else "finished")
    table = read(out)
    with_values = set(table.loc[table["kind"] != _COST, "step"])
    asked = {task.checkpoint.name for task in tasks}
    unreadable = {each.step for each in series if not each.tensors}
    reached = [checkpoint for checkpoint in checkpoints if checkpoint.name not in failures]
    loaded = {each.name: each.step for each in reached if each.step not in unreadable}
    new = loaded.keys() & measured
    known = {name for name, step in loaded.items() if name not in asked and step in with_values}
    return Scan(
        folder=out,
        num_checkpoints=len(checkpoints),
        num_measured=len(new),
        num_known=len(known),
        not_loaded=tuple(each.name for each in reached if each.name not in loaded),
        without_values=tuple(name for name in loaded if name not in new | known),
        findings=tuple(findings),
        failures=failures,
    )


def _default_folder(sources: Sequence[str | Path]) -> Path:
    """Return the folder of a scan for which none is named; one that holds the scan of other sources is refused."""
    out = Path(f"{Path(sources[0]).resolve().name}-scan")
    if (out / "run.json").exists():
        earlier = info(out).config.get("sources", [])
        if [Path(each).resolve() for each in earlier] != [Path(each).resolve() for each in sources]:
            raise ValueError(f"{out} holds the scan of {', '.join(earlier) or 'something else'}. Pass another `out`.")
    return out


def _windows(
    checkpoints: Sequence[Checkpoint], text: Path, tokenizer: Path | str | None, window: int | None, num_windows: int
) -> Int[Tensor, "windows length"]:
    """Tokenize the text once for all checkpoints, by the first that has a configuration."""
    with TemporaryDirectory() as spare:
        for checkpoint in checkpoints:
            files = checkpoint.files
            folder = files if isinstance(files, Path) else download_tokenizer(files, Path(spare) / files.commit)
            if (folder / "config.json").exists():
                return windows_of(text, folder, Path(tokenizer or folder), window=window, num_windows=num_windows)
    raise ValueError(
        f"Entropy needs a model, and {checkpoints[0].name} has no config.json. Leave `text` out to measure ranks alone."
    )


def _missing(wanted: Iterable[InspectionTask], out: Path) -> Iterator[InspectionTask]:
    """Yield what the record does not have: a task for each checkpoint that is new or changed, or lacks a measure."""
    known, keys = {}, set()
    if (out / "run.json").exists():
        table = read(out)
        ranks = table[table["metric"].isin(["stable_rank", "qk_stable_rank"])]
        keys = set(zip(ranks["step"], ranks["site"], strict=True))
        known = fingerprint.load(out) if keys else {}
    for task in wanted:
        print_ = known.get(task.checkpoint.step)
        there: Mapping[str, str] = {}
        if print_ is not None and print_.identity == task.checkpoint.identity():
            complete = all((print_.step, site) in keys for site in print_.sources)
            there = print_.measured if complete else {}
        missing = {measure for measure, setting in task.settings().items() if there.get(measure) != setting}
        if missing:
            yield replace(task, ranks=RANKS in missing, windows=task.windows if ENTROPY in missing else None)


def _demand_something(held: Sequence[Inspection], failures: Mapping[str, str]) -> None:
    if any(inspection.fingerprint.findings for inspection in held):
        return
    for name, reason in failures.items():
        raise OSError(f"{name} could not be inspected: {reason}")
    first = held[0].fingerprint
    reason = next(iter(first.unseen.values()), "There is no layer.")
    raise ValueError(f"{first.name} shows nothing to measure: {reason}")


def _remove_downloads(out: Path) -> None:
    shutil.rmtree(out / DOWNLOADS, ignore_errors=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()


def _write(run: RunWriter, inspection: Inspection, reference: Mapping[str, TensorPrint]) -> Mapping[str, TensorPrint]:
    """Write the rows of a checkpoint, and then that they are there, under the names of the first that was written.

    Returns the tensors whose names are the reference for the next.
    """
    new = inspection.fingerprint
    if inspection.error:
        run.event(new.step, "exception", inspection.error, level="error")
        return reference
    for note in inspection.notes:
        run.event(new.step, "download", note)
    new, sites = fingerprint.align(new, reference)
    for row in inspection.rows:
        run.add(new.step, **row._replace(site=sites.get(row.site, row.site))._asdict())
    run.add(new.step, "seconds", inspection.seconds, kind=_COST)
    run.flush()
    old = fingerprint.load_step(run.folder, new.step)
    if old is not None and old.identity == new.identity and RANKS not in new.measured:
        # An entropy is added to what is known of a checkpoint whose ranks were measured before.
        findings = [*(each for each in old.findings if each.kind is not Fault.NO_ENTROPY), *new.findings]
        new = replace(
            old,
            measured={**old.measured, **new.measured},
            unseen={**old.unseen, **new.unseen},
            findings=tuple({(each.kind, each.message): each for each in findings}.values()),
        )
    fingerprint.save(run.folder, new)
    return reference or new.tensors


def _write_audit(run: RunWriter, series: Sequence[Fingerprint], findings: Sequence[Finding]) -> None:
    """Record what could not be measured (once, at the first step), the findings, and the flags of values.

    Findings and flags of earlier calls that no longer hold are withdrawn.
    """
    steps: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in series:
        for unseen in each.unseen.items():
            steps[unseen].append(each.step)
    for (site, reason), where in steps.items():
        run.event(where[0], "unseen", reason, level="warning", site=site, evidence={"steps": where})
    run.flush()
    earlier = read_events(run.folder)
    current = {(finding.step, finding.message) for finding in findings}
    for event in earlier[earlier["kind"] == AUDIT].itertuples():
        if (event.step, event.message) not in current and not json.loads(event.evidence).get("withdrawn"):
            run.event(event.step, AUDIT, event.message, site=event.site, evidence={"withdrawn": True})
    for finding in findings:
        evidence = {"finding": finding.kind.value, "sites": finding.sites, **finding.evidence}
        is_mild = finding.kind in NO_FLAG
        run.event(finding.step, AUDIT, finding.message, level="warning" if is_mild else "error", evidence=evidence)
    run.flush()
    table, reasons = read(run.folder), flags(findings, series)
    concerned = table[(table["kind"] != _COST) & (table["step"].isin(list(reasons)) | (table["flag"] != ""))]
    for record in concerned[["step", *Row._fields]].to_dict("records"):
        by_site = reasons.get(record["step"], {})
        own = [part for part in record["flag"].split(_JOIN) if part and part not in set(Fault)]
        flag = _JOIN.join(filter(None, [*own, by_site.get(record["site"], by_site.get("", ""))]))
        if flag != record["flag"]:
            run.add(**{**record, "flag": flag})
