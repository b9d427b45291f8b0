"""Numbers that are measured of every run of a pack at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

NO_LAYER = -1
ALL_HEADS = -1


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
