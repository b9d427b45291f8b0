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
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from joma.errors import UnknownNameError
from joma.measure.entropy import AttentionStatistics
from joma.measure.rank import power_step, qk_spectral_norms, why_undefined
from joma.metrics import Reduction
from joma.probe.calls import AttentionCall, measure_call

COLD_STEPS = 32
"""Products for a matrix that was not measured before."""
WARM_STEPS = 4
"""Products for one that was: weights move little between two measurements. Two would do for the norm, but lag behind
when another singular value takes the lead."""
CATCH_UP_STEPS = 8
"""More, where the residual says that they moved much."""
RESIDUAL = 0.02
"""Where to stop, and where a rank is no longer to be trusted: the spectral norm may be off by that part."""


class On(StrEnum):
    """What a measure looks at."""

    ATTENTION = "attention"
    """An `AttentionCall`, during the forward pass."""
    MATRIX = "matrix"
    """A `Matrix`: the lower one of an MLP."""
    QUERY_KEY = "query_key"
    """A `QueryKeyMatrices` of one attention module."""
    MODEL = "model"
    """The whole `torch.nn.Module`, without wrappers."""


class Flagged(NamedTuple):
    """A number with the reason why it is not to be trusted."""

    value: float
    flag: str


Reading = float | int | Flagged | Tensor
"""A number; or a tensor (B, H, rows), (H) or (): NaN rows are left out."""
Function = Callable[[Any], Any]
"""From a thing to named readings; from a list of things to a list of such, where the measure takes them together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """A weight (outputs, inputs) and where it stands."""

    site: str
    layer: int
    weight: Float[Tensor, "outputs inputs"]

    @property
    def num_numbers(self) -> int:
        """How large it is."""
        return self.weight.numel()


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryKeyMatrices:
    """Query and key projections of one attention module, heads along the rows."""

    site: str
    layer: int
    query: Float[Tensor, "rows_q d"]
    key: Float[Tensor, "rows_k d"]
    num_heads: int
    num_key_heads: int

    @property
    def num_numbers(self) -> int:
        """How large both are."""
        return self.query.numel() + self.key.numel()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measure:
    """A named measure; `make` gives every watch a function of its own, which may remember."""

    name: str
    on: On
    make: Callable[[], Function]
    reductions: Mapping[str, Reduction] = field(default_factory=dict)
    """Of its metrics that are not in `joma.metrics` and are no means over rows."""
    cost: str = ""
    """What it costs, in words."""
    together: bool = False
    """Whether the function takes a list of things at once and returns as many results."""
    draws: bool = True
    """Whether it may draw random numbers, so that random states must be restored afterwards."""
    whole_batch: bool = True
    """Whether more than the first sequence of a batch matters to it."""


Functions = Mapping[On, Mapping[Measure, Function]]
"""The measures of one watch by what they look at, with their functions, which may remember."""


def _named(stats: AttentionStatistics) -> dict[str, Reading]:
    """Name the numbers of an attention call as the record does; companions that were not asked for are left out."""
    named = {
        "entropy": stats.entropy,
        "entropy_fraction": stats.fraction,
        "effective_keys": stats.effective_keys,
        "sink_mass": stats.sink_mass,
        "mean_distance": stats.mean_distance,
        "max_logit": stats.max_logit,
        "entropy_lowest_before_clamp": stats.lowest_before_clamp,
    }
    return {name: values for name, values in named.items() if values is not None}


def full_attention(call: AttentionCall) -> dict[str, Reading]:
    """Entropy and its companions, over all sequences."""
    return _named(measure_call(call))


def cheap_entropy(call: AttentionCall) -> dict[str, Reading]:
    """Entropy alone, of the first sequence of the batch, all of its rows and heads."""

    def first(tensor: Tensor | None) -> Tensor | None:
        has_batch = tensor is not None and tensor.ndim == 4 and len(tensor) > 1  # noqa: PLR2004 (B, H, rows, keys)
        return tensor[:1] if has_batch and tensor is not None else tensor

    parts = {name: first(getattr(call, name)) for name in ("q", "k", "logits", "mask", "bias")}
    return _named(measure_call(replace(call, **parts), companions=False))  # type: ignore[arg-type]


class WarmRanks:
    """Stable rank and norms of matrices, each started from the vector of its last measurement."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._vectors: dict[str, Tensor] = {}

    def __call__(self, matrices: Sequence[Matrix]) -> list[dict[str, Reading]]:
        """Measure all of them, those of one shape by one iteration, and say by how much each norm may be off."""
        alike: dict[tuple[Any, ...], list[tuple[int, str, Tensor]]] = defaultdict(list)
        for i, matrix in enumerate(matrices):
            # The shorter side lies along the columns, where vectors live.
            weight = matrix.weight if matrix.weight.shape[0] >= matrix.weight.shape[1] else matrix.weight.mT
            is_known = self._start(matrix.site, weight) is not None
            alike[weight.shape, weight.dtype, weight.device, is_known].append((i, matrix.site, weight))
        found: dict[int, dict[str, Reading]] = {}
        for group in alike.values():
            dtype = torch.float64 if group[0][2].dtype == torch.float64 else torch.float32
            frobenius = torch.stack([torch.linalg.vector_norm(weight, dtype=dtype) for _, _, weight in group])
            sizes = frobenius.double().tolist()  # a GPU is waited for here, and once more for the norms
            sound = [each for each, size in zip(group, sizes, strict=True) if 0 < size < torch.inf]
            norms = self._norms([(site, weight) for _, site, weight in sound])
            for (i, site, weight), size in zip(group, sizes, strict=True):
                found[i] = _ranks(size, *norms[site]) if site in norms else self._undefined(site, weight, size)
        return [found[i] for i in range(len(matrices))]

    def _norms(self, sites: Sequence[tuple[str, Tensor]]) -> dict[str, tuple[float, float]]:
        """Return norm and residual of matrices of one shape, all of them known or none, and remember the vectors."""
        if not sites:
            return {}
        weights = [weight for _, weight in sites]
        starts = [start for site, weight in sites if (start := self._start(site, weight)) is not None]
        start = torch.stack(starts) if starts else None
        found = power_step(weights, start, num_steps=COLD_STEPS if start is None else WARM_STEPS)
        norms, residuals, vectors = found.norm.tolist(), found.residual.tolist(), list(found.vector)
        lagging = [i for i, residual in enumerate(residuals) if residual > RESIDUAL]
        if lagging:
            again = power_step(
                [weights[i] for i in lagging], torch.stack([vectors[i] for i in lagging]), num_steps=CATCH_UP_STEPS
            )
            for j, i in enumerate(lagging):
                norms[i], residuals[i], vectors[i] = float(again.norm[j]), float(again.residual[j]), again.vector[j]
        self._vectors |= {site: vector for (site, _), vector in zip(sites, vectors, strict=True)}
        return {site: (norm, rest) for (site, _), norm, rest in zip(sites, norms, residuals, strict=True)}

    def _start(self, site: str, weight: Tensor) -> Tensor | None:
        """Return the vector of the last measurement, unless the matrix has changed its shape or device since."""
        start = self._vectors.get(site)
        fits = start is not None and start.shape == weight.shape[1:] and start.device == weight.device
        return start if fits else None

    def _undefined(self, site: str, weight: Tensor, frobenius: float) -> dict[str, Reading]:
        self._vectors.pop(site, None)
        why = why_undefined(weight)
        return {
            "stable_rank": Flagged(torch.nan, why),
            "spectral_norm": Flagged(0.0 if frobenius == 0 else torch.nan, why),
            "frobenius_norm": Flagged(frobenius, why),
        }


def _ranks(frobenius: float, norm: float, residual: float) -> dict[str, Reading]:
    flag = "" if residual <= RESIDUAL else f"residual {residual:.2g} of the power iteration"
    return {
        "stable_rank": Flagged((frobenius / norm) ** 2, flag),
        "spectral_norm": Flagged(norm, flag),
        "frobenius_norm": frobenius,
        "rank_residual": residual,
    }


def query_key_norms(matrices: QueryKeyMatrices) -> dict[str, Reading]:
    """Spectral norm of each head's product of query and key weights; the largest of them for the layer."""
    norms = qk_spectral_norms(matrices.query, matrices.key, matrices.num_heads, matrices.num_key_heads)
    return {"qk_spectral_norm": norms}


BUILT_IN = {
    measure.name: measure
    for measure in (
        Measure(
            name="attention",
            on=On.ATTENTION,
            make=lambda: full_attention,
            cost="one to three attention forwards of the batch",
            draws=False,
        ),
        Measure(
            name="entropy",
            on=On.ATTENTION,
            make=lambda: cheap_entropy,
            cost="one attention forward of one sequence",
            draws=False,
            whole_batch=False,
        ),
        Measure(
            name="ranks",
            on=On.MATRIX,
            make=WarmRanks,
            cost="a few products of each matrix with a vector",
            together=True,
            draws=False,
        ),
        Measure(
            name="qk_norms",
            on=On.QUERY_KEY,
            make=lambda: query_key_norms,
            cost="a QR decomposition of each head's queries and keys",
            draws=False,
        ),
    )
}
PRESETS = {"cheap": ("entropy", "ranks"), "full": ("attention", "ranks", "qk_norms")}
"""`cheap`: the entropy of one sequence, and the ranks of all matrices by warm iteration; under 1 % of the time of a
125M-parameter model's training with a point every 100 steps (`benchmarks/watch.py`). `full`: all there is."""
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
    _registered[name] = Measure(name=name, on=On(on), make=lambda: function, reductions=chosen)


def forget_measure(name: str) -> None:
    """Remove a measure that was registered."""
    if name not in _registered:
        raise UnknownNameError("registered measure", name, _registered)
    del _registered[name]


def measures_of(wanted: str | Sequence[str]) -> tuple[Measure, ...]:
    """Read a preset, the name of a measure, or several of both.

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
    return tuple(known[name] for name in flat)


def functions_of(measures: Sequence[Measure]) -> Functions:
    """Make the functions of measures for one watch, by what they look at."""
    return {subject: {each: each.make() for each in measures if each.on is subject} for subject in On}
