"""Slow, naive twins of the fast code: loops over samples, nodes and tokens, as the paper writes the sums."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from joma.models.decoder_config import DecoderConfig
from joma.theory.attention import Attention, AttentionKind

ACTIVATIONS_IN_TORCH: Mapping[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


def scores(attention: Attention, z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Attention scores of one sample, token by token (Eqn 1 and the list below it)."""
    if attention.kind == AttentionKind.LINEAR:
        sigma = [z_l / attention.temperature for z_l in z]
    else:
        sigma = [math.exp(z_l / attention.temperature) for z_l in z]
    total = attention.normalisation
    if attention.kind == AttentionKind.SOFTMAX:
        total = sum(s_l * x_l for s_l, x_l in zip(sigma, x, strict=True))
    return np.array([s_l * x_l / total for s_l, x_l in zip(sigma, x, strict=True)])


def score_jacobian(attention: Attention, z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """L = ∂b/∂z of one sample as a full matrix (A.2)."""
    num_tokens = len(z)
    b = scores(attention, z, x)
    jacobian = np.zeros((num_tokens, num_tokens))
    for i in range(num_tokens):
        if attention.kind == AttentionKind.LINEAR:
            jacobian[i, i] = x[i] / attention.normalisation
        else:
            jacobian[i, i] = b[i]
        if attention.kind == AttentionKind.SOFTMAX:
            for j in range(num_tokens):
                jacobian[i, j] -= b[i] * b[j]
    return jacobian / attention.temperature


NORM_EPSILON = 1e-5
Drop = Callable[[Tensor, str], Tensor]
"""A tensor and the name of the site in, the tensor with some numbers dropped out."""


def keep_all(x: Tensor, site: str) -> Tensor:
    """Evaluation mode."""
    return x


def plain_norm(config: DecoderConfig) -> nn.Module:
    match config.norm:
        case "layer":
            return nn.LayerNorm(config.width, eps=NORM_EPSILON)
        case "rms":
            return nn.RMSNorm(config.width, eps=NORM_EPSILON)
        case _:
            return nn.Identity()


def wave(position: int, width: int) -> list[float]:
    """Sines and cosines in turn, as Vaswani et al. print them."""
    angles = [position / 10_000 ** (2 * (j // 2) / width) for j in range(width)]
    return [math.cos(angle) if j % 2 else math.sin(angle) for j, angle in enumerate(angles)]


def turned(x: Tensor) -> Tensor:
    """Rotary positions of one head (B, L, Dh): each pair as a complex number, times e^{i·angle}."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    angles = [[position / 10_000 ** (j / half) for j in range(half)] for position in range(x.shape[-2])]
    spun = pairs * torch.exp(1j * torch.tensor(angles, dtype=x.dtype))
    return torch.cat([spun.real, spun.imag], dim=-1)


class PlainAttention(nn.Module):
    """Attention head by head, its weights spelled out."""

    def __init__(self, config: DecoderConfig, site: str) -> None:
        """Build the modules."""
        super().__init__()
        self.config, self.site = config, site
        width, bias = config.width, config.attention_bias
        if config.attention_logits == "free":
            self.logits = nn.Parameter(torch.zeros(config.heads, config.vocabulary, config.vocabulary))
        else:
            self.query, self.key = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        if config.qk_norm:
            self.query_norm, self.key_norm = (nn.RMSNorm(config.head_width, eps=NORM_EPSILON) for _ in range(2))
        self.value = nn.Linear(width, width, bias=bias)
        if config.attention_output:
            self.output = nn.Linear(width, width)
        self.entropy: Tensor | None = None
        self.largest: dict[int, float] = {}

    def forward(self, x: Tensor, tokens: Tensor, drop: Drop) -> Tensor:
        heads = range(self.config.heads)
        weights = torch.stack([self.weights(head, x, tokens) for head in heads], dim=1)
        self.entropy = torch.special.entr(weights).sum(dim=-1).detach()
        weights = drop(weights, f"{self.site}.weights")
        values = self.value(x).chunk(self.config.heads, dim=-1)
        mixed = torch.cat([weights[:, head] @ values[head] for head in heads], dim=-1)
        return self.output(mixed) if self.config.attention_output else mixed

    def weights(self, head: int, x: Tensor, tokens: Tensor) -> Tensor:
        if self.config.attention_logits == "free":
            logits = torch.stack([self.logits[head][row][:, row] for row in tokens])
        else:
            q = self.query(x).chunk(self.config.heads, dim=-1)[head]
            k = self.key(x).chunk(self.config.heads, dim=-1)[head]
            if self.config.qk_norm:
                q, k = self.query_norm(q), self.key_norm(k)
            if self.config.positions == "rotary":
                q, k = turned(q), turned(k)
            logits = q @ k.mT / math.sqrt(q.shape[-1])
        logits = logits * self.config.attention_scale
        if self.config.softcap < math.inf:
            logits = self.config.softcap * torch.tanh(logits / self.config.softcap)
        if self.config.causal:
            logits = logits + torch.full_like(logits[0], -torch.inf).triu(diagonal=1)
        self.largest[head] = float(logits.detach().max())
        return logits.softmax(dim=-1)


class PlainMLP(nn.Module):
    """Two linear layers, or three where one gates another."""

    def __init__(self, config: DecoderConfig, site: str) -> None:
        """Build the modules."""
        super().__init__()
        leaky = nn.LeakyReLU(config.negative_slope)
        self.phi, self.site = leaky if config.activation == "relu" else ACTIVATIONS_IN_TORCH[config.activation], site
        self.gate = nn.Linear(config.width, config.hidden) if config.gated else None
        self.lower = nn.Linear(config.width, config.hidden)
        self.upper = nn.Linear(config.hidden, config.width)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor, drop: Drop) -> Tensor:
        hidden = self.phi(self.lower(x)) if self.gate is None else self.phi(self.gate(x)) * self.lower(x)
        self.hidden = hidden.detach()
        return self.upper(drop(hidden, f"{self.site}.hidden"))


class PlainBlock(nn.Module):
    """Attention and MLP, each with its norm and perhaps its residual."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        """Build the modules."""
        super().__init__()
        self.config, self.site = config, f"blocks.{layer}"
        self.attention = PlainAttention(config, f"{self.site}.attention")
        self.mlp = PlainMLP(config, f"{self.site}.mlp")
        self.attention_norm, self.mlp_norm = plain_norm(config), plain_norm(config)

    def forward(self, x: Tensor, tokens: Tensor, drop: Drop) -> Tensor:
        norm, first = self.attention_norm, self.config.norm_place == "before"
        branch = drop(self.attention(norm(x) if first else x, tokens, drop), f"{self.site}.attention.output")
        x = x + branch if self.config.residual_attention else branch
        x = x if first else norm(x)
        norm = self.mlp_norm
        branch = drop(self.mlp(norm(x) if first else x, drop), f"{self.site}.mlp.output")
        x = x + branch if self.config.residual_mlp else branch
        return x if first else norm(x)


class PlainDecoder(nn.Module):
    """One run of `joma.models.decoder.Decoder`, with a module for everything and autograd throughout."""

    def __init__(self, config: DecoderConfig) -> None:
        """Build the modules."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        if config.positions in ("learned", "constant", "displaced", "redirected"):
            num_positions = config.max_length if config.positions == "learned" else 1
            self.positions = nn.Embedding(num_positions, config.width)
        self.blocks = nn.ModuleList(PlainBlock(config, layer) for layer in range(config.depth))
        self.final_norm = plain_norm(config) if config.norm_place == "before" else nn.Identity()
        self.output = nn.Linear(config.width, config.num_outputs)
        if config.tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor, drop: Drop = keep_all) -> Tensor:
        """Logits of every position (B, L, V), or of the class (B, C)."""
        x = self.embedding(tokens) * self.config.embedding_scale
        positions = range(tokens.shape[1])
        waves = torch.tensor([wave(position, self.config.width) for position in positions], dtype=x.dtype)
        match self.config.positions:
            case "sinusoidal":
                x = x + waves
            case "centred":
                x = x + waves - waves.mean(dim=0)
            case "mean":
                x = x + waves.mean(dim=0)
            case "constant":
                x = x + self.positions.weight * waves.mean(dim=0).norm()
            case "rescaled":
                centred = waves - waves.mean(dim=0)
                x = x + centred * (waves.square().sum() / centred.square().sum()).sqrt()
            case "displaced":
                x = x + waves - self.positions.weight * waves.mean(dim=0).norm()
            case "redirected":
                x = x + waves - waves.mean(dim=0) + self.positions.weight * waves.mean(dim=0).norm()
            case "learned":
                x = x + self.positions(torch.tensor(positions))
        x = drop(x, "embedding")
        for block in self.blocks:
            x = block(x, tokens, drop)
        x = self.final_norm(x)
        return self.output(x[:, -1] if self.config.readout == "class" else x) * self.config.logit_scale

    def loss(
        self, tokens: Tensor, targets: Tensor, drop: Drop = keep_all, rows: Tensor | slice = slice(None)
    ) -> Tensor:
        """Mean cross-entropy at all rows, or at some; targets (N,)."""
        return nn.functional.cross_entropy(self(tokens, drop).flatten(0, -2)[rows], targets)

    def load(self, parameters: Mapping[str, Tensor]) -> "PlainDecoder":
        """Take the weights of one run, fused matrices cut into their parts."""
        own: dict[str, Tensor] = {}
        for name, tensor in parameters.items():
            own |= dict(zip(self._parts(name), tensor.chunk(len(self._parts(name))), strict=True))
        if self.config.tied:
            own["output.weight"] = own["embedding.weight"]
        self.load_state_dict(own)
        return self

    def gradient(self, name: str) -> Tensor:
        """Gradient of a parameter of the decoder, fused again."""
        own = dict(self.named_parameters())
        return torch.cat([own[part].grad for part in self._parts(name)])

    def _parts(self, name: str) -> list[str]:
        if ".qkv." in name:
            return [name.replace("qkv", part) for part in ("query", "key", "value")]
        if self.config.gated and ".lower." in name:
            return [name.replace("lower", part) for part in ("gate", "lower")]
        return [name]


class TorchEncoder(nn.Module):
    """The paper's language model as its scripts build it, from torch's own encoder; no dropout."""

    def __init__(self, config: DecoderConfig) -> None:
        """Build the modules."""
        super().__init__()
        self.config = config
        layer = nn.TransformerEncoderLayer(
            config.width,
            config.heads,
            config.hidden,
            dropout=0.0,
            activation=config.activation,
            batch_first=True,
            norm_first=config.norm_place == "before",
        )
        norm = nn.LayerNorm(config.width) if config.norm_place == "before" else None
        self.encoder = nn.TransformerEncoder(layer, config.depth, norm=norm, enable_nested_tensor=False)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.output = nn.Linear(config.width, config.vocabulary)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of the next token; targets (N,)."""
        num_positions = tokens.shape[1]
        x = self.embedding(tokens) * self.config.embedding_scale
        x = x + torch.tensor([wave(position, self.config.width) for position in range(num_positions)], dtype=x.dtype)
        mask = nn.Transformer.generate_square_subsequent_mask(num_positions, dtype=x.dtype)
        logits = self.output(self.encoder(x, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    def load(self, parameters: Mapping[str, Tensor]) -> "TorchEncoder":
        """Take the weights of one run under torch's names."""
        self.load_state_dict({self.own_name(name): tensor for name, tensor in parameters.items()})
        return self

    def gradient(self, name: str) -> Tensor:
        """Gradient of a parameter of the decoder."""
        return self.get_parameter(self.own_name(name)).grad

    @staticmethod
    def own_name(name: str) -> str:
        for ours, theirs in (
            ("blocks.", "encoder.layers."),
            ("attention.qkv.", "self_attn.in_proj_"),
            ("attention.output", "self_attn.out_proj"),
            ("mlp.lower", "linear1"),
            ("mlp.upper", "linear2"),
            ("attention_norm", "norm1"),
            ("mlp_norm", "norm2"),
            ("final_norm", "encoder.norm"),
        ):
            name = name.replace(ours, theirs)
        return name
