"""One checkpoint inspected: a task that depends on nothing else, so that any number of them can run anywhere."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from joma.figures.numbers import counted
from joma.measure.rank import stable_rank, why_undefined
from joma.probe.checkpoint import Weights
from joma.probe.findings import Fault, Finding, Flaw, some
from joma.probe.fingerprint import Fingerprint, TensorPrint, sketch, tensor_print
from joma.probe.measurement import Row
from joma.probe.series import Checkpoint
from joma.probe.structure import Unseen, WeightRef, lower_matrices
from joma.probe.text import Windows, measure_text

RANKS = "ranks"
ENTROPY = "entropy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What to do with one checkpoint."""

    checkpoint: Checkpoint
    downloads: Path
    """Where downloads lie while they are needed."""
    ranks: bool = True
    windows: Windows | None = None
    """Text for the entropy; without it no model is built."""
    mlp_pattern: str | None = None
    per_head: bool = False
    keep: bool = False

    def settings(self) -> dict[str, str]:
        """Return what is measured, with the settings that it depends on."""
        ranks = {RANKS: self.mlp_pattern or ""} if self.ranks else {}
        entropy = (
            {} if self.windows is None else {ENTROPY: f"{self.windows.key} {'heads' if self.per_head else 'mean'}"}
        )
        return ranks | entropy


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What was found in one checkpoint."""

    fingerprint: Fingerprint
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""
    """Why it could not be inspected, as when the hub did not answer; nothing else is set then."""


@dataclass(slots=True)
class _Found:
    """What comes together during an inspection."""

    rows: list[Row] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    prints: dict[str, TensorPrint] = field(default_factory=dict)
    sketches: dict = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)


def inspect_checkpoint(task: Task) -> Inspection:
    """Read a checkpoint, measure what the task asks for, and keep its fingerprint.

    A checkpoint that is broken gives findings; one that cannot be reached gives an error.
    """
    started = perf_counter()
    checkpoint = task.checkpoint
    blank = Fingerprint(step=checkpoint.step, name=checkpoint.name, identity="")
    try:
        blank = replace(blank, identity=checkpoint.place.identity(), measured=task.settings())
        with checkpoint.place.open(whole=task.windows is not None, downloads=task.downloads, keep=task.keep) as weights:
            inspection = _inspected(task, weights, blank)
    except Flaw as flaw:
        inspection = Inspection(fingerprint=replace(blank, findings=(flaw.at(checkpoint.step),)))
    except OSError as error:
        return Inspection(fingerprint=blank, error=_one_line(error))
    except Exception as error:  # a checkpoint that nobody has thought of must not end the scan of the others
        return Inspection(fingerprint=blank, error=f"{type(error).__name__}: {_one_line(error)}")
    return replace(inspection, seconds=perf_counter() - started)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _inspected(task: Task, weights: Weights, blank: Fingerprint) -> Inspection:
    found = _Found(findings=[flaw.at(blank.step) for flaw in weights.flaws])
    if task.ranks:
        _measure_ranks(task, weights, found)
    if task.windows is not None and not weights.flaws:
        _measure_entropy(task, weights, found)
    _look_at_the_rest(weights, found)
    found.findings += _not_finite(blank, found.prints)
    fingerprint = replace(
        blank,
        tensors=found.prints,
        files=dict(weights.digests),
        sketches=found.sketches,
        sources=found.sources,
        unseen={each.site: each.reason for each in found.unseen},
        findings=tuple(found.findings),
    )
    return Inspection(fingerprint=fingerprint, rows=tuple(found.rows), notes=weights.notes)


def _measure_ranks(task: Task, weights: Weights, found: _Found) -> None:
    shapes = {name: info.shape for name, info in weights.tensors.items()}
    refs, unseen = lower_matrices(shapes, mlp_pattern=task.mlp_pattern)
    found.unseen += unseen
    read = _remembering(weights.read, found)
    for ref in refs:
        found.sources[ref.site] = ref.tensors
        found.rows += _ranks(ref, ref.take(read), found)


def _remembering(read: Callable[[str], Tensor], found: _Found) -> Callable[[str], Tensor]:
    """Read a tensor once for all matrices in it, and take its fingerprint on the way."""
    last: dict[str, Tensor] = {}

    def remembered(name: str) -> Tensor:
        if name not in last:
            last.clear()
            last[name] = read(name)
            found.prints[name] = tensor_print(last[name], whole=True)
            found.sketches[name] = sketch(last[name])
        return last[name]

    return remembered


def _ranks(ref: WeightRef, weight: Tensor, found: _Found) -> list[Row]:
    if not weight.is_floating_point():
        found.unseen.append(Unseen(site=ref.site, reason=f"It is stored as {weight.dtype}: there is no rank to take."))
        return []
    weight = weight.float() if weight.element_size() == 1 else weight
    rank = float(stable_rank(weight))
    frobenius = float(torch.linalg.vector_norm(weight, dtype=torch.float64))
    values = {"stable_rank": rank, "spectral_norm": frobenius / rank**0.5, "frobenius_norm": frobenius}
    flag = why_undefined(weight) if rank != rank else ""  # noqa: PLR0124 (NaN)
    return [
        Row(site=ref.site, kind="mlp", layer=ref.layer, head=-1, metric=metric, value=value, flag=flag)
        for metric, value in values.items()
    ]


def _measure_entropy(task: Task, weights: Weights, found: _Found) -> None:
    assert task.windows is not None
    step = task.checkpoint.step
    if weights.folder is None:
        found.findings.append(Finding(kind=Fault.NO_ENTROPY, step=step, message="There is no config.json."))
        return
    try:
        rows, unseen = measure_text(weights.folder, task.windows, heads=task.per_head)
    except Flaw as flaw:
        found.findings.append(flaw.at(step))
        return
    found.rows += rows
    found.unseen += unseen


def _look_at_the_rest(weights: Weights, found: _Found) -> None:
    for name, info in weights.tensors.items():
        if name in found.prints:
            continue
        blank = TensorPrint(shape=info.shape, dtype=info.dtype)
        found.prints[name] = tensor_print(weights.read(name), whole=False) if weights.is_local else blank


def _not_finite(blank: Fingerprint, prints: dict[str, TensorPrint]) -> list[Finding]:
    bad = {name: tensor.num_bad for name, tensor in prints.items() if tensor.num_bad}
    if not bad:
        return []
    message = f"{blank.name} has NaN or infinity in {counted(len(bad), 'tensor')}: {some(list(bad))}."
    evidence = {"entries": bad}
    return [Finding(kind=Fault.NOT_FINITE, step=blank.step, sites=tuple(bad), message=message, evidence=evidence)]
