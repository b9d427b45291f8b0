"""Tiny models with random weights of every family, built from their configurations; nothing is downloaded."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    MptConfig,
    MptForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

# Threads that wait for one another cost a tiny model a hundred times what it computes.
torch.set_num_threads(1)

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 61


def gpt_neox(**changes):
    config = GPTNeoXConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=256, **changes,
    )  # fmt: skip
    return GPTNeoXForCausalLM(config)


def opt(**changes):
    config = OPTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, ffn_dim=4 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=256, word_embed_proj_dim=WIDTH, **changes,
    )  # fmt: skip
    return OPTForCausalLM(config)


def gpt2(**changes):
    config = GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY, n_positions=256,
        bos_token_id=0, eos_token_id=0, **changes,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _llama_like(config_class, model_class, **changes):
    settings = {
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 2,
        "intermediate_size": 3 * WIDTH, "vocab_size": VOCABULARY, "max_position_embeddings": 256,
    }  # fmt: skip
    return model_class(config_class(**settings | changes))


def llama(**changes):
    return _llama_like(LlamaConfig, LlamaForCausalLM, **changes)


def qwen2(**changes):
    return _llama_like(Qwen2Config, Qwen2ForCausalLM, **changes)


def qwen3(**changes):
    return _llama_like(Qwen3Config, Qwen3ForCausalLM, **{"head_dim": 16} | changes)


def mistral(**changes):
    return _llama_like(MistralConfig, MistralForCausalLM, **{"sliding_window": 6} | changes)


def gemma2(**changes):
    # The default caps of 50 and 30 hardly bend small logits; a cap of 0.5 does. Some versions of transformers
    # run it with sdpa by default, which ignores the cap.
    small = {"head_dim": 16, "sliding_window": 6, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 16}
    return _llama_like(Gemma2Config, Gemma2ForCausalLM, **{"attn_implementation": "eager"} | small | changes)


def mixtral(**changes):
    # The grouped matrix product of the default implementation takes no float64.
    small = {"num_local_experts": 4, "sliding_window": None, "experts_implementation": "eager"}
    return _llama_like(MixtralConfig, MixtralForCausalLM, **small | changes)


def bert(**changes):
    config = BertConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=256, **changes,
    )  # fmt: skip
    return BertForMaskedLM(config)


def t5(**changes):
    config = T5Config(
        d_model=WIDTH, d_kv=8, d_ff=3 * WIDTH, num_layers=LAYERS, num_decoder_layers=LAYERS, num_heads=HEADS,
        vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", decoder_start_token_id=0, **changes,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def bloom(**changes):
    config = BloomConfig(hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY, **changes)
    return BloomForCausalLM(config)


def mpt(**changes):
    config = MptConfig(d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS, vocab_size=VOCABULARY, max_seq_len=256, **changes)
    return MptForCausalLM(config)


def vit(**changes):
    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        image_size=16, patch_size=4, **changes,
    )  # fmt: skip
    return ViTForImageClassification(config)


CAUSAL: dict[str, Callable[..., nn.Module]] = {
    "gpt_neox": gpt_neox, "opt": opt, "gpt2": gpt2, "llama": llama, "qwen2": qwen2, "qwen3": qwen3, "mistral": mistral,
    "gemma2": gemma2, "mixtral": mixtral, "bloom": bloom, "mpt": mpt,
}  # fmt: skip
"""Decoders of text."""

FAMILIES: dict[str, Callable[..., nn.Module]] = CAUSAL | {"bert": bert, "t5": t5, "vit": vit}
"""Every Hugging Face family, by name."""


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
        """Set the sizes."""
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
        """Set the sizes."""
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
    """The same with all MLPs in a list of their own, beside that of the blocks."""

    def __init__(self) -> None:
        """Move the MLPs."""
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
