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
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex
from weakref import WeakSet

from torch import Tensor, distributed, nn

from joma.formatting import ALL_HEADS, layer_name
from joma.probe.alarm import WATCHED, Alarm, Alert, Curves, alerts_of, note
from joma.probe.findings import some
from joma.probe.loggers import Logger
from joma.probe.measurement import Measurement, Row, first_sequence_if_enough, wait_for
from joma.probe.measures import Measure, On, measures_of
from joma.probe.model import ProbeBatch, ProbedModel, fixed_batch
from joma.probe.schedule import Schedule, schedule_of
from joma.probe.structure import Unseen, by_reason, plain_site
from joma.probe.summary import SHOWN, as_html, chart_of, layer_lines
from joma.probe.taps import TrainingForward
from joma.store import RunWriter, demand_writable, open_run, read, read_events
from joma.store.tables import EVENTS, METRICS

if TYPE_CHECKING:
    import pandas

    from joma.charts import Chart

LOG = logging.getLogger("joma")
_WHAT_IS_MEASURED = ("batch", "mlp_pattern", "attention_pattern")
"""Settings without which values are not comparable. When, how much and with what alarm may change on the way."""
_RANKS_ALONE = 'For the ranks of its MLP alone, pass `measures="ranks"`, and `mlp_pattern` to choose them.'
_NO_ATTENTION = {
    "no_match": "No attention of this {name} matches {pattern!r}. Change the pattern.",
    "no_call": f"This {{name}} made no attention call on the probe batch. {_RANKS_ALONE}",
    "no_module": "This {name} has no attention that its structure shows: no module owns queries and keys. If it has "
    f"some, name its modules by `attention_pattern`, or pass a `probe_batch`. {_RANKS_ALONE}",
}
_NO_CALL = {
    True: "No attention call was seen on the probe batch.",
    False: "No attention call was seen in the step's forward pass. Call the watched model itself, in this process, in "
    "training mode, and not compiled as part of a function. Put a model that trains in eval mode into it before "
    "`watch`. Checkpointing of the complete model needs use_reentrant=False. A `probe_batch` works in all these cases.",
}
_watched: WeakSet[nn.Module] = WeakSet()
_live_views: list[subprocess.Popen[bytes]] = []
"""Kept until this process ends: a live view ends when its standard input does."""


def watch(  # noqa: PLR0913 (every choice has a default)
    model: nn.Module,
    *,
    out: Path | str | None = None,
    every: int = 100,
    schedule: Schedule | int | str | Sequence[int] | None = None,
    probe_batch: ProbeBatch | None = None,
    measures: str | Sequence[str] = "standard",
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
        measures: "cheap" (entropy and largest logits of the first sequence of the batch alone, and ranks), "standard"
            (also the variance of its logits and the share of a key bias), "full" (all sequences, gradients, W_QᵀW_K and
            what changed since the start; it keeps a copy of the lower matrices of all MLPs), or names, those of
            `register_measure` among them.
        alarm: Warn by the logger "joma", once a layer, when attention collapses or becomes uniform, logits grow towards
            a bound, heads die or do the same, or a gradient has one direction left. An `Alarm` has other thresholds.
        on_alarm: Called with each `Alert`; it may stop the training by raising.
        dry_run: Attach nothing. Print the result to see what would be measured.
        heads: Keep the values of single heads too.
        loggers: Functions of the step and a dict of values, to send them elsewhere as well (`joma.probe.loggers`).
        mlp_pattern: Regular expression for the names of parameters, for models whose structure misleads joma.
        attention_pattern: Regular expression for the names of modules, for the same.
        seed: Recorded with the run: `joma report` takes runs that differ in their seed alone together.
        about: Whatever else there is to say about the run (a learning rate, say).
    """
    probed = ProbedModel.of(model, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern)
    listed = measures_of(measures)
    given = None if probe_batch is None else fixed_batch(probe_batch)
    if probed.root in _watched:
        raise ValueError(f"This {probed.name} is being watched already. Close that watch before starting another.")
    when = schedule_of(every if schedule is None else schedule)
    batch = None if given is None else first_sequence_if_enough(probed, listed, given)
    thresholds = (Alarm() if alarm else None) if isinstance(alarm, bool) else alarm
    seen = Watch(
        probed, listed, when, probe_batch=batch, alarm=thresholds, on_alarm=on_alarm, heads=heads, loggers=loggers
    )
    if dry_run or out is None:
        seen.time_one_measurement() if dry_run else seen.attach(_MemoryRecord(), is_resumed=False)
        return seen
    config = {
        "schedule": str(when),
        "measures": [measure.name for measure in listed],
        "batch": "training" if batch is None else "probe" if batch is given else "probe, first sequence",
        "heads": heads,
        "alarm": None if thresholds is None else asdict(thresholds),
        "mlp_pattern": mlp_pattern,
        "attention_pattern": attention_pattern,
    }
    facts = {
        "model": probed.name,
        "num_parameters": probed.num_parameters,
        "parameter_shapes": probed.parameter_shapes,
        **({} if seed is None else {"seed": index(seed)}),
        **(about or {}),
    }
    folder, known_by = Path(out), [*facts, *_WHAT_IS_MEASURED]
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        rank = distributed.get_rank()
        facts |= {"rank": rank, "world_size": distributed.get_world_size()}
        folder = folder / f"rank-{rank}"
    demand_writable(folder)
    is_resumed = (folder / "run.json").exists()
    seen.attach(open_run(folder, kind="watch", config=config, about=facts, known_by=known_by), is_resumed=is_resumed)
    return seen


class Watch:
    """A model being watched; from `watch`. Also a context manager."""

    def __init__(
        self,
        model: ProbedModel,
        measures: Sequence[Measure],
        schedule: Schedule,
        *,
        probe_batch: ProbeBatch | None,
        alarm: Alarm | None,
        on_alarm: Callable[[Alert], object] | None,
        heads: bool,
        loggers: Sequence[Logger],
    ) -> None:
        self.schedule = schedule
        self.alerts: list[Alert] = []  # alarms so far, those of a resumed run's earlier sessions left out
        self.unseen: dict[Unseen, None] = {}  # what cannot be measured, and why
        self.sites: tuple[tuple[int, str], ...] = ()  # layer and path of the attention that is measured
        self.seconds: list[float] = []  # what each measurement took
        self._model, self._measures, self._probe_batch = model, measures, probe_batch
        self._heads, self._loggers, self._alarm, self._on_alarm = heads, tuple(loggers), alarm, on_alarm
        self._subjects = {measure.on for measure in measures}
        self._looks = On.ATTENTION in self._subjects
        self._by_batch = self._looks and probe_batch is None  # attention is that of the training's own forward pass
        self._record: RunWriter | _MemoryRecord = _MemoryRecord()
        self._attached = False
        self._earlier: tuple[pandas.DataFrame, pandas.DataFrame] | None = None
        """Values and events of earlier sessions, until the first step shows where this one begins."""
        self._curves: Curves = {}
        self._rung: set[tuple[str, str]] = set()  # kinds and sites of the alarms that were raised
        self._last: int | None = None
        self._stride = 1
        self._is_overdue = False
        self._failures: Counter[str] = Counter()  # messages of exceptions, and how often they occurred
        self._begun = time.perf_counter()
        self._resumed_at: int | None = None  # step at which this session went on with an earlier one
        self._measurement: Measurement | None = None  # of the step that is running, if it is to be measured
        self._known_sites: Mapping[str, bool] | None = None  # where the last measurement saw attention
        self._forward = TrainingForward(model.root, self._failed)
        self._ran = False  # whether the sites were seen in a forward pass; else they are those of the model's structure
        self._look()

    def attach(self, record: "RunWriter | _MemoryRecord", *, is_resumed: bool) -> None:
        """Wait for the first forward pass, and write to a record."""
        self._record, self._attached = record, True
        _watched.add(self._model.root)
        try:
            names = sorted(measure.name for measure in self._measures)
            self._model.shards.join(str(self.schedule), names, self._model.parameter_shapes)
            if is_resumed:
                self._earlier = self.frame(), self.events()
            for each in self.unseen:
                record.event(0, "unseen", each.reason, level="warning", site=each.site)
            for reason, sites in by_reason(self.unseen).items():
                LOG.warning("joma cannot see %s: %s", some(sites), reason)
            Measurement(self._model, [each for each in self._measures if each.from_start]).weights()
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
        with self._going_on():
            self._begin_at(number)
            if self._is_ready(number):
                alerts = self._measure(number, loss)
        self._wait_for_forward()
        for alert in alerts:
            self.alerts.append(alert)
            LOG.warning(alert.message)
            with self._going_on(alert.site, alert.step):
                evidence = asdict(alert)
                self._record.event(
                    alert.step, "alarm", alert.message, level="warning", site=alert.site, evidence=evidence
                )
        with self._going_on():
            self._record.end_step()
        for alert in alerts if self._on_alarm is not None else ():
            self._on_alarm(alert)  # type: ignore[misc]

    def gradients(self) -> None:
        """Measure the gradients now if this step is due: after `backward`, in loops that clear them before `step`."""
        self._demand_attached()
        if self._is_next_due():
            with self._going_on():
                self._measurement = self._measurement or Measurement(self._model, self._measures, self._known_sites)
                self._measurement.gradients()

    def record(self, step: int, metric: str, value: float, *, kind: str = "model") -> None:
        """Add a value of your own to the record."""
        self._demand_attached()
        with self._going_on(step=step):
            self._record.add(step, metric, float(value), kind=kind)
            note(self._curves, step, [Row(kind=kind, metric=metric, value=float(value))])

    def frame(self) -> "pandas.DataFrame":
        """Return the values so far: step, site, kind, layer, head (-1 over all), metric, value, flag."""
        self._flush()
        return self._record.frame() if isinstance(self._record, _MemoryRecord) else read(self._record.folder)

    to_frame = frame

    def events(self) -> "pandas.DataFrame":
        """Return what happened so far: alarms, exceptions inside of measurements, what was not seen."""
        self._flush()
        return self._record.events() if isinstance(self._record, _MemoryRecord) else read_events(self._record.folder)

    def plot(self) -> "Chart":
        """Draw the entropy, rank, largest logit and loss of every layer over the steps."""
        title = f"{self._model.name} while it trains"
        otherwise = "There is nothing to draw: nothing was measured yet. Call `step` first."
        return chart_of(self.frame(), (*SHOWN, "loss"), title, otherwise=otherwise)

    def close(self, status: Literal["finished", "failed"] = "finished") -> None:
        """Detach from the model, which is then as it was, and close the record. Closing twice does nothing."""
        if not self._attached:
            return
        self._attached = False
        self._forward.stop()
        _watched.discard(self._model.root)
        self._model.shards.leave()
        for logger in self._loggers:
            with self._going_on():
                getattr(logger, "close", lambda: None)()
        try:
            self._record.close(status)
        except OSError as error:  # a full disk must not stop what comes after the training
            self._failed(error)
            self._record.abandon()

    def summary(self) -> str:
        """Return the run as a table: for each layer the first, lowest and last value, then alarms and the cost."""
        return "\n".join([*(layer_lines(self.frame()) or self._plan()), *self._remarks()])

    __str__ = summary

    def _repr_html_(self) -> str:
        return as_html(self.frame(), self._remarks())

    def _plan(self) -> list[str]:
        lower, pairs = self._model.layout.lower, self._model.layout.query_keys
        subjects = {
            On.ATTENTION: [(layer, f"attention   {site or '(the model itself)'}") for layer, site in self.sites],
            On.MATRIX: [(r.layer, f"MLP         {plain_site(r.site)} {r.shape[0]}×{r.shape[1]}") for r in lower],
            On.QUERY_KEY: [(p.query.layer, f"W_QᵀW_K     {plain_site(p.site)}") for p in pairs if p.num_heads],
        }
        found = [each for subject, sites in subjects.items() if subject in self._subjects for each in sites]
        lines = [f"{self._model.name}, {self._model.num_parameters:,} parameters. Measured: {self.schedule}."]
        return [*lines, *(f"{layer_name(layer):>9}   {what}" for layer, what in sorted(found, key=lambda x: x[0]))]

    def _remarks(self) -> list[str]:
        stacks = self._model.layout.stacks()
        lines = [f"Layers {', '.join(stacks)}."] if len(stacks) > 1 else []
        lines += [f"Not seen: {some(sites)}: {reason}" for reason, sites in by_reason(self.unseen).items()]
        lines += [f"Failed {times} times: {message}" for message, times in self._failures.items()]
        lines += [f"Alarm: {alert.message}" for alert in self.alerts]
        cost = sum(self.seconds)
        if self._last is None:
            return [*lines, f"A measurement takes {1e3 * cost:.3g} ms."] if self.seconds else lines
        none = "" if self.alerts else "No alarms in "
        share = 100 * cost / (time.perf_counter() - self._begun)
        return [*lines, f"{none}{self._last + 1:,} steps. Measuring took {share:.1f} % of the time."]

    def live(self) -> str:
        """Serve a page that follows this run in a process of its own, print its address and return it.

        The page is for this machine alone, and ends with this process. It needs a folder (`out`) and joma[report].
        """
        if isinstance(self._record, _MemoryRecord):
            raise ValueError("`live` follows a folder, and this watch keeps its record in memory. Pass `out` to watch.")
        folder = str(self._record.folder.resolve())
        command = [sys.executable, "-m", "joma", "report", "--live", "--until-eof", "--json", folder]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        _live_views.append(server)
        line = server.stdout.readline() if server.stdout else b""
        if not line:
            raise RuntimeError("The live view did not start; the line above says why.")
        address = str(json.loads(line)["address"])
        sys.stdout.write(f"Live view: {address}\n")
        sys.stdout.flush()
        return address

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close("finished" if error is None else "failed")

    # What there is to see

    def _look(self) -> None:
        """Find what is to be measured, on the probe batch where there is one, else by structure."""
        model, layout = self._model, self._model.layout
        if self._by_batch and model.compiled:
            raise ValueError(
                f"This {model.name} is compiled: its compiled forward pass shows no attention calls, and looking into "
                "it would compile it anew. Pass `probe_batch`, which is run through the uncompiled module."
            )
        if self._by_batch and model.replicated:
            raise ValueError(
                f"This {model.name} is in a DataParallel, whose replicas run in threads. "
                "Pass `probe_batch`, or use DistributedDataParallel."
            )
        if self._subjects & {On.MATRIX, On.QUERY_KEY}:
            self.unseen |= dict.fromkeys(layout.unseen)
        if On.QUERY_KEY in self._subjects:
            reason = "W_QᵀW_K is not measured: the number of heads is unknown. Set `num_heads` on the module."
            without = [pair for pair in layout.query_keys if pair.num_heads is None]
            self.unseen |= {Unseen(plain_site(pair.site), reason): None for pair in without}
        seen = Measurement(model, ())
        if self._by_batch:
            self.sites = tuple((layer, plain_site(path)) for layer, path in layout.sites)
        elif self._probe_batch is not None and self._looks:
            try:
                seen.probe(self._probe_batch)
            except Exception as error:
                raise ValueError(
                    f"This {model.name} does not run on the probe batch ({type(error).__name__}: {error}). "
                    "Pass what its forward takes."
                ) from error
            self._saw(seen)
            self.unseen |= seen.unseen
        if self._looks and not self.sites and not any(each.site for each in seen.unseen):
            why = "no_match" if model.attention_pattern else "no_call" if self._ran else "no_module"
            raise ValueError(_NO_ATTENTION[why].format(name=model.name, pattern=model.attention_pattern))
        if not self._looks and On.MATRIX in self._subjects and not layout.lower:
            raise ValueError(f"joma finds no MLP in this {model.name}. {next(iter(self.unseen)).reason}")

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
            self.seconds = [time.perf_counter() - begun]

    def _saw(self, found: Measurement) -> None:
        self.sites = tuple(sorted((layer, site) for site, layer in found.layers.items()))
        self._ran = True

    # A step

    def _demand_attached(self) -> None:
        if not self._attached:
            raise ValueError("This watch is not attached: it was a dry run, or it is closed. Call joma.watch again.")

    def _number(self, step: SupportsIndex | None) -> int:
        if step is None and self._earlier is not None and not self._earlier[0].empty:
            raise ValueError("The folder has earlier steps of this run. Pass `step`, or choose another `out`.")
        try:
            number = index(step) if step is not None else 0 if self._last is None else self._last + 1
        except TypeError:
            got = type(step).__name__
            raise TypeError(f"`step` must be a whole number, got a {got}. Pass a loss by its name, `loss=`.") from None
        if self._last is not None and number > self._last:
            self._stride = number - self._last
        self._last = number
        return number

    def _begin_at(self, number: int) -> None:
        """Begin at a step: take the curves and alarms of earlier sessions over, and overwrite later records."""
        if self._earlier is None:
            return
        (values, events), self._earlier = self._earlier, None
        self._resumed_at = number if (values["step"] < number).any() else None
        later = sorted(set(values.loc[values["step"] >= number, "step"].tolist()))
        if later or (events["step"] >= number).any():
            self._record.begin_again(number)
        if later:
            LOG.warning(
                "This run starts again at step %d. Its next value overwrites what was recorded for steps %d to %d.",
                *(number, later[0], later[-1]),
            )
        known = values[(values["step"] < number) & values["metric"].isin(WATCHED)]
        for row in known[["step", *Row._fields]].to_dict("records"):
            note(self._curves, row.pop("step"), [Row(**row)])
        for event in events[(events["kind"] == "alarm") & (events["step"] < number)].itertuples():
            self._rung.add((json.loads(event.evidence)["kind"], event.site))

    def _is_ready(self, number: int) -> bool:
        """Whether to measure now: the step is due, and the forward pass of its training batch was tapped."""
        due = self.schedule.due(number) or self._is_overdue
        if not due or not self._by_batch:
            return due
        self._is_overdue = self._measurement is None
        return not self._is_overdue

    def _is_next_due(self) -> bool:
        """Whether the step that is running will be measured; the number of the first is not known."""
        return self._last is None or self._is_overdue or self.schedule.due(self._last + self._stride)

    def _wait_for_forward(self) -> None:
        self._forward.stop()
        self._measurement = None
        if self._by_batch and self._is_next_due():
            self._measurement = Measurement(self._model, self._measures, self._known_sites)
            self._forward.wait(self._measurement.tap)

    def _measure(self, number: int, loss: SupportsFloat | None) -> list[Alert]:
        """Finish the measurement of a step, write it down and return the alarms that it sets off."""
        found = self._measurement or Measurement(self._model, self._measures, self._known_sites)
        with found.timing(after_training=True):
            if self._probe_batch is not None and self._looks:
                with self._going_on():
                    found.probe(self._probe_batch)
            self._known_sites = found.sites
            found.weights()
            rows = list(found.readings.rows(heads=self._heads or WATCHED))
        begun = time.perf_counter()
        if self._resumed_at is not None:
            flag = f"W(0) is that of step {self._resumed_at}"
            rows = [row._replace(flag=flag) if row.metric.startswith("update_") else row for row in rows]
        if loss is not None:
            value = float(loss.detach() if isinstance(loss, Tensor) else loss)
            rows.append(Row(kind="model", metric="loss", value=value))
        note(self._curves, number, rows)
        alerts = list(alerts_of(self._curves, self._alarm)) if self._alarm is not None else []
        alerts = [each for each in alerts if each.step == number and (each.kind, each.site) not in self._rung]
        self._rung |= {(each.kind, each.site) for each in alerts}
        with self._going_on():  # a full disk, say, must not silence the alarm
            self._write(number, [row for row in rows if self._heads or row.head == ALL_HEADS], found)
        self.seconds.append(found.seconds() + time.perf_counter() - begun)
        self.record(number, "seconds", self.seconds[-1], kind="cost")
        return alerts

    def _write(self, number: int, rows: Sequence[Row], found: Measurement) -> None:
        """Record values, what failed and what was not seen, and pass the values on to the loggers."""
        for row in rows:
            try:
                self._record.add(number, **row._asdict())
            except Exception as failure:  # writing earlier rows may fail: these are kept
                self._failed(failure)
        for site, error in found.failures:
            self._failed(error, site)
        if found.layers and not self._ran:
            self._saw(found)
        if self._looks and not found.layers and not any(each.site for each in found.unseen):
            found.unseen[Unseen("", _NO_CALL[self._probe_batch is not None])] = None
        for each in found.unseen:
            if each not in self.unseen:
                self.unseen[each] = None
                LOG.warning("joma cannot see %s: %s", each.site or "the model", each.reason)
                self._record.event(number, "unseen", each.reason, level="warning", site=each.site)
        values = {}
        for row in rows:
            head = "" if row.head == ALL_HEADS else f"head {row.head}"
            values["/".join(filter(None, (row.metric, row.site, head)))] = row.value
        for logger in self._loggers:
            with self._going_on():
                logger(number, values)

    def _flush(self) -> None:
        """Write what is in memory before it is read; with a full disk what is on it is read."""
        if self._attached:
            with self._going_on():
                self._record.flush()

    @contextmanager
    def _going_on(self, site: str = "", step: int | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed(error, site, step)

    def _failed(self, error: Exception, site: str = "", step: int | None = None) -> None:
        """Record an exception at every step where it happens, and log it once; the record itself may be what fails."""
        step = step if step is not None else self._last or 0
        message = _reason(error)
        if message not in self._failures:
            LOG.warning("A measurement of joma failed at step %d, training goes on. %s", step, message)
        self._failures[message] += 1
        trace = "".join(traceback.format_exception(error))
        try:
            self._record.event(step, "exception", message, level="error", site=site, evidence={"trace": trace})
        except Exception as second:
            self._failures[_reason(second)] += 1


def _reason(error: Exception) -> str:
    """Return what happened, without a file: a full disk fails at another file each time, and is one failure."""
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"


class _MemoryRecord:
    """Keeps the rows and events of a run that has no folder; takes what a `RunWriter` takes."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._events: list[tuple[Any, ...]] = []

    def add(self, step: int, metric: str, value: float, **row: Any) -> None:
        self._rows.append({"step": step, **Row(metric=metric, value=value)._asdict(), **row})

    def event(self, step: int, kind: str, message: str, *, level: str, site: str = "", evidence: Any = None) -> None:
        self._events.append((step, site, level, kind, message, json.dumps(evidence or {}, default=str)))

    def _nothing(self, *_: object) -> None: ...

    begin_again = end_step = close = abandon = flush = _nothing

    def frame(self) -> "pandas.DataFrame":
        import pandas

        table = pandas.DataFrame(self._rows, columns=[*METRICS.columns]).drop_duplicates([*METRICS.key], keep="last")
        return table.sort_values([*METRICS.order], ignore_index=True)

    def events(self) -> "pandas.DataFrame":
        import pandas

        return pandas.DataFrame(self._events, columns=[*EVENTS.columns])
