"""`scan`: a series of checkpoints measured and audited, into a record that the next call goes on with."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from joma.probe import fingerprint
from joma.probe.audit import NO_FLAG, audit, flags
from joma.probe.findings import Fault, Finding
from joma.probe.fingerprint import Fingerprint
from joma.probe.hub import HubPlace, download_tokenizer
from joma.probe.inspection import ENTROPY, RANKS, Inspection, Task, inspect_checkpoint
from joma.probe.series import Checkpoint, Series, find_series
from joma.probe.text import DEFAULT_NUM_WINDOWS, Windows, windows_of
from joma.store import RunWriter, demand_closed, open_run, read, read_events
from joma.store.files import demand_writable, remove_leftovers
from joma.store.record import Level
from joma.tasks.local import run_tasks

DOWNLOADS = "downloads"
AUDIT = "audit"
_COST = "cost"
_JOIN = "; "
_FLUSH_SECONDS = 1e9
"""Rows are written checkpoint by checkpoint, not by time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a scan is."""

    done: int
    total: int
    """Checkpoints that this call has to inspect."""
    name: str = ""
    """The one that was just done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What a scan did and found; the values are in the record, `joma.read(folder)`."""

    folder: Path
    num_checkpoints: int
    num_measured: int
    """Checkpoints measured by this call."""
    num_known: int
    """Checkpoints whose values the record had already."""
    not_loaded: tuple[str, ...]
    """Checkpoints of which nothing could be read, in this call or before; the findings say why."""
    without_values: tuple[str, ...]
    """Checkpoints that were read and show nothing to measure, in this call or before."""
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
        """Return plain types, for JSON."""
        return {
            "folder": str(self.folder),
            "num_checkpoints": self.num_checkpoints,
            "num_measured": self.num_measured,
            "num_known": self.num_known,
            "not_loaded": list(self.not_loaded),
            "without_values": list(self.without_values),
            "sound": self.sound,
            "findings": [finding.as_dict() for finding in self.findings],
            "failures": dict(self.failures),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What to measure, and how."""

    revisions: str | None = None
    """Branches and tags of a hub repository, as a pattern such as `step*`."""
    text: Path | None = None
    """Text on which attention is measured; without one no model is built."""
    tokenizer: Path | None = None
    """Folder of the tokenizer; the checkpoint's own when None."""
    window: int | None = None
    """Tokens of a window; 512, or as many as the model takes, when None."""
    num_windows: int = DEFAULT_NUM_WINDOWS
    per_head: bool = False
    """Record every head beside their mean."""
    mlp_pattern: str | None = None
    """Regular expression that picks the lower matrices by the names of tensors."""
    keep: bool = False
    """Leave downloads in the hub's cache."""

    def __post_init__(self) -> None:
        """Refuse settings of the entropy without a text, and a pattern that is none."""
        if self.text is None and (self.tokenizer is not None or self.window is not None or self.per_head):
            raise ValueError("`tokenizer`, `window` and `per_head` are for the entropy on a text. Pass `text` too.")
        try:
            re.compile(self.mlp_pattern or "")
        except re.error as error:
            raise ValueError(
                f"`mlp_pattern` must be a regular expression, got {self.mlp_pattern!r}: {error}."
            ) from None


def scan(  # noqa: PLR0913 (a scan has that many settings)
    sources: str | Path | Sequence[str | Path],
    *,
    out: Path | str,
    revisions: str | None = None,
    text: Path | str | None = None,
    tokenizer: Path | str | None = None,
    window: int | None = None,
    num_windows: int = DEFAULT_NUM_WINDOWS,
    per_head: bool = False,
    mlp_pattern: str | None = None,
    keep: bool = False,
    on: str = "local",
    progress: Callable[[Progress], None] | None = None,
) -> Scan:
    """Measure every checkpoint of a series, audit the series, and record both in the folder `out`.

    Ranks are taken from the weights alone; with `text` the models are built too, and entropy measured. The settings are
    explained at `Settings`. A second call measures what is missing: checkpoints that are new, have changed, or were not
    reached. `on="ray"` spreads them over a Ray cluster. Nothing is written when there is nothing to scan.
    """
    out = Path(out)
    demand_writable(out)
    chosen = Settings(
        revisions=revisions,
        text=None if text is None else Path(text),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        window=window,
        num_windows=num_windows,
        per_head=per_head,
        mlp_pattern=mlp_pattern,
        keep=keep,
    )
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    series = find_series(listed, revisions=chosen.revisions)
    demand_closed(out)
    windows = None if chosen.text is None else _windows(series, chosen)
    tasks = list(_missing(series, out, chosen, windows))
    config = {"sources": list(map(str, listed)), "on": on, **_plain(chosen)}
    about = {"checkpoints": {str(checkpoint.step): checkpoint.name for checkpoint in series.checkpoints}}
    with _downloads_removed(out), _Recorder(out, config, about) as recorder:
        for inspection in _inspected(tasks, on, progress or (lambda _: None)):
            recorder.take(inspection)
        findings = recorder.finish(series.findings)
    reached = [checkpoint for checkpoint in series.checkpoints if checkpoint.name not in recorder.failures]
    not_loaded = [each.name for each in reached if each.step in recorder.steps_not_loaded]
    steps, asked = _steps_with_values(out), {task.checkpoint.name for task in tasks}
    loaded = [each for each in reached if each.name not in not_loaded]
    new = [each.name for each in loaded if each.name in recorder.measured]
    known = [each.name for each in loaded if each.name not in asked and each.step in steps]
    return Scan(
        folder=out,
        num_checkpoints=len(series.checkpoints),
        num_measured=len(new),
        num_known=len(known),
        not_loaded=tuple(not_loaded),
        without_values=tuple(each.name for each in loaded if each.name not in (*new, *known)),
        findings=tuple(findings),
        failures=recorder.failures,
    )


def _steps_with_values(out: Path) -> set[int]:
    table = read(out)
    return set(table.loc[table["kind"] != _COST, "step"])


def _plain(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__}


def _windows(series: Series, settings: Settings) -> Windows:
    """Tokenize the text once for all checkpoints, by the first that has a configuration."""
    assert settings.text is not None
    with TemporaryDirectory() as spare:
        folder = _model_folder(series.checkpoints, Path(spare))
        return windows_of(
            settings.text,
            folder,
            settings.tokenizer or folder,
            window=settings.window,
            num_windows=settings.num_windows,
        )


def _model_folder(checkpoints: Sequence[Checkpoint], spare: Path) -> Path:
    for checkpoint in checkpoints:
        place = checkpoint.place
        folder = download_tokenizer(place, spare / place.commit) if isinstance(place, HubPlace) else place.path
        if (folder / "config.json").exists():
            return folder
    raise ValueError(
        f"Entropy needs a model, and {checkpoints[0].name} has no config.json. Leave `text` out to measure ranks alone."
    )


def _missing(series: Series, out: Path, settings: Settings, windows: Windows | None) -> Iterator[Task]:
    """Yield what the record does not have: a task for each checkpoint that is new or changed, or lacks a measure."""
    keys = _keys(out)
    known = fingerprint.load(out) if keys else {}
    for checkpoint in series.checkpoints:
        task = Task(
            checkpoint=checkpoint,
            downloads=(out / DOWNLOADS).resolve(),
            windows=windows,
            mlp_pattern=settings.mlp_pattern,
            per_head=settings.per_head,
            keep=settings.keep,
        )
        there = _measured(known.get(checkpoint.step), checkpoint, keys)
        missing = {measure for measure, setting in task.settings().items() if there.get(measure) != setting}
        if missing:
            yield replace(task, ranks=RANKS in missing, windows=windows if ENTROPY in missing else None)


def _measured(print_: Fingerprint | None, checkpoint: Checkpoint, keys: set[tuple[int, str, str]]) -> Mapping[str, str]:
    """Return what was measured of a checkpoint as it is now, if the record still has it."""
    if print_ is None or print_.identity != checkpoint.place.identity():
        return {}
    if any((print_.step, site, "stable_rank") not in keys for site in print_.sources):
        return {}
    return print_.measured


def _keys(out: Path) -> set[tuple[int, str, str]]:
    if not (out / "run.json").exists():
        return set()
    table = read(out)
    return set(zip(table["step"], table["site"], table["metric"], strict=True))


def _inspected(tasks: Sequence[Task], on: str, progress: Callable[[Progress], None]) -> Iterator[Inspection]:
    progress(Progress(done=0, total=len(tasks)))
    for done, (position, inspection) in enumerate(run_tasks(inspect_checkpoint, tasks, on=on), start=1):
        yield inspection
        progress(Progress(done=done, total=len(tasks), name=tasks[position].checkpoint.name))


@contextmanager
def _downloads_removed(out: Path) -> Iterator[None]:
    """Remove what was downloaded, also by a call that was killed, and the folder if nothing else came into it."""
    try:
        yield
    finally:
        shutil.rmtree(out / DOWNLOADS, ignore_errors=True)
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()


class _Recorder:
    """Writes inspections as they come; a new folder is made when there is a value to write, or all is known."""

    def __init__(self, out: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self.failures: dict[str, str] = {}
        self.measured: set[str] = set()
        """Names of the checkpoints that gave values in this call; an earlier one may have left some of another file."""
        self.steps_not_loaded: set[int] = set()
        """Of the whole record, when it is finished."""
        self._out, self._config, self._about = out, config, about
        self._held: list[Inspection] = []
        self._stack = ExitStack()
        self._run: RunWriter | None = None

    def __enter__(self) -> "_Recorder":
        if (self._out / "run.json").exists():
            self._open()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def take(self, inspection: Inspection) -> None:
        """Write an inspection, or hold it until there is something to write."""
        self._held.append(inspection)
        if inspection.error:
            self.failures[inspection.fingerprint.name] = inspection.error
        if inspection.rows:
            self.measured.add(inspection.fingerprint.name)
        if self._run is None and inspection.rows:
            self._open()
        if self._run is not None:
            self._write_held(self._run)

    def finish(self, findings: Iterable[Finding]) -> list[Finding]:
        """Audit the whole record, flag its values, and close it."""
        if self._run is None:
            self._demand_something()
            self._open()
        assert self._run is not None
        self._write_held(self._run)
        series = list(fingerprint.load(self._out).values())
        self.steps_not_loaded = {each.step for each in series if not each.tensors}
        found = [*findings, *audit(series)]
        _write_unseen(self._run, series)
        _write_findings(self._run, found)
        _write_flags(self._run, flags(found, series))
        self._run.close("failed" if self.failures else "finished")
        return found

    def _open(self) -> None:
        run = open_run(self._out, kind="scan", config=self._config, about=self._about, flush_seconds=_FLUSH_SECONDS)
        self._run = self._stack.enter_context(run)
        remove_leftovers(self._out / fingerprint.FOLDER)

    def _write_held(self, run: RunWriter) -> None:
        while self._held:
            _write(run, self._held.pop(0))

    def _demand_something(self) -> None:
        """Refuse to make a record of nothing."""
        if any(inspection.fingerprint.findings for inspection in self._held):
            return
        if self.failures:
            name, reason = next(iter(self.failures.items()))
            raise OSError(f"{name} could not be inspected: {reason}")
        first = self._held[0].fingerprint
        reason = next(iter(first.unseen.values()), "There is no layer.")
        raise ValueError(f"{first.name} shows nothing to measure: {reason}")


def _write(run: RunWriter, inspection: Inspection) -> None:
    """Write the rows of a checkpoint, and then that they are there."""
    step = inspection.fingerprint.step
    if inspection.error:
        run.event(step, "exception", inspection.error, level="error")
        return
    for note in inspection.notes:
        run.event(step, "download", note)
    for row in inspection.rows:
        run.add(
            step, row.metric, row.value, site=row.site, kind=row.kind, layer=row.layer, head=row.head, flag=row.flag
        )
    run.add(step, "seconds", inspection.seconds, kind=_COST)
    run.flush()
    fingerprint.save(run.folder, _merged(fingerprint.load_step(run.folder, step), inspection.fingerprint))


def _merged(old: Fingerprint | None, new: Fingerprint) -> Fingerprint:
    """Add an entropy to what is known of a checkpoint whose ranks were measured before."""
    if old is None or old.identity != new.identity or RANKS in new.measured:
        return new
    findings = [*(finding for finding in old.findings if finding.kind is not Fault.NO_ENTROPY), *new.findings]
    return replace(
        old,
        measured={**old.measured, **new.measured},
        unseen={**old.unseen, **new.unseen},
        findings=tuple(_once(findings)),
    )


def _once(findings: Iterable[Finding]) -> list[Finding]:
    return list({(finding.kind, finding.message): finding for finding in findings}.values())


def _write_unseen(run: RunWriter, series: Iterable[Fingerprint]) -> None:
    """Tell once what could not be measured, at the first step, with all of them as evidence."""
    steps: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in series:
        for site, reason in each.unseen.items():
            steps[site, reason].append(each.step)
    for (site, reason), where in steps.items():
        run.event(where[0], "unseen", reason, level="warning", site=site, evidence={"steps": where})


def _write_findings(run: RunWriter, findings: Sequence[Finding]) -> None:
    """Tell the findings as events, and withdraw those of earlier calls that no longer hold."""
    run.flush()
    earlier = read_events(run.folder)
    current = {(finding.step, finding.message) for finding in findings}
    for event in earlier[earlier["kind"] == AUDIT].itertuples():
        if (event.step, event.message) not in current and not json.loads(event.evidence).get("withdrawn"):
            run.event(event.step, AUDIT, event.message, site=event.site, evidence={"withdrawn": True})
    for finding in findings:
        level: Level = "warning" if finding.kind in NO_FLAG else "error"
        evidence = {"finding": finding.kind.value, "sites": finding.sites, **finding.evidence}
        run.event(finding.step, AUDIT, finding.message, level=level, evidence=evidence)


def _write_flags(run: RunWriter, reasons: Mapping[int, Mapping[str, str]]) -> None:
    """Flag the values of bad checkpoints; take flags of earlier audits back where they no longer hold."""
    run.flush()
    table = read(run.folder)
    concerned = table[(table["kind"] != _COST) & (table["step"].isin(list(reasons)) | (table["flag"] != ""))]
    for row in concerned.itertuples():
        by_site = reasons.get(row.step, {})
        own = [part for part in row.flag.split(_JOIN) if part and part not in set(Fault)]
        audited = [part for part in by_site.get(row.site, by_site.get("", "")).split(_JOIN) if part]
        flag = _JOIN.join([*own, *audited])
        if flag != row.flag:
            run.add(
                row.step,
                row.metric,
                row.value,
                site=row.site,
                kind=row.kind,
                layer=row.layer,
                head=row.head,
                flag=flag,
            )
