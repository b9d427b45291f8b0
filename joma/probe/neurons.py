"""Hidden neurons of any model's MLPs and what the query attends to, as `superposed_neurons` takes them.

Each sequence is one context, and its query the last token that is visible. Hooks see what goes into the matrix behind
the lower ones, that is the neurons after the nonlinearity (of a gated MLP, gate times what it gates); the tap sees the
attention call, of which one row for each sequence is worked out. No L×L matrix is built.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from joma.errors import positive
from joma.measure.attended import Attended
from joma.probe.calls import AttentionCall, Kind
from joma.probe.contexts import Contexts
from joma.probe.findings import some
from joma.probe.isolation import demand_module
from joma.probe.mlps import Mlp, find_mlps, ways_back
from joma.probe.query_rows import mean_weights
from joma.probe.side_by_side import side_by_side
from joma.probe.specimen import Specimen, plain_site
from joma.probe.weights import Unseen, by_reason

LOG = logging.getLogger("joma")
AT_ONCE = 32
"""Contexts that run together."""
NOTHING_BELOW = "Its MLP runs beside its attention and sees that of the layer below, and there is none."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NeuronReading:
    """Hidden neurons of one MLP at the query of every context, and what the query attends to."""

    layer: int
    site: str
    """The matrix that the neurons go into."""
    activations: Float[Tensor, "C J"]
    """After the nonlinearity; of a gated MLP, gate times what it gates."""
    attended: Attended
    """Mean over the heads of the last attention that the MLP sees."""
    attention_layer: int
    """Layer of that attention: its own, or the one below where MLP and attention of a layer run side by side."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NeuronReadings:
    """What could be read of a model, layer by layer, and what could not."""

    layers: tuple[NeuronReading, ...]
    """In the order of the layers; a layer with two MLPs has two."""
    position: Int[Tensor, " C"]
    """Of the query of each context."""
    unseen: tuple[Unseen, ...]


def read_neurons(
    model: nn.Module,
    contexts: Mapping[str, Any] | Tensor,
    *,
    tokens: str = "input_ids",
    visible: str = "attention_mask",
    at_once: int = AT_ONCE,
    mlp_pattern: str | None = None,
    attention_pattern: str | None = None,
) -> NeuronReadings:
    """Run a model on contexts; return the neurons of each MLP at each query, and the attention that they see.

    `contexts` are the keyword arguments of the model, or its tokens alone as a tensor, one context in each row.
    `tokens` and `visible` name the arguments that hold the token ids and, where there is padding, the mask over them
    (C, L), other than 0 where a token is visible: the query is the last such token, else the last of the row.
    `at_once` contexts run together. The patterns are those of `joma.watch`.

    The model is left as it was, and what is kept lies on the CPU. Layers that cannot be seen are in `unseen`, with the
    reason, and told by the logger "joma".

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    >>> contexts = torch.tensor([[3, 1, 4], [1, 5, 9]])
    >>> readings = read_neurons(nn.Sequential(nn.Embedding(10, 8), model), contexts)
    >>> [(each.layer, tuple(each.activations.shape), tuple(each.attended.weights.shape)) for each in readings.layers]
    [(0, (2, 16), (2, 3)), (1, (2, 16), (2, 3))]
    """
    demand_module(model)
    positive("at_once", at_once)
    given = Contexts.of(contexts, tokens, visible)
    specimen = Specimen.of(model, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern)
    mlps, unseen = find_mlps(specimen)
    reader = _Reader(specimen, mlps, unseen)
    reader.read(given, at_once)
    readings = NeuronReadings(
        layers=tuple(reader.readings(given.tokens)), position=given.position, unseen=tuple(reader.unseen)
    )
    if not readings.layers:
        reason = readings.unseen[0].reason if readings.unseen else "It has no MLP."
        raise ValueError(f"joma can read no hidden neurons of this {specimen.name}. {reason}")
    for reason, sites in by_reason(readings.unseen).items():
        level = logging.INFO if reason == NOTHING_BELOW else logging.WARNING  # there, nothing is missing
        LOG.log(level, "joma cannot see %s: %s", some(sites), reason)
    return readings


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Seen:
    """Neurons of one MLP in one forward pass."""

    site: str
    neurons: Float[Tensor, "B J"] | str
    """Or why they could not be read; so below."""
    attention: Float[Tensor, "B L"] | str

    @property
    def failure(self) -> str:
        """Why one of the two is missing; "" if neither is."""
        return next((part for part in (self.neurons, self.attention) if isinstance(part, str)), "")


@dataclass(slots=True)
class _Kept:
    """What is kept of one MLP over all forward passes."""

    site: str = ""
    neurons: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    failure: str = ""

    def add(self, seen: _Seen) -> None:
        """Move what a forward pass showed to the CPU."""
        assert isinstance(seen.neurons, Tensor) and isinstance(seen.attention, Tensor)
        self.site = seen.site
        self.neurons.append(seen.neurons.cpu())
        self.attention.append(seen.attention.cpu())


class _Reader:
    """Sees neurons and attention during forward passes."""

    def __init__(self, specimen: Specimen, mlps: list[Mlp], unseen: list[Unseen]) -> None:
        """Take MLPs that can be hooked, and what is known to be unseen already."""
        self._specimen, self._mlps = specimen, mlps
        self._unseen: dict[Unseen, None] = dict.fromkeys(unseen)
        self._kept = {mlp: _Kept() for mlp in mlps}
        self._beside: frozenset[int] = frozenset()
        self._begin(torch.zeros(0, dtype=torch.long), 0)

    def read(self, contexts: Contexts, at_once: int) -> None:
        """Run all contexts."""
        doubt = self._find_beside(contexts)
        with self._hooked(), self._specimen.tap(self._on_call, self._on_unseen, self._on_error, eagerly=True):
            for first, stop in contexts.cuts(at_once):
                self._begin(contexts.position[first:stop].to(self._specimen.devices[0]), contexts.length)
                self._run(contexts.part(first, stop))
                self._keep()
        if doubt is not None:
            LOG.warning(
                "joma takes the MLPs of this %s to come after attention: it does not run on NaN, which would tell (%s)",
                self._specimen.name,
                doubt,
            )

    def _find_beside(self, contexts: Contexts) -> Exception | None:
        """Find the layers whose MLP runs beside their attention, or return why that is not known."""
        fullest = int(contexts.num_visible.argmax())
        try:
            self._beside = side_by_side(
                self._specimen,
                contexts.part(fullest, fullest + 1),
                length=contexts.length,
                position=int(contexts.position[fullest]),
                lower={name: mlp.layer for mlp in self._mlps for name in mlp.lower},
            )
        except Exception as error:  # a model that does not run on the contexts either raises again there
            return error
        return None

    def _run(self, part: Mapping[str, Any] | Tensor) -> None:
        try:
            self._specimen.forward(part)
        except Exception as error:
            raise ValueError(
                f"This {self._specimen.name} does not run on the contexts ({type(error).__name__}: {error}). "
                "Pass what its forward takes."
            ) from error

    def _begin(self, position: Int[Tensor, " B"], length: int) -> None:
        self._position, self._length = position, length
        self._rows: dict[int, Tensor | str] = {}
        """What the queries attend to in the last call of each layer so far."""
        self._seen: dict[Mlp, list[_Seen]] = defaultdict(list)
        self._to_run = {mlp: set(mlp.lower) for mlp in self._mlps}
        """Lower matrices that have to run before the neurons come."""

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        modules = dict(self._specimen.root.named_modules())
        handles = []
        try:
            for mlp in self._mlps:
                for name in mlp.lower:
                    handles.append(modules[name].register_forward_hook(self._lower_ran(mlp, name)))
                for name in ways_back(mlp, self._specimen):
                    hook = self._comes_next(mlp, name)
                    handles.append(modules[name].register_forward_pre_hook(hook, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _lower_ran(self, mlp: Mlp, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            self._to_run[mlp].discard(name)

        return hook

    def _comes_next(self, mlp: Mlp, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            given = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
            if self._to_run[mlp] or given is None or given.shape[-1:] != (mlp.width,):
                return
            self._to_run[mlp] = set(mlp.lower)
            seen = _Seen(site=plain_site(name), neurons=self._at_query(given), attention=self._attention_for(mlp))
            self._seen[mlp].append(seen)

        return hook

    def _at_query(self, hidden: Tensor) -> Float[Tensor, "B J"] | str:
        """Return the neurons at the queries, whatever the order of contexts and positions."""
        sequence, position = torch.arange(len(self._position), device=hidden.device), self._position.to(hidden.device)
        num, length = len(self._position), self._length
        hidden = hidden.detach()
        if hidden.shape[:-1] == (num, length):
            return hidden[sequence, position]
        if hidden.shape[:-1] == (length, num):
            return hidden[position, sequence]
        if hidden.shape[:-1] == (num * length,):
            return hidden[sequence * length + position]
        return f"Its neurons have the shape {tuple(hidden.shape)}, where there are {num} contexts of {length} tokens."

    def _attention_for(self, mlp: Mlp) -> Float[Tensor, "B L"] | str:
        layer = self._attention_layer(mlp)
        if layer < 0:
            return NOTHING_BELOW
        return self._rows.get(layer, f"No attention of layer {layer} was seen before its MLP ran.")

    def _attention_layer(self, mlp: Mlp) -> int:
        return mlp.layer - 1 if mlp.layer in self._beside else mlp.layer

    def _on_call(self, call: AttentionCall) -> None:
        if self._specimen.wants(plain_site(call.site)):
            self._rows[call.layer] = self._row(call)

    def _row(self, call: AttentionCall) -> Float[Tensor, "B L"] | str:
        if call.kind is Kind.CROSS:
            return "The last attention that its MLP sees looks at another sequence than that of the query."
        given = call.logits if call.q is None else call.q
        assert given is not None
        num_keys = given.shape[-1] if call.k is None else call.k.shape[2]
        found, wanted = (given.shape[0], given.shape[2], num_keys), (len(self._position), self._length, self._length)
        if found != wanted:
            return f"Its attention has (contexts, rows, keys) {found}, where the contexts make {wanted}."
        return mean_weights(call, self._position.to(call.device))

    def _on_error(self, call: AttentionCall, error: Exception) -> None:
        self._rows[call.layer] = f"Its attention was not read: {type(error).__name__}: {error}"

    def _on_unseen(self, unseen: Unseen) -> None:
        self._unseen[Unseen(site=plain_site(unseen.site), reason=unseen.reason)] = None

    def _keep(self) -> None:
        """Keep what a forward pass showed of each MLP, or why it showed nothing."""
        for mlp, kept in self._kept.items():
            seen = self._seen[mlp]
            kept.failure = kept.failure or (seen[0].failure if len(seen) == 1 else _why_not_once(len(seen), mlp))
            if kept.failure:
                continue
            kept.add(seen[0])
            if not bool(kept.attention[-1].isfinite().all()):
                kept.failure = "Its attention is NaN, or the query of a context sees no key."

    def readings(self, tokens: Int[Tensor, "C L"]) -> Iterator[NeuronReading]:
        """Yield what was read, a place once; two maps into the same neurons in different modules read them twice."""
        sites = set()
        for mlp, kept in self._kept.items():
            if not kept.failure and kept.site not in sites:
                sites.add(kept.site)
                yield NeuronReading(
                    layer=mlp.layer,
                    site=kept.site,
                    activations=torch.cat(kept.neurons),
                    attended=Attended(ids=tokens, weights=torch.cat(kept.attention)),
                    attention_layer=self._attention_layer(mlp),
                )

    @property
    def unseen(self) -> list[Unseen]:
        """What could not be seen, and why."""
        failures = [
            Unseen(site=plain_site(mlp.lower[0]), reason=kept.failure)
            for mlp, kept in self._kept.items()
            if kept.failure
        ]
        return [*self._unseen, *failures]


def _why_not_once(times: int, mlp: Mlp) -> str:
    if times > 1:
        return f"Its MLP ran {times} times in one forward pass, and which of them is meant is not known."
    return f"No module with a matrix that takes its {mlp.width} neurons ran after it."
