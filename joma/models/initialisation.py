r"""How parameters start: named schemes, each number a function of the run's seed and the parameter's name.

- `default`: every matrix $N(0, 1/\text{inputs})$, biases 0; rows of the embedding have length about 1.
- `text`: the paper's language models. Embedding and output uniform in ±0.1, output bias 0; queries, keys and values
  Xavier-uniform as one matrix, biases of attention 0; the MLP as torch.nn.Linear starts, bias included.
- `table1`: the paper's Table 1. Everything as torch.nn starts it: linear layers ±1/√inputs, embedding N(0,1).

Free attention logits start at N(0,1)/100 in all three, as in figures 2 and 3. Norms start as the identity.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from joma.models.decoder_config import DIRECTED, DecoderConfig

Shape = tuple[int, ...]
Draw = Callable[[Shape, int, Generator], Tensor]
"""Shape, number of inputs and generator in, the start of a parameter out."""

TEXT_BOUND = 0.1
FREE_LOGIT_STD = 0.01


def _normal(std: float | None = None) -> Draw:
    """Normal numbers; of variance 1/inputs when `std` is None."""
    return lambda shape, inputs, generator: torch.randn(shape, generator=generator) * (std or 1 / math.sqrt(inputs))


def _uniform(bound: float | None = None) -> Draw:
    """Uniform numbers in ±bound, ±1/√inputs when None."""

    def draw(shape: Shape, inputs: int, generator: Generator) -> Tensor:
        own = bound or 1 / math.sqrt(inputs)
        return torch.rand(shape, generator=generator) * (2 * own) - own

    return draw


def _zeros(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    return torch.zeros(shape)


def _xavier(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    return _uniform(math.sqrt(6 / sum(shape)))(shape, inputs, generator)


def orthonormal_rows(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    """Rows of length 1, each at right angles to the others, in a random rotation; float64."""
    columns = torch.randn(shape[::-1], generator=generator, dtype=torch.float64)
    return torch.linalg.qr(columns).Q.mT.contiguous()


def unit_rows(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    r"""Random rows of length 1: of V in d dimensions no two overlap by much more than $\sqrt{4\log V/d}$; float64."""
    return torch.nn.functional.normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)


SCHEMES: dict[str, dict[str, Draw]] = {
    "default": {"weight": _normal(), "bias": _zeros},
    "text": {
        "weight": _uniform(),
        "bias": _zeros,
        "embedding.weight": _uniform(TEXT_BOUND),
        "positions.weight": _uniform(TEXT_BOUND),
        "output.weight": _uniform(TEXT_BOUND),
        "attention.qkv.weight": _xavier,
        "attention.value.weight": _xavier,
        "mlp.lower.bias": _uniform(),
        "mlp.upper.bias": _uniform(),
    },
    "table1": {
        "weight": _uniform(),
        "bias": _uniform(),
        "embedding.weight": _normal(1.0),
        "positions.weight": _normal(1.0),
    },
}
"""How parameters start in each scheme: by name, those of a block without its number, else by kind."""

EMBEDDINGS: dict[str, Draw] = {"orthonormal": orthonormal_rows, "almost_orthogonal": unit_rows}
"""Starts of the embedding that replace the scheme's."""


def initial_parameters(config: DecoderConfig, shapes: Mapping[str, Shape], seed: int) -> dict[str, Tensor]:
    """Draw the parameters of one run: the same for a name, a shape and a seed whatever else there is."""
    found = {}
    for name, shape in shapes.items():
        # Blocks that start alike get the numbers of the first.
        source = re.sub(r"^blocks\.\d+", "blocks.0", name) if config.identical_blocks else name
        # Inputs: length of the vectors that a matrix, or the matrix of a bias, is applied to.
        inputs = shapes.get(name.removesuffix("bias") + "weight", shape)[-1]
        found[name] = _draw(config, name)(shape, inputs, named_generator(seed, source))
    return found


def named_generator(seed: int, name: str) -> Generator:
    """Return a generator for one parameter of one run."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _draw(config: DecoderConfig, name: str) -> Draw:
    own = name.split(".", maxsplit=2)[2] if name.startswith("blocks.") else name
    kind = own.rpartition(".")[2]
    if own.endswith("norm.weight"):
        return lambda shape, inputs, generator: torch.ones(shape)
    if own.endswith("norm.bias"):
        return _zeros
    if own == "attention.logits":
        return _normal(FREE_LOGIT_STD)
    scheme = SCHEMES[config.initialisation]
    if own == "positions.weight" and config.positions in DIRECTED:
        return unit_rows
    if own == "embedding.weight" and config.embedding in EMBEDDINGS:
        return EMBEDDINGS[config.embedding]
    return scheme.get(own, scheme[kind])
