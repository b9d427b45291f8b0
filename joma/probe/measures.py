"""What a watch measures: attention calls, matrices, the model; joma's own measures and the user's.

A measure is a function from one of these to named numbers. `register_measure` adds one:

>>> def norm_of_queries(call):
...     return {"query_norm": call.q.norm(dim=-1)}
>>> register_measure("queries", norm_of_queries)
>>> [measure.name for measure in measures_of(("cheap", "queries"))]
['entropy', 'ranks', 'queries']
>>> forget_measure("queries")
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from joma.errors import UnknownNameError
from joma.measure import rank
from joma.measure.directions import overlap, top_directions
from joma.measure.rank import SEED, power_step, qk_cores, why_undefined
from joma.measure.tensors import working_dtype
from joma.metrics import Reduction
from joma.probe.calls import AttentionCall, measure_call, measure_state
from joma.probe.structure import QueryKey, plain_site

FIRST_STEPS = 12  # products for every matrix; weights of trained networks need no more
MORE_STEPS = 32  # more, where the residual says so: random weights, of which many directions are equally large
RESIDUAL = 0.02
"""Where to stop, and where a rank is no longer to be trusted: the spectral norm may be off by that fraction."""
BATCHED = ("q", "k", "state")  # tensors of a call that have the batch as their first axis, and are all it has
COMPANIONS = (
    *("effective_keys", "first_key_mass", "sink_mass", "mean_distance"),
    *("max_logit", "logit_variance", "key_bias_share"),
)
"""What is measured of an attention call besides its entropy, where it is asked for."""
QUERY_KEY_TOGETHER = 2**24
"""Numbers in the query matrices whose products are decomposed at once: they are copied to float64."""
TOP = 4  # directions of a gradient whose energy and overlap are measured


class On(StrEnum):
    """What a measure looks at."""

    ATTENTION = "attention"  # an `AttentionCall`, during the forward pass
    MATRIX = "matrix"  # a `Matrix`: the lower one of an MLP
    EVERY_MATRIX = "every_matrix"  # a `Matrix`: any parameter with two axes that is not the lower one of an MLP
    GRADIENT = "gradient"  # a `Matrix` that holds the gradient of the lower one of an MLP
    QUERY_KEY = "query_key"  # a `QueryKeyMatrices` of one attention module
    MODEL = "model"  # the `torch.nn.Module`, without wrappers


class Flagged(NamedTuple):
    """A number with the reason why it is not to be trusted."""

    value: float
    flag: str


Reading = float | int | Flagged | Tensor  # a number; or a tensor (B, H, rows), (H) or (): NaN rows are left out
Function = Callable[[Any], Any]
"""From a subject to named readings; from a list of subjects to a list of such, where the measure takes several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """A weight (outputs, inputs) and where it stands."""

    site: str
    layer: int
    weight: Float[Tensor, "outputs inputs"]


@dataclass(frozen=True, slots=True)
class QueryKeyMatrices:
    """Query and key projections of one attention module, heads along the rows."""

    site: str
    layer: int
    query: Float[Tensor, "rows_q d"]
    key: Float[Tensor, "rows_k d"]
    num_heads: int
    num_key_heads: int


def take_query_key(pair: QueryKey, read: Callable[[str], Tensor]) -> QueryKeyMatrices:
    """Take the matrices of an attention module out of its tensors; of unknown heads all together are one."""
    query, key = pair.query.take(read), pair.key.take(read)
    site, num_heads, num_key_heads = plain_site(pair.site), pair.num_heads or 1, pair.num_key_heads or 1
    return QueryKeyMatrices(site, pair.query.layer, query, key, num_heads, num_key_heads)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measure:
    """A named measure. `make` is called once for every watch, so that its function may remember."""

    name: str
    on: On
    make: Callable[[], Function]
    reductions: Mapping[str, Reduction] = field(default_factory=dict)
    """Of its metrics that are not in `joma.metrics` and are no means over rows."""
    together: bool = False  # whether the function takes a list of subjects at once and returns as many results
    draws: bool = False  # whether it may draw random numbers, so that random states must be restored afterwards
    first_sequence: bool = False  # whether the first sequence of a batch is all that matters to it
    from_start: bool = False  # whether it is called once when the watch is attached, before there is anything to record

    @cached_property
    def function(self) -> Function:
        """What is called with each subject."""
        return self.make()


def attention(call: AttentionCall, *, moments: bool = True) -> dict[str, Reading]:
    """Entropy, its companions and, if wanted, the moments of the logits and the states of the layer."""
    return attentions([call], moments=moments)[0]


def attentions(calls: Sequence[AttentionCall], *, moments: bool = True) -> list[dict[str, Reading]]:
    """Measure calls by the names that the record has; those that are alike are sequences of one batch."""
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        alike[_batch_key(call) or (i,)].append(i)
    found: dict[int, dict[str, Reading]] = {}
    for members in alike.values():
        joined = calls[members[0]]
        if len(members) > 1:
            own = {name: [getattr(calls[i], name) for i in members] for name in BATCHED}
            cat: dict[str, Any] = {name: torch.cat(each) for name, each in own.items() if each[0] is not None}
            joined = replace(joined, **cat)
        stats = measure_call(joined, moments=moments)
        named = {"entropy": stats.entropy, "entropy_fraction": stats.fraction}
        named |= {name: value for name in COMPANIONS if (value := getattr(stats, name)) is not None}
        named |= measure_state(joined) if moments else {}
        parts = {name: value.chunk(len(members)) for name, value in named.items()}
        parts["entropy_lowest_before_clamp"] = stats.lowest_before_clamp.view(len(members), -1).amin(dim=1).unbind()
        found |= {i: {name: part[n] for name, part in parts.items()} for n, i in enumerate(members)}
    return [found[i] for i in range(len(calls))]


def _batch_key(call: AttentionCall) -> tuple[Any, ...] | None:
    """Return what calls have in common that can be one batch; None for a call that has tensors of its own kind."""
    own = (call.logits, call.mask, call.bias, call.rows, call.sink)
    if call.q is None or call.k is None or any(tensor is not None for tensor in own):
        return None
    state = None if call.state is None else (call.state.shape, call.state.dtype)
    numbers = (call.scale, call.causal, call.softcap, call.window, call.offset)
    return (call.q.shape, call.k.shape, call.q.dtype, call.k.dtype, call.device, state, *numbers)


def kept(call: AttentionCall) -> AttentionCall | None:
    """Return a copy that can be measured when the model has gone on, with others; None for what is no batch of such."""
    if _batch_key(call) is None:
        return None
    tensors = {name: getattr(call, name) for name in BATCHED}
    copies: dict[str, Any] = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
    return replace(call, **copies)


def first_sequence(call: AttentionCall) -> AttentionCall:
    """Return the call of the first sequence of the batch, all of its rows and heads."""

    def first(name: str, num_axes: int) -> Tensor | None:
        tensor = getattr(call, name)
        return tensor if tensor is None or tensor.ndim < num_axes or len(tensor) == 1 else tensor[:1]

    axes = {"q": 4, "k": 4, "logits": 4, "mask": 4, "bias": 4, "sink": 3, "state": 3, "rows": 2}
    return replace(call, **{name: first(name, num_axes) for name, num_axes in axes.items()})  # type: ignore[arg-type]


def ranks(matrices: Sequence[Matrix]) -> list[dict[str, Reading]]:
    """Stable rank and norms of matrices, those of one shape by one iteration from a fixed start.

    The same weights give the same numbers, whatever was measured before. `rank_residual` is the fraction by which a
    norm may be off.
    """
    found: dict[int, dict[str, Reading]] = {}
    for group in _alike(matrices).values():
        weights = [weight for _, weight in group]
        dtype = torch.float64 if weights[0].dtype == torch.float64 else torch.float32
        sizes = torch.stack(torch._foreach_norm(weights, 2, dtype)).double()
        norms = _norms(weights)  # before anything is read: a GPU may still be busy with the training's step
        for (i, weight), size, (norm, residual) in zip(group, sizes.tolist(), norms, strict=True):
            if not 0 < size < torch.inf:
                why = why_undefined(weight)
                found[i] = {
                    "stable_rank": Flagged(torch.nan, why),
                    "spectral_norm": Flagged(0.0 if size == 0 else torch.nan, why),
                    "frobenius_norm": Flagged(size, why),
                }
                continue
            flag = "" if residual <= RESIDUAL else f"residual {residual:.2g} of the power iteration"
            found[i] = {
                "stable_rank": Flagged((size / norm) ** 2, flag),
                "spectral_norm": Flagged(norm, flag),
                "frobenius_norm": size,
                "rank_residual": residual,
            }
    return [found[i] for i in range(len(matrices))]


def _alike(matrices: Sequence[Matrix]) -> dict[tuple[Any, ...], list[tuple[int, Tensor]]]:
    """Group matrices by shape, with their positions; the shorter side lies along the columns, where vectors live."""
    alike: dict[tuple[Any, ...], list[tuple[int, Tensor]]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        weight = matrix.weight if matrix.weight.shape[0] >= matrix.weight.shape[1] else matrix.weight.mT
        alike[weight.shape, weight.dtype, weight.device].append((i, weight))
    return alike


def _norms(weights: Sequence[Tensor]) -> list[tuple[float, float]]:
    start = torch.randn(weights[0].shape[1], generator=torch.Generator().manual_seed(SEED))
    first = power_step(weights, start.to(weights[0].device).expand(len(weights), -1), num_steps=FIRST_STEPS)
    found = list(zip(first.norm.tolist(), first.residual.tolist(), strict=True))
    lagging = [i for i, (_, residual) in enumerate(found) if residual > RESIDUAL]
    if lagging:
        more = power_step([weights[i] for i in lagging], first.vector[lagging], num_steps=MORE_STEPS)
        for i, norm, residual in zip(lagging, more.norm.tolist(), more.residual.tolist(), strict=True):
            found[i] = norm, residual
    return found


def query_key_norms(pairs: Sequence[QueryKeyMatrices]) -> list[dict[str, Reading]]:
    """Spectral norm and stable rank of each head's product of query and key weights, modules of one shape together."""
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, pair in enumerate(pairs):
        shapes = (pair.query.shape, pair.key.shape, pair.num_heads, pair.num_key_heads)
        alike[*shapes, pair.query.dtype, pair.query.device].append(i)
    found: dict[int, dict[str, Reading]] = {}
    for (shape, _, num_heads, num_key_heads, *_), members in alike.items():
        num_together = max(1, QUERY_KEY_TOGETHER // shape.numel())
        for some in (members[i : i + num_together] for i in range(0, len(members), num_together)):
            # Heads of several modules are heads of one: consecutive query heads share a key head in both.
            query, key = torch.cat([pairs[i].query for i in some]), torch.cat([pairs[i].key for i in some])
            of_heads = rank.norms(qk_cores(query, key, len(some) * num_heads, len(some) * num_key_heads))
            for i, spectral, stable in zip(some, *(each.chunk(len(some)) for each in of_heads), strict=True):
                found[i] = {"qk_spectral_norm": spectral, "qk_stable_rank": stable}
    return [found[i] for i in range(len(pairs))]


def gradient_measure() -> Function:
    """Norm, stable rank and top directions of gradients, and how far these have turned since the last measurement."""
    directions: dict[str, Tensor] = {}

    def gradients(matrices: Sequence[Matrix]) -> list[dict[str, Reading]]:
        found: dict[int, dict[str, Reading]] = {}
        for group in _alike(matrices).values():
            gradients = torch.stack([gradient for _, gradient in group])
            gradients = gradients.to(working_dtype(gradients))
            energies = torch.linalg.vector_norm(gradients, dim=(1, 2)).double().square()
            top = top_directions(gradients, TOP)
            squares = top.values.square()
            named = {
                "gradient_norm": energies.sqrt(),
                "gradient_stable_rank": energies / squares[:, 0],
                "gradient_energy": squares.sum(dim=1) / energies,
            }
            columns = zip(*(values.unbind() for values in named.values()), strict=True)
            for (i, _), values in zip(group, columns, strict=True):
                found[i] = dict(zip(named, values, strict=True))
            pairs: dict[int, tuple[Tensor, Tensor]] = {}
            for (i, _), vectors in zip(group, top.vectors, strict=True):
                before = directions.get(matrices[i].site)
                if before is not None and before.shape == vectors.shape and before.device == vectors.device:
                    pairs[i] = vectors, before
                directions[matrices[i].site] = vectors
            overlaps = overlap(*map(torch.stack, zip(*pairs.values(), strict=True))) if pairs else ()
            for i, value in zip(pairs, overlaps, strict=True):
                found[i]["gradient_overlap"] = value
        return [found[i] for i in range(len(matrices))]

    return gradients


def update_measure() -> Function:
    """Norm and stable rank of W − W(0). The copy W(0) takes the memory of the lower matrices of all MLPs once more.

    The first call, when the watch is attached, keeps W(0).
    """
    starts: dict[str, Tensor] = {}

    def updates(matrices: Sequence[Matrix]) -> list[dict[str, Reading]]:
        for matrix in matrices:
            if matrix.site not in starts:
                starts[matrix.site] = matrix.weight.detach().clone()
        first = [starts[matrix.site].to(matrix.weight.device) for matrix in matrices]
        moved = torch._foreach_sub([matrix.weight for matrix in matrices], first)
        return [
            {"update_norm": found["frobenius_norm"], "update_stable_rank": found["stable_rank"]}
            for found in ranks([replace(matrix, weight=w) for matrix, w in zip(matrices, moved, strict=True)])
        ]

    return updates


BUILT_IN = {
    measure.name: measure
    for measure in (
        Measure(
            name="entropy",
            on=On.ATTENTION,
            make=lambda: partial(attentions, moments=False),
            together=True,
            first_sequence=True,
        ),
        Measure(name="first_attention", on=On.ATTENTION, make=lambda: attentions, together=True, first_sequence=True),
        Measure(name="attention", on=On.ATTENTION, make=lambda: attentions, together=True),
        Measure(name="ranks", on=On.MATRIX, make=lambda: ranks, together=True),
        Measure(name="updates", on=On.MATRIX, make=update_measure, together=True, from_start=True),
        Measure(name="all_ranks", on=On.EVERY_MATRIX, make=lambda: ranks, together=True),
        Measure(name="qk_norms", on=On.QUERY_KEY, make=lambda: query_key_norms, together=True),
        Measure(name="gradients", on=On.GRADIENT, make=gradient_measure, together=True),
    )
}
PRESETS = {
    "cheap": ("entropy", "ranks"),
    "standard": ("first_attention", "ranks"),
    "full": ("attention", "ranks", "qk_norms", "gradients", "updates"),
}
"""docs/watch.md says what each contains and costs."""
_registered: dict[str, Measure] = {}


def register_measure(
    name: str,
    function: Function,
    *,
    on: On | str = On.ATTENTION,
    reductions: Mapping[str, Reduction | str] | None = None,
) -> None:
    """Add a measure of your own, to be named in `watch(measures=...)`; registering again replaces it.

    `function` takes what `on` says (an `AttentionCall`, a `Matrix`, `QueryKeyMatrices` or the model) and returns
    numbers by the names they get in the record: plain ones, or tensors (B, H, rows) to be reduced over rows, or (H) for
    one per head. It runs under `no_grad`, random states are restored afterwards, and what it raises is recorded.
    """
    if name in BUILT_IN or name in PRESETS:
        raise ValueError(f"{name!r} is a measure of joma's own. Take another name.")
    if on not in set(On):
        raise UnknownNameError("subject of a measure", str(on), [subject.value for subject in On])
    if not callable(function):
        raise TypeError(f"A measure must be a function, got {function!r}.")
    chosen = {metric: Reduction(how) for metric, how in (reductions or {}).items()}
    _registered[name] = Measure(name=name, on=On(on), make=lambda: function, reductions=chosen, draws=True)


def forget_measure(name: str) -> None:
    """Remove a measure that was registered."""
    if name not in _registered:
        raise UnknownNameError("registered measure", name, _registered)
    del _registered[name]


def measures_of(wanted: str | Sequence[str]) -> tuple[Measure, ...]:
    """Read a preset, the name of a measure, or several of both; what they remember is theirs alone.

    >>> [measure.name for measure in measures_of("cheap")]
    ['entropy', 'ranks']
    """
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if not names:
        raise ValueError(f"There is nothing to measure: `measures` is empty. Take {' or '.join(PRESETS)}, or names.")
    flat = dict.fromkeys(name for each in names for name in PRESETS.get(each, (each,)))
    known = BUILT_IN | _registered
    for name in flat:
        if name not in known:
            raise UnknownNameError("measure", name, [*known, *PRESETS])
    return tuple(replace(known[name]) for name in flat)
