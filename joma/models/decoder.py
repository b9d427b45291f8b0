"""The decoder: embedding, blocks of attention and MLP, output layer, for all runs at once.

Every parameter has a leading run axis and one run is R = 1. A block is pure functions of named tensors, so that a step
can be compiled and captured as a whole. The embedding and the output layer, the two ends that are as wide as the
vocabulary, are differentiated by hand, straight into the buffers that the optimiser reads.
"""

from collections.abc import Callable, Mapping
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.models import vocabulary_loss
from joma.models.batch import Batch, Noise, Parameters, Tap
from joma.models.block import KeyBias, block, block_of_last, block_shapes, compiled_block, compiled_block_of_last
from joma.models.compilation import compiled
from joma.models.decoder_config import DecoderConfig
from joma.models.dropout import Stream, dropout, site_streams
from joma.models.embedding import add_row_gradients, embedding_rows
from joma.models.initialisation import initial_parameters
from joma.models.normalisation import norm, norm_shapes
from joma.models.positions import sinusoidal

State = Float[Tensor, "R B L D"]
Tokens = Int[Tensor, "R B L"]

EMBEDDING, OUTPUT, OUTPUT_BIAS = "embedding.weight", "output.weight", "output.bias"


class Decoder:
    """A transformer of the given settings, as functions of its parameters.

    >>> decoder = Decoder(DecoderConfig(vocabulary=5, width=4, hidden=8, positions="none"))
    >>> decoder.shapes["blocks.0.attention.qkv.weight"], decoder.shapes["blocks.0.mlp.lower.weight"]
    ((12, 4), (8, 4))
    """

    def __init__(self, config: DecoderConfig) -> None:
        """Lay out the parameters."""
        self.config = config
        self.shapes = _shapes(config)
        self._block_names = tuple(block_shapes(config))
        self.frozen = frozenset(name for name in self.shapes if _is_frozen(config, name))

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
    ) -> Float[Tensor, "R B P D"]:
        """Run everything between the embedding's rows and the output layer; no dropout without noise.

        The positions are all, or the last one where a class is read off it and nothing else is asked for.
        """
        config = self.config
        embedding, streams = site_streams(noise, config.dropout, config.depth)
        x = dropout(self._positioned(parameters, rows), config.dropout, embedding)
        for layer in range(config.depth):
            x = self._pass(layer, self._of_block(parameters, layer), x, tokens, streams[layer], tap, key_bias)
        return self._final(parameters, x).to(rows.dtype)

    def readout(self, parameters: Parameters) -> tuple[Float[Tensor, "R V D"], Float[Tensor, "R V"]]:
        """Return matrix and bias of the output layer."""
        return parameters[EMBEDDING if self.config.tied else OUTPUT], parameters[OUTPUT_BIAS]

    def read(self, hidden: State) -> Float[Tensor, "R N D"]:
        """Return the states that the output layer reads: of all positions, or of the last."""
        return hidden[:, :, -1] if self.config.readout == "class" else hidden.flatten(1, 2)

    def losses(self, parameters: Parameters, batch: Batch, tap: Tap | None = None) -> Float[Tensor, " R"]:
        """Loss of each run in evaluation mode."""
        with torch.no_grad():
            rows = self.embed(parameters, batch.tokens)
            hidden = self.read(self.hidden(parameters, rows, batch.tokens, tap=tap, key_bias=batch.key_bias))
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
        leaves = self._leaves(parameters, gradients)
        with torch.enable_grad():
            rows.requires_grad_(EMBEDDING in gradients)
            hidden = self.read(
                self.hidden({**parameters, **leaves}, rows, batch.tokens, noise, key_bias=batch.key_bias)
            )
        losses, hidden_gradient = self._output(parameters, gradients, hidden.detach(), batch)
        names = [*leaves, *([EMBEDDING] if rows.requires_grad else [])]
        inputs = [*leaves.values(), *([rows] if rows.requires_grad else [])]
        found = dict(zip(names, torch.autograd.grad(hidden, inputs, hidden_gradient), strict=True))
        write = compiled_write() if rows.is_cuda else write_gradients
        cleared = [gradients[EMBEDDING]] if rows.requires_grad and not self.config.tied else []
        write([gradients[name] for name in leaves], [found[name] for name in leaves], cleared)
        if rows.requires_grad:
            add_row_gradients(gradients[EMBEDDING], batch.tokens, found[EMBEDDING])
        return losses

    def _leaves(self, parameters: Parameters, gradients: Parameters) -> dict[str, Tensor]:
        """The trained parameters between embedding and output, as leaves of a graph of their own."""
        ends = (EMBEDDING, OUTPUT, OUTPUT_BIAS)
        return {name: parameters[name].detach().requires_grad_() for name in gradients if name not in ends}

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

    def _positioned(self, parameters: Parameters, rows: State) -> State:
        """Scale the rows of the embedding and add the positions, where those are added."""
        x = rows if self.config.embedding_scale == 1 else rows * self.config.embedding_scale
        length, width = rows.shape[-2:]
        if self.config.positions == "sinusoidal":
            return x + sinusoidal(length, width, rows)
        if self.config.positions == "learned":
            if length > self.config.max_length:
                raise ValueError(
                    f"Learned positions reach `max_length` {self.config.max_length}, got {length} tokens. "
                    "Shorten the window, or enlarge `max_length`."
                )
            return x + parameters["positions.weight"][:, None, :length]
        return x

    def _pass(
        self,
        layer: int,
        parameters: Parameters,
        x: State,
        tokens: Tokens,
        streams: Mapping[str, Stream],
        tap: Tap | None,
        key_bias: KeyBias,
    ) -> Float[Tensor, "R B P D"]:
        """Pass the states through one block, on a GPU the compiled one, which has no inside to tap."""
        if tap is None and not streams and self._reads_last_only(layer):
            return (compiled_block_of_last() if x.is_cuda else block_of_last)(self.config, parameters, x, key_bias)
        if tap is None and x.is_cuda:
            return compiled_block()(self.config, parameters, x, tokens, streams, key_bias)
        passed = block(self.config, parameters, x, tokens, streams, key_bias)
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


def write_gradients(to: list[Tensor], found: list[Tensor], cleared: list[Tensor]) -> None:
    """Copy gradients where they belong, and clear those that are added to afterwards."""
    torch._foreach_copy_(to, found)
    for gradient in cleared:
        gradient.zero_()


@cache
def compiled_write() -> Callable[[list[Tensor], list[Tensor], list[Tensor]], None]:
    """Return `write_gradients` compiled: a few kernels, where views of a buffer would take one for each tensor.

    Loops over many tensors at once are not to be reordered: for some shapes torch 2.11 fails to.
    """
    return compiled(write_gradients, options={"loop_ordering_after_fusion": False})


def _shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the order of the computation."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocabulary, config.width)}
    if config.positions == "learned":
        shapes["positions.weight"] = (config.max_length, config.width)
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


def _working(hidden: Tensor) -> torch.dtype | None:
    """Dtype of the output layer's products: that of autocast where it is on, else the states' own."""
    kind = hidden.device.type
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else None
