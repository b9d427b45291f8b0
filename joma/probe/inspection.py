"""One checkpoint inspected: a task that depends on nothing else, so that any number of them can run anywhere."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from joma.measure.rank import stable_rank, why_undefined
from joma.probe.checkpoint import Weights, open_local
from joma.probe.findings import Flaw
from joma.probe.fingerprint import Fingerprint, TensorPrint, tensor_print
from joma.probe.measurement import Readings, Row
from joma.probe.measures import Flagged, Reading, query_key_norms, take_query_key
from joma.probe.series import Checkpoint
from joma.probe.structure import QueryKey, Tensors, Unseen, head_count, layout_of
from joma.probe.text import measure_text, windows_key

RANKS = "ranks"
ENTROPY = "entropy"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class InspectionTask:
    """What to do with one checkpoint."""

    checkpoint: Checkpoint
    downloads: Path  # where downloads lie while they are needed
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


class Inspection(NamedTuple):
    """What was found in one checkpoint."""

    fingerprint: Fingerprint
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""  # why it could not be inspected, as when the hub did not answer; nothing else is set then


def inspect_checkpoint(task: InspectionTask) -> Inspection:
    """Read a checkpoint, measure what the task asks for, and keep its fingerprint.

    A checkpoint that is broken gives findings; one that cannot be reached gives an error.
    """
    started = perf_counter()
    checkpoint, files = task.checkpoint, task.checkpoint.files
    blank = Fingerprint(step=checkpoint.step, name=checkpoint.name, identity="")
    try:
        blank = replace(blank, identity=checkpoint.identity(), measured=task.settings())
        if isinstance(files, Path):
            inspection = _inspected(task, open_local(files), blank)
        else:
            with files.open(whole=task.windows is not None, downloads=task.downloads, keep=task.keep) as weights:
                inspection = _inspected(task, weights, blank)
    except Flaw as flaw:
        inspection = Inspection(replace(blank, findings=(flaw.at(checkpoint.step),)))
    except Exception as error:  # an unforeseen checkpoint must not end the scan of the others
        line = " ".join(str(error).split())
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        return Inspection(blank, error=kind + line)
    return inspection._replace(seconds=perf_counter() - started)


def _inspected(task: InspectionTask, weights: Weights, blank: Fingerprint) -> Inspection:  # noqa: C901 (in a row)
    readings = Readings()
    unseen: list[Unseen] = []
    findings = [flaw.at(blank.step) for flaw in [*weights.flaws, *weights.check()]]
    prints: dict[str, TensorPrint] = {}
    sources: dict[str, tuple[str, ...]] = {}
    last: dict[str, Tensor] = {}

    def read(name: str) -> Tensor:
        """Read a tensor once for all matrices in it, and take its fingerprint on the way."""
        if name not in last:
            last.clear()
            last[name] = weights.read(name)
            prints[name] = tensor_print(last[name])
        return last[name]

    if task.ranks:
        codes = {name: i.dtype for name, i in weights.tensors.items() if "weight" in name and "int" in i.dtype}
        shapes = {name: info.shape for name, info in weights.tensors.items()}
        tensors = Tensors(shapes=shapes, heads=_heads(weights.folder))
        is_local = isinstance(task.checkpoint.files, Path)  # of the hub as little as possible is fetched
        layout = layout_of(tensors, mlp_pattern=task.mlp_pattern, with_attention=is_local, codes=codes)
        unseen += layout.unseen
        for ref in layout.lower:
            sources[ref.site] = ref.tensors
            readings.add(ref.site, "mlp", ref.layer, _ranks(ref.take(read)), {})
        for pair in layout.query_keys if layout.lower else ():
            if norms := _query_key_norms(pair, read):
                readings.add(pair.site, "attention", pair.query.layer, norms, {})
                sources[pair.site] = tuple(dict.fromkeys((*pair.query.tensors, *pair.key.tensors)))
    rows = list(readings.rows(heads=False))
    if task.windows is not None and not weights.flaws:
        try:
            of_text, not_seen = measure_text(weights.folder, task.windows, heads=task.per_head)
            rows, unseen = rows + of_text, unseen + not_seen
        except Flaw as flaw:
            findings.append(flaw.at(blank.step))
    for name, unread in weights.tensors.items():
        if name not in prints:
            prints[name] = tensor_print(weights.read(name)) if weights.is_local else unread
    about = replace(
        blank,
        tensors=prints,
        files=weights.digests,
        counters=weights.counters,
        prefix=weights.prefix,
        sources=sources,
        unseen={each.site: each.reason for each in unseen},
        findings=tuple(findings),
    )
    return Inspection(about, tuple(rows), weights.notes)


def _ranks(weight: Tensor) -> dict[str, Flagged]:
    is_coarse = weight.element_size() == 1
    dtype = str(weight.dtype).removeprefix("torch.")
    weight = weight.float() if is_coarse else weight
    rank = float(stable_rank(weight))
    frobenius = float(torch.linalg.vector_norm(weight, dtype=torch.float64))
    spectral = frobenius / rank**0.5 if frobenius else 0.0
    flag = f"approximate: stored as {dtype}, without scales" if is_coarse else ""
    flag = why_undefined(weight) if rank != rank else flag  # noqa: PLR0124 (NaN)
    values = {"stable_rank": rank, "spectral_norm": spectral, "frobenius_norm": frobenius}
    return {metric: Flagged(value, flag) for metric, value in values.items()}


def _heads(folder: Path | None) -> dict[str, tuple[int, int]]:
    try:
        config = json.loads(((folder or Path()) / "config.json").read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError, RecursionError):
        config = {}
    known = SimpleNamespace(**config) if isinstance(config, dict) else SimpleNamespace()
    num_heads = head_count(known)
    num_key_heads = getattr(known, "num_key_value_heads", num_heads)
    if num_heads is None or not isinstance(num_key_heads, int) or min(num_heads, num_key_heads) < 1:
        return {}
    return {"": (num_heads, num_key_heads)}


def _query_key_norms(pair: QueryKey, read: Callable[[str], Tensor]) -> dict[str, Reading]:
    """Measure the product of query and key weights: of each head if their number is known, else of all together."""
    taken = take_query_key(pair, read)
    query, key, num_heads, num_key_heads = taken.query, taken.key, taken.num_heads, taken.num_key_heads
    fits = num_heads % num_key_heads == 0 and query.shape[0] * num_key_heads == key.shape[0] * num_heads
    if not query.is_floating_point() or not fits or query.shape[1] != key.shape[1]:
        return {}
    query, key = (weight.float() if weight.element_size() == 1 else weight for weight in (query, key))
    return query_key_norms([replace(taken, query=query, key=key)])[0]
