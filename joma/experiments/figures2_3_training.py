"""The layer of figures 2 and 3 and its training: all seeds of one law of tokens in one pack.

Axes: R runs, T reported times, N samples, K nodes, M tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from joma.data.frequencies import LAWS, class_tokens
from joma.engine.config import OptimiserConfig
from joma.engine.step import Stepper
from joma.errors import UnknownNameError, positive, whole
from joma.experiments.threads import one_thread
from joma.models.batch import Batch
from joma.models.layer import CONTEXTUAL, AnalysedLayer, LayerConfig, W, X, Z
from joma.theory.softmax_estimate import anchored, estimate

PAPER_TIME, PAPER_SEEDS = 200.0, 3
"""Learning rate times steps of the paper's run, and the fewest seeds, below which nothing is decided."""
NO_LEARNING = 1e9
"""Temperature at which attention stays at the token frequencies."""
QUARTERS = 4

ESTIMATE, FIRST, SECOND, CONSTANT = "estimate", "first term alone", "second term alone", "constant alone"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The paper's setting: 20 classes, 10 distinct and 10 common tokens, full batches, 2000 steps."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    num_steps: int = 2000
    lr: float = 0.1
    temperature: float = 0.5
    """T of the attention."""
    laws: tuple[str, ...] = LAWS
    """How the frequencies of distinct tokens depend on the class."""
    num_reported: int = 100
    """Times after the start at which curves are taken."""
    slower: int = 1
    """Above 1 everything is trained again with a learning rate this many times smaller, for as many more steps."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        whole("seeds", self.seeds, low=0)
        whole("slower", self.slower, low=1)
        positive("lr", self.lr)
        positive("temperature", self.temperature)
        for law in self.laws:
            if law not in LAWS:
                raise UnknownNameError("law of tokens", law, LAWS)
        whole("num_reported", self.num_reported, low=QUARTERS)
        if self.num_reported % QUARTERS or self.num_steps % self.num_reported:
            raise ValueError(
                f"`num_steps` must be a multiple of `num_reported`, and that of {QUARTERS}, got {self.num_steps} and "
                f"{self.num_reported}. Round them."
            )

    @property
    def judged_steps(self) -> tuple[int, int]:
        """A quarter of the training, which is early, and its end."""
        return self.num_steps // QUARTERS, self.num_steps

    @property
    def is_small(self) -> bool:
        """Whether it is too short, or has too few seeds, to decide anything."""
        return self.lr * self.num_steps < PAPER_TIME or len(self.seeds) < PAPER_SEEDS


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """All runs of one law of tokens."""

    x: Float[np.ndarray, "R N M"]
    v: Float[np.ndarray, "R T K M"]
    z: Float[np.ndarray, "R T M"]

    def parts(self, run: int, temperature: float) -> dict[str, Float[np.ndarray, "T M"]]:
        """Estimates of one run's logits by name, each with its constant fixed at the start."""
        found = estimate(self.v[run], self.x[run].mean(axis=0), temperature=temperature)
        of = {ESTIMATE: found.total, FIRST: found.own, SECOND: found.mean, CONSTANT: np.zeros_like(found.own)}
        return {name: anchored(part, self.z[run, 0]) for name, part in of.items()}

    def terms(self, run: int, temperature: float) -> dict[str, Float[np.ndarray, "T M"]]:
        """The two components of the estimate as the caption of figure 2 has them, without a constant."""
        found = estimate(self.v[run], self.x[run].mean(axis=0), temperature=temperature)
        return {FIRST: found.own, SECOND: found.mean}

    def saliency(self, run: int) -> Float[np.ndarray, "K M"]:
        r"""$\Delta_{kl} = E[g_kx_l]$ at the start, where every class has the same probability."""
        num_classes = self.x.shape[1]
        return (np.eye(num_classes) - 1 / num_classes) @ self.x[run] / num_classes


def train(
    config: Config,
    law: str,
    *,
    temperature: float,
    slower: int = 1,
    progress: Callable[[float], None] = lambda share: None,
) -> Training:
    """Train every seed in one pack, in float64 on the CPU: a step takes less than a millisecond.

    `progress` is told the share done at every reported time.
    """
    layer_config = LayerConfig(temperature=temperature)
    layer = AnalysedLayer(layer_config, x=lambda seed: class_tokens(seed, law=law).T.contiguous())
    num_runs, classes = len(config.seeds), torch.arange(layer_config.num_samples)
    tokens = torch.stack([classes, torch.zeros_like(classes)], dim=-1).expand(num_runs, -1, -1)
    batch = Batch(tokens=tokens, targets=classes.expand(num_runs, -1))
    sgd = OptimiserConfig(optimiser="sgd", lr=config.lr / slower)
    num_steps = config.num_steps * slower
    stepper = Stepper(
        layer, config.seeds, [sgd] * num_runs, num_steps=num_steps, steps_per_epoch=num_steps, precision="float64"
    )
    own = stepper.parameters
    v, z = [own[W] @ own[CONTEXTUAL].mT], [own[Z][:, 0].clone()]
    with one_thread("cpu"):
        for reported in range(config.num_reported):
            progress(reported / config.num_reported)
            for _ in range(num_steps // config.num_reported):
                stepper.advance(batch)
            v.append(own[W] @ own[CONTEXTUAL].mT)
            z.append(own[Z][:, 0].clone())
    return Training(x=own[X].numpy().copy(), v=torch.stack(v, dim=1).numpy(), z=torch.stack(z, dim=1).numpy())
