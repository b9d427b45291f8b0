"""One measurement of a model: readings, what failed, what could not be seen, and what it cost."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from joma.probe.calls import AttentionCall
from joma.probe.isolation import random_state_kept
from joma.probe.measures import Instrument, On
from joma.probe.readings import Readings
from joma.probe.specimen import ProbeBatch, Specimen, plain_site
from joma.probe.stopwatch import Stopwatch
from joma.probe.weights import Unseen


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


class Examination:
    """Gathers what one measurement finds; nothing that goes wrong inside of a measure leaves it."""

    def __init__(self, specimen: Specimen, instrument: Instrument) -> None:
        """Prepare for one measurement."""
        self.readings = Readings()
        self.problems: list[Problem] = []
        self.unseen: dict[Unseen, None] = {}
        self.calls: dict[str, int] = {}
        """Attention sites that were seen, with their layers."""
        self._specimen, self._instrument = specimen, instrument
        self._devices = specimen.devices
        self._stopwatch = Stopwatch(self._devices[0])

    def sites(self) -> tuple[tuple[int, str], ...]:
        """Return the attention that was seen: layers and sites, in order."""
        return tuple(sorted((layer, site) for site, layer in self.calls.items()))

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

        return self._specimen.tap(on_call, on_unseen, self._on_error)

    def probe(self, batch: ProbeBatch) -> None:
        """Measure attention on a probe batch, at the cost of a forward pass."""
        with self._specimen.tap(self._on_call, self._on_unseen, self._on_error, eagerly=True):
            self._specimen.forward(batch)

    def weights(self) -> None:
        """Measure matrices and the model itself."""
        with self._quiet():
            for subject, kind, sites in (
                (On.MATRIX, "mlp", self._specimen.matrices),
                (On.QUERY_KEY, "attention", self._specimen.query_keys),
            ):
                if self._instrument.looks_at(subject):
                    for site, take in sites():
                        self._take(subject, kind, site, take)
            self._measure(On.MODEL, "model", "", -1, self._specimen.root)

    def _take(self, subject: On, kind: str, site: str, take: Callable[[], Any]) -> None:
        try:
            taken = take()
        except Exception as error:
            self._failed(site, error)
        else:
            self._measure(subject, kind, site, taken.layer, taken)

    def _on_call(self, call: AttentionCall) -> None:
        site = plain_site(call.site)
        if not self._specimen.wants(site):
            return
        self.calls[site] = call.layer
        with self._quiet():
            self._measure(On.ATTENTION, "attention", site, call.layer, call)

    def _measure(self, subject: On, kind: str, site: str, layer: int, thing: Any) -> None:
        for measure, function in self._instrument.on(subject):
            try:
                found = function(thing)
                if not isinstance(found, Mapping):
                    found = {measure.name: found}
                self.readings.add(site, kind, layer, found, measure.reductions)
            except Exception as error:
                self._failed(site, error)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Measure without gradients, autocast and traces in the random states."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
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
