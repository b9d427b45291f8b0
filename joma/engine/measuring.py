"""What is measured of every run: validation loss, attention entropy and stable ranks.

Everything is batched over runs, and a function of the runs' weights, seeds and steps alone. Attention entropy is taken
on the whole validation set (`entropy`, and `entropy_fraction` of its maximum) and on the single window that the paper
shows (`entropy_window`). With `measure_extra` there is the largest attention logit as well, and of each MLP's lower
matrix the gradient and the change since the start; with `gradient_batches` the spectrum of every matrix's gradient, of
one batch and of the mean over several; with `measure_states` Gram drift, cosines of states and parts of the logits.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from joma.engine.config import TrainingConfig
from joma.engine.precision import working_in
from joma.engine.sources import Source
from joma.formatting import ALL_HEADS, NO_LAYER
from joma.measure.directions import spectrum
from joma.measure.entropy import AttentionStatistics, Path, attention_entropy, logits_entropy
from joma.measure.gram import gram_drift
from joma.measure.rank import SMALL, power_step, stable_rank
from joma.models.attention import without_future
from joma.models.batch import Batch, LayerReading, Model, Parameters
from joma.models.decoder import EMBEDDING, Decoder
from joma.models.decoder_config import DecoderConfig
from joma.models.initialisation import initial_parameters
from joma.models.logit_parts import POSITION, TOKEN, has_logit_parts, mean_rows, query_key_parts

LOSS, ENTROPY, FRACTION, WINDOW, RANK = "loss", "entropy", "entropy_fraction", "entropy_window", "stable_rank"
MAX_LOGIT = "max_logit"
TRAINING, VALIDATION = "training", "validation"
"""Sites of the losses."""
NUM_RANK_STEPS = 64
"""Lanczos steps for all matrices at once; each starts anew, so that a rank is a function of the weights alone."""
TRUSTED_RESIDUAL = 1e-4
"""Matrices that leave more are measured one by one; the error of the norm is about the square of it."""
TOP = 4
"""Directions of a gradient whose energy is measured."""
RUNS_AND_MATRIX = 3
"""Axes of a matrix of all runs."""
_SEED = 2310_00535
_LOWER = re.compile(r"blocks\.(\d+)\.mlp\.lower\.weight")
_LAYER = re.compile(r"blocks\.(\d+)\.(attention|mlp)\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """One number of every run."""

    metric: str
    by_run: Float[Tensor, " R"]
    site: str
    kind: str
    layer: int = NO_LAYER
    head: int = ALL_HEADS


def of_heads(
    metric: str, by_head: Float[Tensor, "R H"], site: str, layer: int, *, largest: bool = False
) -> list[Values]:
    """Return a number of attention over all heads, their mean or the largest, and of each where there are several."""
    columns = {ALL_HEADS: by_head.amax(dim=1) if largest else by_head.mean(dim=1)}
    if by_head.shape[1] > 1:
        columns |= dict(enumerate(by_head.unbind(dim=1)))
    return [
        Values(metric=metric, by_run=by_run, site=site, kind="attention", layer=layer, head=head)
        for head, by_run in columns.items()
    ]


def on_host(values: list[Values]) -> list[list[float]]:
    """Wait for the device and return the numbers, by value and run."""
    return torch.stack([each.by_run.double().cpu() for each in values]).tolist()


def measure(
    model: Model,
    parameters: Parameters,
    source: Source,
    training: TrainingConfig,
    *,
    working: Parameters | None = None,
    often: bool = False,
) -> list[Values]:
    """Measure all runs in evaluation mode; most numbers are still on the device when this returns.

    Args:
        model: Of all runs.
        parameters: In full precision.
        source: Of the validation set.
        training: Its precision, and what is measured besides.
        working: Parameters that the model runs with where some are there in another precision as well.
        often: Whether it will be called so many times that compiling for it pays.
    """
    working = parameters if working is None else working
    with torch.no_grad():
        batches = tuple(source.validation())
        found = on_validation(model, parameters, batches, training, working=working, often=often)
        window = source.single_window()
        if window is not None:
            single = AttentionMeans(num_runs=source.num_runs)
            with working_in(training.precision, source.device):
                model.losses(working, window, single.take)
            found += single.values(WINDOW)
        return found + stable_ranks(parameters, gated=is_gated(model))


def on_validation(
    model: Model,
    parameters: Parameters,
    batches: Sequence[Batch],
    training: TrainingConfig,
    *,
    working: Parameters,
    often: bool = False,
    path: Path | None = None,
) -> list[Values]:
    """Return what is measured on the whole validation set; `path` is how entropy is computed."""
    num_runs, device = batches[0].tokens.shape[0], batches[0].tokens.device
    whole = AttentionMeans(num_runs=num_runs, path=path, with_max_logit=training.measure_extra)
    cosines = StateCosines()

    def take(reading: LayerReading) -> None:
        whole.take(reading)
        if training.measure_states:
            cosines.take(reading)

    total = torch.zeros(num_runs, dtype=torch.float64, device=device)
    num_rows = 0
    for batch in batches:
        with working_in(training.precision, device):
            losses = model.losses(working, batch, take, compiled_tap=often)
        total += losses.double() * batch.targets.shape[1]
        num_rows += batch.targets.shape[1]
    found = [Values(metric=LOSS, by_run=total / num_rows, site=VALIDATION, kind="loss")]
    found += whole.values(ENTROPY, FRACTION) + cosines.values()
    if training.measure_states:
        assert isinstance(model, Decoder)  # `RunConfig` has no other
        found += logit_parts(model.config, parameters, batches, path)
    return found


def is_gated(model: Model) -> bool:
    """Whether the lower matrices of the model's MLPs are a gate and what it gates."""
    return bool(getattr(getattr(model, "config", None), "gated", False))


def stable_ranks(parameters: Parameters, *, gated: bool = False) -> list[Values]:
    """Stable rank of every MLP's lower matrix; of a gated one, of the gate and of what it gates."""
    return _of_lower(parameters, {RANK: _ranks}, gated=gated)


def starts_of(
    decoder: Decoder, seeds: Sequence[int], like: Tensor, *, lower: bool, embedding: bool
) -> dict[str, Tensor]:
    """Draw the starts of lower matrices and of the embedding again if trained, with type and device of `like`."""
    wanted = {
        name for name in decoder.shapes if (lower and _LOWER.fullmatch(name)) or (embedding and name == EMBEDDING)
    }
    shapes = {name: shape for name, shape in decoder.shapes.items() if name in wanted - decoder.frozen}
    drawn = [initial_parameters(decoder.config, shapes, seed) for seed in seeds]
    return {name: torch.stack([each[name] for each in drawn]).to(like) for name in shapes}


def gradients_and_changes(
    gradients: Parameters, parameters: Parameters, starts: Parameters, *, gated: bool = False
) -> list[Values]:
    """Norm and stable rank of the gradient and of W − W(0) of every lower matrix in `starts`.

    A matrix of zeros has no stable rank: it is NaN at the start.
    """
    found = []
    changes = {name: parameters[name] - start for name, start in starts.items()}
    wide = {name: gradients[name].to(start.dtype) for name, start in starts.items()}
    for prefix, matrices in (("gradient", wide), ("update", changes)):
        measures = {f"{prefix}_norm": _norms, f"{prefix}_stable_rank": _ranks}
        found += _of_lower(matrices, measures, gated=gated)
    return found


def gradient_spectra(
    gradients: Parameters, *, gated: bool = False, prefix: str = "gradient", ranked: Collection[str] = ()
) -> list[Values]:
    """Stable rank, energy in the top directions and stable rank without the first, of every matrix's gradient.

    Queries, keys and values are matrices of their own, and so are a gate and what it gates. NaN without a gradient.

    Args:
        gradients: Of all parameters that are trained, for all runs.
        gated: Whether lower matrices are a gate and what it gates.
        prefix: Of the metrics' names.
        ranked: Parameters whose stable rank is known.
    """
    found = []
    for name, gradient in gradients.items():
        if gradient.dim() != RUNS_AND_MATRIX:
            continue
        parts = [":query", ":key", ":value"] if ".qkv." in name else [""]
        parts = [":gate", ":up"] if gated and _LOWER.fullmatch(name) else parts
        place = _LAYER.match(name)
        layer, kind = (int(place[1]), place[2]) if place else (NO_LAYER, "model")
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        for part, matrices in zip(parts, wide.chunk(len(parts), dim=1), strict=True):
            for end, by_run in spectrum(matrices, TOP)._asdict().items():
                if end != RANK or name not in ranked:
                    site = name.removesuffix(".weight") + part
                    found.append(Values(metric=f"{prefix}_{end}", by_run=by_run, site=site, kind=kind, layer=layer))
    return found


def _norms(matrices: Float[Tensor, "R depth m n"]) -> Float[Tensor, "R depth"]:
    return torch.linalg.matrix_norm(matrices.double())


def _of_lower(
    parameters: Parameters, measures: Mapping[str, Callable[[Tensor], Tensor]], *, gated: bool
) -> list[Values]:
    """Apply each measure to every MLP's lower matrix; of a gated one, to the gate and to what it gates."""
    layers = {int(found[1]): name for name in parameters if (found := _LOWER.fullmatch(name))}
    if not layers:
        return []
    weights = torch.stack([parameters[layers[layer]] for layer in sorted(layers)], dim=1)
    parts = dict(zip((":gate", ":up"), weights.chunk(2, dim=2), strict=True)) if gated else {"": weights}
    return [
        Values(metric=metric, by_run=by_run, site=layers[layer].removesuffix(".weight") + part, kind="mlp", layer=layer)
        for metric, function in measures.items()
        for part, matrices in parts.items()
        for layer, by_run in zip(sorted(layers), function(matrices).unbind(dim=1), strict=True)
    ]


def _ranks(weights: Float[Tensor, "R depth m n"]) -> Float[Tensor, "R depth"]:
    """Measure all matrices at once: small ones exactly, others by iteration, and exactly where that leaves doubt."""
    weights = weights if weights.shape[-2] >= weights.shape[-1] else weights.mT
    if weights.shape[-1] <= SMALL:
        return stable_rank(weights)
    start = torch.randn(weights.shape[-1], generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64)
    found = power_step(weights, start.to(weights.device).expand(*weights.shape[:2], -1), num_steps=NUM_RANK_STEPS)
    ranks = (torch.linalg.matrix_norm(weights.double()).cpu() / found.norm).square()
    doubtful = ~(found.residual <= TRUSTED_RESIDUAL)
    if bool(doubtful.any()):
        ranks[doubtful] = stable_rank(weights[doubtful.to(weights.device)]).cpu()
    return ranks


@dataclass(kw_only=True, slots=True)
class AttentionMeans:
    """Takes the attention of every layer while the model runs, and averages it over sequences and rows."""

    num_runs: int
    path: Path | None = None
    """How entropy is computed; None takes the best way of the device."""
    with_max_logit: bool = False
    """Whether to keep the largest logit of each head too; entropies have the same bits with and without."""
    _sums: dict[int, Float[Tensor, "4 R H"]] = field(default_factory=dict)
    """Of each layer: entropy and number of rows, fraction and number of rows that see more than one key."""
    _largest: dict[int, Float[Tensor, "R H"]] = field(default_factory=dict)

    def take(self, reading: LayerReading) -> None:
        """Measure one layer, in full precision whatever the model runs in."""
        stats = _statistics(reading, self.path)
        entropy, fraction = (
            rows.double().unflatten(0, (self.num_runs, -1))
            for rows in (stats.entropy, stats.fraction.expand_as(stats.entropy))
        )
        total = entropy.sum((1, 3))
        num_rows = torch.full_like(total, entropy.shape[1] * entropy.shape[3])
        num_fractions = (~fraction.isnan()).double().sum((1, 3))
        sums = torch.stack([total, num_rows, fraction.nansum((1, 3)), num_fractions])
        self._sums[reading.layer] = self._sums[reading.layer] + sums if reading.layer in self._sums else sums
        if self.with_max_logit:
            rows = _statistics(reading, self.path, companions=True).max_logit
            assert rows is not None
            largest = rows.double().unflatten(0, (self.num_runs, -1)).amax((1, 3))
            before = self._largest.get(reading.layer)
            self._largest[reading.layer] = largest if before is None else torch.maximum(before, largest)

    def values(self, entropy: str, fraction: str | None = None) -> list[Values]:
        """Return means over all rows and largest logits, over heads and, where there are several, head by head."""
        found = []
        for layer, sums in sorted(self._sums.items()):
            by_metric = {entropy: sums[0] / sums[1]}
            if fraction is not None:
                by_metric[fraction] = sums[2] / sums[3]
            if layer in self._largest:
                by_metric[MAX_LOGIT] = self._largest[layer]
            for metric, by_head in by_metric.items():
                site = f"blocks.{layer}.attention"
                found += of_heads(metric, by_head, site, layer, largest=metric == MAX_LOGIT)
        return found


def _statistics(reading: LayerReading, path: Path | None, *, companions: bool = False) -> AttentionStatistics:
    if reading.logits is not None:
        logits = without_future(reading.logits) if reading.causal else reading.logits
        return logits_entropy(logits, companions=companions)
    assert reading.q is not None and reading.k is not None
    with working_in("fp32", reading.q.device):
        return attention_entropy(
            reading.q, reading.k, causal=reading.causal, scale=reading.scale, companions=companions, path=path
        )


def gram_drifts(parameters: Parameters, starts: Parameters) -> list[Values]:
    """Drift of the embedding's inner products since the start, where it is trained; run by run, as it is large."""
    if EMBEDDING not in starts:
        return []
    by_run = torch.stack([gram_drift(*pair) for pair in zip(parameters[EMBEDDING], starts[EMBEDDING], strict=True)])
    return [Values(metric="gram_drift", by_run=by_run, site="embedding", kind="model")]


@dataclass(kw_only=True, slots=True)
class StateCosines:
    """Takes the states of every block while the model runs, and averages cosines over all positions."""

    _sums: dict[tuple[int, str], Float[Tensor, " R"]] = field(default_factory=dict)
    _num: dict[int, int] = field(default_factory=dict)
    _first: Float[Tensor, "R B L D"] | None = None

    def take(self, reading: LayerReading) -> None:
        """Compare what leaves a block with what came into it, and into the first."""
        self._first = reading.before if reading.layer == 0 else self._first
        assert self._first is not None
        for metric, other in (("layer_cosine", reading.before), ("entrance_cosine", self._first)):
            found = cosine_similarity(reading.after.double(), other.double(), dim=-1).sum((1, 2))
            self._sums[reading.layer, metric] = self._sums.get((reading.layer, metric), 0) + found
        self._num[reading.layer] = self._num.get(reading.layer, 0) + reading.after[0, ..., 0].numel()

    def values(self) -> list[Values]:
        """Return the means, layer by layer."""
        return [
            Values(metric=metric, by_run=sums / self._num[layer], site=f"blocks.{layer}", kind="block", layer=layer)
            for (layer, metric), sums in sorted(self._sums.items())
        ]


def logit_parts(
    config: DecoderConfig, parameters: Parameters, batches: Sequence[Batch], path: Path | None = None
) -> list[Values]:
    """Spread and entropy of the first layer's logits from each part of the query alone, on keys without their mean.

    Nothing where the logits are no sum of such parts (`joma.models.logit_parts`).
    """
    if not has_logit_parts(config):
        return []
    tokens = [batch.tokens for batch in batches]
    mean = mean_rows(parameters, tokens)
    sums: dict[tuple[str, str], Float[Tensor, "R H"]] = {}
    num_rows = 0
    for each in tokens:
        with working_in("fp32", each.device):
            queries, keys = query_key_parts(config, parameters, parameters, each, mean)
            k = keys[TOKEN] + keys[POSITION]
            for part, query in queries.items():
                q = query.expand_as(k).flatten(0, 1)
                stats = attention_entropy(
                    q, k.flatten(0, 1), causal=config.causal, companions=False, moments=True, path=path
                )
                assert stats.logit_variance is not None
                for metric, rows in (("part_entropy", stats.entropy), ("part_spread", stats.logit_variance.sqrt())):
                    own = rows.double().unflatten(0, (len(each), -1)).sum((1, 3))
                    sums[part, metric] = sums.get((part, metric), 0) + own
        num_rows += each[0].numel()
    found = []
    for (part, metric), total in sums.items():
        found += of_heads(metric, total / num_rows, f"blocks.0.attention:{part}", 0)
    return found
