"""The settings of a decoder, and which of them cannot go together."""

import math
from dataclasses import dataclass

from joma.errors import UnknownNameError, finite, whole
from joma.models.activations import ACTIVATIONS

CHOICES = {
    "activation": tuple(ACTIVATIONS),
    "norm": ("layer", "rms", "none"),
    "norm_place": ("before", "after"),
    "positions": ("sinusoidal", "learned", "rotary", "none"),
    "embedding": ("learned", "orthonormal", "almost_orthogonal"),
    "attention_logits": ("projected", "free"),
    "readout": ("next_token", "class"),
    "initialisation": ("default", "text", "table1"),
    "frozen": ("", "attention", "mlp"),
}
"""The names that each field takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """A transformer that reads tokens and predicts the next one, or a class.

    >>> DecoderConfig(vocabulary=100, width=64, hidden=256, heads=4, depth=2).head_width
    16
    """

    vocabulary: int
    """Number of different tokens, V."""
    width: int
    """Length of a token's state between the blocks, D."""
    hidden: int
    """Hidden neurons of each MLP, F."""
    heads: int = 1
    """Attention heads, H; each takes width / heads of the state."""
    depth: int = 1
    """Number of blocks."""
    activation: str = "relu"
    """Of the hidden neurons: relu, gelu, silu, tanh, sigmoid or linear."""
    gated: bool = False
    """Whether the activation of one map gates another: h = φ(gate)·up."""
    norm: str = "layer"
    """layer (LayerNorm), rms (RMSNorm) or none."""
    norm_place: str = "before"
    """before each of attention and MLP (and once at the end), or after each, on the sum with its input."""
    positions: str = "rotary"
    """sinusoidal or learned, added to the embedding; rotary, turning queries and keys; or none."""
    max_length: int = 1024
    """Longest sequence that learned positions know."""
    embedding: str = "learned"
    """How it starts: learned is random; orthonormal needs vocabulary ≤ width; almost_orthogonal has unit rows."""
    train_embedding: bool = True
    """Whether it moves from its start."""
    embedding_scale: float = 1.0
    """What the rows of the embedding are multiplied by on their way in."""
    residual_attention: bool = True
    """Whether attention adds to its input, or replaces it."""
    residual_mlp: bool = True
    """Whether the MLP adds to its input, or replaces it."""
    attention_logits: str = "projected"
    """projected: from W_Q and W_K; free: a matrix Z with a logit for each pair of tokens, and no queries or keys."""
    attention_bias: bool = True
    """Whether queries, keys and values have a bias."""
    attention_output: bool = True
    """Whether the heads' outputs go through an output projection."""
    causal: bool = True
    """Whether a position sees only itself and those before it."""
    dropout: float = 0.0
    """Share of numbers dropped in training: of embeddings, attention weights, hidden neurons, both branches."""
    tied: bool = False
    """Whether the output layer's matrix is the embedding."""
    readout: str = "next_token"
    """next_token: a prediction at every position; class: one, at the last position."""
    num_classes: int = 0
    """Classes of a class read-out; 0 for next_token."""
    logit_scale: float = 1.0
    """What the output layer's logits are multiplied by."""
    identical_blocks: bool = False
    """Whether all blocks start as copies of the first."""
    initialisation: str = "default"
    """Scheme of the start: default, text or table1 (`joma.models.initialisation`)."""
    frozen: str = ""
    """Part that keeps its start: attention, mlp, or nothing."""
    only_block: int | None = None
    """The one block that moves while everything else keeps its start, from 0: layer-wise training; None is all."""

    def __post_init__(self) -> None:
        """Refuse names that do not exist, sizes that are none, and settings that cannot go together."""
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise UnknownNameError(name.replace("_", " "), getattr(self, name), known)
        for name in ("vocabulary", "width", "hidden", "heads", "depth", "max_length"):
            whole(name, getattr(self, name), low=1)
        whole("num_classes", self.num_classes, low=0)
        finite("embedding_scale", self.embedding_scale)
        finite("logit_scale", self.logit_scale)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must lie in [0, 1), got {self.dropout}. 0 drops nothing.")
        self._require_widths()
        self._require_readout()
        self._require_block()

    @property
    def head_width(self) -> int:
        """Length of one head's queries, keys and values."""
        return self.width // self.heads

    @property
    def num_outputs(self) -> int:
        """Rows of the output layer: tokens or classes."""
        return self.num_classes if self.readout == "class" else self.vocabulary

    def demand_fitting_embedding(self) -> None:
        """Refuse a vocabulary that the embedding's start is not for; asked once it is that of the data."""
        if self.embedding == "orthonormal" and self.vocabulary > self.width:
            raise ValueError(
                f"Orthonormal embeddings need `vocabulary` ≤ `width`, got {self.vocabulary} and {self.width}. "
                "Enlarge `width`, or take almost_orthogonal."
            )
        if self.embedding == "almost_orthogonal" and self.vocabulary <= self.width:
            raise ValueError(
                f"Almost orthogonal embeddings are for `vocabulary` > `width`, got {self.vocabulary} and {self.width}. "
                "Take orthonormal."
            )

    def _require_widths(self) -> None:
        if self.width % self.heads:
            unit = {"rotary": 2 * self.heads, "sinusoidal": math.lcm(2, self.heads)}.get(self.positions, self.heads)
            raise ValueError(
                f"`width` must be a multiple of `heads`, got {self.width} and {self.heads}. "
                f"Take `width` {self.width // unit * unit or unit}, or `heads` that divide {self.width}."
            )
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"Sinusoidal positions need an even `width`, got {self.width}. Add one.")
        if self.positions == "rotary" and self.attention_logits == "free":
            raise ValueError(
                "Rotary positions turn queries and keys, and free logits have none. "
                "Take other `positions`, or projected `attention_logits`."
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"Rotary positions turn pairs of numbers and need an even width per head, got {self.head_width} "
                f"({self.width} / {self.heads}). Take another `width`, or other `positions`."
            )

    def _require_readout(self) -> None:
        if (self.readout == "class") != (self.num_classes > 0):
            raise ValueError(
                f"A class read-out needs `num_classes`, and only that, got {self.num_classes} for {self.readout}. "
                "Set both or neither."
            )
        if self.readout == "class" and self.tied:
            raise ValueError(
                "A class read-out cannot be tied to the embedding: its rows are classes, not tokens. "
                "Set `tied` to False, or read out the next token."
            )

    def _require_block(self) -> None:
        if self.only_block is None:
            return
        whole("only_block", self.only_block, low=0)
        if self.only_block >= self.depth:
            raise ValueError(
                f"`only_block` must be below `depth`, {self.depth}, got {self.only_block}. Blocks count from 0."
            )
