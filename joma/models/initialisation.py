r"""How parameters start: named schemes, each number a function of the run's seed and the parameter's name.

- `default`: every matrix $N(0, 1/\text{inputs})$, biases 0; rows of the embedding have length about 1.
- `text`: the paper's language models. Embedding and output uniform in ±0.1, output bias 0; queries, keys and values
  Xavier-uniform as one matrix, biases of attention 0; the MLP as torch.nn.Linear starts, bias included.
- `table1`: the paper's Table 1. Everything as torch.nn starts it: linear layers ±1/√inputs, embedding N(0,1).

Free attention logits start at N(0,1)/100 in all three, as in figures 2 and 3. Norms start as the identity.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from joma.models.decoder_config import DecoderConfig

Shape = tuple[int, ...]
Draw = Callable[[Shape, int, Generator], Tensor]
"""Shape, number of inputs and generator in, the start of a parameter out."""

TEXT_BOUND = 0.1
FREE_LOGIT_STD = 0.01


def _normal(std: float) -> Draw:
    return lambda shape, inputs, generator: torch.randn(shape, generator=generator) * std


def _uniform(bound: float) -> Draw:
    return lambda shape, inputs, generator: torch.rand(shape, generator=generator) * (2 * bound) - bound


def _zeros(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    return torch.zeros(shape)


def _normal_by_inputs(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    return _normal(1 / math.sqrt(inputs))(shape, inputs, generator)


def _uniform_by_inputs(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    return _uniform(1 / math.sqrt(inputs))(shape, inputs, generator)


def _xavier(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    return _uniform(math.sqrt(6 / sum(shape)))(shape, inputs, generator)


def orthonormal_rows(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    """Rows of length 1, each at right angles to the others, in a random rotation; float64."""
    columns = torch.randn(shape[::-1], generator=generator, dtype=torch.float64)
    return torch.linalg.qr(columns).Q.mT.contiguous()


def unit_rows(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    r"""Random rows of length 1: of V in d dimensions no two overlap by much more than $\sqrt{4\log V/d}$; float64."""
    return torch.nn.functional.normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """How each kind of parameter starts."""

    embedding: Draw
    positions: Draw
    attention: Draw
    attention_bias: Draw
    attention_output: Draw
    mlp: Draw
    mlp_bias: Draw
    output: Draw
    output_bias: Draw


SCHEMES = {
    "default": Scheme(
        embedding=_normal_by_inputs,
        positions=_normal_by_inputs,
        attention=_normal_by_inputs,
        attention_bias=_zeros,
        attention_output=_normal_by_inputs,
        mlp=_normal_by_inputs,
        mlp_bias=_zeros,
        output=_normal_by_inputs,
        output_bias=_zeros,
    ),
    "text": Scheme(
        embedding=_uniform(TEXT_BOUND),
        positions=_uniform(TEXT_BOUND),
        attention=_xavier,
        attention_bias=_zeros,
        attention_output=_uniform_by_inputs,
        mlp=_uniform_by_inputs,
        mlp_bias=_uniform_by_inputs,
        output=_uniform(TEXT_BOUND),
        output_bias=_zeros,
    ),
    "table1": Scheme(
        embedding=_normal(1.0),
        positions=_normal(1.0),
        attention=_uniform_by_inputs,
        attention_bias=_uniform_by_inputs,
        attention_output=_uniform_by_inputs,
        mlp=_uniform_by_inputs,
        mlp_bias=_uniform_by_inputs,
        output=_uniform_by_inputs,
        output_bias=_uniform_by_inputs,
    ),
}
"""Schemes by name."""

EMBEDDINGS: dict[str, Draw] = {"orthonormal": orthonormal_rows, "almost_orthogonal": unit_rows}
"""Starts of the embedding that replace the scheme's."""


def initial_parameters(config: DecoderConfig, shapes: Mapping[str, Shape], seed: int) -> dict[str, Tensor]:
    """Draw the parameters of one run: the same for a name, a shape and a seed whatever else there is."""
    return {
        name: _draw(config, name)(shape, _inputs(shapes, name), named_generator(seed, _source(config, name)))
        for name, shape in shapes.items()
    }


def named_generator(seed: int, name: str) -> Generator:
    """Return a generator for one parameter of one run."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _source(config: DecoderConfig, name: str) -> str:
    """Return the parameter whose numbers a parameter gets: its own, or the first block's where blocks start alike."""
    parts = name.split(".")
    if config.identical_blocks and parts[0] == "blocks":
        parts[1] = "0"
    return ".".join(parts)


def _inputs(shapes: Mapping[str, Shape], name: str) -> int:
    """Length of the vectors that a matrix, or the matrix of a bias, is applied to."""
    return shapes.get(name.removesuffix("bias") + "weight", shapes[name])[-1]


def _draw(config: DecoderConfig, name: str) -> Draw:
    scheme = SCHEMES[config.initialisation]
    *_, holder, kind = ("", *name.split("."))
    if holder.endswith("norm"):
        return _ones if kind == "weight" else _zeros
    if name == "embedding.weight":
        return EMBEDDINGS.get(config.embedding, scheme.embedding)
    if name == "positions.weight":
        return scheme.positions
    if holder == "attention":
        return _normal(FREE_LOGIT_STD)
    return _layer(scheme, name, bias=kind == "bias")


def _layer(scheme: Scheme, name: str, *, bias: bool) -> Draw:
    if name.startswith("output."):
        return scheme.output_bias if bias else scheme.output
    if ".mlp." in name:
        return scheme.mlp_bias if bias else scheme.mlp
    if bias:
        return scheme.attention_bias
    return scheme.attention_output if ".output." in name else scheme.attention


def _ones(shape: Shape, inputs: int, generator: Generator) -> Tensor:
    return torch.ones(shape)
