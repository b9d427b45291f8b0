"""One measurement of a model: readings, what failed, what could not be seen, and what it cost."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from joma.probe.calls import AttentionCall
from joma.probe.isolation import random_state_kept
from joma.probe.measures import Function, Instrument, Measure, On
from joma.probe.readings import Readings
from joma.probe.specimen import ProbeBatch, Specimen, plain_site
from joma.probe.stopwatch import Stopwatch
from joma.probe.taps import Trail
from joma.probe.weights import Unseen

TOGETHER = 2**26
"""Numbers in the matrices that are measured at once; one that is taken out may be a copy, and be copied to float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """An exception inside of a measurement."""

    site: str
    message: str
    trace: str

    @classmethod
    def of(cls, site: str, error: Exception) -> "Problem":
        """Keep what there is to say of an exception, and not the frames that it holds."""
        trace = "".join(traceback.format_exception(error))
        return cls(site=site, message=f"{type(error).__name__}: {error}", trace=trace)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Thing:
    """Something to measure, and where it stands."""

    site: str
    layer: int
    thing: Any


class Examination:
    """Gathers what one measurement finds; nothing that goes wrong inside of a measure leaves it."""

    def __init__(self, specimen: Specimen, instrument: Instrument, earlier: Trail | None = None) -> None:
        """Prepare for one measurement; the trail of an earlier one makes it cheaper."""
        self.readings = Readings()
        self.problems: list[Problem] = []
        self.unseen: dict[Unseen, None] = {}
        self.calls: dict[str, int] = {}
        """Attention sites that were seen, with their layers."""
        self._trail = Trail()
        self._specimen, self._instrument, self._earlier = specimen, instrument, earlier
        self._devices = specimen.devices
        self._stopwatch = Stopwatch(self._devices[0])

    def sites(self) -> tuple[tuple[int, str], ...]:
        """Return the attention that was seen: layers and sites, in order."""
        return tuple(sorted((layer, site) for site, layer in self.calls.items()))

    @property
    def trail(self) -> Trail | None:
        """Where to look next time; None if something is missing that ran or was seen before: look everywhere."""
        missing = self._earlier is not None and not self._earlier.sites <= self._trail.sites
        return None if missing or self.unseen or not self._trail.sites else self._trail

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

        return self._specimen.tap(on_call, on_unseen, self._on_error, trail=self._earlier)

    def probe(self, batch: ProbeBatch) -> None:
        """Measure attention on a probe batch, at the cost of a forward pass."""
        with self._specimen.tap(self._on_call, self._on_unseen, self._on_error, eagerly=True, trail=self._earlier):
            self._specimen.forward(batch)

    def weights(self) -> None:
        """Measure matrices and the model itself."""
        for subject, kind, sites in (
            (On.MATRIX, "mlp", self._specimen.matrices),
            (On.QUERY_KEY, "attention", self._specimen.query_keys),
        ):
            if self._instrument.looks_at(subject):
                for things in self._taken(sites()):
                    self._measure(subject, kind, things)
        self._measure(On.MODEL, "model", [_Thing(site="", layer=-1, thing=self._specimen.root)])

    def _taken(self, sites: Iterator[tuple[str, Callable[[], Any]]]) -> Iterator[list[_Thing]]:
        """Take matrices out of the model, as many at once as `TOGETHER` allows: some are made when they are taken."""
        things: list[_Thing] = []
        num_numbers = 0
        for site, take in sites:
            try:
                taken = take()
            except Exception as error:
                self._failed(site, error)
                continue
            things.append(_Thing(site=site, layer=taken.layer, thing=taken))
            num_numbers += taken.num_numbers
            if num_numbers > TOGETHER:
                yield things
                things, num_numbers = [], 0
        if things:
            yield things

    def _on_call(self, call: AttentionCall) -> None:
        self._trail.add(call)
        site = plain_site(call.site)
        if not self._specimen.wants(site):
            return
        self.calls[site] = call.layer
        self._measure(On.ATTENTION, "attention", [_Thing(site=site, layer=call.layer, thing=call)])

    def _measure(self, subject: On, kind: str, things: list[_Thing]) -> None:
        for measure, function in self._instrument.on(subject):
            with self._quiet(draws=measure.draws):
                for each, found in self._apply(measure, function, things):
                    named = found if isinstance(found, Mapping) else {measure.name: found}
                    try:
                        self.readings.add(each.site, kind, each.layer, named, measure.reductions)
                    except Exception as error:
                        self._failed(each.site, error)

    def _apply(self, measure: Measure, function: Function, things: list[_Thing]) -> Iterator[tuple[_Thing, Any]]:
        """Yield what a measure finds; of things measured together, those that fail are not to spoil the others."""
        if measure.together and len(things) > 1:
            try:
                yield from zip(things, function([each.thing for each in things]), strict=True)
            except Exception:
                for each in things:
                    yield from self._apply(measure, function, [each])
            return
        for each in things:
            try:
                found = function([each.thing])[0] if measure.together else function(each.thing)
            except Exception as error:
                self._failed(each.site, error)
            else:
                yield each, found

    @contextmanager
    def _quiet(self, *, draws: bool) -> Iterator[None]:
        """Measure without gradients, autocast and traces in the random states."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if draws:
                stack.enter_context(random_state_kept(self._devices))
            for kind in {device.type for device in self._devices}:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def _failed(self, site: str, error: Exception) -> None:
        self.problems.append(Problem.of(site, error))

    def _on_error(self, call: AttentionCall, error: Exception) -> None:
        self._failed(plain_site(call.site), error)

    def _on_unseen(self, unseen: Unseen) -> None:
        self.unseen[unseen] = None
