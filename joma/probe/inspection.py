"""One checkpoint inspected: a task that depends on nothing else, so that any number of them can run anywhere."""

from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from joma.formatting import counted
from joma.measure.rank import stable_rank, why_undefined
from joma.probe.checkpoint import Weights
from joma.probe.findings import Fault, Finding, Flaw, some
from joma.probe.fingerprint import Fingerprint, TensorPrint, sketch, tensor_print
from joma.probe.measurement import ALL_HEADS, Row
from joma.probe.series import Checkpoint
from joma.probe.structure import Unseen, WeightRef, lower_matrices
from joma.probe.text import measure_text, windows_key

RANKS = "ranks"
ENTROPY = "entropy"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class InspectionTask:
    """What to do with one checkpoint."""

    checkpoint: Checkpoint
    downloads: Path
    """Where downloads lie while they are needed."""
    ranks: bool = True
    windows: Int[Tensor, "windows length"] | None = None
    """Tokens of a text for the entropy; without it no model is built."""
    mlp_pattern: str | None = None
    per_head: bool = False
    keep: bool = False

    def settings(self) -> dict[str, str]:
        """Return what is measured, with the settings that it depends on."""
        found = {RANKS: self.mlp_pattern or ""} if self.ranks else {}
        if self.windows is not None:
            found[ENTROPY] = f"{windows_key(self.windows)} {'heads' if self.per_head else 'mean'}"
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What was found in one checkpoint."""

    fingerprint: Fingerprint
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""
    """Why it could not be inspected, as when the hub did not answer; nothing else is set then."""


def inspect_checkpoint(task: InspectionTask) -> Inspection:
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
    except Exception as error:  # an unforeseen checkpoint must not end the scan of the others
        line = " ".join(str(error).split())
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        return Inspection(fingerprint=blank, error=kind + line)
    return replace(inspection, seconds=perf_counter() - started)


def _inspected(task: InspectionTask, weights: Weights, blank: Fingerprint) -> Inspection:  # noqa: C901 (in a row)
    rows: list[Row] = []
    unseen: list[Unseen] = []
    findings = [flaw.at(blank.step) for flaw in weights.flaws]
    prints: dict[str, TensorPrint] = {}
    sketches: dict[str, np.ndarray] = {}
    sources: dict[str, tuple[str, ...]] = {}
    last: dict[str, Tensor] = {}

    def read(name: str) -> Tensor:
        """Read a tensor once for all matrices in it, and take its fingerprint on the way."""
        if name not in last:
            last.clear()
            last[name] = weights.read(name)
            prints[name], sketches[name] = tensor_print(last[name], whole=True), sketch(last[name])
        return last[name]

    if task.ranks:
        shapes = {name: info.shape for name, info in weights.tensors.items()}
        refs, unseen = lower_matrices(shapes, mlp_pattern=task.mlp_pattern)
        for ref in refs:
            sources[ref.site] = ref.tensors
            weight = ref.take(read)
            if weight.is_floating_point():
                rows += _ranks(ref, weight)
            else:
                reason = f"It is stored as {weight.dtype}: there is no rank to take."
                unseen.append(Unseen(site=ref.site, reason=reason))
    if task.windows is not None and not weights.flaws:
        try:
            of_text, not_seen = measure_text(weights.folder, task.windows, heads=task.per_head)
        except Flaw as flaw:
            findings.append(flaw.at(blank.step))
        else:
            rows += of_text
            unseen += not_seen
    for name, info in weights.tensors.items():
        if name not in prints:
            unread = TensorPrint(shape=info.shape, dtype=info.dtype)
            prints[name] = tensor_print(weights.read(name), whole=False) if weights.is_local else unread
    findings += _not_finite(blank, prints)
    fingerprint = replace(
        blank,
        tensors=prints,
        files=dict(weights.digests),
        sketches=sketches,
        sources=sources,
        unseen={each.site: each.reason for each in unseen},
        findings=tuple(findings),
    )
    return Inspection(fingerprint=fingerprint, rows=tuple(rows), notes=weights.notes)


def _not_finite(blank: Fingerprint, prints: dict[str, TensorPrint]) -> list[Finding]:
    bad = {name: tensor.num_bad for name, tensor in prints.items() if tensor.num_bad}
    if not bad:
        return []
    message = f"{blank.name} has NaN or infinity in {counted(len(bad), 'tensor')}: {some(list(bad))}."
    evidence = {"entries": bad}
    return [Finding(kind=Fault.NOT_FINITE, step=blank.step, sites=tuple(bad), message=message, evidence=evidence)]


def _ranks(ref: WeightRef, weight: Tensor) -> list[Row]:
    weight = weight.float() if weight.element_size() == 1 else weight
    rank = float(stable_rank(weight))
    frobenius = float(torch.linalg.vector_norm(weight, dtype=torch.float64))
    values = {"stable_rank": rank, "spectral_norm": frobenius / rank**0.5, "frobenius_norm": frobenius}
    flag = why_undefined(weight) if rank != rank else ""  # noqa: PLR0124 (NaN)
    return [Row(ref.site, "mlp", ref.layer, ALL_HEADS, metric, value, flag) for metric, value in values.items()]
