"""One line in any training loop: attention entropy, ranks and an alarm, and training that does not notice.

```python
watch = joma.watch(model, out="runs/first", every=100)
for step, batch in enumerate(batches):
    ...                              # forward, backward, optimizer
    watch.step(step, loss=loss)      # once a step, after the optimizer
watch.close()
```
Attention is that of the training batch, in the forward pass of the measured steps (before their update; of several
forward passes the first), or that of a fixed probe batch (after the update). Weights are measured after the update.
"""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex
from weakref import WeakSet

from torch import Tensor, distributed, nn

from joma.formatting import NO_LAYER, counted, layer_name
from joma.measure.curve_effects import curve_effects
from joma.metrics import METRICS
from joma.probe.alarm import Alarm, AlarmMonitor, Alert
from joma.probe.findings import some
from joma.probe.loggers import Logger
from joma.probe.measurement import ALL_HEADS, Failure, Measurement, Row, first_sequence_if_enough, wait_for
from joma.probe.measures import Functions, On, functions_of, measures_of
from joma.probe.model import ProbeBatch, ProbedModel, fixed_batch
from joma.probe.schedule import Schedule, schedule_of
from joma.probe.structure import Unseen, plain_site
from joma.probe.taps import Sites, TrainingForward
from joma.store import RunWriter, demand_writable, open_run, read, read_events

if TYPE_CHECKING:
    import pandas

LOG = logging.getLogger("joma")
EVERY = 100
_WHAT_IS_MEASURED = ("batch", "mlp_pattern", "attention_pattern")
"""Settings without which values are not comparable. When, how much and with what alarm may change on the way."""
_RANKS_ALONE = 'For the ranks of its MLP alone, pass `measures="ranks"`, and `mlp_pattern` to choose them.'
_watched: WeakSet[nn.Module] = WeakSet()


def watch(  # noqa: PLR0913 (every choice has a default)
    model: nn.Module,
    *,
    out: Path | str | None = None,
    every: int = EVERY,
    schedule: Schedule | int | str | Sequence[int] | None = None,
    probe_batch: ProbeBatch | None = None,
    measures: str | Sequence[str] = "cheap",
    alarm: bool | Alarm = True,
    on_alarm: Callable[[Alert], object] | None = None,
    dry_run: bool = False,
    heads: bool = False,
    loggers: Sequence[Logger] = (),
    mlp_pattern: str | None = None,
    attention_pattern: str | None = None,
    seed: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> "Watch":
    """Attach to a model and return the `Watch` to step.

    Args:
        model: Any PyTorch model, compiled or wrapped for distributed training or not.
        out: Folder of the run; None keeps it in memory. With several processes each writes its own `rank-N` in it.
            A folder that holds another run (another model, `seed`, `about`, kind of batch or pattern) is refused. The
            same run goes on in it, and overwrites what is recorded at the first step that comes and later.
        every: Measure every n steps.
        schedule: Measure at other steps: a `Schedule`, "log", or the steps themselves.
        probe_batch: A fixed batch to measure attention on: keyword arguments, a tuple of arguments, a tensor, or a
            function that calls the model. Without it the training batch is measured: that of a forward pass with
            gradients, in training mode or, while the model has never been in training mode since it was attached, in
            eval mode.
        measures: "cheap", "full", or names, those of `register_measure` among them.
        alarm: Warn by the logger "joma", once a layer, when attention collapses or goes uniform.
        on_alarm: Called with each `Alert`; it may stop the training by raising.
        dry_run: Attach nothing. Print the result to see what would be measured.
        heads: Keep the values of single heads too.
        loggers: Send values elsewhere as well (`joma.probe.loggers`).
        mlp_pattern: Regular expression for the names of parameters, for models whose structure misleads joma.
        attention_pattern: Regular expression for the names of modules, for the same.
        seed: Recorded with the run: `joma report` takes runs that differ in their seed alone together.
        about: Whatever else there is to say about the run (a learning rate, say).
    """
    probed = ProbedModel.of(model, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern)
    listed = measures_of(measures)
    functions = functions_of(listed)
    given = None if probe_batch is None else fixed_batch(probe_batch)
    if probed.root in _watched:
        raise ValueError(f"This {probed.name} is being watched already. Close that watch before starting another.")
    when = schedule_of(every if schedule is None else schedule)
    batch = None if given is None else first_sequence_if_enough(probed, functions, given)
    thresholds = (Alarm() if alarm else None) if isinstance(alarm, bool) else alarm
    seen = Watch(
        probed, functions, when, probe_batch=batch, alarm=thresholds, on_alarm=on_alarm, heads=heads, loggers=loggers
    )
    if dry_run:
        seen.time_one_measurement()
        return seen
    record: RunWriter | MemoryRecord = MemoryRecord()
    is_resumed = False
    if out is not None:
        config = {
            "schedule": str(when),
            "measures": [measure.name for measure in listed],
            "batch": "training" if batch is None else "probe" if batch is given else "probe, first sequence",
            "heads": heads,
            "alarm": None if thresholds is None else asdict(thresholds),
            "mlp_pattern": mlp_pattern,
            "attention_pattern": attention_pattern,
        }
        own = {
            "model": probed.name,
            "num_parameters": probed.num_parameters,
            "parameter_shapes": probed.parameter_shapes,
        }
        named = {} if seed is None else {"seed": index(seed)}
        record, is_resumed = _open(Path(out), config, {**own, **named, **(about or {})})
    seen.attach(record, is_resumed=is_resumed)
    return seen


def _open(folder: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[RunWriter, bool]:
    """Open the run's folder, of several processes one for each, and say whether it holds a part of the run already."""
    known_by = [*about, *_WHAT_IS_MEASURED]
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        rank = distributed.get_rank()
        about = {**about, "rank": rank, "world_size": distributed.get_world_size()}
        folder = folder / f"rank-{rank}"
    demand_writable(folder)
    is_resumed = (folder / "run.json").exists()
    return open_run(folder, kind="watch", config=config, about=about, known_by=known_by), is_resumed


class Watch:
    """A model being watched; from `watch`. Also a context manager."""

    def __init__(
        self,
        model: ProbedModel,
        measures: Functions,
        schedule: Schedule,
        *,
        probe_batch: ProbeBatch | None,
        alarm: Alarm | None,
        on_alarm: Callable[[Alert], object] | None,
        heads: bool,
        loggers: Sequence[Logger],
    ) -> None:
        """Look what there is to see, on the probe batch where there is one, else by structure; refuse what is not."""
        self.schedule = schedule
        self.alerts: list[Alert] = []
        """Alarms so far, those of a resumed run's earlier sessions left out."""
        self.unseen: dict[Unseen, None] = {}
        """What cannot be measured, and why."""
        self.sites: tuple[tuple[int, str], ...] = ()
        """Layer and path of the attention that is measured."""
        self._model, self._measures, self._probe_batch = model, measures, probe_batch
        self._heads, self._loggers, self._on_alarm = heads, tuple(loggers), on_alarm
        self._monitor = None if alarm is None else AlarmMonitor(alarm)
        self._record: RunWriter | MemoryRecord = MemoryRecord()
        self._attached = False
        self._earlier: tuple[pandas.DataFrame, pandas.DataFrame] | None = None
        """Values and events of earlier sessions, until the first step shows where this one begins."""
        self._last: int | None = None
        self._last_measured: int | None = None
        self._stride = 1
        self._is_overdue = False
        self._failures: dict[str, int] = {}
        """Messages of exceptions, and how often they occurred."""
        self._seconds: list[float] = []
        self._price: float | None = None
        self._begun = time.perf_counter()
        self._measurement: Measurement | None = None
        """Of the step that is running, if its forward pass is to be measured."""
        self._known_sites: Sites | None = None
        """Where the last measurement saw attention."""
        self._forward = TrainingForward(model.root, lambda error: self._failed(Failure.of("", error)))
        self._ran = False
        """Whether the sites were seen in a forward pass; else they are those of the model's structure."""
        self._look()

    def attach(self, record: "RunWriter | MemoryRecord", *, is_resumed: bool) -> None:
        """Wait for the first forward pass, and write to a record."""
        self._record, self._attached = record, True
        _watched.add(self._model.root)
        try:
            if is_resumed:
                self._earlier = self.frame(), self.events()
            by_reason: dict[str, list[str]] = defaultdict(list)
            for each in self.unseen:
                record.event(0, "unseen", each.reason, level="warning", site=each.site)
                by_reason[each.reason].append(each.site or "the model")
            for reason, sites in by_reason.items():
                LOG.warning("joma cannot see %s: %s", some(sites), reason)
            self._wait_for_forward()
        except BaseException:
            self.close("failed")
            raise

    def step(self, step: SupportsIndex | None = None, loss: SupportsFloat | None = None) -> None:
        """End a training step: measure if it is due. Call it once a step, after the optimizer.

        Without `step` they are counted from 0. The loss is read, and recorded, when a measurement is due. Nothing that
        goes wrong while measuring is raised: it becomes an event of the record.
        """
        self._demand_attached()
        number = self._number(step)
        alerts: list[Alert] = []
        try:
            alerts += self._begin_at(number)
            if self._is_ready(number):
                alerts += self._measure(number, loss)
        except Exception as error:
            self._failed(Failure.of("", error))
        self._wait_for_forward()
        for alert in alerts:
            self.alerts.append(alert)
            LOG.warning(alert.message)
            try:
                self._record.event(
                    alert.step, "alarm", alert.message, level="warning", site=alert.site, evidence=asdict(alert)
                )
            except Exception as error:
                self._failed(Failure.of(alert.site, error), alert.step)
        if self._on_alarm is not None:
            for alert in alerts:
                self._on_alarm(alert)

    def record(self, step: int, metric: str, value: float, *, kind: str = "model") -> None:
        """Add a value of your own to the record."""
        self._demand_attached()
        try:
            self._record.add(step, metric, float(value), kind=kind)
        except Exception as error:
            self._failed(Failure.of("", error), step)

    def frame(self) -> "pandas.DataFrame":
        """Return the values so far: step, site, kind, layer, head (-1 over all), metric, value, flag."""
        if isinstance(self._record, MemoryRecord):
            return self._record.frame()
        if self._attached:
            self._record.flush()
        return read(self._record.folder)

    def events(self) -> "pandas.DataFrame":
        """Return what happened so far: alarms, exceptions inside of measurements, what was not seen."""
        if isinstance(self._record, MemoryRecord):
            return self._record.events()
        if self._attached:
            self._record.flush()
        return read_events(self._record.folder)

    def close(self, status: Literal["finished", "failed"] = "finished") -> None:
        """Detach from the model, which is then as it was, and close the record. Closing twice does nothing."""
        if not self._attached:
            return
        self._attached = False
        self._forward.stop()
        _watched.discard(self._model.root)
        try:
            for logger in self._loggers:
                logger.close()
        finally:
            self._record.close(status)

    def report(self) -> str:
        """Return as text what is measured, what the curves do, what could not be seen, what failed and what it cost."""
        lines = [
            *self._sites_in_words(),
            *(f"Unseen: {each.site or 'the model'}: {each.reason}" for each in self.unseen),
        ]
        if self._price is not None:
            costs = [measure.cost for measure in self._measures[On.ATTENTION] if measure.cost and not self._ran]
            on_top = f", and during the training step {' and '.join(costs)}" if costs else ""
            lines.append(f"Cost of a measurement: {1e3 * self._price:.3g} ms by the clock{on_top}.")
        if self._seconds:
            lines.append(f"Measured {counted(len(self._seconds), 'time')}, last at step {self._last_measured}.")
        else:
            lines.append("Nothing was measured" + ("." if self._last is None else f" up to step {self._last}."))
        lines += curves_in_words(self.frame())
        lines += [f"Alarm: {alert.message}" for alert in self.alerts]
        lines += [f"Exception ({counted(times, 'time')}): {message}" for message, times in self._failures.items()]
        if self._seconds:
            total, wall = sum(self._seconds), time.perf_counter() - self._begun
            lines.append(f"Measuring took {total:.3g} s, {100 * total / wall:.2g} % of {wall:.3g} s.")
        return "\n".join(lines)

    def _sites_in_words(self) -> list[str]:
        how = "seen in a forward pass" if self._ran else "by structure, until the first measured step"
        size = f"{self._model.num_parameters / 1e6:.3g} million parameters"
        num_layers = len({layer for layer, _ in self.sites} - {NO_LAYER})
        lines = [
            f"{self._model.name}, {size}, measured at: {self.schedule}.",
            f"Attention: {counted(len(self.sites), 'site')} in {counted(num_layers, 'layer')} ({how}).",
            *(f"  {layer_name(layer)}: {site or '(the model itself)'}" for layer, site in self.sites),
        ]
        if self._measures[On.MATRIX]:
            lower = self._model.layout.lower
            lines.append(f"Ranks: {counted(len(lower), 'matrix', 'matrices')}.")
            lines += [f"  {layer_name(r.layer)}: {plain_site(r.site)} {r.shape[0]}×{r.shape[1]}" for r in lower]
        if self._measures[On.QUERY_KEY]:
            pairs = [pair for pair in self._model.layout.query_keys if pair.num_heads is not None]
            lines.append(f"Query-key norms: {counted(len(pairs), 'site')}.")
            lines += [f"  {layer_name(pair.query.layer)}: {plain_site(pair.site)}" for pair in pairs]
        return lines

    def __str__(self) -> str:
        return self.report()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("finished" if error is None else "failed")

    # What there is to see

    def _look(self) -> None:
        model, layout, looks = self._model, self._model.layout, self._looks_at_attention
        if looks and self._probe_batch is None:
            self._refuse_training_batch()
        if self._measures[On.MATRIX] or self._measures[On.QUERY_KEY]:
            self.unseen |= dict.fromkeys(layout.unseen)
        if self._measures[On.QUERY_KEY]:
            reason = "The number of heads is not known, so there are no query-key norms."
            without = [pair for pair in layout.query_keys if pair.num_heads is None]
            self.unseen |= {Unseen(site=plain_site(pair.site), reason=reason): None for pair in without}
        is_named = False
        if looks and self._probe_batch is None:
            self.sites = tuple((layer, plain_site(path)) for layer, path in layout.sites)
        elif self._probe_batch is not None and looks:
            seen = Measurement(model, functions_of(()))
            try:
                seen.probe(self._probe_batch)
            except Exception as error:
                raise ValueError(
                    f"This {model.name} does not run on the probe batch ({type(error).__name__}: {error}). "
                    "Pass what its forward takes."
                ) from error
            self._saw(seen)
            self.unseen |= seen.unseen
            is_named = any(each.site for each in seen.unseen)
        if looks and not self.sites and not is_named:
            raise ValueError(self._why_no_attention())
        if not looks and self._measures[On.MATRIX] and not layout.lower:
            raise ValueError(f"joma finds no MLP in this {model.name}. {next(iter(self.unseen)).reason}")

    def _refuse_training_batch(self) -> None:
        if self._model.compiled:
            raise ValueError(
                f"This {self._model.name} is compiled: its compiled forward pass shows no attention calls, and looking "
                "into it would compile it anew. Pass `probe_batch`, which is run through the uncompiled module."
            )
        if self._model.replicated:
            raise ValueError(
                f"This {self._model.name} is in a DataParallel, whose replicas run in threads. "
                "Pass `probe_batch`, or use DistributedDataParallel."
            )

    def _why_no_attention(self) -> str:
        name, pattern = self._model.name, self._model.attention_pattern
        if pattern is not None:
            return f"No attention of this {name} matches {pattern!r}. Change the pattern."
        if self._ran:
            return f"This {name} made no attention call on the probe batch. {_RANKS_ALONE}"
        return (
            f"This {name} has no attention that its structure shows: no module owns queries and keys. "
            f"If it has some, name its modules by `attention_pattern`, or pass a `probe_batch`. {_RANKS_ALONE}"
        )

    def time_one_measurement(self) -> None:
        """Time a measurement, without the attention of the training batch; not the first, which has all to find."""
        for _ in range(2):
            wait_for(self._model.devices)
            begun = time.perf_counter()
            found = Measurement(self._model, self._measures)
            if self._probe_batch is not None:
                found.probe(self._probe_batch)
            found.weights()
            list(found.readings.rows(heads=True))
            self._price = time.perf_counter() - begun

    @property
    def _looks_at_attention(self) -> bool:
        return bool(self._measures[On.ATTENTION])

    def _saw(self, found: Measurement) -> None:
        self.sites = tuple(sorted((layer, site) for site, layer in found.layers.items()))
        self._ran = True

    # A step

    def _demand_attached(self) -> None:
        if not self._attached:
            raise ValueError("This watch is not attached: it was a dry run, or it is closed. Call joma.watch again.")

    def _number(self, step: SupportsIndex | None) -> int:
        if step is None and self._earlier is not None and not self._earlier[0].empty:
            raise ValueError("This run goes on an earlier one, of unknown steps. Pass `step`, or another `out`.")
        number = index(step) if step is not None else 0 if self._last is None else self._last + 1
        if self._last is not None and number > self._last:
            self._stride = number - self._last
        self._last = number
        return number

    def _begin_at(self, number: int) -> list[Alert]:
        """Begin at a step: replay earlier records to the alarm, and overwrite later ones.

        Returns the alarms of an earlier session that were not recorded.
        """
        if self._earlier is None:
            return []
        (values, events), self._earlier = self._earlier, None
        if (values["step"] >= number).any() or (events["step"] >= number).any():
            self._record.begin_again(number)
        later = sorted(set(values["step"][values["step"] >= number].tolist()))
        if later:
            LOG.warning(
                "This run begins again at step %d: what an earlier session recorded at steps %d to %d is replaced as "
                "soon as the first value is measured anew.",
                *(number, later[0], later[-1]),
            )
        alerts: list[Alert] = []
        for step, table in values[values["step"] < number].groupby("step", sort=True):
            alerts += self._alerts_of(int(step), [Row(**row) for row in table[[*Row._fields]].to_dict("records")])
        recorded = set(events.loc[events["kind"] == "alarm", "message"])
        return [alert for alert in alerts if alert.message not in recorded]

    def _is_ready(self, number: int) -> bool:
        """Whether to measure now: the step is due, and the forward pass of its training batch was tapped."""
        due = self.schedule.due(number) or self._is_overdue
        if not due or self._probe_batch is not None or not self._looks_at_attention:
            return due
        self._is_overdue = self._measurement is None
        return not self._is_overdue

    def _wait_for_forward(self) -> None:
        """Wait for the next forward pass if it will be measured; the number of the first step is not known."""
        self._forward.stop()
        by_batch = self._probe_batch is None and self._looks_at_attention
        due = self._last is None or self._is_overdue or self.schedule.due(self._last + self._stride)
        self._measurement = Measurement(self._model, self._measures, self._known_sites) if by_batch and due else None
        if self._measurement is not None:
            self._forward.wait(self._measurement.tap)

    def _measure(self, number: int, loss: SupportsFloat | None) -> list[Alert]:
        """Finish the measurement of a step and write it down."""
        found = self._measurement or Measurement(self._model, self._measures, self._known_sites)
        wait_for(self._model.devices)  # what training has still to do is not the cost of measuring
        begun = time.perf_counter()
        if self._probe_batch is not None and self._looks_at_attention:
            try:
                found.probe(self._probe_batch)
            except Exception as error:
                self._failed(Failure.of("", error))
        self._known_sites = found.sites
        found.weights()
        rows = list(found.readings.rows(heads=self._heads))
        if loss is not None:
            value = float(loss.detach() if isinstance(loss, Tensor) else loss)
            rows.append(Row(site="", kind="model", layer=NO_LAYER, head=ALL_HEADS, metric="loss", value=value))
        alerts = self._alerts_of(number, rows)  # first: a full disk must not silence the alarm
        try:
            self._write(number, rows, found)
        except Exception as error:
            self._failed(Failure.of("", error))
        self._seconds.append(found.seconds_in_forward() + time.perf_counter() - begun)
        self._last_measured = number
        self.record(number, "seconds", self._seconds[-1], kind="cost")
        return alerts

    def _write(self, number: int, rows: Sequence[Row], found: Measurement) -> None:
        """Record values, what failed and what was not seen, and pass the values on to the loggers."""
        for row in rows:
            self._record.add(number, **row._asdict())
        for failure in found.failures:
            self._failed(failure)
        if found.layers and not self._ran:
            self._saw(found)
        if self._looks_at_attention and not found.layers and not found.unseen:
            found.unseen[Unseen(site="", reason=self._why_nothing())] = None
        for each in found.unseen:
            if each not in self.unseen:
                self.unseen[each] = None
                LOG.warning("joma cannot see %s: %s", each.site or "the model", each.reason)
                self._record.event(number, "unseen", each.reason, level="warning", site=each.site)
        values = {_log_name(row): row.value for row in rows}
        for logger in self._loggers:
            try:
                logger.log(number, values)
            except Exception as error:
                self._failed(Failure.of("", error))

    def _why_nothing(self) -> str:
        if self._probe_batch is not None:
            return "No attention call was seen on the probe batch."
        return (
            "No attention call was seen in the step's forward pass. Is the watched model the one that is called, by "
            "this process, in training mode, and not compiled as part of a function? A model that is trained in eval "
            "mode is to be in eval mode when it is attached; one that is checkpointed as a whole needs "
            "use_reentrant=False. A probe batch is measured in any case."
        )

    def _alerts_of(self, number: int, rows: Iterable[Row]) -> list[Alert]:
        """Return the alarms that a measurement sets off, by the entropy of every layer."""
        if self._monitor is None:
            return []
        found: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for row in rows:
            if row.head == ALL_HEADS and row.kind == "attention":
                found[row.site, row.layer][row.metric] = row.value
        alerts = [
            self._monitor.check(number, site, layer, fraction=values["entropy_fraction"], entropy=values["entropy"])
            for (site, layer), values in found.items()
            if "entropy" in values and "entropy_fraction" in values
        ]
        return [alert for alert in alerts if alert is not None]

    def _failed(self, failure: Failure, step: int | None = None) -> None:
        """Record an exception at every step where it happens, and log it once; the record itself may be what fails."""
        step = step if step is not None else self._last or 0
        if failure.message not in self._failures:
            LOG.warning("A measurement of joma failed at step %d, training goes on. %s", step, failure.message)
        self._failures[failure.message] = self._failures.get(failure.message, 0) + 1
        try:
            self._record.event(
                step,
                "exception",
                failure.message,
                level="error",
                site=failure.site,
                evidence={"trace": failure.trace},
            )
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self._failures[message] = self._failures.get(message, 0) + 1


def curves_in_words(frame: "pandas.DataFrame") -> list[str]:
    """Return a line for each layer's entropy and stable rank: start, lowest value with its step, end and name."""
    lines = []
    for each in sorted(curve_effects(frame), key=lambda found: found.metric):
        effects, metric = each.effects, METRICS[each.metric]
        where = f"{layer_name(each.layer, 'of')} ({each.site})"
        course = f"{effects.start.value:.3g} → {effects.lowest.value:.3g} (step {effects.dip_time.value:,.0f})"
        lines.append(f"{metric.axis.capitalize()} {where}: {course} → {effects.end.value:.3g}, {each.name}")
    return lines


def _log_name(row: Row) -> str:
    parts = [row.metric, row.site, "" if row.head == ALL_HEADS else f"head {row.head}"]
    return "/".join(part for part in parts if part)


class MemoryRecord:
    """Keeps the rows and events of a run that has no folder; takes what a `RunWriter` takes."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []

    def add(self, step: int, metric: str, value: float, **row: Any) -> None:
        """Take one value."""
        self._rows.append({"step": step, **Row("", "", NO_LAYER, ALL_HEADS, metric, value)._asdict(), **row})

    def event(
        self, step: int, kind: str, message: str, *, level: str = "info", site: str = "", evidence: Any = None
    ) -> None:
        """Take something that happened."""
        text = json.dumps(evidence or {}, default=str)
        self._events.append(
            {"step": step, "site": site, "level": level, "kind": kind, "message": message, "evidence": text}
        )

    def begin_again(self, step: int) -> None:
        """Replace nothing: there is no earlier session."""

    def close(self, status: str) -> None:
        """Keep everything."""

    def frame(self) -> "pandas.DataFrame":
        """Return the values so far, of several for one key the last."""
        import pandas

        table = pandas.DataFrame(self._rows, columns=["step", *Row._fields])
        table = table.drop_duplicates(["step", "site", "head", "metric"], keep="last")
        return table.sort_values(["step", "layer", "site", "head", "metric"], ignore_index=True)

    def events(self) -> "pandas.DataFrame":
        """Return what happened so far."""
        import pandas

        return pandas.DataFrame(self._events, columns=["step", "site", "level", "kind", "message", "evidence"])
