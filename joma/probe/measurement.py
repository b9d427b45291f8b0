"""One measurement of a model: its rows for the record, what failed, what could not be seen, and what it cost."""

import math
import operator
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.metrics import Reduction, metric_named
from joma.probe.calls import AttentionCall, CallSource
from joma.probe.measures import Flagged, Function, Functions, Measure, On, Reading
from joma.probe.model import ProbeBatch, ProbedModel, random_state_kept
from joma.probe.structure import Unseen, plain_site
from joma.probe.taps import Sites

ALL_HEADS = -1
TOGETHER = 2**26
"""Numbers in the matrices that are measured at once; one that is taken out may be a copy, and be copied to float32."""
AGREEMENT = 5e-3
"""How far two measurements may lie apart that differ by rounding alone: another size of batch takes other kernels."""
_ROWS_OF_HEADS = 3
"""Axes of a reading for every row: batch, heads, rows."""
_NEUTRAL = {Reduction.MEAN: 0.0, Reduction.MAX: -math.inf, Reduction.MIN: math.inf}
_JOIN: dict[Reduction, Callable[..., float]] = {
    Reduction.MEAN: operator.add,
    Reduction.MAX: max,
    Reduction.MIN: min,
}


class Row(NamedTuple):
    """One value of the record, before it has a step."""

    site: str
    kind: str
    layer: int
    head: int
    metric: str
    value: float
    flag: str = ""


class Failure(NamedTuple):
    """An exception inside of a measurement, without the frames that it holds."""

    site: str
    message: str
    trace: str

    @classmethod
    def of(cls, site: str, error: Exception) -> "Failure":
        """Keep what there is to say of an exception."""
        return cls(site, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


class Measurement:
    """Gathers what one measurement finds; nothing that goes wrong inside of a measure leaves it."""

    def __init__(self, model: ProbedModel, measures: Functions, earlier: Sites | None = None) -> None:
        """Prepare for one measurement; the `sites` of an earlier one make it cheaper."""
        self.readings = Readings()
        self.failures: list[Failure] = []
        self.unseen: dict[Unseen, None] = {}
        self.layers: dict[str, int] = {}
        """Attention sites that were measured, with their layers."""
        self._calls: set[tuple[str, CallSource]] = set()
        self._model, self._measures, self._earlier = model, measures, earlier
        self._devices = model.devices
        self._stopwatch = _Stopwatch(self._devices[0])

    @property
    def sites(self) -> Sites | None:
        """Where to look next time; None if something is missing that ran or was seen before: look everywhere."""
        is_missing = {site for site, _ in self._earlier or ()} - {site for site, _ in self._calls}
        return None if is_missing or self.unseen or not self._calls else self._calls

    def seconds_in_forward(self) -> float:
        """Return what measuring took inside of the training's own forward pass; a GPU is waited for."""
        return self._stopwatch.read()

    def tap(self) -> AbstractContextManager[None]:
        """Measure the attention calls of the training's own forward pass, while the context lasts."""

        def on_call(call: AttentionCall) -> None:
            with self._stopwatch.running():
                self._on_call(call)

        def on_unseen(unseen: Unseen) -> None:
            if unseen.site:  # a part of the model that shows no attention is no news
                self._on_unseen(unseen)

        return self._model.tap(on_call, on_unseen, self._on_error, sites=self._earlier)

    def probe(self, batch: ProbeBatch) -> None:
        """Measure attention on a probe batch, at the cost of a forward pass."""
        with self._model.tap(self._on_call, self._on_unseen, self._on_error, eagerly=True, sites=self._earlier):
            self._model.forward(batch)

    def weights(self) -> None:
        """Measure matrices and the model itself."""
        for subject, kind, taken in (
            (On.MATRIX, "mlp", self._model.matrices),
            (On.QUERY_KEY, "attention", self._model.query_keys),
        ):
            if self._measures[subject]:
                for things in self._taken(taken()):
                    self._measure(subject, kind, things)
        self._measure(On.MODEL, "model", [("", -1, self._model.root)])

    def _taken(self, sites: Iterator[tuple[str, Callable[[], Any]]]) -> Iterator[list[tuple[str, int, Any]]]:
        """Take matrices out of the model, as many at once as `TOGETHER` allows: some are made when they are taken."""
        things: list[tuple[str, int, Any]] = []
        num_numbers = 0
        for site, take in sites:
            try:
                matrix = take()
            except Exception as error:
                self.failures.append(Failure.of(site, error))
                continue
            things.append((site, matrix.layer, matrix))
            num_numbers += matrix.num_numbers
            if num_numbers > TOGETHER:
                yield things
                things, num_numbers = [], 0
        if things:
            yield things

    def _on_call(self, call: AttentionCall) -> None:
        self._calls.add((call.site, call.source))
        site = plain_site(call.site)
        if self._model.wants(site):
            self.layers[site] = call.layer
            self._measure(On.ATTENTION, "attention", [(site, call.layer, call)])

    def _measure(self, subject: On, kind: str, things: list[tuple[str, int, Any]]) -> None:
        """Measure things (site, layer, thing) without gradients, autocast and traces in the random states."""
        for measure, function in self._measures[subject].items():
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if measure.draws:
                    stack.enter_context(random_state_kept(self._devices))
                for device in {device.type for device in self._devices}:
                    stack.enter_context(torch.autocast(device, enabled=False))
                for site, layer, found in self._apply(measure, function, things):
                    named = found if isinstance(found, Mapping) else {measure.name: found}
                    try:
                        self.readings.add(site, kind, layer, named, measure.reductions)
                    except Exception as error:
                        self.failures.append(Failure.of(site, error))

    def _apply(
        self, measure: Measure, function: Function, things: list[tuple[str, int, Any]]
    ) -> Iterator[tuple[str, int, Any]]:
        """Yield what a measure finds; of things measured together, those that fail are not to spoil the others."""
        if measure.together and len(things) > 1:
            try:
                found = function([thing for _, _, thing in things])
                yield from [(site, layer, each) for (site, layer, _), each in zip(things, found, strict=True)]
            except Exception:
                for each in things:
                    yield from self._apply(measure, function, [each])
            return
        for site, layer, thing in things:
            try:
                found = function([thing])[0] if measure.together else function(thing)
            except Exception as error:
                self.failures.append(Failure.of(site, error))
            else:
                yield site, layer, found

    def _on_error(self, call: AttentionCall, error: Exception) -> None:
        self.failures.append(Failure.of(plain_site(call.site), error))

    def _on_unseen(self, unseen: Unseen) -> None:
        self.unseen[unseen] = None


@dataclass(slots=True)
class _Numbers:
    """What the calls of one site gave for one metric."""

    reduction: Reduction
    parts: list[tuple[Tensor | float, int | None]] = field(default_factory=list)
    """A number or numbers of heads (None), or sums and counts of several metrics with the position of this one."""
    shape: tuple[int, ...] = ()
    """(H) where there are heads."""
    flags: list[str] = field(default_factory=list)

    def add(self, part: Tensor | float, position: int | None, shape: tuple[int, ...]) -> None:
        if self.parts and shape != self.shape:
            raise ValueError(f"A site gave readings of shape {self.shape} and then {shape}. Its heads must not change.")
        self.shape = shape
        self.parts.append((part, position))

    def over_calls(self, host: Mapping[int, list[float]]) -> list[tuple[float, float]]:
        """Return the sum or extreme of each head, or of all, and how many numbers went into it."""
        total: list[tuple[float, float]] | None = None
        for part, position in self.parts:
            numbers = host[id(part)] if isinstance(part, Tensor) else [part]
            if position is None:
                found = [(_NEUTRAL[self.reduction], 0.0) if math.isnan(n) else (n, 1.0) for n in numbers]
            else:
                (num_heads,) = self.shape
                values, counts = position * num_heads, len(numbers) // 2 + position * num_heads
                found = list(
                    zip(numbers[values : values + num_heads], numbers[counts : counts + num_heads], strict=True)
                )
            if total is not None:
                join = _JOIN[self.reduction]
                found = [(join(v, w), m + n) for (v, m), (w, n) in zip(total, found, strict=True)]
            total = found
        assert total is not None
        return total

    def reduced(self, heads: Sequence[tuple[float, float]]) -> float:
        """Return the mean or extreme over heads, NaN over nothing."""
        count = sum(count for _, count in heads)
        if not count:
            return math.nan
        values = [value for value, _ in heads]
        if self.reduction is Reduction.MEAN:
            return math.fsum(values) / count
        return _JOIN[self.reduction](*values) if len(values) > 1 else values[0]


class Readings:
    """Readings of one measurement, gathered by site and metric; tensors stay on their devices until they are read."""

    def __init__(self) -> None:
        """Start empty."""
        self._numbers: dict[tuple[str, str, int, str], _Numbers] = {}

    def add(
        self, site: str, kind: str, layer: int, found: Mapping[str, Reading], reductions: Mapping[str, Reduction]
    ) -> None:
        """Take the readings of one call or matrix in; those of one site are reduced together."""
        by_rows: dict[tuple[Any, ...], list[tuple[_Numbers, Tensor]]] = defaultdict(list)
        for metric, reading in found.items():
            value, flag = reading if isinstance(reading, Flagged) else (reading, "")
            if isinstance(value, Tensor):
                if value.ndim not in (0, 1, _ROWS_OF_HEADS):
                    raise ValueError(
                        "A reading must be a number or a tensor (B, H, rows), (H) or (), "
                        f"got shape {tuple(value.shape)}."
                    )
                value = value.detach() if value.is_floating_point() else value.double()
            else:
                value = float(value)
            reduction = reductions.get(metric, metric_named(metric).reduction)
            numbers = self._numbers.setdefault((site, kind, layer, metric), _Numbers(reduction))
            numbers.flags += [flag] if flag else []
            if isinstance(value, Tensor) and value.ndim == _ROWS_OF_HEADS:
                by_rows[reduction, value.shape, value.dtype, value.device].append((numbers, value))
            else:
                numbers.add(value, None, tuple(value.shape) if isinstance(value, Tensor) else ())
        for (reduction, *_), members in by_rows.items():
            # Readings of one shape are reduced together: the fewer operations, the less a GPU is kept waiting.
            sums = _over_rows(torch.stack([value for _, value in members]), reduction)
            for position, (numbers, _) in enumerate(members):
                numbers.add(sums, position, (sums.shape[-1],))

    def rows(self, *, heads: bool) -> Iterator[Row]:
        """Yield the value over all heads of every metric, and those of single heads where asked for."""
        parts = [part for numbers in self._numbers.values() for part, _ in numbers.parts]
        host = _to_host([part for part in parts if isinstance(part, Tensor)])
        for (site, kind, layer, metric), numbers in self._numbers.items():
            if not numbers.parts:  # what it was given could not be reduced, which was reported then
                continue
            found = numbers.over_calls(host)
            flag = "; ".join(dict.fromkeys(numbers.flags))
            each_head = [(head, [of_head]) for head, of_head in enumerate(found)] if heads and numbers.shape else []
            for head, values in [(ALL_HEADS, found), *each_head]:
                empty = "" if any(count for _, count in values) else "nothing but NaN"
                yield Row(site, kind, layer, head, metric, numbers.reduced(values), flag or empty)


def _over_rows(values: Tensor, reduction: Reduction) -> Tensor:
    """Reduce metrics (M, B, H, rows) over batch and rows to (2, M, H): sum or extreme, and the count behind it."""
    missing = values.isnan()
    if reduction is Reduction.MEAN:
        reduced = values.nansum((1, 3), dtype=torch.float64)
    else:
        extreme = torch.amax if reduction is Reduction.MAX else torch.amin
        reduced = extreme(values.masked_fill(missing, _NEUTRAL[reduction]), (1, 3)).double()
    num_rows = values.shape[1] * values.shape[3]
    return torch.stack((reduced, num_rows - missing.sum((1, 3), dtype=torch.float64)))


def _to_host(tensors: Iterable[Tensor]) -> dict[int, list[float]]:
    """Read tensors into lists by their identities, waiting for every device once."""
    waiting: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = defaultdict(dict)
    for tensor in tensors:
        waiting[tensor.device, tensor.dtype][id(tensor)] = tensor
    host: dict[int, list[float]] = {}
    for group in waiting.values():
        flat = iter(torch.cat([tensor.reshape(-1) for tensor in group.values()]).tolist())
        host |= {key: [next(flat) for _ in range(tensor.numel())] for key, tensor in group.items()}
    return host


class _Stopwatch:
    """Adds up the time of the blocks it is put around; a GPU is waited for only when it is read."""

    def __init__(self, device: torch.device) -> None:
        """Time work on `device` that this thread starts."""
        self._device = device
        self._blocks: list[tuple[float, list[torch.cuda.Event]]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time a block."""
        begun = time.perf_counter()
        on_gpu = self._device.type == "cuda"
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        if events:
            events[0].record(torch.cuda.current_stream(self._device))
        try:
            yield
        finally:
            if events:
                events[1].record(torch.cuda.current_stream(self._device))
            self._blocks.append((time.perf_counter() - begun, events))

    def read(self) -> float:
        """Return the seconds so far, of each block the longer of its times on CPU and GPU, and reset."""
        seconds = 0.0
        for on_cpu, events in self._blocks:
            if events:
                events[1].synchronize()
            seconds += max(on_cpu, events[0].elapsed_time(events[1]) / 1e3 if events else 0.0)
        self._blocks.clear()
        return seconds


def wait_for(devices: Iterable[torch.device]) -> None:
    """Wait until GPUs have finished their work."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def first_sequence_if_enough(model: ProbedModel, measures: Functions, batch: ProbeBatch) -> ProbeBatch:
    """Return the first sequence of a probe batch if these measures find the same on it as on the batch, else the batch.

    Both are measured once: in a model that mixes its sequences (a router with a capacity, say) or whose first axis is
    not the batch, what is found differs, and the batch stays whole.
    """
    first = None if any(measure.whole_batch for measure in measures[On.ATTENTION]) else _first(batch)
    if first is None:
        return batch
    tables = []
    for each in (batch, first):
        found = Measurement(model, measures)
        try:
            found.probe(each)
        except Exception:  # what is wrong with the whole batch is reported when it is measured
            return batch
        if found.failures:
            return batch
        tables.append({row[:5]: row.value for row in found.readings.rows(heads=True)})
    whole, part = tables
    agree = whole.keys() == part.keys() and all(
        math.isclose(whole[key], part[key], rel_tol=AGREEMENT, abs_tol=AGREEMENT)
        or (math.isnan(whole[key]) and math.isnan(part[key]))
        for key in whole
    )
    return first if whole and agree else batch


def _first(batch: ProbeBatch) -> ProbeBatch | None:
    """Cut every tensor of a batch to the first entry of its first axis; None where they have none in common."""
    if isinstance(batch, Tensor):
        return batch[:1] if batch.ndim and len(batch) > 1 else None
    if not isinstance(batch, dict | tuple | list):
        return None
    values = list(batch.values() if isinstance(batch, dict) else batch)
    plain = all(value is None or isinstance(value, Tensor | bool | int | float | str) for value in values)
    lengths = {len(value) if value.ndim else 0 for value in values if isinstance(value, Tensor)}
    if not plain or len(lengths) != 1 or min(lengths) <= 1:
        return None
    cut = [value[:1] if isinstance(value, Tensor) else value for value in values]
    return dict(zip(batch, cut, strict=True)) if isinstance(batch, dict) else tuple(cut)
