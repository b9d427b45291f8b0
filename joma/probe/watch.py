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

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex
from weakref import WeakSet

from torch import Tensor, distributed, nn

from joma.figures.numbers import counted
from joma.probe.alarm import Alarm, Alert, Bell
from joma.probe.arming import TrainingForward
from joma.probe.examination import Examination, Problem
from joma.probe.findings import some
from joma.probe.history import History
from joma.probe.isolation import demand_module
from joma.probe.lean_batch import lean_batch
from joma.probe.ledger import Ledger, MemoryLedger, RunLedger
from joma.probe.loggers import Logger
from joma.probe.measures import Instrument, On, measures_of
from joma.probe.plan import Plan, make_plan
from joma.probe.readings import ALL_HEADS, Row
from joma.probe.schedule import Schedule, schedule_of
from joma.probe.specimen import ProbeBatch, Specimen, fixed_batch
from joma.probe.stopwatch import wait_for
from joma.probe.summary import curves_in_words
from joma.probe.taps import Trail
from joma.probe.weights import Unseen, by_reason
from joma.store import open_run
from joma.store.files import demand_writable

if TYPE_CHECKING:
    import pandas

OnAlarm = Callable[[Alert], object]

LOG = logging.getLogger("joma")
EVERY = 100
_WHAT_IS_MEASURED = ("batch", "mlp_pattern", "attention_pattern")
"""Settings without which values are not comparable. When, how much and with what alarm may change on the way."""
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
    on_alarm: OnAlarm | None = None,
    dry_run: bool = False,
    heads: bool = False,
    loggers: Sequence[Logger] = (),
    mlp_pattern: str | None = None,
    attention_pattern: str | None = None,
    seed: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> "Watch":
    """Attach to a model, compiled or wrapped for distributed training or not, and return the `Watch` to step.

    `out` is the folder of the run (None keeps it in memory); with several processes each writes its own `rank-N` in it.
    A folder that holds another run (another model, `seed`, `about`, kind of batch or pattern) is refused. The same run
    goes on in it, and takes the place of what is recorded at the first step that comes and behind it.
    `every` n steps or another `schedule` says when, `measures` what: "cheap", "full", or names, `register_measure`'s
    among them; `heads` keeps the values of single heads too. `probe_batch` is a fixed batch to measure attention on:
    keyword arguments, a tuple of arguments, a tensor, or a function that calls the model. Without it the training batch
    is measured: that of a forward pass with gradients, in training mode or, while the model has never been in training
    mode since it was attached, in eval mode.

    `alarm` warns by the logger "joma", once a layer, when attention collapses or goes dead uniform, and calls
    `on_alarm`, which may stop the training by raising. `dry_run` attaches nothing: print the result to see what would
    be measured. `mlp_pattern` (names of parameters) and `attention_pattern` (names of modules) are regular expressions
    for models whose structure misleads joma. `seed` and whatever else there is to say `about` the run (a learning rate,
    say) are recorded with it: `joma report` takes runs that differ in their seed alone together.
    """
    demand_module(model)
    specimen = Specimen.of(model, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern)
    instrument = Instrument(measures_of(measures))
    batch = None if probe_batch is None else fixed_batch(probe_batch)
    if specimen.root in _watched:
        raise ValueError(f"This {specimen.name} is being watched already. Close that watch before starting another.")
    when = schedule_of(every if schedule is None else schedule)
    whole, batch = batch, None if batch is None else lean_batch(specimen, instrument, batch)
    plan = make_plan(specimen, instrument, when, batch, timed=dry_run)
    thresholds = (Alarm() if alarm else None) if isinstance(alarm, bool) else alarm
    config = {
        "schedule": str(when),
        "measures": [measure.name for measure in instrument.measures],
        "batch": "training" if batch is None else "probe" if batch is whole else "probe, first sequence",
        "heads": heads,
        "alarm": None if thresholds is None else asdict(thresholds),
        "mlp_pattern": mlp_pattern,
        "attention_pattern": attention_pattern,
    }
    ledger = MemoryLedger() if out is None or dry_run else _open(Path(out), config, _described(specimen, seed, about))
    return Watch(
        specimen,
        instrument,
        plan,
        ledger,
        probe_batch=batch,
        bell=None if thresholds is None else Bell(thresholds),
        on_alarm=on_alarm,
        heads=heads,
        loggers=loggers,
        attached=not dry_run,
    )


class Watch:
    """A model being watched; from `watch`. Also a context manager."""

    def __init__(
        self,
        specimen: Specimen,
        instrument: Instrument,
        plan: Plan,
        ledger: Ledger,
        *,
        probe_batch: ProbeBatch | None,
        bell: Bell | None,
        on_alarm: OnAlarm | None,
        heads: bool,
        loggers: Sequence[Logger],
        attached: bool,
    ) -> None:
        """Attach, and go on with whatever the ledger holds already."""
        self.plan = plan
        self.alerts: list[Alert] = []
        """Alarms so far, those of a resumed run's earlier part left out."""
        self._specimen, self._instrument, self._ledger = specimen, instrument, ledger
        self._probe_batch, self._bell, self._on_alarm = probe_batch, bell, on_alarm
        self._heads, self._loggers = heads, tuple(loggers)
        self._attached = attached
        self._last: int | None = None
        self._last_measured: int | None = None
        self._stride = 1
        self._is_owed = False
        self._problems: dict[str, int] = {}
        self._unseen: dict[Unseen, None] = dict.fromkeys(plan.unseen)
        self._seconds: list[float] = []
        self._begun = time.perf_counter()
        self._examination: Examination | None = None
        """Of the step that is running, if its forward pass is to be measured."""
        self._trail: Trail | None = None
        """Where the last measurement saw attention."""
        self._forward = TrainingForward(specimen.root, lambda error: self._complain("", error))
        self._history: History | None = None
        """What was recorded before, until the first step tells where this session begins."""
        if attached:
            _watched.add(specimen.root)
            try:
                self._begin()
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
            alerts += self._take_up(number)
            if self._is_ready(number):
                alerts += self._record(number, loss)
        except Exception as error:
            self._complain("", error, number)
        self._arm()
        self._ring(alerts)

    def record(self, step: int, metric: str, value: float, *, kind: str = "model") -> None:
        """Add a value of your own to the record."""
        self._demand_attached()
        try:
            self._ledger.add(step, _model_row(metric, float(value), kind))
        except Exception as error:
            self._complain("", error, step)

    def frame(self) -> "pandas.DataFrame":
        """Return the values so far: step, site, kind, layer, head (-1 over all), metric, value, flag."""
        return self._ledger.frame()

    def events(self) -> "pandas.DataFrame":
        """Return what happened so far: alarms, exceptions inside of measurements, what was not seen."""
        return self._ledger.events()

    def close(self, status: Literal["finished", "failed"] = "finished") -> None:
        """Detach from the model, which is then as it was, and close the record. Closing twice does nothing."""
        if not self._attached:
            return
        self._attached = False
        self._forward.disarm()
        _watched.discard(self._specimen.root)
        try:
            for logger in self._loggers:
                logger.close()
        finally:
            self._ledger.close(status)

    def report(self) -> str:
        """Return as text what was seen, what the curves do, what could not be seen, what failed and what it cost."""
        lines = [*self.plan.lines(), self._how_often()]
        lines += curves_in_words(self.frame())
        told = set(self.plan.unseen)
        lines += [f"Unseen: {each.site or 'the model'}: {each.reason}" for each in self._unseen if each not in told]
        lines += [f"Alarm: {alert.message}" for alert in self.alerts]
        lines += [f"Exception ({counted(times, 'time')}): {message}" for message, times in self._problems.items()]
        if self._seconds:
            total, wall = sum(self._seconds), time.perf_counter() - self._begun
            lines.append(f"Measuring took {total:.3g} s, {100 * total / wall:.2g} % of {wall:.3g} s.")
        return "\n".join(lines)

    def _how_often(self) -> str:
        if not self._seconds:
            return "Nothing was measured." if self._last is None else f"Nothing was measured up to step {self._last}."
        return f"Measured {counted(len(self._seconds), 'time')}, last at step {self._last_measured}."

    def __str__(self) -> str:
        return self.report()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("finished" if error is None else "failed")

    def _begin(self) -> None:
        """Look what was recorded before, and wait for the first forward pass."""
        self._history = History.of(self._ledger)
        for each in self.plan.unseen:
            self._ledger.event(0, "unseen", each.reason, level="warning", site=each.site)
        for reason, sites in by_reason(self.plan.unseen).items():
            LOG.warning("joma cannot see %s: %s", some(sites), reason)
        self._arm()

    def _demand_attached(self) -> None:
        if not self._attached:
            raise ValueError("This watch is not attached: it was a dry run, or it is closed. Call joma.watch again.")

    def _number(self, step: SupportsIndex | None) -> int:
        if step is None and self._history is not None and not self._history.values.empty:
            raise ValueError("This run goes on an earlier one, of unknown steps. Pass `step`, or another `out`.")
        number = index(step) if step is not None else 0 if self._last is None else self._last + 1
        if self._last is not None and number > self._last:
            self._stride = number - self._last
        self._last = number
        return number

    def _is_ready(self, number: int) -> bool:
        """Whether to measure now: the step is due, and the forward pass of its training batch was tapped."""
        due = self.plan.schedule.due(number) or self._is_owed
        if not due or self._probe_batch is not None or not self._instrument.looks_at(On.ATTENTION):
            return due
        self._is_owed = self._examination is None
        return not self._is_owed

    def _arm(self) -> None:
        """Wait for the next forward pass if it will be measured; before the first step nobody knows its number."""
        self._forward.disarm()
        by_batch = self._probe_batch is None and self._instrument.looks_at(On.ATTENTION)
        due = self._last is None or self._is_owed or self.plan.schedule.due(self._last + self._stride)
        self._examination = Examination(self._specimen, self._instrument, self._trail) if by_batch and due else None
        if self._examination is not None:
            self._forward.arm(self._examination.tap)

    def _record(self, number: int, loss: SupportsFloat | None) -> list[Alert]:
        """Finish the measurement of a step and write it down."""
        found = self._examination or Examination(self._specimen, self._instrument, self._trail)
        wait_for(self._specimen.devices)  # what training has still to do is not the cost of measuring
        begun = time.perf_counter()
        if self._probe_batch is not None and self._instrument.looks_at(On.ATTENTION):
            self._probe(number, found)
        self._trail = found.trail
        found.weights()
        rows = list(found.readings.rows(heads=self._heads))
        if loss is not None:
            rows.append(_model_row("loss", _number_of(loss)))
        alerts = self._listen(number, rows)  # first: a full disk must not silence the alarm
        self._write(number, rows, found)
        seconds = found.seconds_in_forward() + time.perf_counter() - begun
        self._seconds.append(seconds)
        self._last_measured = number
        self.record(number, "seconds", seconds, kind="cost")
        return alerts

    def _write(self, number: int, rows: Sequence[Row], found: Examination) -> None:
        try:
            for row in rows:
                self._ledger.add(number, row)
            self._tell(number, found)
            self._log(number, rows)
        except Exception as error:
            self._complain("", error, number)

    def _probe(self, number: int, found: Examination) -> None:
        assert self._probe_batch is not None
        try:
            found.probe(self._probe_batch)
        except Exception as error:
            self._complain("", error, number)

    def _tell(self, number: int, found: Examination) -> None:
        """Note what failed and what was not seen."""
        for problem in found.problems:
            self._note_problem(number, problem)
        if found.calls and not self.plan.ran:
            self.plan = replace(self.plan, attention=found.sites(), ran=True)
        if self._instrument.looks_at(On.ATTENTION) and not found.calls and not found.unseen:
            found.unseen[Unseen(site="", reason=self._why_nothing())] = None
        for each in found.unseen:
            if each not in self._unseen:
                self._unseen[each] = None
                LOG.warning("joma cannot see %s: %s", each.site or "the model", each.reason)
                self._ledger.event(number, "unseen", each.reason, level="warning", site=each.site)

    def _why_nothing(self) -> str:
        if self._probe_batch is not None:
            return "No attention call was seen on the probe batch."
        return (
            "No attention call was seen in the step's forward pass. Is the watched model the one that is called, by "
            "this process, in training mode, and not compiled as part of a function? A model that is trained in eval "
            "mode is to be in eval mode when it is attached; one that is checkpointed as a whole needs "
            "use_reentrant=False. A probe batch is measured in any case."
        )

    def _log(self, number: int, rows: Sequence[Row]) -> None:
        values = {_log_name(row): row.value for row in rows}
        for logger in self._loggers:
            try:
                logger.log(number, values)
            except Exception as error:
                self._complain("", error, number)

    def _listen(self, number: int, rows: Sequence[Row]) -> list[Alert]:
        """Return the alarms that this measurement sets off."""
        if self._bell is None:
            return []
        found = [self._bell.hear(number, site, layer, **values) for (site, layer), values in _fractions(rows)]
        return [alert for alert in found if alert is not None]

    def _ring(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            self.alerts.append(alert)
            LOG.warning(alert.message)
            self._note(alert)
        if self._on_alarm is not None:
            for alert in alerts:
                self._on_alarm(alert)

    def _note(self, alert: Alert) -> None:
        try:
            self._ledger.event(
                alert.step, "alarm", alert.message, level="warning", site=alert.site, evidence=asdict(alert)
            )
        except Exception as error:
            self._complain(alert.site, error, alert.step)

    def _take_up(self, number: int) -> list[Alert]:
        """Begin at a step: what was recorded before it is heard again, what was recorded from it on is replaced.

        Returns the alarms of an earlier session that were not told.
        """
        history, self._history = self._history, None
        if history is None:
            return []
        if history.reaches(number):
            self._ledger.begin_again(number)
        if anew := history.measured(since=number):
            LOG.warning(
                "This run begins again at step %d: what an earlier session recorded at steps %d to %d is replaced as "
                "soon as the first value is measured anew.",
                *(number, anew[0], anew[-1]),
            )
        heard = [alert for step, rows in history.measurements(before=number) for alert in self._listen(step, rows)]
        return [alert for alert in heard if alert.message not in history.told]

    def _complain(self, site: str, error: Exception, number: int | None = None) -> None:
        step = number if number is not None else self._last if self._last is not None else 0
        self._note_problem(step, Problem.of(site, error))

    def _note_problem(self, number: int, problem: Problem) -> None:
        """Record an exception at every step where it happens, and log it once; the record itself may be what fails."""
        if problem.message not in self._problems:
            LOG.warning("A measurement of joma failed at step %d, training goes on. %s", number, problem.message)
        self._problems[problem.message] = self._problems.get(problem.message, 0) + 1
        try:
            self._ledger.event(
                number,
                "exception",
                problem.message,
                level="error",
                site=problem.site,
                evidence={"trace": problem.trace},
            )
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self._problems[message] = self._problems.get(message, 0) + 1


def _model_row(metric: str, value: float, kind: str = "model") -> Row:
    return Row(site="", kind=kind, layer=-1, head=ALL_HEADS, metric=metric, value=value)


def _number_of(loss: SupportsFloat) -> float:
    """Read a number off a loss, which may hang on a graph."""
    return float(loss.detach() if isinstance(loss, Tensor) else loss)


def _log_name(row: Row) -> str:
    parts = [row.metric, row.site, "" if row.head == ALL_HEADS else f"head {row.head}"]
    return "/".join(part for part in parts if part)


def _fractions(rows: Sequence[Row]) -> list[tuple[tuple[str, int], dict[str, float]]]:
    """Gather what the alarm hears: the entropy of every layer, in nats and as a fraction."""
    names = {"entropy": "entropy", "entropy_fraction": "fraction"}
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        if row.metric in names and row.head == ALL_HEADS and row.kind == "attention":
            found.setdefault((row.site, row.layer), {})[names[row.metric]] = row.value
    return [(key, values) for key, values in found.items() if len(values) == len(names)]


def _described(specimen: Specimen, seed: int | None, about: Mapping[str, Any] | None) -> dict[str, Any]:
    """Say what the run is about; what joma finds out itself stands in front of what the user says."""
    own: dict[str, Any] = {
        "model": specimen.name,
        "num_parameters": specimen.num_parameters,
        "parameter_shapes": specimen.parameter_shapes,
    }
    return own | ({} if seed is None else {"seed": index(seed)}) | dict(about or {})


def _open(folder: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> RunLedger:
    """Open the run's folder, refusing another run: of several processes each has its own."""
    known_by = [*about, *_WHAT_IS_MEASURED]
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        rank = distributed.get_rank()
        about = {**about, "rank": rank, "world_size": distributed.get_world_size()}
        folder = folder / f"rank-{rank}"
    demand_writable(folder)
    return RunLedger(open_run(folder, kind="watch", config=config, about=about, known_by=known_by))
