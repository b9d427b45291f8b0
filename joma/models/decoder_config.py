"""The settings of a decoder, and which of them cannot go together."""

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from joma.settings import Count, Finite, Index, MaybeIndex, Positive, Share, settings

DIRECTED = ("constant", "displaced", "redirected")
"""Positions with a random direction, drawn from the run's seed and never trained."""
WAVES = ("sinusoidal", "centred", "rescaled", "mean", *DIRECTED)
"""Positions that are made of sines and cosines."""

MOST_BLOCKS = 256
"""Largest depth: memory and time of a step are counted block by block."""
MOST_NUMBERS = 2**20
"""Largest width, hidden width and length of learned positions: numbers of a matrix are then below 2⁶³."""
_Size = Annotated[Count, Field(le=MOST_NUMBERS)]
Part = Literal["attention", "embedding", "positions", "qk", "value", "output", "mlp", "norm", "readout"]


def _in_order(parts: Any) -> Any:
    """Read `qk+norm` as two parts, and put parts into one order, each once."""
    if isinstance(parts, str):
        parts = [] if parts in ("", "none") else parts.split("+")
    known = get_args(Part)
    in_order = sorted(parts, key=lambda part: known.index(part) if part in known else -1)
    return tuple(dict.fromkeys(in_order))


@settings
class DecoderConfig:
    """A transformer that reads tokens and predicts the next one, or a class.

    >>> DecoderConfig(vocabulary=100, width=64, hidden=256, heads=4, depth=2).head_width
    16
    """

    vocabulary: Count
    """Number of different tokens, V."""
    width: _Size
    """Length of a token's state between the blocks, D."""
    hidden: _Size
    """Hidden neurons of each MLP, F."""
    heads: Count = 1
    """Attention heads, H; each takes width / heads of the state."""
    depth: Annotated[Count, Field(le=MOST_BLOCKS)] = 1
    """Number of blocks."""
    activation: Literal["linear", "relu", "gelu", "silu", "tanh", "sigmoid"] = "relu"
    """Of the hidden neurons: relu, gelu, silu, tanh, sigmoid or linear."""
    negative_slope: Share = 0.0
    """Slope of relu below zero: 0 is ReLU, and towards 1 it becomes linear (leaky ReLU)."""
    gated: bool = False
    """Whether the activation of one map gates another: h = φ(gate)·up."""
    norm: Literal["layer", "rms", "none"] = "layer"
    """layer (LayerNorm), rms (RMSNorm) or none."""
    norm_place: Literal["before", "after"] = "before"
    """before each of attention and MLP (and once at the end), or after each, on the sum with its input."""
    positions: Literal[
        "sinusoidal", "learned", "rotary", "none", "centred", "mean", "constant", "rescaled", "displaced", "redirected"
    ] = "rotary"
    """sinusoidal or learned, added to the embedding; rotary, turning queries and keys; or none. Of the sinusoidal ones
    centred has no mean over the sequence, mean is that mean at every position, and constant a random vector as long;
    rescaled is centred, scaled to the Frobenius norm of sinusoidal; displaced is sinusoidal less such a random vector,
    and redirected centred plus one.
    """
    max_length: _Size = 1024
    """Longest sequence that learned positions know."""
    embedding: Literal["learned", "orthonormal", "almost_orthogonal"] = "learned"
    """How it starts: learned is random; orthonormal needs vocabulary ≤ width; almost_orthogonal has unit rows."""
    train_embedding: bool = True
    """Whether it moves from its start."""
    embedding_scale: Finite = 1.0
    """What the rows of the embedding are multiplied by on their way in."""
    residual_attention: bool = True
    """Whether attention adds to its input, or replaces it."""
    residual_mlp: bool = True
    """Whether the MLP adds to its input, or replaces it."""
    attention_logits: Literal["projected", "free"] = "projected"
    """projected: from W_Q and W_K; free: a matrix Z with a logit for each pair of tokens, and no queries or keys."""
    attention_bias: bool = True
    """Whether queries, keys and values have a bias."""
    attention_scale: Annotated[Finite, Field(gt=0)] = 1.0
    """What attention logits are multiplied by, free ones too; projected ones on top of 1/√(width of a head)."""
    qk_norm: bool = False
    """Whether each head's queries and keys are normed (RMSNorm, a gain for each) before they meet: a cure of growing
    logits."""
    softcap: Positive = math.inf
    """Attention logits s become softcap·tanh(s / softcap), which bounds them; inf for none. The weights are then a
    matrix, on a GPU too."""
    attention_output: bool = True
    """Whether the heads' outputs go through an output projection."""
    causal: bool = True
    """Whether a position sees only itself and those before it."""
    dropout: Share = 0.0
    """Share of numbers dropped in training: of embeddings, attention weights, hidden neurons, both branches."""
    tied: bool = False
    """Whether the output layer's matrix is the embedding."""
    readout: Literal["next_token", "class", "masked_word"] = "next_token"
    """next_token: a prediction at every position; class: one, at the last position; masked_word: at each position whose
    word is replaced by a mask, that word, seen from both sides (BERT)."""
    num_classes: Index = 0
    """Classes of a class read-out, else 0."""
    logit_scale: Finite = 1.0
    """What the output layer's logits are multiplied by."""
    identical_blocks: bool = False
    """Whether all blocks start as copies of the first."""
    initialisation: Literal["default", "text", "table1"] = "default"
    """Scheme of the start: default, text or table1 (`joma.models.initialisation`)."""
    frozen: Annotated[tuple[Part, ...], BeforeValidator(_in_order)] = ()
    """Parts that keep their start, such as qk+norm, or none; attention is qk, value, output and the norms of queries
    and keys."""
    only_block: MaybeIndex = None
    """The one block that moves while everything else keeps its start, from 0: layer-wise training; None is all."""

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        if self.width % self.heads:
            even = {"rotary": 2 * self.heads} | dict.fromkeys(WAVES, math.lcm(2, self.heads))
            unit = even.get(self.positions, self.heads)
            raise ValueError(
                f"`width` must be a multiple of `heads`, got {self.width} and {self.heads}. "
                f"Take `width` {self.width // unit * unit or unit}, or `heads` that divide {self.width}."
            )
        if self.positions in WAVES and self.width % 2:
            raise ValueError(f"Sinusoidal positions need an even `width`, got {self.width}. Add one.")
        if self.positions == "rotary" and self.attention_logits == "free":
            raise ValueError(
                "Rotary positions turn queries and keys, and free logits have none. "
                "Take other `positions`, or projected `attention_logits`."
            )
        if self.qk_norm and self.attention_logits == "free":
            raise ValueError(
                "`qk_norm` norms queries and keys, and free logits have none. "
                "Set `qk_norm` to False, or take projected `attention_logits`."
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"Rotary positions turn pairs of numbers and need an even width per head, got {self.head_width} "
                f"({self.width} / {self.heads}). Take another `width`, or other `positions`."
            )
        self._check_readout()
        if self.negative_slope and self.activation != "relu":
            raise ValueError(
                f"`negative_slope` is relu's, got {self.negative_slope} for {self.activation}. "
                "Set it to 0, or take `activation` relu."
            )
        if self.only_block is not None and self.only_block >= self.depth:
            raise ValueError(
                f"`only_block` must be below `depth`, {self.depth}, got {self.only_block}. Blocks count from 0."
            )

    def _check_readout(self) -> None:
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
        if self.readout == "masked_word" and self.causal:
            raise ValueError(
                "Masked words are predicted from both sides, and a causal position sees one. "
                "Set `causal` to False, or `readout` to next_token."
            )

    @property
    def head_width(self) -> int:
        """Length of one head's queries, keys and values."""
        return self.width // self.heads

    @property
    def num_outputs(self) -> int:
        """Rows of the output layer: tokens or classes."""
        return self.num_classes if self.readout == "class" else self.vocabulary

    def check_embedding(self) -> None:
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


TEXT_WIDTH = 200
TABLE1_WIDTH = 1024
TABLE1_TOKENS = 100
TABLE1_BLOCKS = 3


def paper_language_model(vocabulary: int, *, depth: int = 5, **changes: Any) -> DecoderConfig:
    """Return the language model of figures 6 and 8: torch's encoder with a causal mask.

    Norms stand after each part, the embedding is scaled by √width, and all blocks start as copies of one.

    >>> paper_language_model(28782, depth=10).identical_blocks
    True
    """
    own = DecoderConfig(
        vocabulary=vocabulary, width=TEXT_WIDTH, hidden=TEXT_WIDTH, depth=depth, norm_place="after",
        positions="sinusoidal", embedding_scale=math.sqrt(TEXT_WIDTH), dropout=0.2, identical_blocks=True,
        initialisation="text",
    )  # fmt: skip
    return replace(own, **changes)


def paper_table1(num_classes: int, *, hidden: int = 4 * TABLE1_TOKENS, **changes: Any) -> DecoderConfig:
    """Return the classifier of Table 1; its hidden width is 400 or 4096, the sources disagree.

    A causal mask and no positions, no bias for queries, keys and values, no output projection.

    >>> paper_table1(20).causal, paper_table1(20).positions
    (True, 'none')
    """
    own = DecoderConfig(
        vocabulary=TABLE1_TOKENS, width=TABLE1_WIDTH, hidden=hidden, depth=TABLE1_BLOCKS, norm_place="after",
        positions="none", attention_bias=False, attention_output=False, readout="class", num_classes=num_classes,
        initialisation="table1",
    )  # fmt: skip
    return replace(own, **changes)
