"""Tiny models with random weights of every family, built from their configurations; nothing is downloaded."""

from collections.abc import Callable
from functools import partial

import torch
import transformers
from torch import nn
from torch.nn import functional

from joma.probe.alarm import Alarm

# Threads that wait for one another cost a tiny model a hundred times what it computes.
torch.set_num_threads(1)

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 61
_USUAL = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}  # fmt: skip
_MLP = _USUAL | {"intermediate_size": 4 * WIDTH}
_LLAMA = _USUAL | {"num_key_value_heads": 2, "intermediate_size": 3 * WIDTH}
# The default caps of 50 and 30 hardly bend small logits; a cap of 0.5 does. Some versions of transformers run Gemma 2
# with sdpa by default, which ignores the cap. The grouped matrix product of Mixtral's default takes no float64.
_BLOOM = {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCABULARY}
_FAMILIES = {
    "gpt_neox": ("GPTNeoX", "ForCausalLM", _MLP),
    "opt": ("OPT", "ForCausalLM", _USUAL | {"ffn_dim": 4 * WIDTH, "word_embed_proj_dim": WIDTH}),
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCABULARY}
        | {"n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}),
    "llama": ("Llama", "ForCausalLM", _LLAMA),
    "qwen2": ("Qwen2", "ForCausalLM", _LLAMA),
    "qwen3": ("Qwen3", "ForCausalLM", _LLAMA | {"head_dim": 16}),
    "mistral": ("Mistral", "ForCausalLM", _LLAMA | {"sliding_window": 6}),
    "gemma2": ("Gemma2", "ForCausalLM", _LLAMA | {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16}
        | {"attn_logit_softcapping": 0.5, "attn_implementation": "eager"}),
    "mixtral": ("Mixtral", "ForCausalLM", _LLAMA | {"num_local_experts": 4, "sliding_window": None}
        | {"experts_implementation": "eager"}),
    "bloom": ("Bloom", "ForCausalLM", _BLOOM),
    "mpt": ("Mpt", "ForCausalLM", {"d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "vocab_size": VOCABULARY}
        | {"max_seq_len": 256}),
    "bert": ("Bert", "ForMaskedLM", _MLP),
    "t5": ("T5", "ForConditionalGeneration", {"d_model": WIDTH, "d_kv": 8, "d_ff": 3 * WIDTH, "num_layers": LAYERS}
        | {"num_decoder_layers": LAYERS, "num_heads": HEADS, "vocab_size": VOCABULARY, "decoder_start_token_id": 0}
        | {"feed_forward_proj": "gated-gelu"}),
    "vit": ("ViT", "ForImageClassification", _MLP | {"image_size": 16, "patch_size": 4}),
}  # fmt: skip
"""Names of classes and small sizes of every Hugging Face family."""


def _make(family: str, **changes) -> nn.Module:
    name, head, sizes = _FAMILIES[family]
    sizes = {k: v for k, v in sizes.items() if family != "vit" or k not in ("vocab_size", "max_position_embeddings")}
    return _built(name, head, **sizes | changes)


def _built(name: str, head: str, **sizes) -> nn.Module:
    return getattr(transformers, name + head)(getattr(transformers, f"{name}Config")(**sizes))


def of_transformers(name: str, **changes) -> nn.Module:
    """Build a language model of any other class, small, with its own initialisation."""
    torch.manual_seed(0)
    sizes = _LLAMA | {"max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0}
    return _built(name, "ForCausalLM", **sizes | changes).eval()


FAMILIES: dict[str, Callable[..., nn.Module]] = {family: partial(_make, family) for family in _FAMILIES}
CAUSAL = {family: FAMILIES[family] for family in _FAMILIES if family not in ("bert", "t5", "vit")}  # decoders of text


def build(family: str, *, seed: int = 0, std: float = 0.3, **changes) -> nn.Module:
    """Build a family's tiny model in eval mode, its matrices drawn anew so that attention is far from uniform."""
    model = FAMILIES[family](**changes).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, std, generator=generator)
    return model


def twin(family: str, model: nn.Module, **changes) -> nn.Module:
    """Build another model of a family with the same weights, for example in float64 or with another attention."""
    other = FAMILIES[family](**changes).to(next(model.parameters()).dtype).eval()
    other.load_state_dict(model.state_dict())
    return other


def inputs(
    family: str, *, length: int = 12, batch: int = 2, padded: bool = True, left: bool = False, seed: int = 1
) -> dict:
    """Make a batch for a family; padding stands on the right of the last sequence, or on its left."""
    generator = torch.Generator().manual_seed(seed)
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
    tokens = torch.randint(1, VOCABULARY, (batch, length), generator=generator)
    made = {"input_ids": tokens}
    if padded:
        mask = torch.ones_like(tokens)
        mask[-1, slice(0, 3) if left else slice(length - 3, None)] = 0
        made["attention_mask"] = mask
    if family == "t5":
        made["decoder_input_ids"] = torch.randint(1, VOCABULARY, (batch, length - 2), generator=generator)
    return made


class HandWritten(nn.Module):
    """A decoder as a researcher writes it: fused projection, `scaled_dot_product_attention`, an MLP."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, layers: int = LAYERS, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(HandWrittenBlock(width, heads, dropout) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class HandWrittenBlock(nn.Module):
    """Attention and MLP with residuals."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Apart(HandWritten):
    """The same with all MLPs in a list of their own, next to that of the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.mlps = nn.ModuleList(block.mlp for block in self.blocks)
        for block in self.blocks:
            block.mlp = nn.Identity()

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block, mlp in zip(self.blocks, self.mlps, strict=True):
            x = block(x)
            x = x + mlp(x)
        return self.head(x)


ENTROPY_ALONE = Alarm(logit_watch=float("inf"), logit_bound=float("inf"))
"""Says nothing of logits, which are as large here as they like."""


class Scaled(nn.Module):
    """One layer whose queries a test makes as sharp, or as flat, as it likes."""

    def __init__(self):
        super().__init__()
        self.block = HandWritten(layers=1)
        self.sharpness = 1.0

    def forward(self, tokens):
        with torch.no_grad():
            self.block.blocks[0].qkv.weight[:WIDTH] = self.sharpness * torch.eye(WIDTH)
            self.block.blocks[0].qkv.weight[WIDTH : 2 * WIDTH] = torch.eye(WIDTH)
            self.block.blocks[0].qkv.bias.zero_()
        return self.block(tokens)


def collapse(seen, model, steps, first_sharp, sharpness=1e4):
    for step in steps:
        model.sharpness = sharpness if step >= first_sharp else 1.0
        # Every token once: two of a kind share a row's attention, however sharp it is.
        model(torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(step))[None, :12])
        seen.step(step)
