"""Hidden neurons of any model's MLPs and what the query attends to, as `superposed_neurons` takes them.

Each sequence is one context, and its query the last token that is visible. Hooks see what goes into the matrix after
the lower ones, that is the neurons after the nonlinearity (of a gated MLP, gate times what it gates); the tap sees the
attention call, of which one row for each sequence is worked out. No L×L matrix is built.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from joma.errors import positive
from joma.measure.masks import Visibility, split_mask, visible_logits
from joma.measure.superposition import Attended
from joma.measure.tensors import tensor_with_axes
from joma.probe.calls import AttentionCall, CallKind
from joma.probe.findings import some
from joma.probe.model import ProbedModel
from joma.probe.structure import (
    MATRIX_AXES,
    OUTSIDE,
    Unseen,
    WeightRef,
    by_reason,
    is_inside,
    module_path,
    parent,
    plain_site,
)

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

    The model is left as it was, and what is kept lies on the CPU. Layers that cannot be seen are in `unseen`, with the
    reason, and reported by the logger "joma".

    Args:
        model: Any PyTorch model.
        contexts: The keyword arguments of the model, or its tokens alone as a tensor, one context in each row.
        tokens: Name of the argument that holds the token ids.
        visible: Name of the argument that holds the mask over them where there is padding, (C, L), other than 0 where a
            token is visible: the query is the last such token, else the last of the row.
        at_once: Contexts that run together.
        mlp_pattern: As for `joma.watch`.
        attention_pattern: As for `joma.watch`.

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    >>> contexts = torch.tensor([[3, 1, 4], [1, 5, 9]])
    >>> readings = read_neurons(nn.Sequential(nn.Embedding(10, 8), model), contexts)
    >>> [(each.layer, tuple(each.activations.shape), tuple(each.attended.weights.shape)) for each in readings.layers]
    [(0, (2, 16), (2, 3)), (1, (2, 16), (2, 3))]
    """
    probed = ProbedModel.of(model, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern)
    positive("at_once", at_once)
    given = _Contexts.of(contexts, tokens, visible)
    reader = _Reader(probed)
    reader.read(given, at_once)
    readings = NeuronReadings(
        layers=tuple(reader.readings(given.tokens)), position=given.position, unseen=tuple(reader.all_unseen())
    )
    if not readings.layers:
        reason = readings.unseen[0].reason if readings.unseen else "It has no MLP."
        raise ValueError(f"joma can read no hidden neurons of this {probed.name}. {reason}")
    for reason, sites in by_reason(readings.unseen).items():
        level = logging.INFO if reason == NOTHING_BELOW else logging.WARNING  # there, nothing is missing
        LOG.log(level, "joma cannot see %s: %s", some(sites), reason)
    return readings


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Contexts:
    """Sequences of tokens to run a model on, and where their queries stand."""

    arguments: Mapping[str, Any] | Tensor
    tokens: Int[Tensor, "C L"]
    position: Int[Tensor, " C"]
    """Of the query: the last visible token."""
    num_visible: Int[Tensor, " C"]
    """Tokens that are no padding."""

    @classmethod
    def of(cls, contexts: Mapping[str, Any] | Tensor, tokens: str, visible: str) -> "_Contexts":
        """Read the arguments of a model, or its tokens alone; the names are those of tokens and padding mask."""
        if not isinstance(contexts, Tensor | Mapping):
            raise TypeError(
                f"`contexts` must be a tensor of token ids or the keyword arguments of the model, got "
                f"{type(contexts).__name__}. Pass what a tokenizer returns for `return_tensors='pt'`."
            )
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
        seen = torch.ones_like(ids, dtype=torch.bool)
        if named.get(visible) is not None:
            seen = tensor_with_axes(visible, named[visible], "C L").detach().cpu() != 0
        if seen.shape != ids.shape:
            raise ValueError(
                f"`{visible}` must have the shape of the tokens, {tuple(ids.shape)}, got {tuple(seen.shape)}. "
                "Pass 1 for each token and 0 for padding."
            )
        empty = ~seen.any(dim=1)
        if bool(empty.any()):
            raise ValueError(
                f"Every context must have a visible token, context {int(empty.nonzero()[0])} has none. Drop it."
            )
        return cls(
            arguments=contexts if isinstance(contexts, Tensor) else named,
            tokens=ids,
            position=ids.shape[1] - 1 - seen.flip(1).to(torch.uint8).argmax(dim=1),
            num_visible=seen.sum(dim=1),
        )

    @property
    def length(self) -> int:
        """Tokens of a context, padding included."""
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
        return {
            name: value[first:stop]
            if isinstance(value, Tensor) and value.ndim and len(value) == len(self.tokens)
            else value
            for name, value in self.arguments.items()
        }


# MLPs as hooks see them


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mlp:
    """Lower matrices with the same neurons, and where to look for the matrix that takes these."""

    layer: int
    lower: tuple[str, ...]
    """Modules; of a gated MLP both, where they are apart."""
    width: int
    """Hidden neurons."""
    within: str
    """Module: the layer, or what holds the lower matrix where that lies outside."""


def _find_mlps(model: ProbedModel) -> tuple[list[_Mlp], list[Unseen]]:
    """Gather the lower matrices of each MLP, and say which have no neurons that could be read."""
    layout, modules = model.layout, dict(model.root.named_modules())
    groups: dict[tuple[int, str, int], dict[str, None]] = defaultdict(dict)
    unseen: dict[Unseen, None] = {}
    lower = (*layout.lower, *layout.unmeasured)
    for ref in lower:
        name = module_path(ref.name)
        reason = _why_not(ref, modules.get(name))
        if reason:
            unseen[Unseen(site=plain_site(parent(name) if ref.expert is not None else name), reason=reason)] = None
        else:
            groups[ref.layer, parent(name), ref.shape[0]][name] = None
    reasons = {each.site: each for each in reversed(layout.unseen)}  # those of MLPs come first and stay
    with_mlp = {ref.layer for ref in lower}
    for layer, path in enumerate(layout.layers):
        if layer not in with_mlp:
            unseen[reasons.get(path) or reasons[""]] = None
    mlps = []
    for (layer, holder, width), names in groups.items():
        block = layout.layers[layer] if layer < len(layout.layers) else holder
        within = block if is_inside(holder, block) else holder
        mlps.append(_Mlp(layer=layer, lower=tuple(names), width=width, within=within))
    return mlps, list(unseen)


def _why_not(ref: WeightRef, module: nn.Module | None) -> str:
    if ref.expert is not None:
        return "Its neurons belong to experts, of which every token has its own."
    if ref.layer == OUTSIDE:
        return "It belongs to no layer, so which attention it sees is not known."
    if module is None or isinstance(module, torch.jit.ScriptModule):
        return "Its lower matrix is no module that takes hooks, so its neurons cannot be seen."
    return ""


def _ways_back(mlp: _Mlp, model: ProbedModel) -> Iterator[str]:
    """Yield the modules with a matrix that may take the neurons: the first to run after the lower ones does."""
    lower = {module_path(ref.name) for ref in (*model.layout.lower, *model.layout.unmeasured)}
    # A block that owns its queries itself counts as attention, and holds the MLP too.
    attention = [path for path in model.layout.attention if not any(is_inside(name, path) for name in mlp.lower)]
    for name, module in model.root.named_modules():
        if not is_inside(name, mlp.within) or isinstance(module, torch.jit.ScriptModule):
            continue
        fits = any(p.ndim == MATRIX_AXES and mlp.width in p.shape for p in module.parameters(recurse=False))
        if fits and not any(is_inside(name, other) for other in (*lower, *attention)):
            yield name


def _layers_beside_attention(  # noqa: C901 (three short hooks)
    model: ProbedModel, context: Mapping[str, Any] | Tensor, *, length: int, position: int, lower: Mapping[str, int]
) -> frozenset[int]:
    """Return the layers whose MLP runs beside their attention and does not see it, found by poisoning with NaN.

    Where an MLP comes after the attention of its layer, its input at one position depends on the layer's input at
    others. Where the two run side by side (GPT-J, Pythia, Falcon, Phi) it does not: NaN at all other positions of the
    layer's input does not reach it. That holds whatever the weights are, zero ones included.

    Args:
        model: The model.
        context: A batch of one sequence.
        length: Its tokens, at least 2.
        position: One that attends to others.
        lower: Modules into the hidden neurons, with their layers. A layer that does not run, or whose input is not in
            its arguments, is taken to have its MLP after its attention.
    """
    poisoned: set[int] = set()
    reached: dict[int, bool] = {}

    def is_stream(value: object) -> bool:
        """Whether this is a sequence of vectors: (1, L, d), (L, 1, d) or (L, d)."""
        return isinstance(value, Tensor) and value.is_floating_point() and length in value.shape[:-1]

    def poison(layer: int, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        stream = next((each for each in (*args, *kwargs.values()) if is_stream(each)), None)
        if stream is None:
            return None
        poisoned.add(layer)
        spoilt = torch.full_like(stream, torch.nan)
        spoilt.select(stream.shape.index(length), position).fill_(1.0)

        def replaced(value: Any) -> Any:
            return spoilt if is_stream(value) and value.shape == stream.shape else value

        return tuple(map(replaced, args)), {name: replaced(value) for name, value in kwargs.items()}

    def look(layer: int, module: nn.Module, args: tuple) -> None:
        if args and is_stream(args[0]):
            there = args[0].select(args[0].shape.index(length), position)
            reached[layer] = reached.get(layer, False) or bool(there.isnan().any())

    def ignore(*_: object) -> None:
        """Attention is not looked at."""

    modules = dict(model.root.named_modules())
    handles = []
    try:
        for layer, path in enumerate(model.layout.layers):
            if path:
                hook = partial(poison, layer)
                handles.append(modules[path].register_forward_pre_hook(hook, with_kwargs=True, prepend=True))
        for name, layer in lower.items():
            handles.append(modules[name].register_forward_pre_hook(partial(look, layer)))
        with model.tap(ignore, on_error=ignore, eagerly=True):
            model.forward(context)
    finally:
        for handle in handles:
            handle.remove()
    return frozenset(layer for layer in poisoned if reached.get(layer) is False)


# Reading


@dataclass(slots=True)
class _Kept:
    """What is kept of one MLP over all forward passes."""

    site: str = ""
    neurons: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    failure: str = ""


class _Reader:
    """Sees neurons and attention during forward passes."""

    def __init__(self, model: ProbedModel) -> None:
        self._model = model
        mlps, unseen = _find_mlps(model)
        self._kept = {mlp: _Kept() for mlp in mlps}
        self._unseen: dict[Unseen, None] = dict.fromkeys(unseen)
        self._beside: frozenset[int] = frozenset()

    def read(self, contexts: _Contexts, at_once: int) -> None:
        """Run all contexts."""
        fullest = int(contexts.num_visible.argmax())
        doubt = None
        try:
            self._beside = _layers_beside_attention(
                self._model,
                contexts.part(fullest, fullest + 1),
                length=contexts.length,
                position=int(contexts.position[fullest]),
                lower={name: mlp.layer for mlp in self._kept for name in mlp.lower},
            )
        except Exception as error:  # a model that does not run on the contexts either raises again below
            doubt = error
        with (
            self._hooked(),
            self._model.tap(self._on_call, on_unseen=self._on_unseen, on_error=self._on_error, eagerly=True),
        ):
            for first, stop in contexts.cuts(at_once):
                self._position = contexts.position[first:stop].to(self._model.devices[0])
                self._length = contexts.length
                self._rows: dict[int, Tensor | str] = {}
                """What the queries attend to in the last call of each layer so far, or why that is not known."""
                self._seen: dict[_Mlp, list[tuple[str, Tensor | str, Tensor | str]]] = defaultdict(list)
                """Site, neurons and attention of each MLP that ran, or why they could not be read."""
                self._to_run = {mlp: set(mlp.lower) for mlp in self._kept}
                """Lower matrices that have to run before the neurons come."""
                try:
                    self._model.forward(contexts.part(first, stop))
                except Exception as error:
                    raise ValueError(
                        f"This {self._model.name} does not run on the contexts ({type(error).__name__}: {error}). "
                        "Pass what its forward takes."
                    ) from error
                for mlp in self._kept:
                    self._keep(mlp)
        if doubt is not None:
            LOG.warning(
                "joma takes the MLPs of this %s to come after attention: it does not run on NaN, which would tell (%s)",
                self._model.name,
                doubt,
            )

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        modules = dict(self._model.root.named_modules())
        handles = []
        try:
            for mlp in self._kept:
                for name in mlp.lower:
                    handles.append(modules[name].register_forward_hook(partial(self._lower_ran, mlp, name)))
                for name in _ways_back(mlp, self._model):
                    hook: Callable[..., None] = partial(self._comes_next, mlp, name)
                    handles.append(modules[name].register_forward_pre_hook(hook, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _lower_ran(self, mlp: _Mlp, name: str, module: nn.Module, args: tuple, output: Any) -> None:
        self._to_run[mlp].discard(name)

    def _comes_next(self, mlp: _Mlp, name: str, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        given = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
        if self._to_run[mlp] or given is None or given.shape[-1:] != (mlp.width,):
            return
        self._to_run[mlp] = set(mlp.lower)
        layer = self._attention_layer(mlp)
        missing = f"No attention of layer {layer} was seen before its MLP ran." if layer >= 0 else NOTHING_BELOW
        self._seen[mlp].append((plain_site(name), self._at_query(given), self._rows.get(layer, missing)))

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

    def _attention_layer(self, mlp: _Mlp) -> int:
        return mlp.layer - 1 if mlp.layer in self._beside else mlp.layer

    def _on_call(self, call: AttentionCall) -> None:
        if not self._model.wants(plain_site(call.site)):
            return
        batch, _, rows, keys = call.shape
        found, wanted = (batch, rows, keys), (len(self._position), self._length, self._length)
        if call.kind is CallKind.CROSS:
            reason = "The last attention that its MLP sees looks at another sequence than that of the query."
            self._rows[call.layer] = reason
        elif found != wanted:
            reason = f"Its attention has (contexts, rows, keys) {found}, where the contexts make {wanted}."
            self._rows[call.layer] = reason
        else:
            self._rows[call.layer] = mean_weights(call, self._position.to(call.device))

    def _on_error(self, call: AttentionCall, error: Exception) -> None:
        self._rows[call.layer] = f"Its attention was not read: {type(error).__name__}: {error}"

    def _on_unseen(self, unseen: Unseen) -> None:
        self._unseen[Unseen(site=plain_site(unseen.site), reason=unseen.reason)] = None

    def _keep(self, mlp: _Mlp) -> None:
        """Keep what a forward pass showed of an MLP, or why it showed nothing."""
        kept, seen = self._kept[mlp], self._seen[mlp]
        if kept.failure:
            return
        if not seen:
            kept.failure = f"No module with a matrix that takes its {mlp.width} neurons ran after it."
        elif len(seen) > 1:
            kept.failure = (
                f"Its MLP ran {len(seen)} times in one forward pass, and which of them is meant is not known."
            )
        else:
            [(kept.site, neurons, attention)] = seen
            if isinstance(neurons, str) or isinstance(attention, str):
                kept.failure = neurons if isinstance(neurons, str) else str(attention)
                return
            kept.neurons.append(neurons.cpu())
            kept.attention.append(attention.cpu())
            if not bool(kept.attention[-1].isfinite().all()):
                kept.failure = "Its attention is NaN, or the query of a context sees no key."

    def readings(self, tokens: Int[Tensor, "C L"]) -> Iterator[NeuronReading]:
        """Yield what was read, each site once: two maps into the same neurons in different modules read them twice."""
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

    def all_unseen(self) -> list[Unseen]:
        """Return what could not be seen, and why."""
        failed = [(mlp, kept.failure) for mlp, kept in self._kept.items() if kept.failure]
        return [*self._unseen, *(Unseen(site=plain_site(mlp.lower[0]), reason=reason) for mlp, reason in failed)]


# One row of an attention call


def mean_weights(call: AttentionCall, row: Int[Tensor, " B"]) -> Float[Tensor, "B keys"]:
    """Return the attention of one row of each sequence, averaged over the heads; NaN where it sees no key.

    >>> from joma.probe.calls import CallSource
    >>> q = torch.zeros(2, 1, 4, 8)
    >>> call = AttentionCall(
    ...     site="attn", kind=CallKind.SELF, layer=0, source=CallSource.SDPA, q=q, k=q, causal=True
    ... )
    >>> mean_weights(call, torch.tensor([1, 3]))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    rows = row.unique().tolist()
    if len(rows) == 1:
        return _row_logits(call, slice(None), rows[0]).softmax(dim=-1).mean(dim=1)
    chosen = [(row == each).nonzero()[:, 0] for each in rows]
    logits = [_row_logits(call, which, each) for which, each in zip(chosen, rows, strict=True)]
    return torch.cat([each.softmax(dim=-1).mean(dim=1) for each in logits])[torch.cat(chosen).argsort()]


def _row_logits(call: AttentionCall, sequences: slice | Tensor, row: int) -> Float[Tensor, "b H keys"]:
    """Logits of one row of these sequences, hidden ones minus infinity; half precision is computed in float32."""
    if call.logits is not None:
        given = _at_least_single(call.logits[sequences, :, row])
        return given.masked_fill(~visible_logits(given), -torch.inf)
    assert call.q is not None and call.k is not None
    q, k = _at_least_single(call.q[sequences, :, row]), _at_least_single(call.k[sequences])
    scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
    grouped = scale * q.unflatten(1, (k.shape[1], -1))  # heads of a group share their keys
    s = torch.einsum("bghd,bgkd->bghk", grouped, k).flatten(1, 2)
    if call.softcap is not None:
        s = call.softcap * (s / call.softcap).tanh()
    parts = split_mask(_of_row(call.mask, sequences, row))
    for added in (parts.added, _of_row(call.bias, sequences, row)):
        if added is not None:
            s = s + added[:, :, 0]
    visibility = Visibility(
        num_rows=1,
        num_keys=k.shape[2],
        causal=call.causal,
        window=call.window,
        offset=call.offset + row,
        mask=parts.visible,
    )
    start, stop = visibility.key_range(0, 1)
    seen = visibility.block(0, 1, s.device)
    left = torch.full_like(s, -torch.inf)
    part = s[..., start:stop]
    left[..., start:stop] = part if seen is None else part.masked_fill(~seen[:, :, 0], -torch.inf)
    return left


def _of_row(given: Tensor | None, sequences: slice | Tensor, row: int) -> Float[Tensor, "b h 1 keys"] | Tensor | None:
    """Cut one row of some sequences out of a mask or bias that broadcasts to (B, H, rows, keys)."""
    if given is None:
        return None
    given = given.reshape((1,) * (4 - given.ndim) + given.shape)
    given = given if given.shape[0] == 1 else given[sequences]
    return given if given.shape[2] == 1 else given[:, :, row : row + 1]


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
