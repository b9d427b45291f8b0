"""The smallest model: a quadratic per run, for tests of what surrounds a model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from joma.models.batch import Batch, Noise, Parameters


@dataclass(frozen=True)
class Quadratic:
    """L = ½ Σ a (w − token)² + ½ b², with a frozen scale; the first token of a run's batch is its target."""

    width: int = 3
    frozen: frozenset[str] = frozenset({"scale"})
    factors: frozenset[str] = frozenset()
    tiled: frozenset[str] = frozenset()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"w": (2, self.width), "scale": (self.width,), "b": (1,)}

    def initial(self, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).abs()
            for name, shape in self.shapes.items()
        }

    def value_and_gradient(
        self, parameters: Parameters, gradients: Parameters, batch: Batch, noise: Noise | None
    ) -> Tensor:
        apart = parameters["w"] - batch.tokens[:, :1, :1]
        gradients["w"].copy_(parameters["scale"][:, None] * apart)
        gradients["b"].copy_(parameters["b"])
        return self.losses(parameters, batch)

    def losses(self, parameters: Parameters, batch: Batch, tap: object = None, *, compiled_tap: bool = False) -> Tensor:
        apart = parameters["w"] - batch.tokens[:, :1, :1]
        squares = parameters["scale"][:, None] * apart.square()
        return squares.sum(dim=(1, 2)) / 2 + parameters["b"].square().sum(dim=1) / 2


def batch_of(targets: list[int]) -> Batch:
    """A batch that gives each run its target."""
    tokens = torch.tensor(targets).reshape(-1, 1, 1)
    return Batch(tokens=tokens, targets=tokens[:, :, 0])
