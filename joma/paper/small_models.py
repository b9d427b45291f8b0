"""Small language models of six architectures, to be watched: joma's own, torch's and those of transformers."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from joma.models.batch import Batch
from joma.models.block import block
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig
from joma.models.functional import entrance, norm

WIDTH, HEADS, DEPTH, LENGTH, VOCABULARY = 32, 2, 2, 32, 256
OF_TRANSFORMERS = ("GPT2", "Llama", "GPTNeoX")
ARCHITECTURES = ("decoder", "norm after", "encoder", *OF_TRANSFORMERS)


class EngineBlock(nn.Module):
    """One block of the engine as a module, so that it can be watched."""

    def __init__(self, config: DecoderConfig, parameters: dict[str, Tensor]) -> None:
        """Hold the parameters under the names of the engine."""
        super().__init__()
        self.config, self.names = config, tuple(parameters)
        for name, tensor in parameters.items():
            *path, last = name.split(".")
            at: nn.Module = self
            for part in path:
                at.add_module(part, getattr(at, part, nn.Module()))
                at = at.get_submodule(part)
            at.register_parameter(last, nn.Parameter(tensor))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Pass states (1, B, L, D) through."""
        return block(self.config, {name: self.get_parameter(name)[None] for name in self.names}, x, tokens, {})[0]


class EngineModel(nn.Module):
    """One run of the engine's decoder as a module."""

    def __init__(self, seed: int, *, qk_clip: float = math.inf, **settings: Any) -> None:
        """Start it from its seed."""
        super().__init__()
        settings |= {"vocabulary": VOCABULARY, "width": WIDTH, "hidden": 4 * WIDTH, "heads": HEADS, "depth": DEPTH}
        self.config, self.qk_clip = DecoderConfig(activation="gelu", **settings), qk_clip
        self.decoder = Decoder(self.config)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self.decoder.initial(seed).items():
            part = ".".join(name.split(".")[:2]) + "." if name.startswith("blocks.") else ""
            parts.setdefault(part, {})[name.removeprefix(part)] = tensor
        self.ends = EngineBlock(self.config, parts.pop(""))
        self.blocks = nn.ModuleList(EngineBlock(self.config, own) for own in parts.values())

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every next token."""
        own = {name: tensor[None] for name, tensor in self.ends.named_parameters()}
        rows = nn.functional.embedding(tokens[None], own["embedding.weight"][0])
        x = entrance(self.config, rows, own.get("positions.weight"), None)
        for each in self.blocks:
            x = each(x, tokens[None])
        if self.config.norm_place == "before":
            x = norm(self.config, own, "final_norm", x)
        return nn.functional.linear(x[0], own["output.weight"][0], own["output.bias"][0])

    def clip(self, tokens: Tensor) -> None:
        """Do what the engine does after a step."""
        if self.qk_clip < math.inf:
            own = {name.removeprefix("ends."): tensor.detach()[None] for name, tensor in self.named_parameters()}
            self.decoder.clip_logits(own, Batch(tokens=tokens[None], targets=tokens[None].flatten(1)), self.qk_clip)


class TorchEncoderModel(nn.Module):
    """A language model on torch's own encoder."""

    def __init__(self) -> None:
        """Build the modules."""
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.output(self.encoder(self.embedding(tokens) + self.positions.weight, mask=mask, is_causal=True))


def build(architecture: str, seed: int, **cure: Any) -> nn.Module:
    """Return a model of two layers at its start."""
    torch.manual_seed(seed)
    if architecture == "decoder":
        return EngineModel(seed, **cure)
    if architecture == "norm after":
        return EngineModel(seed, norm_place="after", positions="learned", max_length=LENGTH)
    if architecture == "encoder":
        return TorchEncoderModel()
    import transformers

    sizes = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
    sizes |= {"max_position_embeddings": LENGTH, "bos_token_id": 0, "eos_token_id": 0}
    # Without dropout, and as large at the start as the others: the library's 0.02 is for wide models.
    others = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) if architecture == "GPT2" else {}
    others |= {} if architecture == "GPT2" else {"intermediate_size": 4 * WIDTH}
    config = getattr(transformers, f"{architecture}Config")(**sizes, **others, initializer_range=WIDTH**-0.5)
    head = "LMHeadModel" if architecture == "GPT2" else "ForCausalLM"
    return getattr(transformers, f"{architecture}{head}")(config)
