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
from joma.measure.tensors import tensor_with_axes
from joma.probe.blocks import MATRIX_AXES, module_path, parent
from joma.probe.calls import AttentionCall, Kind
from joma.probe.findings import some
from joma.probe.isolation import demand_module
from joma.probe.lower_matrices import OUTSIDE
from joma.probe.query_rows import mean_weights
from joma.probe.side_by_side import side_by_side
from joma.probe.specimen import Specimen, plain_site
from joma.probe.weights import Unseen, WeightRef, by_reason

LOG = logging.getLogger("joma")
AT_ONCE = 32
"""Contexts that run together."""
LEAST_TOKENS = 2
"""A context of one token attends to nothing else."""
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
    given = _Contexts.of(contexts, tokens, visible)
    specimen = Specimen.of(model, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern)
    mlps, unseen = _find_mlps(specimen)
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
class _Contexts:
    """The contexts, and where their queries stand."""

    arguments: Mapping[str, Any] | Tensor
    tokens: Int[Tensor, "C L"]
    position: Int[Tensor, " C"]
    num_visible: Int[Tensor, " C"]

    @classmethod
    def of(cls, contexts: Mapping[str, Any] | Tensor, tokens: str, visible: str) -> "_Contexts":
        named = {tokens: contexts} if isinstance(contexts, Tensor) else dict(contexts)
        if tokens not in named:
            raise ValueError(
                f"`contexts` must hold the tokens as {tokens!r}, got {sorted(named)}. Name them by `tokens`."
            )
        ids = tensor_with_axes(tokens, named[tokens], "C L").detach().cpu()
        if len(ids) == 0 or ids.shape[1] < LEAST_TOKENS or ids.is_floating_point():
            raise ValueError(
                f"Contexts must be rows of at least {LEAST_TOKENS} token ids, got {ids.dtype} of shape "
                f"{tuple(ids.shape)}. Pass whole texts, one in each row."
            )
        seen = named.get(visible)
        mask = torch.ones_like(ids) if seen is None else tensor_with_axes(visible, seen, "C L").cpu()
        if mask.shape != ids.shape:
            raise ValueError(
                f"`{visible}` must have the shape of the tokens, {tuple(ids.shape)}, got {tuple(mask.shape)}."
            )
        mask = mask != 0
        if not bool(mask.any(dim=1).all()):
            empty = int((~mask.any(dim=1)).nonzero()[0])
            raise ValueError(f"Every context must have a visible token, context {empty} has none. Drop it.")
        position = ids.shape[1] - 1 - mask.flip(1).to(torch.uint8).argmax(dim=1)
        arguments = contexts if isinstance(contexts, Tensor) else named
        return cls(arguments=arguments, tokens=ids, position=position, num_visible=mask.sum(dim=1))

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def cuts(self, at_once: int) -> Iterator[tuple[int, int]]:
        """Yield which contexts run together, never as many as they have tokens: that would hide which axis is which."""
        first = 0
        while first < len(self.tokens):
            stop = min(first + at_once, len(self.tokens))
            stop -= stop - first == self.length
            yield first, stop
            first = stop

    def part(self, first: int, stop: int) -> Mapping[str, Any] | Tensor:
        """Cut some contexts out of every argument that has one row for each."""
        if isinstance(self.arguments, Tensor):
            return self.arguments[first:stop]
        return {name: self._cut(value, first, stop) for name, value in self.arguments.items()}

    def _cut(self, value: Any, first: int, stop: int) -> Any:
        is_per_context = isinstance(value, Tensor) and value.ndim and len(value) == len(self.tokens)
        return value[first:stop] if is_per_context else value


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mlp:
    """Lower matrices with the same neurons, and where the matrix behind these is looked for."""

    layer: int
    lower: tuple[str, ...]
    """Modules; of a gated MLP both, where they are apart."""
    width: int
    """Hidden neurons."""
    within: str
    """Module: the layer, or what holds the lower matrix where that lies outside."""


def _find_mlps(specimen: Specimen) -> tuple[list[_Mlp], list[Unseen]]:
    """Gather the lower matrices of each MLP, and say which have no neurons that could be read."""
    groups: dict[tuple[int, str, int], dict[str, WeightRef]] = defaultdict(dict)
    unseen: dict[Unseen, None] = {}
    modules = dict(specimen.root.named_modules())
    for ref in specimen.layout.lower:
        name = module_path(ref.name)
        reason = _why_not(ref, modules.get(name))
        if reason:
            unseen[Unseen(site=plain_site(parent(name) if ref.expert is not None else name), reason=reason)] = None
        else:
            groups[ref.layer, parent(name), ref.shape[0]][name] = ref
    told = {each.site: each for each in specimen.layout.unseen}
    for layer in specimen.layout.layers:
        if not layer.lower:
            unseen[told.get(layer.path) or told[""]] = None
    paths = {layer.index: layer.path for layer in specimen.layout.layers}
    mlps = [
        _Mlp(layer=layer, lower=tuple(refs), width=width, within=_container(paths.get(layer, holder), holder))
        for (layer, holder, width), refs in groups.items()
    ]
    return mlps, list(unseen)


def _why_not(ref: WeightRef, module: nn.Module | None) -> str:
    if ref.expert is not None:
        return "Its neurons belong to experts, of which every token has its own."
    if ref.layer == OUTSIDE:
        return "It belongs to no layer, so that nobody knows which attention it sees."
    if module is None or isinstance(module, torch.jit.ScriptModule):
        return "Its lower matrix is no module that takes hooks, so that nobody sees what is made of its output."
    return ""


def _container(layer: str, holder: str) -> str:
    return layer if _is_inside(holder, layer) else holder


def _is_inside(path: str, holder: str) -> bool:
    return not holder or f"{path}.".startswith(f"{holder}.")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Seen:
    """Neurons of one MLP in one forward pass."""

    site: str
    neurons: Float[Tensor, "B J"] | str
    """Or why they could not be read; so below."""
    attention: Float[Tensor, "B L"] | str


@dataclass(slots=True)
class _Kept:
    """What is kept of one MLP over all forward passes."""

    site: str = ""
    neurons: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    failure: str = ""


class _Reader:
    """Sees neurons and attention during forward passes."""

    def __init__(self, specimen: Specimen, mlps: list[_Mlp], unseen: list[Unseen]) -> None:
        """Take MLPs that can be hooked, and what is known to be unseen already."""
        self._specimen, self._mlps = specimen, mlps
        self._unseen: dict[Unseen, None] = dict.fromkeys(unseen)
        self._kept = {mlp: _Kept() for mlp in mlps}
        self._beside: frozenset[int] = frozenset()
        self._begin(torch.zeros(0, dtype=torch.long), 0)

    def read(self, contexts: _Contexts, at_once: int) -> None:
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

    def _find_beside(self, contexts: _Contexts) -> Exception | None:
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
        self._seen: dict[_Mlp, list[_Seen]] = defaultdict(list)
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
                for name in self._candidates(mlp, modules):
                    hook = self._comes_next(mlp, name)
                    handles.append(modules[name].register_forward_pre_hook(hook, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _candidates(self, mlp: _Mlp, modules: Mapping[str, nn.Module]) -> Iterator[str]:
        """Yield the modules with a matrix that takes the neurons: the first of them to run has them."""
        lower = {name for each in self._mlps for name in each.lower}
        attention = [
            path for path in self._specimen.layout.attention if not any(_is_inside(name, path) for name in mlp.lower)
        ]
        for name, module in modules.items():
            outside = not _is_inside(name, mlp.within) or any(_is_inside(name, path) for path in attention)
            fits = any(_takes(parameter, mlp.width) for parameter in module.parameters(recurse=False))
            scripted = isinstance(module, torch.jit.ScriptModule)
            if fits and not outside and not scripted and not any(_is_inside(name, each) for each in lower):
                yield name

    def _lower_ran(self, mlp: _Mlp, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            self._to_run[mlp].discard(name)

        return hook

    def _comes_next(self, mlp: _Mlp, name: str) -> Callable[..., None]:
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

    def _attention_for(self, mlp: _Mlp) -> Float[Tensor, "B L"] | str:
        layer = self._attention_layer(mlp)
        if layer < 0:
            return NOTHING_BELOW
        return self._rows.get(layer, f"No attention of layer {layer} was seen before its MLP ran.")

    def _attention_layer(self, mlp: _Mlp) -> int:
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
        """Move what a forward pass showed to the CPU, or note why it showed nothing."""
        for mlp, kept in self._kept.items():
            seen = self._seen[mlp]
            if len(seen) != 1:
                kept.failure = kept.failure or _why_not_once(len(seen), mlp)
                continue
            (one,) = seen
            for part in (one.neurons, one.attention):
                if isinstance(part, str):
                    kept.failure = kept.failure or part
            kept.site = one.site
            if not kept.failure:
                assert isinstance(one.neurons, Tensor) and isinstance(one.attention, Tensor)
                kept.neurons.append(one.neurons.cpu())
                kept.attention.append(one.attention.cpu())

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


def _why_not_once(times: int, mlp: _Mlp) -> str:
    if times > 1:
        return f"Its MLP ran {times} times in one forward pass, and which of them is meant is not known."
    return f"No module with a matrix that takes its {mlp.width} neurons ran after it."


def _takes(parameter: Tensor, width: int) -> bool:
    """Whether a matrix may take this many neurons."""
    return parameter.ndim == MATRIX_AXES and width in parameter.shape
