"""What is measured of states and embeddings with `measure_states`: Gram drift, cosines, parts of the logits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from joma.engine.precision import working_in
from joma.engine.values import Values, of_heads
from joma.measure.entropy import Path, attention_entropy
from joma.measure.gram import gram_drift
from joma.models.batch import Batch, LayerReading, Parameters
from joma.models.decoder import EMBEDDING
from joma.models.decoder_config import DecoderConfig
from joma.models.logit_parts import POSITION, TOKEN, has_logit_parts, mean_rows, query_key_parts


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
