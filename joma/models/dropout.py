"""Dropout whose mask is a function of (run seed, step, site)."""

import torch
from jaxtyping import Float
from torch import Tensor

from joma.models.batch import Noise
from joma.randomness import keep_mask


def dropout(x: Float[Tensor, "R ..."], rate: float, noise: Noise | None, site: str) -> Float[Tensor, "R ..."]:
    """Zero a share `rate` of each run's numbers and scale the others up; without noise (evaluation) leave them."""
    if noise is None or rate == 0:
        return x
    keep = keep_mask(noise.keys, noise.step, site, x.shape[1:], rate)
    return torch.where(keep, x * (1 / (1 - rate)), 0.0)
