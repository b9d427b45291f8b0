"""A layer whose attention a test makes as sharp, or as flat, as it likes."""

import models
import torch
from torch import nn

from joma.probe.alarm import Alarm

ENTROPY_ALONE = Alarm(logit_watch=float("inf"), logit_bound=float("inf"))
"""Says nothing of logits, which are as large here as they like."""


class Scaled(nn.Module):
    """One layer whose queries a test makes as sharp, or as flat, as it likes."""

    def __init__(self):
        super().__init__()
        self.block = models.HandWritten(layers=1)
        self.sharpness = 1.0

    def forward(self, tokens):
        with torch.no_grad():
            self.block.blocks[0].qkv.weight[: models.WIDTH] = self.sharpness * torch.eye(models.WIDTH)
            self.block.blocks[0].qkv.weight[models.WIDTH : 2 * models.WIDTH] = torch.eye(models.WIDTH)
            self.block.blocks[0].qkv.bias.zero_()
        return self.block(tokens)


def collapse(seen, model, steps, first_sharp, sharpness=1e4):
    for step in steps:
        model.sharpness = sharpness if step >= first_sharp else 1.0
        # Every token once: two of a kind share a row's attention, however sharp it is.
        model(torch.randperm(models.VOCABULARY, generator=torch.Generator().manual_seed(step))[None, :12])
        seen.step(step)
