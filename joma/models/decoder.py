"""The decoder: embedding, blocks of attention and MLP, output layer, for all runs at once.

Every parameter has a leading run axis and one run is R = 1. A block is pure functions of named tensors, so that a step
can be compiled and captured as a whole. The embedding and the output layer, the two ends that are as wide as the
vocabulary, are differentiated by hand, straight into the buffers that the optimiser reads.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.models import vocabulary_loss
from joma.models.batch import Batch, Noise, Parameters, Tap
from joma.models.block import (
    KeyBias,
    Passed,
    block,
    block_of_last,
    block_shapes,
    compiled_block,
    compiled_block_of_last,
    compiled_inside,
)
from joma.models.decoder_config import DecoderConfig
from joma.models.embedding import add_row_gradients, clear, embedding_rows
from joma.models.functional import (
    Stream,
    beside_sequences,
    compiled,
    dropout,
    norm,
    norm_shapes,
    positioned,
    site_streams,
)
from joma.models.initialisation import initial_parameters

State = Float[Tensor, "R B L D"]
Tokens = Int[Tensor, "R B L"]

EMBEDDING, OUTPUT, OUTPUT_BIAS = "embedding.weight", "output.weight", "output.bias"
POSITIONS = "positions.weight"
MATRIX_AXES = 2
"""Of a matrix, without the axis of the runs."""


class Decoder:
    """A transformer of the given settings, as functions of its parameters.

    >>> decoder = Decoder(DecoderConfig(vocabulary=5, width=4, hidden=8, positions="none"))
    >>> decoder.shapes["blocks.0.attention.qkv.weight"], decoder.shapes["blocks.0.mlp.lower.weight"]
    ((12, 4), (8, 4))
    """

    def __init__(self, config: DecoderConfig) -> None:
        """Lay out the parameters."""
        config.check_embedding()
        self.config = config
        self.shapes = _shapes(config)
        self._block_names = tuple(block_shapes(config))
        self.frozen = frozenset(name for name in self.shapes if _is_frozen(config, name))
        self.factors = frozenset(name for name, shape in self.shapes.items() if _is_factor(name, shape))
        self.tiled = frozenset([EMBEDDING if config.tied else OUTPUT])

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Parameters of one run at its start, from its seed alone; no run axis."""
        return initial_parameters(self.config, self.shapes, seed)

    def embed(self, parameters: Parameters, tokens: Tokens) -> State:
        """Return the rows of the embedding as they are, before scale, positions and dropout."""
        return embedding_rows(parameters[EMBEDDING], tokens)

    def hidden(
        self,
        parameters: Parameters,
        rows: State,
        tokens: Tokens,
        noise: Noise | None = None,
        tap: Tap | None = None,
        key_bias: KeyBias = None,
        *,
        compiled_tap: bool = False,
    ) -> Float[Tensor, "R B P D"]:
        """Run everything between the embedding's rows and the output layer; no dropout without noise.

        The positions are all, or the last one where a class is read off it and nothing else is asked for. On a GPU
        blocks are compiled, those with a tap where `compiled_tap` says so: each shape of an evaluation takes seconds.
        """
        config = self.config
        embedding, streams = site_streams(noise, config.dropout, config.depth)
        x = self._entered(parameters, rows, embedding)
        inside = compiled_inside() if compiled_tap and x.is_cuda else block
        for layer in range(config.depth):
            x = self._pass(layer, self._of_block(parameters, layer), x, tokens, streams[layer], tap, key_bias, inside)
        return self._final(parameters, x).to(rows.dtype)

    def readout(self, parameters: Parameters) -> tuple[Float[Tensor, "R W D"], Float[Tensor, "R V"]]:
        """Return matrix and bias of the output layer; the matrix may have rows of zeros behind the words'."""
        return parameters[EMBEDDING if self.config.tied else OUTPUT], parameters[OUTPUT_BIAS]

    def read(self, hidden: State) -> Float[Tensor, "R N D"]:
        """Return the states that the output layer reads: of all positions, or of the last."""
        return hidden[:, :, -1] if self.config.readout == "class" else hidden.flatten(1, 2)

    def losses(
        self, parameters: Parameters, batch: Batch, tap: Tap | None = None, *, compiled_tap: bool = False
    ) -> Float[Tensor, " R"]:
        """Loss of each run in evaluation mode."""
        with torch.no_grad():
            rows, key_bias = self.embed(parameters, batch.tokens), batch.key_bias
            hidden = self.read(
                self.hidden(parameters, rows, batch.tokens, tap=tap, key_bias=key_bias, compiled_tap=compiled_tap)
            )
            return vocabulary_loss.loss(
                hidden,
                *self.readout(parameters),
                batch.targets,
                batch.weights,
                scale=self.config.logit_scale,
                working=_working(hidden),
            )

    def value_and_gradient(
        self, parameters: Parameters, gradients: Parameters, batch: Batch, noise: Noise | None
    ) -> Float[Tensor, " R"]:
        """Loss of each run; the gradient of every trained parameter overwrites its entry of `gradients`."""
        rows = self.embed(parameters, batch.tokens).detach()
        leaves = self._leaves(parameters, gradients, num_sequences=batch.tokens.shape[1])
        with torch.enable_grad():
            rows.requires_grad_(EMBEDDING in gradients)
            hidden = self.read(
                self.hidden({**parameters, **leaves}, rows, batch.tokens, noise, key_bias=batch.key_bias)
            )
        losses, hidden_gradient = self._output(parameters, gradients, hidden.detach(), batch)
        rows_gradient = self._backward(leaves, rows, hidden, hidden_gradient, gradients)
        if rows_gradient is not None:
            if not self.config.tied:
                clear(gradients[EMBEDDING])
            add_row_gradients(gradients[EMBEDDING], batch.tokens, rows_gradient)
        return losses

    def _leaves(self, parameters: Parameters, gradients: Parameters, num_sequences: int) -> dict[str, Tensor]:
        """The trained parameters between embedding and output, as leaves of a graph; vectors beside each sequence."""
        ends = (EMBEDDING, OUTPUT, OUTPUT_BIAS)
        own = {name: parameters[name].detach() for name in gradients if name not in ends}
        is_vector = {name: len(self.shapes[name]) == 1 for name in own}
        return {
            name: (beside_sequences(each, num_sequences) if is_vector[name] else each).requires_grad_()
            for name, each in own.items()
        }

    def _backward(
        self, leaves: Parameters, rows: State, hidden: Tensor, hidden_gradient: Tensor, gradients: Parameters
    ) -> State | None:
        """Write the gradients of the leaves where they belong; return that of the embedding's rows if it is needed."""
        inputs = [*leaves.values(), *([rows] if rows.requires_grad else [])]
        found = torch.autograd.grad(hidden, inputs, hidden_gradient)
        by_name = dict(zip(leaves, found, strict=False))
        for group in _by_block(leaves):
            _gather([gradients[name] for name in group], [by_name[name] for name in group])
        return found[-1] if rows.requires_grad else None

    def _output(
        self, parameters: Parameters, gradients: Parameters, hidden: Float[Tensor, "R N D"], batch: Batch
    ) -> tuple[Float[Tensor, " R"], Float[Tensor, "R N D"]]:
        """Loss, and gradient with respect to the hidden states; that of the output layer goes where it belongs."""
        return vocabulary_loss.loss_and_gradients(
            hidden,
            *self.readout(parameters),
            batch.targets,
            batch.weights,
            scale=self.config.logit_scale,
            weight_gradient=gradients.get(EMBEDDING if self.config.tied else OUTPUT),
            bias_gradient=gradients.get(OUTPUT_BIAS),
            working=_working(hidden),
        )

    def _entered(self, parameters: Parameters, rows: State, stream: Stream | None) -> State:
        """Turn rows of the embedding into the states that the first block sees."""
        learned, length = parameters.get(POSITIONS), rows.shape[-2]
        if learned is not None and length > self.config.max_length:
            raise ValueError(
                f"Learned positions reach `max_length` {self.config.max_length}, got {length} tokens. "
                "Shorten the window, or enlarge `max_length`."
            )
        # An evaluation has few batches, and shapes of its own: to compile for them takes longer than it saves.
        is_compiled = rows.is_cuda and torch.is_grad_enabled()
        return (compiled_entrance() if is_compiled else entrance)(self.config, rows, learned, stream)

    def _pass(
        self,
        layer: int,
        parameters: Parameters,
        x: State,
        tokens: Tokens,
        streams: Mapping[str, Stream],
        tap: Tap | None,
        key_bias: KeyBias,
        inside: Callable[..., Passed],
    ) -> Float[Tensor, "R B P D"]:
        """Pass the states through one block, on a GPU the compiled one; a tap gets what was `inside`."""
        if tap is None and not streams and self._reads_last_only(layer):
            return (compiled_block_of_last() if x.is_cuda else block_of_last)(self.config, parameters, x, key_bias)
        if tap is None and x.is_cuda:
            return compiled_block()(self.config, parameters, x, tokens, streams, key_bias)
        passed = inside(self.config, parameters, x, tokens, streams, key_bias)
        if tap is not None:
            tap(passed.reading(layer, self.config))
        return passed.state

    def _reads_last_only(self, layer: int) -> bool:
        """Whether nothing but the last position of a block is read: then the others need not be computed."""
        config = self.config
        is_plain = config.attention_logits == "projected" and config.positions != "rotary"
        return is_plain and config.readout == "class" and layer == config.depth - 1

    def _of_block(self, parameters: Parameters, layer: int) -> dict[str, Tensor]:
        """The parameters of one block under the names that every block knows them by."""
        return {name: parameters[f"blocks.{layer}.{name}"] for name in self._block_names}

    def _final(self, parameters: Parameters, x: State) -> State:
        """Norms that stand before each part leave the sum of all without one: it gets its own."""
        return norm(self.config, parameters, "final_norm", x) if self.config.norm_place == "before" else x


def entrance(config: DecoderConfig, rows: State, learned: Tensor | None, stream: Stream | None) -> State:
    """Scale the rows of the embedding, add positions, and drop by the stream."""
    return dropout(positioned(config, rows, learned), config.dropout, stream)


@cache
def compiled_entrance() -> Callable[..., State]:
    """Return `entrance` compiled: waves and the mask of dropout take some thirty kernels otherwise."""
    return compiled(entrance)


def _by_block(names: Iterable[str]) -> list[list[str]]:
    """Return the names block by block, what belongs to none by itself: one kernel serves all blocks, at any depth."""
    return [list(group) for _, group in groupby(names, key=lambda name: name.split(".")[:2])]


def _gather(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Bring gradients of all runs to where they belong, those of vectors summed over sequences; on a GPU at once."""
    if targets[0].is_cuda and targets[0].dtype != torch.float64:
        from joma.models.gather_triton import gather_all  # noqa: PLC0415 (Triton is there where a GPU is)

        gather_all(targets, sources)
        return
    pairs = list(zip(targets, sources, strict=True))
    torch._foreach_copy_(targets, [each.sum(dim=1) if each.ndim > to.ndim else each for to, each in pairs])


def _shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the order of the computation."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocabulary, config.width)}
    if config.positions == "learned":
        shapes[POSITIONS] = (config.max_length, config.width)
    for layer in range(config.depth):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block_shapes(config).items()}
    if config.norm_place == "before":
        shapes |= norm_shapes(config, "final_norm")
    if not config.tied:
        shapes[OUTPUT] = (config.num_outputs, config.width)
    return shapes | {OUTPUT_BIAS: (config.num_outputs,)}


def _is_frozen(config: DecoderConfig, name: str) -> bool:
    if config.only_block is not None and not name.startswith(f"blocks.{config.only_block}."):
        return True
    if name == EMBEDDING:
        return not config.train_embedding
    return bool(config.frozen) and f".{config.frozen}." in name


def _is_factor(name: str, shape: tuple[int, ...]) -> bool:
    """Whether it is a matrix of a block or the output's; the embedding's rows are read one by one too."""
    return name == OUTPUT or (name.startswith("blocks.") and name.endswith(".weight") and len(shape) == MATRIX_AXES)


def _working(hidden: Tensor) -> torch.dtype | None:
    """Dtype of the output layer's products: that of autocast where it is on, else the states' own."""
    kind = "cpu" if hidden.is_meta else hidden.device.type  # where shapes alone are counted, as a CPU would take them
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else None
