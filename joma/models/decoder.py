"""The decoder: embedding, blocks of attention and MLP, output layer, for all runs at once.

Every parameter has a leading run axis and one run is R = 1. A block is pure functions of named tensors, so that a step
can be compiled and captured as a whole. The embedding and the output layer, the two ends that are as wide as the
vocabulary, are differentiated by hand, straight into the buffers that the optimiser reads.
"""

import math
from collections.abc import Mapping
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.models import vocabulary_loss
from joma.models.attention import without_future
from joma.models.batch import Batch, LayerReading, Noise, Parameters, Tap
from joma.models.block import KeyBias, State, block, block_of_last, block_shapes, block_state
from joma.models.decoder_config import DIRECTED, DecoderConfig
from joma.models.embedding import add_row_gradients, clear, embedding_rows
from joma.models.functional import Stream, beside_sequences, compiled, entrance, norm, norm_shapes, site_streams
from joma.models.initialisation import initial_parameters

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
        config.check_embedding()
        self.config = config
        self.shapes = _shapes(config)
        self._block_names = tuple(block_shapes(config))
        self.frozen = frozenset(name for name in self.shapes if _is_frozen(config, name))
        self.held = {
            name: rows
            for name in self.shapes
            if name not in self.frozen
            for part, rows in parts_of(config, name).items()
            if part in config.frozen
        }
        """Rows that keep their start of parameters whose other rows are trained: they get no gradient."""
        # Matrices of the blocks and the output's; the embedding's rows are read one by one too.
        matrices = {
            name for name, shape in self.shapes.items() if name.endswith(".weight") and len(shape) == MATRIX_AXES
        }
        self.factors = frozenset(name for name in matrices if name == OUTPUT or name.startswith("blocks."))
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
        learned, length = parameters.get(POSITIONS), rows.shape[-2]
        if config.positions == "learned" and length > config.max_length:
            raise ValueError(
                f"Learned positions reach `max_length` {config.max_length}, got {length} tokens. "
                "Shorten the window, or enlarge `max_length`."
            )
        embedding, streams = site_streams(noise, config.dropout, config.depth)
        # An evaluation has few batches, and shapes of its own: to compile for them takes longer than it saves.
        enter = compiled(entrance) if rows.is_cuda and torch.is_grad_enabled() else entrance
        x = enter(config, rows, learned, embedding)
        for layer in range(config.depth):
            x = self._pass(layer, parameters, x, tokens, streams[layer], tap, key_bias, compiled_tap=compiled_tap)
        if config.norm_place == "before":  # norms before each part leave the sum of all without one
            x = norm(config, parameters, "final_norm", x)
        return x.to(rows.dtype)

    def readout(self, parameters: Parameters) -> tuple[Float[Tensor, "R W D"], Float[Tensor, "R V"]]:
        """Return matrix and bias of the output layer; the matrix may have rows of zeros after the words'."""
        return parameters[EMBEDDING if self.config.tied else OUTPUT], parameters[OUTPUT_BIAS]

    def read(self, hidden: State, rows: Int[Tensor, "R K"] | None = None) -> Float[Tensor, "R N D"]:
        """Return the states that the output layer reads: of the last position, of all, or of the rows among these."""
        if self.config.readout == "class":
            return hidden[:, :, -1]
        every = hidden.flatten(1, 2)
        return every if rows is None else embedding_rows(every, rows)

    def losses(
        self, parameters: Parameters, batch: Batch, tap: Tap | None = None, *, compiled_tap: bool = False
    ) -> Float[Tensor, " R"]:
        """Loss of each run in evaluation mode."""
        with torch.no_grad():
            rows, key_bias = self.embed(parameters, batch.tokens), batch.key_bias
            hidden = self.read(
                self.hidden(parameters, rows, batch.tokens, tap=tap, key_bias=key_bias, compiled_tap=compiled_tap),
                batch.rows,
            )
            return vocabulary_loss.loss(
                hidden,
                *self.readout(parameters),
                batch.targets,
                batch.weights,
                scale=self.config.logit_scale,
                working=_working(hidden),
            )

    def clip_logits(self, parameters: Parameters, batch: Batch, bound: float) -> None:
        r"""Scale weights and biases of the queries and keys of each head in place, by its largest logit on the batch.

        QK-clip (Kimi K2): both by $\sqrt{\min(1, b/S)}$ for the largest logit S and the bound b.
        """
        config = self.config
        num_runs, width = batch.tokens.shape[0], config.head_width

        def clip(reading: LayerReading) -> None:
            name = f"blocks.{reading.layer}.attention.qkv"
            is_fixed = "qk" in config.frozen or f"{name}.weight" in self.frozen
            if reading.q is None or reading.k is None or is_fixed:
                return
            logits = torch.matmul(reading.q, reading.k.mT) * reading.scale
            logits = without_future(logits) if reading.causal else logits
            largest = logits.unflatten(0, (num_runs, -1)).amax(dim=(1, 3, 4))
            is_large = (largest > bound) & largest.isfinite()
            factor = (bound / largest).where(is_large, 1.0).sqrt().repeat_interleave(width, dim=1).repeat(1, 2)
            parameters[f"{name}.weight"][:, : 2 * config.width].mul_(factor[..., None])
            if config.attention_bias:
                parameters[f"{name}.bias"][:, : 2 * config.width].mul_(factor)

        with torch.no_grad():
            rows = self.embed(parameters, batch.tokens)
            self.hidden(parameters, rows, batch.tokens, tap=clip, key_bias=batch.key_bias)

    def value_and_gradient(
        self, parameters: Parameters, gradients: Parameters, batch: Batch, noise: Noise | None
    ) -> Float[Tensor, " R"]:
        """Loss of each run; the gradient of every trained parameter overwrites its entry of `gradients`."""
        rows = self.embed(parameters, batch.tokens).detach().requires_grad_(EMBEDDING in gradients)
        leaves = {}
        for name in gradients:
            if name in (EMBEDDING, OUTPUT, OUTPUT_BIAS):
                continue
            own = parameters[name].detach()
            is_vector = len(self.shapes[name]) == 1
            leaves[name] = (beside_sequences(own, batch.tokens.shape[1]) if is_vector else own).requires_grad_()
        with torch.enable_grad():
            hidden = self.read(
                self.hidden({**parameters, **leaves}, rows, batch.tokens, noise, key_bias=batch.key_bias), batch.rows
            )
        losses, hidden_gradient = vocabulary_loss.loss_and_gradients(
            hidden.detach(),
            *self.readout(parameters),
            batch.targets,
            batch.weights,
            scale=self.config.logit_scale,
            weight_gradient=gradients.get(EMBEDDING if self.config.tied else OUTPUT),
            bias_gradient=gradients.get(OUTPUT_BIAS),
            working=_working(hidden),
        )
        inputs = [*leaves.values(), *([rows] if rows.requires_grad else [])]
        found = torch.autograd.grad(hidden, inputs, hidden_gradient) if inputs else ()  # none: the read-out alone
        by_name = dict(zip(leaves, found, strict=False))
        # Block by block, what belongs to none by itself: one kernel serves all blocks, at any depth.
        for _, group in groupby(leaves, key=lambda name: name.split(".")[:2]):
            names = list(group)
            _gather([gradients[name] for name in names], [by_name[name] for name in names])
        for name, rows_held in self.held.items():
            gradients[name][:, rows_held].zero_()
        if rows.requires_grad:
            if not self.config.tied:
                clear(gradients[EMBEDDING])
            add_row_gradients(gradients[EMBEDDING], batch.tokens, found[-1])
        return losses

    def _pass(
        self,
        layer: int,
        parameters: Parameters,
        x: State,
        tokens: Tokens,
        streams: Mapping[str, Stream],
        tap: Tap | None,
        key_bias: KeyBias,
        *,
        compiled_tap: bool,
    ) -> Float[Tensor, "R B P D"]:
        """Pass the states through one block, on a GPU the compiled one; a tap gets what was inside."""
        config = self.config
        own = {name: parameters[f"blocks.{layer}.{name}"] for name in self._block_names}
        is_plain = config.attention_logits == "projected" and config.positions != "rotary" and not config.qk_norm
        is_plain = is_plain and config.softcap == math.inf and config.attention_scale == 1
        reads_last_only = is_plain and config.readout == "class" and layer == config.depth - 1
        if tap is None and not streams and reads_last_only:  # the other positions need not be computed
            return (compiled(block_of_last) if x.is_cuda else block_of_last)(config, own, x, key_bias)
        if tap is None:
            return (compiled(block_state) if x.is_cuda else block_state)(config, own, x, tokens, streams, key_bias)
        inside = compiled(block) if compiled_tap and x.is_cuda else block
        state, q, k, logits, hidden = inside(config, own, x, tokens, streams, key_bias)
        tap(
            LayerReading(
                layer=layer,
                q=q,
                k=k,
                logits=logits,
                scale=config.head_width**-0.5,
                causal=config.causal,
                hidden=hidden,
                before=x,
                after=state,
            )
        )
        return state


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
    num_positions = ({"learned": config.max_length} | dict.fromkeys(DIRECTED, 1)).get(config.positions)
    if num_positions is not None:
        shapes[POSITIONS] = (num_positions, config.width)
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
    if (name == EMBEDDING and not config.train_embedding) or (name == POSITIONS and config.positions in DIRECTED):
        return True
    if "attention" in config.frozen and ".attention." in name:
        return True
    return set(parts_of(config, name)) <= set(config.frozen)


def parts_of(config: DecoderConfig, name: str) -> dict[str, slice]:
    """Return the parts of the model that a parameter belongs to, each with its rows.

    >>> list(parts_of(DecoderConfig(vocabulary=5, width=4, hidden=8), "blocks.0.attention.qkv.bias"))
    ['qk', 'value']
    """
    if ".attention.qkv." in name:
        return {"qk": slice(0, 2 * config.width), "value": slice(2 * config.width, None)}
    ends = {EMBEDDING: "embedding", POSITIONS: "positions", OUTPUT: "readout", OUTPUT_BIAS: "readout"}
    inside = {"norm.": "norm", ".mlp.": "mlp", ".logits": "qk", ".value.": "value", ".output.": "output"}
    part = ends.get(name) or next(part for piece, part in inside.items() if piece in name)
    return {part: slice(None)}


def _working(hidden: Tensor) -> torch.dtype | None:
    """Dtype of the output layer's products: that of autocast where it is on, else the states' own."""
    kind = "cpu" if hidden.is_meta else hidden.device.type  # where shapes alone are counted, as a CPU would take them
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else None
