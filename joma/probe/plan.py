"""What a watch will see and what it will cost, told before it attaches."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from joma.figures.numbers import NO_LAYER, counted, layer_name
from joma.probe.examination import Examination
from joma.probe.layout import QueryKey
from joma.probe.measures import Instrument, Measure, On
from joma.probe.schedule import Schedule
from joma.probe.specimen import ProbeBatch, Specimen, plain_site
from joma.probe.stopwatch import wait_for
from joma.probe.weights import Unseen

MILLION = 1e6
MILLISECONDS = 1e3
_RANKS_ALONE = 'For the ranks of its MLP alone, pass `measures="ranks"`, and `mlp_pattern` if joma is to be told which.'


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sites, matrices, what stays unseen, and the price."""

    model: str
    num_parameters: int
    attention: tuple[tuple[int, str], ...]
    """Layer and path of the attention sites."""
    ran: bool
    """Whether the sites were seen in a forward pass; else the model's structure tells them."""
    matrices: tuple[tuple[int, str, tuple[int, int]], ...]
    """Layer, name and shape of the matrices whose ranks are measured."""
    query_keys: tuple[tuple[int, str], ...]
    unseen: tuple[Unseen, ...]
    measures: tuple[Measure, ...]
    schedule: Schedule
    seconds: float | None = None
    """Of one measurement, without the attention of the training batch; None where it was not timed."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the plan as text."""
        how = "seen in a forward pass" if self.ran else "by structure; the first measured step tells"
        lines = [f"{self.model}, {self.num_parameters / MILLION:.3g} million parameters, measured at: {self.schedule}."]
        sites, layers = len(self.attention), len({layer for layer, _ in self.attention} - {NO_LAYER})
        lines.append(f"Attention: {counted(sites, 'site')} in {counted(layers, 'layer')} ({how}).")
        lines += [f"  {layer_name(layer)}: {site or '(the model itself)'}" for layer, site in self.attention]
        if self._looks_at(On.MATRIX):
            lines.append(f"Ranks: {counted(len(self.matrices), 'matrix', 'matrices')}.")
            lines += [
                f"  {layer_name(layer)}: {site} {rows}×{columns}" for layer, site, (rows, columns) in self.matrices
            ]
        if self._looks_at(On.QUERY_KEY):
            lines.append(f"Query-key norms: {counted(len(self.query_keys), 'site')}.")
            lines += [f"  {layer_name(layer)}: {site}" for layer, site in self.query_keys]
        lines += [f"Unseen: {each.site or 'the model'}: {each.reason}" for each in self.unseen]
        if self.seconds is not None:
            lines.append(f"Cost of a measurement: {MILLISECONDS * self.seconds:.3g} ms by the clock{self._on_top()}.")
        return lines

    def _on_top(self) -> str:
        costs = [measure.cost for measure in self.measures if measure.on is On.ATTENTION and measure.cost]
        return "" if self.ran or not costs else f", and during the training step {' and '.join(costs)}"

    def _looks_at(self, subject: On) -> bool:
        return any(measure.on is subject for measure in self.measures)


def make_plan(
    specimen: Specimen, instrument: Instrument, when: Schedule, batch: ProbeBatch | None, *, timed: bool
) -> Plan:
    """Find out what there is to see, on the probe batch where there is one, else by structure; refuse what is not.

    `timed` measures once more by the clock.
    """
    looks = instrument.looks_at(On.ATTENTION)
    if looks and batch is None:
        _refuse_training_batch(specimen)
    seen = _rehearsal(specimen, batch) if looks and batch is not None else None
    attention = () if not looks else _by_structure(specimen) if seen is None else seen.sites()
    pairs = [pair for layer in specimen.layout.layers for pair in layer.query_keys]
    plan = Plan(
        model=specimen.name,
        num_parameters=specimen.num_parameters,
        attention=attention,
        ran=seen is not None,
        matrices=tuple((ref.layer, plain_site(ref.site), ref.shape) for ref in specimen.layout.lower),
        query_keys=tuple((pair.query.layer, plain_site(pair.site)) for pair in pairs if pair.num_heads is not None),
        unseen=(
            *(specimen.layout.unseen if instrument.looks_at(On.MATRIX) or instrument.looks_at(On.QUERY_KEY) else ()),
            *(_without_heads(pairs) if instrument.looks_at(On.QUERY_KEY) else ()),
            *(() if seen is None else seen.unseen),
        ),
        measures=instrument.measures,
        schedule=when,
        seconds=_price(specimen, instrument, batch) if timed else None,
    )
    if looks and not attention and (seen is None or not any(each.site for each in seen.unseen)):
        raise ValueError(_no_attention(specimen, ran=plan.ran))
    if not looks and instrument.looks_at(On.MATRIX) and not plan.matrices:
        raise ValueError(f"joma finds no MLP in this {specimen.name}. {plan.unseen[0].reason}")
    return plan


def _refuse_training_batch(specimen: Specimen) -> None:
    if specimen.compiled:
        raise ValueError(
            f"This {specimen.name} is compiled: its compiled forward pass shows no attention calls, and looking into "
            "it would compile it anew. Pass `probe_batch`, which is run through the uncompiled module."
        )
    if specimen.replicated:
        raise ValueError(
            f"This {specimen.name} is in a DataParallel, whose replicas run in threads. "
            "Pass `probe_batch`, or use DistributedDataParallel."
        )


def _by_structure(specimen: Specimen) -> tuple[tuple[int, str], ...]:
    layers = specimen.layout.layers
    return tuple((layer.index, plain_site(path)) for layer in layers for path in layer.attention)


def _without_heads(pairs: Iterable[QueryKey]) -> tuple[Unseen, ...]:
    reason = "The number of heads is not known, so there are no query-key norms."
    return tuple(Unseen(site=plain_site(pair.site), reason=reason) for pair in pairs if pair.num_heads is None)


def _no_attention(specimen: Specimen, *, ran: bool) -> str:
    if specimen.attention_pattern is not None:
        return f"No attention of this {specimen.name} matches {specimen.attention_pattern!r}. Change the pattern."
    if ran:
        return f"This {specimen.name} made no attention call on the probe batch. {_RANKS_ALONE}"
    return (
        f"This {specimen.name} has no attention that its structure shows: no module owns queries and keys. "
        f"If it has some, name its modules by `attention_pattern`, or pass a `probe_batch`. {_RANKS_ALONE}"
    )


def _rehearsal(specimen: Specimen, batch: ProbeBatch) -> Examination:
    """Run the probe batch once and look which sites call."""
    seen = Examination(specimen, Instrument(()))
    try:
        seen.probe(batch)
    except Exception as error:
        raise ValueError(
            f"This {specimen.name} does not run on the probe batch ({type(error).__name__}: {error}). "
            "Pass what its forward takes."
        ) from error
    return seen


def _price(specimen: Specimen, instrument: Instrument, batch: ProbeBatch | None) -> float:
    """Time a measurement that is not the first: that one has everything to find."""
    seconds = 0.0
    for _ in range(2):
        wait_for(specimen.devices)
        begun = time.perf_counter()
        found = Examination(specimen, instrument)
        if batch is not None:
            found.probe(batch)
        found.weights()
        list(found.readings.rows(heads=True))
        seconds = time.perf_counter() - begun
    return seconds
