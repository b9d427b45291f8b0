"""What the engine passes to a model, and what it asks of one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

Parameters = Mapping[str, Tensor]
"""Named tensors with the run axis in front."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One step's data for every run."""

    tokens: Int[Tensor, "R B L"]
    targets: Int[Tensor, "R N"]
    """The right answer of each row of the loss: B·L next tokens, B classes, or K masked words."""
    weights: Float[Tensor, "R N"] | None = None
    """Weight of each row in the run's loss, summing to 1; None is the plain mean."""
    key_bias: Float[Tensor, "R B L"] | None = None
    """Added to every attention logit towards a position: the logarithm of how many equal positions it stands for."""
    rows: Int[Tensor, "R K"] | None = None
    """Positions that the output layer reads, counted through all sequences; None is all, or the last of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Where dropout takes its random numbers from."""

    keys: Int[Tensor, "R 2"]
    """Of the runs (`joma.randomness.run_keys`)."""
    step: Int[Tensor, ""]
    """A tensor, so that a captured step reads the step it is at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerReading:
    """What one block computed, for measuring."""

    layer: int
    q: Float[Tensor, "RB H L Dh"] | None
    """Queries, runs folded into the batch; None where the logits are free."""
    k: Float[Tensor, "RB H L Dh"] | None
    logits: Float[Tensor, "RB H L L"] | None
    """Free or soft-capped logits, before the mask; None where queries and keys say all."""
    scale: float
    causal: bool
    hidden: Float[Tensor, "R B L F"]
    """Activations of the hidden neurons."""
    before: Float[Tensor, "R B L D"]
    """States on their way into the block."""
    after: Float[Tensor, "R B L D"]
    """States on their way out of it."""


Tap = Callable[[LayerReading], None]
"""Takes the reading of each block while the model runs."""


@runtime_checkable
class Model(Protocol):
    """A network whose every parameter has a leading run axis."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter without the run axis, in a fixed order."""

    @property
    def frozen(self) -> frozenset[str]:
        """Names of the parameters that stay as they start."""

    @property
    def factors(self) -> frozenset[str]:
        """Names of the parameters that are nothing but factors of matrix products: a step in bf16 gets them rounded."""

    @property
    def tiled(self) -> frozenset[str]:
        """Names of the matrices that a step on a GPU gets with rows of zeros after theirs, up to a whole tile."""

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Parameters of one run at its start, on the CPU, from its seed alone."""

    def value_and_gradient(
        self, parameters: Parameters, gradients: Parameters, batch: Batch, noise: Noise | None
    ) -> Float[Tensor, " R"]:
        """Loss of each run; `gradients`, one for each trained parameter, are overwritten."""

    def losses(
        self, parameters: Parameters, batch: Batch, tap: Tap | None = None, *, compiled_tap: bool = False
    ) -> Float[Tensor, " R"]:
        """Loss of each run in evaluation mode: no dropout, no gradient.

        `compiled_tap` is for batches of a shape that comes again and again: on a GPU what is tapped may be compiled.
        """
