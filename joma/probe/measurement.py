"""One measurement of a model: its rows for the record, what failed, what could not be seen, and what it cost."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from joma.formatting import ALL_HEADS, NO_LAYER
from joma.measure.masks import in_full_precision
from joma.metrics import Reduction, metric_named
from joma.probe.calls import AttentionCall
from joma.probe.measures import BATCHED, Flagged, Measure, On, Reading, first_sequence, kept
from joma.probe.model import ProbeBatch, ProbedModel, random_state_kept
from joma.probe.structure import Unseen, plain_site
from joma.probe.taps import Sites

TOGETHER = 2**26
"""Numbers in the matrices that are measured at once; one that is taken out may be a copy, and be copied to float32."""
SHARDED = (
    "Its weights are sharded over processes, and not all of them watch it with these settings. Call `watch` after "
    "sharding, in every process, for ranks and norms."
)
WAITING = 2**22
"""Numbers of rows that wait to be reduced together."""
AGREEMENT = 5e-3
"""How far two measurements may lie apart that differ by rounding alone: another size of batch takes other kernels."""
_ROWS_OF_HEADS = 3  # axes of a reading for every row: batch, heads, rows
_FIXED = 3  # fields of a reading that may not change from call to call
_NEUTRAL = {Reduction.MEAN: 0.0, Reduction.MAX: -math.inf, Reduction.MIN: math.inf}  # in place of a missing number
_BEST: dict[Reduction, Callable[[Sequence[float]], float]] = {Reduction.MAX: max, Reduction.MIN: min}
CLEARED = (
    "Gradients are already cleared when `step` is called. Call it before `zero_grad`, or `watch.gradients()` after "
    "`backward`."
)


class Row(NamedTuple):
    """One value of the record, before it has a step."""

    site: str = ""
    kind: str = ""
    layer: int = NO_LAYER
    head: int = ALL_HEADS
    metric: str = ""
    value: float = math.nan
    flag: str = ""


class Measurement:
    """Gathers what one measurement finds; nothing that goes wrong inside of a measure leaves it."""

    def __init__(self, model: ProbedModel, measures: Sequence[Measure], earlier: Sites | None = None) -> None:
        self.readings = Readings()
        self.failures: list[tuple[str, Exception]] = []  # sites, and what was raised there
        self.unseen: dict[Unseen, None] = {}
        self.layers: dict[str, int] = {}  # attention sites that were measured, with their layers
        self._calls: dict[str, bool] = {}
        self._kept: dict[Measure, list[tuple[str, int, AttentionCall]]] = defaultdict(list)
        """Copies of calls that are to be measured together."""
        self._num_kept = 0
        self._model = model
        self._measures = {on: [each for each in measures if each.on is on] for on in On}
        self._earlier = earlier  # the `sites` of an earlier measurement, which make this one cheaper
        self._devices = model.devices
        self._has_gradients = False
        self._timed: list[tuple[float, list[torch.cuda.Event]]] = []  # what ran inside of the training's own step

    @property
    def sites(self) -> Sites | None:
        """Where to look next time; None if something is missing that ran or was seen before: look everywhere."""
        is_missing = set(self._earlier or ()) - self._calls.keys()
        return None if is_missing or self.unseen or not self._calls else self._calls

    @contextmanager
    def tap(self) -> Iterator[None]:
        """Measure the attention calls of the training's own forward pass, while the context lasts."""

        def on_call(call: AttentionCall) -> None:
            with self.timing():
                self._on_call(call)

        def on_unseen(unseen: Unseen) -> None:
            if unseen.site:  # a module that shows no attention is no news
                self.unseen[unseen] = None

        with self._model.tap(on_call, on_unseen=on_unseen, on_error=self._on_error, sites=self._earlier):
            yield
        with self.timing():
            self._measure_kept()

    def probe(self, batch: ProbeBatch) -> None:
        """Measure attention on a probe batch, at the cost of a forward pass."""
        options = {"on_unseen": self.unseen.setdefault, "on_error": self._on_error, "sites": self._earlier}
        with self._model.tap(self._on_call, eagerly=True, **options):
            self._model.forward(batch)
        self._measure_kept()

    def gradients(self) -> None:
        """Measure the gradients of the lower matrices in the middle of a step."""
        with self.timing():
            self._measure_gradients()

    def seconds(self) -> float:
        """Return the time that was spent in the middle of the step, of each block the longer of CPU and GPU."""
        for _, events in self._timed:
            for event in events[1:]:
                event.synchronize()
        return sum(max(cpu, events[0].elapsed_time(events[1]) / 1e3 if events else 0.0) for cpu, events in self._timed)

    @contextmanager
    def timing(self, *, after_training: bool = False) -> Iterator[None]:
        """Note how long a block takes; a GPU is waited for only when that is read.

        Of a block that begins while a GPU still works on the training's step, the time counts from the end of that.
        """
        begun, device = time.perf_counter(), self._devices[0]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
        if events:
            events[0].record(torch.cuda.current_stream(device))
        try:
            yield
        finally:
            if events:
                events[1].record(torch.cuda.current_stream(device))
            cpu = 0.0 if events and after_training else time.perf_counter() - begun
            self._timed.append((cpu, events))

    def _measure_gradients(self) -> None:
        """Measure the gradients of the lower matrices, once; say so where they are cleared."""
        if not self._measures[On.GRADIENT] or self._has_gradients or not self._can_gather:
            return
        for found in self._taken(On.GRADIENT):
            if not self._has_gradients and not bool(found[0][2].weight.any()):
                break
            self._has_gradients = True
            self._measure(On.GRADIENT, "gradient", found)
        if self._model.layout.lower and not self._has_gradients:
            self.unseen[Unseen("", CLEARED)] = None

    def weights(self) -> None:
        """Measure gradients, matrices and the model itself."""
        self._measure_gradients()
        for on, kind in ((On.MATRIX, "mlp"), (On.EVERY_MATRIX, "weight"), (On.QUERY_KEY, "attention")):
            if self._measures[on] and self._can_gather:
                for subjects in self._taken(on):
                    self._measure(on, kind, subjects)
        self._measure(On.MODEL, "model", [("", -1, self._model.root)])

    @cached_property
    def _can_gather(self) -> bool:
        """Whether weights can be read; where other processes hold some of them and do not join in, it is noted."""
        can_gather = self._model.shards.can_gather()
        if not can_gather:
            self.unseen[Unseen("", SHARDED)] = None
        return can_gather

    def _taken(self, on: On) -> Iterator[list[tuple[str, int, Any]]]:
        """Take matrices out of the model, as many at once as `TOGETHER` allows: some are made when they are taken."""
        subjects: list[tuple[str, int, Any]] = []
        num_numbers = 0
        for site, take in self._model.subjects(on):
            try:
                matrix = take()
            except Exception as error:
                self.failures.append((site, error))
                continue
            subjects.append((site, matrix.layer, matrix))
            weights = (getattr(matrix, name, None) for name in ("weight", "query", "key"))
            num_numbers += sum(weight.numel() for weight in weights if weight is not None)
            if num_numbers > TOGETHER:
                yield subjects
                subjects, num_numbers = [], 0
        if subjects:
            yield subjects

    def _on_call(self, call: AttentionCall) -> None:
        self._calls[call.site] = self._calls.get(call.site, False) or call.logits is not None
        if self._model.wants(plain_site(call.site)):
            self.layers[call.label] = call.layer
            for measure in self._measures[On.ATTENTION]:
                self._keep_or_measure(measure, call)

    def _keep_or_measure(self, measure: Measure, call: AttentionCall) -> None:
        """Keep a copy of a call that is measured together with others: a GPU wants few operations."""
        call = first_sequence(call) if measure.first_sequence else call
        copy = kept(call) if measure.together else None
        if copy is None:
            self._measure_by(measure, "attention", [(call.label, call.layer, call)])
            return
        self._kept[measure].append((call.label, call.layer, copy))
        self._num_kept += sum(tensor.numel() for name in BATCHED if (tensor := getattr(copy, name)) is not None)
        if self._num_kept > TOGETHER:
            self._measure_kept()

    def _measure_kept(self) -> None:
        calls, self._num_kept = list(self._kept.items()), 0
        self._kept.clear()
        for measure, subjects in calls:
            self._measure_by(measure, "attention", subjects)

    def _on_error(self, call: AttentionCall, error: Exception) -> None:
        self.failures.append((plain_site(call.site), error))

    def _measure(self, on: On, kind: str, subjects: list[tuple[str, int, Any]]) -> None:
        """Measure subjects (site, layer, subject) without gradients, autocast and traces in the random states."""
        for measure in self._measures[on]:
            self._measure_by(measure, kind, subjects)

    def _measure_by(self, measure: Measure, kind: str, subjects: list[tuple[str, int, Any]]) -> None:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if measure.draws:
                stack.enter_context(random_state_kept(self._devices))
            for device in self._devices:
                stack.enter_context(in_full_precision(device))
            for group in [subjects] if measure.together else [[each] for each in subjects]:
                self._apply(measure, kind, group)

    def _apply(self, measure: Measure, kind: str, subjects: list[tuple[str, int, Any]]) -> None:
        """Keep what a measure finds; of subjects measured together, those that fail do not spoil the others."""
        try:
            things = [each for _, _, each in subjects]
            found = measure.function(things) if measure.together else [measure.function(*things)]
            for (site, layer, _), each in list(zip(subjects, found, strict=True)):
                named = each if isinstance(each, Mapping) else {measure.name: each}
                if measure.draws:  # a measure of the user's, which may return what the model goes on to overwrite
                    named = {name: v.clone() if isinstance(v, Tensor) else v for name, v in named.items()}
                try:
                    self.readings.add(site, kind, layer, named, measure.reductions)
                except Exception as error:
                    self.failures.append((site, error))
        except Exception as error:
            if len(subjects) == 1:
                self.failures.append((subjects[0][0], error))
            else:
                for each in subjects:
                    self._apply(measure, kind, [each])


class _Reading(NamedTuple):
    """What the calls of one site gave for one metric."""

    reduction: Reduction
    has_heads: bool
    num_heads: int
    flags: list[str]
    numbers: list[tuple[list[float], list[float]]]
    """Of each call, for every head: the sum or extreme over its rows, and how many numbers went into it."""


class Readings:
    """Readings of one measurement by site and metric; tensors stay on their devices until `rows` reads all of them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int, str], _Reading] = {}
        self._waiting: dict[tuple[Any, ...], list[tuple[_Reading, Tensor]]] = defaultdict(list)
        """Tensors (B, H, rows) to be reduced, by reduction, shape, type and device."""
        self._num_waiting = 0
        self._reduced: list[tuple[list[_Reading], Tensor]] = []

    def add(
        self, site: str, kind: str, layer: int, found: Mapping[str, Reading], reductions: Mapping[str, Reduction]
    ) -> None:
        """Take the readings of one call or matrix in; those of one site are reduced together.

        Tensors are read later. Whoever goes on to overwrite one passes a copy.
        """
        for metric, reading in found.items():
            value, flag = reading if isinstance(reading, Flagged) else (reading, "")
            reduction = reductions.get(metric) or metric_named(metric).reduction
            rows = _as_rows(value, reduction) if isinstance(value, Tensor) else None
            has_heads, num_heads = isinstance(value, Tensor) and value.ndim > 0, 1 if rows is None else rows.shape[1]
            new = _Reading(reduction, has_heads, num_heads, [], [])
            known = self._found.setdefault((site, kind, layer, metric), new)
            if known[:_FIXED] != new[:_FIXED]:
                old = (known.num_heads,) if known.has_heads else ()
                raise ValueError(
                    f"A site gave readings of shape {old} and then {(num_heads,)}. Its number of heads must not change."
                )
            known.flags.extend([flag] if flag else [])
            if rows is None:
                number = float(value)
                missing = math.isnan(number)
                known.numbers.append(([_NEUTRAL[reduction] if missing else number], [float(not missing)]))
            else:
                self._waiting[reduction, rows.shape, rows.dtype, rows.device].append((known, rows))
                self._num_waiting += rows.numel()
        if self._num_waiting > WAITING:
            self._reduce()

    def rows(self, *, heads: bool | Container[str]) -> Iterator[Row]:
        """Yield the value over all heads of every metric, and those of single heads, of all or some metrics."""
        self._read()
        for (site, kind, layer, metric), each in self._found.items():
            flag, is_mean = "; ".join(dict.fromkeys(each.flags)), each.reduction is Reduction.MEAN
            join = math.fsum if is_mean else _BEST[each.reduction]
            values, counts = each.numbers[0]
            if len(each.numbers) > 1:  # calls of one site, head by head
                values = [join(of_head) for of_head in zip(*(values for values, _ in each.numbers), strict=True)]
                counts = [sum(of_head) for of_head in zip(*(counts for _, counts in each.numbers), strict=True)]
            heads_too = each.has_heads and (heads if isinstance(heads, bool) else metric in heads)
            by_head = zip(range(each.num_heads), values, counts, strict=True) if heads_too else ()
            for head, value, count in ((ALL_HEADS, join(values), sum(counts)), *by_head):
                if count:
                    own = value / count if is_mean else value
                    yield Row(site, kind, layer, head, metric, own, flag)
                else:
                    yield Row(site, kind, layer, head, metric, math.nan, flag or "nothing but NaN")

    def _reduce(self) -> None:
        """Reduce what waits, readings of one shape together: the fewer operations, the less a GPU is kept waiting."""
        waiting, self._num_waiting = list(self._waiting.items()), 0
        self._waiting.clear()
        for (reduction, *_), members in waiting:
            sums = _over_rows(torch.stack([rows for _, rows in members]), reduction)
            self._reduced.append(([each for each, _ in members], sums.flatten(1)))

    def _read(self) -> None:
        """Bring all numbers to the host, waiting for every device once."""
        self._reduce()
        by_device: dict[torch.device, list[tuple[list[_Reading], Tensor]]] = defaultdict(list)
        for members, sums in self._reduced:
            by_device[sums.device].append((members, sums))
        self._reduced.clear()
        for groups in by_device.values():
            values, counts = torch.cat([sums for _, sums in groups], dim=1).tolist()
            end = 0
            for each in (each for members, _ in groups for each in members):
                start, end = end, end + each.num_heads
                each.numbers.append((values[start:end], counts[start:end]))


def _as_rows(tensor: Tensor, reduction: Reduction) -> Tensor:
    """Give a reading the axes batch, heads and rows, refusing what has others."""
    if tensor.ndim not in (0, 1, _ROWS_OF_HEADS):
        raise ValueError(
            f"A reading must be a number or a tensor (B, H, rows), (H) or (), got shape {tuple(tensor.shape)}."
        )
    if not tensor.numel() and reduction is not Reduction.MEAN:
        raise IndexError(f"A reading of shape {tuple(tensor.shape)} has no {reduction}.")
    tensor = tensor.detach() if tensor.is_floating_point() else tensor.detach().double()
    return tensor if tensor.ndim == _ROWS_OF_HEADS else tensor.reshape(1, -1, 1)


def _over_rows(values: Tensor, reduction: Reduction) -> Tensor:
    """Reduce metrics (M, B, H, rows) over batch and rows to (2, M, H): sum or extreme, and the count in it."""
    missing = values.isnan()
    if reduction is Reduction.MEAN:
        reduced = values.nansum((1, 3), dtype=torch.float64)
    else:
        extreme = torch.amax if reduction is Reduction.MAX else torch.amin
        reduced = extreme(values.masked_fill(missing, _NEUTRAL[reduction]), (1, 3)).double()
    num_rows = values.shape[1] * values.shape[3]
    return torch.stack((reduced, num_rows - missing.sum((1, 3), dtype=torch.float64)))


def wait_for(devices: Iterable[torch.device]) -> None:
    """Wait until GPUs have finished their work."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def first_sequence_if_enough(model: ProbedModel, measures: Sequence[Measure], batch: ProbeBatch) -> ProbeBatch:
    """Return the first sequence of a probe batch if these measures find the same on it as on the batch, else the batch.

    Both are measured once: in a model that mixes its sequences (a router with a capacity, say) or whose first axis is
    not the batch, what is found differs, and the batch stays as it is.
    """
    first = _first(batch) if all(each.first_sequence for each in measures if each.on is On.ATTENTION) else None
    if first is None:
        return batch
    tables = []
    for each in (batch, first):
        found = Measurement(model, measures)
        try:
            found.probe(each)
        except Exception:  # what is wrong with the batch is reported when it is measured
            return batch
        if found.failures:
            return batch
        tables.append({row[:5]: row.value for row in found.readings.rows(heads=True)})
    full, cut = tables
    agree = full.keys() == cut.keys() and all(
        math.isclose(full[key], cut[key], rel_tol=AGREEMENT, abs_tol=AGREEMENT)
        or (math.isnan(full[key]) and math.isnan(cut[key]))
        for key in full
    )
    return first if full and agree else batch


def _first(batch: ProbeBatch) -> ProbeBatch | None:
    """Cut every tensor of a batch to the first entry of its first axis; None where they have none in common."""
    leaves = tree_leaves(batch)
    plain = all(leaf is None or isinstance(leaf, Tensor | bool | int | float | str) for leaf in leaves)
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in leaves if isinstance(leaf, Tensor)}
    if not plain or len(lengths) != 1 or min(lengths) <= 1:
        return None
    cut: ProbeBatch = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) else leaf, batch)
    return cut
