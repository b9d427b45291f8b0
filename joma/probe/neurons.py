"""Hidden neurons of any model's MLPs and what the query attends to, as `superposed_neurons` takes them.

Each sequence is one context, and its query the last token that is visible. Hooks see what goes into the matrix after
the lower ones, that is the neurons after the nonlinearity (of a gated MLP, gate times what it gates); the tap sees the
attention call, of which one row for each sequence is worked out. No L×L matrix is built.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from joma.errors import positive
from joma.formatting import NO_LAYER
from joma.measure.entropy_chunked import attention_weights
from joma.measure.masks import Problem, added_up, split_mask, visible_logits, with_four_axes
from joma.measure.superposition import Attended
from joma.measure.tensors import tensor_with_axes, working_dtype
from joma.probe.calls import AttentionCall
from joma.probe.findings import some
from joma.probe.model import ProbedModel
from joma.probe.structure import MATRIX_AXES, Unseen, WeightRef, by_reason, is_inside, module_path, parent, plain_site

LOG = logging.getLogger("joma")
AT_ONCE = 32  # contexts that run together
LEAST_TOKENS = 2  # a context of one token attends to nothing else
NOTHING_BELOW = "Its MLP runs next to its attention and sees that of the layer below, and there is none."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NeuronReading:
    """Hidden neurons of one MLP at the query of every context, and what the query attends to."""

    layer: int
    site: str  # the matrix that the neurons go into
    activations: Float[Tensor, "C J"]  # after the nonlinearity; of a gated MLP, gate times what it gates
    attended: Attended  # mean over the heads of the last attention that the MLP sees
    attention_layer: int
    """Layer of that attention: its own, or the one below where MLP and attention of a layer run side by side."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NeuronReadings:
    """What could be read of a model, layer by layer, and what could not."""

    layers: tuple[NeuronReading, ...]  # in the order of the layers; a layer with two MLPs has two
    unseen: tuple[Unseen, ...]


def read_neurons(
    model: nn.Module,
    contexts: Mapping[str, Any] | Tensor,
    *,
    at_once: int = AT_ONCE,
    mlp_pattern: str | None = None,
    attention_pattern: str | None = None,
) -> NeuronReadings:
    """Run a model on contexts; return the neurons of each MLP at each query, and the attention that they see.

    The model is left as it was, and what is kept lies on the CPU. Layers that cannot be seen are in `unseen`, with the
    reason, and reported by the logger "joma".

    Args:
        model: Any PyTorch model.
        contexts: The keyword arguments of the model, with the tokens as `input_ids`, one context in each row, or these
            alone as a tensor. Where there is padding, `attention_mask` (C, L) is other than 0 where a token is visible:
            the query is the last such token, else the last of the row.
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
    ids, seen = _tokens_and_visible(contexts)
    position = ids.shape[1] - 1 - seen.flip(1).to(torch.uint8).argmax(dim=1)
    reader = _Reader(probed, contexts, position, ids.shape[1])
    reader.find_parallel_layers(int(seen.sum(dim=1).argmax()))
    reader.read(at_once)
    readings = NeuronReadings(layers=tuple(reader.readings(ids)), unseen=tuple(reader.unseen))
    if not readings.layers:
        reason = readings.unseen[0].reason if readings.unseen else "It has no MLP."
        raise ValueError(f"joma can read no hidden neurons of this {probed.name}. {reason}")
    for reason, sites in by_reason(readings.unseen).items():
        level = logging.INFO if reason == NOTHING_BELOW else logging.WARNING  # there, nothing is missing
        LOG.log(level, "joma cannot see %s: %s", some(sites), reason)
    return readings


def _tokens_and_visible(contexts: Mapping[str, Any] | Tensor) -> tuple[Int[Tensor, "C L"], Bool[Tensor, "C L"]]:
    """Return the tokens of all contexts and which of them are no padding; refuse what cannot be read."""
    if not isinstance(contexts, Tensor | Mapping):
        raise TypeError(
            f"`contexts` must be a tensor of token ids or the keyword arguments of the model, got "
            f"{type(contexts).__name__}. Pass what a tokenizer returns for `return_tensors='pt'`."
        )
    named = {"input_ids": contexts} if isinstance(contexts, Tensor) else contexts
    if "input_ids" not in named:
        raise ValueError(f"`contexts` must hold the tokens as `input_ids`, got {sorted(named)}. Name them so.")
    ids = tensor_with_axes("input_ids", named["input_ids"], "C L").detach().cpu()
    if len(ids) == 0 or ids.shape[1] < LEAST_TOKENS or ids.is_floating_point():
        raise ValueError(
            f"Contexts must be rows of at least {LEAST_TOKENS} token ids, got {ids.dtype} of shape "
            f"{tuple(ids.shape)}. Pass complete texts, one in each row."
        )
    seen = torch.ones_like(ids, dtype=torch.bool)
    if named.get("attention_mask") is not None:
        seen = tensor_with_axes("attention_mask", named["attention_mask"], "C L").detach().cpu() != 0
    if seen.shape != ids.shape:
        raise ValueError(
            f"`attention_mask` must have the shape of the tokens, {tuple(ids.shape)}, got {tuple(seen.shape)}. "
            "Pass 1 for each token and 0 for padding."
        )
    empty = (~seen.any(dim=1)).nonzero()
    if len(empty):
        raise ValueError(f"Every context must have a visible token, context {int(empty[0])} has none. Drop it.")
    return ids, seen


# MLPs as hooks see them


@dataclass(slots=True, eq=False)
class _Mlp:
    """Lower matrices with the same neurons, and what was read of them over all forward passes."""

    layer: int
    lower: tuple[str, ...]  # modules; of a gated MLP both, where they are apart
    width: int  # hidden neurons
    within: str
    """Module that holds the matrix which takes the neurons: the layer, or what holds the lower matrix outside of it."""
    to_run: set[str] = field(default_factory=set)  # lower matrices that have to run before the neurons come
    seen: list[tuple[str, Tensor | str, Tensor | str]] = field(default_factory=list)
    """Of this forward pass: site, neurons and attention, or why they could not be read."""
    site: str = ""  # the matrix that the neurons go into
    neurons: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    failure: str = ""

    def keep(self) -> str:
        """Keep what a forward pass showed, or return why it showed nothing."""
        if not self.seen:
            return f"No module with a matrix that takes its {self.width} neurons ran after it."
        if len(self.seen) > 1:
            return f"Its MLP ran {len(self.seen)} times in one forward pass, and which of them is meant is not known."
        [(self.site, neurons, attention)] = self.seen
        if isinstance(neurons, str) or isinstance(attention, str):
            return neurons if isinstance(neurons, str) else str(attention)
        self.neurons.append(neurons.cpu())
        self.attention.append(attention.cpu())
        is_finite = bool(self.attention[-1].isfinite().all())
        return "" if is_finite else "Its attention is NaN, or the query of a context sees no key."


_UNREADABLE: dict[str, Callable[[WeightRef, nn.Module | None], bool]] = {
    "Its neurons belong to experts, of which every token has its own.": lambda ref, module: ref.expert is not None,
    "It belongs to no layer, so which attention it sees is not known.": lambda ref, module: ref.layer == NO_LAYER,
    "Its lower matrix is no module that takes hooks, so its neurons cannot be seen.": (
        lambda ref, module: module is None or isinstance(module, torch.jit.ScriptModule)
    ),
}
"""Why the neurons of a lower matrix cannot be read."""


def _find_mlps(model: ProbedModel) -> tuple[list[_Mlp], list[Unseen]]:
    """Gather the lower matrices of each MLP, and say which have no neurons that could be read."""
    layout, modules = model.layout, dict(model.root.named_modules())
    groups: dict[tuple[int, str, int], dict[str, None]] = defaultdict(dict)
    unseen: dict[Unseen, None] = {}
    lower = (*layout.lower, *layout.unmeasured)
    for ref in lower:
        name = module_path(ref.name)
        module = modules.get(name)
        if reason := next((why for why, holds in _UNREADABLE.items() if holds(ref, module)), ""):
            unseen[Unseen(plain_site(parent(name) if ref.expert is not None else name), reason)] = None
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
        mlps.append(_Mlp(layer, tuple(names), width, within))
    return mlps, list(unseen)


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


class _Reader:
    """Sees neurons and attention during forward passes, at the `position` of the query of each context."""

    def __init__(
        self, model: ProbedModel, contexts: Mapping[str, Any] | Tensor, position: Int[Tensor, " C"], length: int
    ) -> None:
        self._model, self._contexts, self._position = model, contexts, position
        self._length = length  # of a context in tokens, padding included
        self._modules = dict(model.root.named_modules())
        self._mlps, unseen = _find_mlps(model)
        self.unseen: dict[Unseen, None] = dict.fromkeys(unseen)
        self._parallel: frozenset[int] = frozenset()  # layers whose MLP runs next to their attention, not after it
        self._doubt: Exception | None = None  # why that is not known

    def _contexts_at(self, first: int, stop: int) -> Mapping[str, Any] | Tensor:
        def cut(value: Any) -> Any:
            is_batch = isinstance(value, Tensor) and value.ndim and len(value) == len(self._position)
            return value[first:stop] if is_batch else value

        given = self._contexts
        return cut(given) if isinstance(given, Tensor) else {name: cut(value) for name, value in given.items()}

    def find_parallel_layers(self, context: int) -> None:  # noqa: C901 (three hooks in one place)
        """Find the layers whose MLP runs next to their attention and does not see it, by poisoning with NaN.

        Where an MLP comes after the attention of its layer, its input at one position depends on the layer's input at
        others. Where the two run side by side (GPT-J, Pythia, Falcon, Phi) it does not: NaN at all other positions of
        the layer's input does not reach it. That holds whatever the weights are, zero ones included. A layer that does
        not run, or whose input is not in its arguments, is taken to have its MLP after its attention. `context` is one
        whose query attends to other tokens.
        """
        poisoned: set[int] = set()
        reached: dict[int, bool] = {}
        length, position = self._length, int(self._position[context])

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

        def ignore(*_: object) -> None: ...

        try:
            with ExitStack() as stack:
                for layer, path in enumerate(self._model.layout.layers):
                    if path:
                        hook, module = partial(poison, layer), self._modules[path]
                        stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True))
                for mlp in self._mlps:
                    for name in mlp.lower:
                        stack.enter_context(self._modules[name].register_forward_pre_hook(partial(look, mlp.layer)))
                stack.enter_context(self._model.tap(ignore, on_error=ignore, eagerly=True))
                self._model.forward(self._contexts_at(context, context + 1))
        except Exception as error:  # a model that does not run on the contexts either raises again when it is read
            self._doubt = error
        else:
            self._parallel = frozenset(layer for layer in poisoned if reached.get(layer) is False)

    def read(self, at_once: int) -> None:
        """Run all contexts, never as many together as they have tokens: that would hide which axis is which."""
        with ExitStack() as stack:
            for mlp in self._mlps:
                for name in mlp.lower:
                    ran = self._modules[name].register_forward_hook(lambda *_, m=mlp, n=name: m.to_run.discard(n))
                    stack.enter_context(ran)
                for name in _ways_back(mlp, self._model):
                    hook = partial(self._comes_next, mlp, name)
                    stack.enter_context(self._modules[name].register_forward_pre_hook(hook, with_kwargs=True))
            options = {"on_unseen": self._on_unseen, "on_error": self._on_error}
            stack.enter_context(self._model.tap(self._on_call, eagerly=True, **options))
            stop = 0
            while (first := stop) < len(self._position):
                stop = min(first + at_once, len(self._position))
                stop -= stop - first == self._length
                self._run(first, stop)
        if self._doubt is not None:
            LOG.warning(
                "joma takes the MLPs of this %s to come after attention: it does not run on NaN, which would show (%s)",
                *(self._model.name, self._doubt),
            )

    def _run(self, first: int, stop: int) -> None:
        self._queries = self._position[first:stop].to(self._model.devices[0])
        self._rows: dict[int, Tensor | str] = {}
        """What the queries attend to in the last call of each layer so far, or why that is not known."""
        for mlp in self._mlps:
            mlp.to_run, mlp.seen = set(mlp.lower), []
        try:
            self._model.forward(self._contexts_at(first, stop))
        except Exception as error:
            raise ValueError(
                f"This {self._model.name} does not run on the contexts ({type(error).__name__}: {error}). "
                "Pass what its forward takes."
            ) from error
        for mlp in self._mlps:
            mlp.failure = mlp.failure or mlp.keep()

    def _comes_next(self, mlp: _Mlp, name: str, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        given = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
        if mlp.to_run or given is None or given.shape[-1:] != (mlp.width,):
            return
        mlp.to_run = set(mlp.lower)
        layer = self._attention_layer(mlp)
        missing = f"No attention of layer {layer} was seen before its MLP ran." if layer >= 0 else NOTHING_BELOW
        mlp.seen.append((plain_site(name), self._at_query(given), self._rows.get(layer, missing)))

    def _at_query(self, hidden: Tensor) -> Float[Tensor, "B J"] | str:
        """Return the neurons at the queries, whatever the order of contexts and positions."""
        num, length = len(self._queries), self._length
        sequence, position = torch.arange(num, device=hidden.device), self._queries.to(hidden.device)
        hidden = hidden.detach()
        if hidden.shape[:-1] == (num, length):
            return hidden[sequence, position]
        if hidden.shape[:-1] == (length, num):
            return hidden[position, sequence]
        if hidden.shape[:-1] == (num * length,):
            return hidden[sequence * length + position]
        return f"Its neurons have the shape {tuple(hidden.shape)}, where there are {num} contexts of {length} tokens."

    def _attention_layer(self, mlp: _Mlp) -> int:
        return mlp.layer - 1 if mlp.layer in self._parallel else mlp.layer

    def _on_call(self, call: AttentionCall) -> None:
        if not self._model.wants(plain_site(call.site)):
            return
        batch, _, rows, keys = call.shape
        found, wanted = (batch, rows, keys), (len(self._queries), self._length, self._length)
        given: Tensor | str = f"Its attention has (contexts, rows, keys) {found}, where the contexts make {wanted}."
        if call.is_cross:
            given = "The last attention that its MLP sees looks at another sequence than that of the query."
        elif found == wanted:
            given = mean_weights(call, self._queries.to(call.device))
        self._rows[call.layer] = given

    def _on_error(self, call: AttentionCall, error: Exception) -> None:
        self._rows[call.layer] = f"Its attention was not read: {type(error).__name__}: {error}"

    def _on_unseen(self, unseen: Unseen) -> None:
        self.unseen[unseen._replace(site=plain_site(unseen.site))] = None

    def readings(self, tokens: Int[Tensor, "C L"]) -> Iterator[NeuronReading]:
        """Yield what was read, each site once: two maps into the same neurons in different modules read them twice."""
        sites = set()
        for mlp in self._mlps:
            if mlp.failure:
                self.unseen[Unseen(plain_site(mlp.lower[0]), mlp.failure)] = None
            elif mlp.site not in sites:
                sites.add(mlp.site)
                yield NeuronReading(
                    layer=mlp.layer,
                    site=mlp.site,
                    activations=torch.cat(mlp.neurons),
                    attended=Attended(ids=tokens, weights=torch.cat(mlp.attention)),
                    attention_layer=self._attention_layer(mlp),
                )


# One row of an attention call


def mean_weights(call: AttentionCall, row: Int[Tensor, " B"]) -> Float[Tensor, "B keys"]:
    """Return the attention of one row of each sequence, averaged over the heads; NaN where it sees no key.

    >>> q = torch.zeros(2, 1, 4, 8)
    >>> mean_weights(AttentionCall(q=q, k=q, causal=True), torch.tensor([1, 3]))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    batch = torch.arange(len(row), device=row.device)

    def of_row(given: Tensor | None) -> Float[Tensor, "B h 1 _"] | Tensor | None:
        """Cut the row of each sequence out of what broadcasts to (B, H, rows, _)."""
        if given is None:
            return None
        given = with_four_axes(given)
        given = given.expand(len(row), *given.shape[1:])
        return given[batch, :, row if given.shape[2] > 1 else 0][:, :, None]

    logits, q = of_row(call.logits), of_row(call.q)
    if logits is not None:
        logits = logits.to(working_dtype(logits))
        return logits.masked_fill(~visible_logits(logits), -torch.inf).softmax(dim=-1)[:, :, 0].mean(dim=1)
    assert q is not None and call.k is not None
    parts = split_mask(of_row(call.mask))
    ahead = torch.arange(call.shape[-1], device=row.device) - (row + call.offset)[:, None]
    seen = (ahead <= 0) | (not call.causal)
    seen = seen if call.window is None else seen & (ahead.abs() < call.window)
    problem = Problem(
        q=q,
        k=call.k,
        scale=q.shape[-1] ** -0.5 if call.scale is None else call.scale,
        softcap=call.softcap,
        mask=seen[:, None, None] if parts.visible is None else seen[:, None, None] & parts.visible,
        bias=added_up(parts.added, of_row(call.bias)),
    )
    return attention_weights(problem)[:, :, 0].mean(dim=1)
