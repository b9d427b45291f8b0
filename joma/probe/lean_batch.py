"""The part of a probe batch that its measurement needs: one sequence, where the measures look at no more than that."""

import math

from torch import Tensor

from joma.probe.examination import Examination
from joma.probe.measures import Instrument
from joma.probe.specimen import ProbeBatch, Specimen

AGREEMENT = 5e-3
"""How far two measurements may lie apart that differ by rounding alone: another size of batch takes other kernels."""


def lean_batch(specimen: Specimen, instrument: Instrument, batch: ProbeBatch) -> ProbeBatch:
    """Return the first sequence of a batch if it stands for all of it in these measures, else the batch.

    Both are measured once: in a model that mixes its sequences (a router with a capacity, say) or whose first axis is
    not the batch, what is found differs, and the batch stays whole.
    """
    first = None if instrument.needs_whole_batch else _first(batch)
    if first is None:
        return batch
    found = [_entries(specimen, instrument, each) for each in (batch, first)]
    return first if found[0] and _agree(*found) else batch


def _first(batch: ProbeBatch) -> ProbeBatch | None:
    """Cut every tensor of a batch to the first entry of its first axis; None where they have none in common."""
    if isinstance(batch, dict):
        parts = _cut(list(batch.values()))
        return None if parts is None else dict(zip(batch, parts, strict=True))
    if isinstance(batch, tuple | list):
        parts = _cut(list(batch))
        return None if parts is None else tuple(parts)
    return batch[:1] if isinstance(batch, Tensor) and batch.ndim and len(batch) > 1 else None


def _cut(values: list[object]) -> list[object] | None:
    tensors = [value for value in values if isinstance(value, Tensor)]
    plain = all(value is None or isinstance(value, Tensor | bool | int | float | str) for value in values)
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in tensors}
    if not plain or len(lengths) != 1 or min(lengths) <= 1:
        return None
    return [value[:1] if isinstance(value, Tensor) else value for value in values]


def _entries(
    specimen: Specimen, instrument: Instrument, batch: ProbeBatch
) -> dict[tuple[str, int, int, str], float] | None:
    """What the measures of attention find on a batch; None if it does not run."""
    found = Examination(specimen, instrument)
    try:
        found.probe(batch)
    except Exception:  # what is wrong with the whole batch is told by whoever runs it for good
        return None
    if found.problems:
        return None
    return {(row.site, row.layer, row.head, row.metric): row.value for row in found.readings.rows(heads=True)}


def _agree(whole: dict | None, first: dict | None) -> bool:
    if whole is None or first is None or whole.keys() != first.keys():
        return False
    pairs = ((whole[key], first[key]) for key in whole)
    return all(
        math.isclose(one, other, rel_tol=AGREEMENT, abs_tol=AGREEMENT) or (math.isnan(one) and math.isnan(other))
        for one, other in pairs
    )
