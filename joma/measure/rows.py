"""One attention call to be measured, and the raw numbers that every path returns for its rows."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from joma.measure.masks import Visibility

PerRow = Float[Tensor, "B H rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Queries, keys and everything that shapes their softmax."""

    q: Float[Tensor, "B H rows D"]
    k: Float[Tensor, "B G keys D"]
    scale: float
    softcap: float | None
    bias: Float[Tensor, "b h r s"] | None
    """Added to the logits; any axis may be 1."""
    visibility: Visibility
    companions: bool

    @property
    def bias_depends_on_keys_alone(self) -> bool:
        """Whether the bias is the same for every row, as ALiBi is up to a constant."""
        return self.bias is None or self.bias.shape[-2] == 1

    @property
    def working_dtype(self) -> torch.dtype:
        """Half precision is computed in float32: rounding its results would cost more than the method does."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a path found for every row, before clamping and before rows without keys are struck out."""

    entropy: PerRow
    effective_keys: PerRow | None = None
    r"""$1/\sum_j p_j^2$."""
    sink_mass: PerRow | None = None
    mean_distance: PerRow | None = None
    max_logit: PerRow | None = None


def in_full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Keep autocast away from the products of a measurement."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
