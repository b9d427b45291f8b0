"""Small decoders over all their options, and packs of them with data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from covering import Pair, covering_array
from torch import Tensor

from joma.models.batch import Batch, Model, Noise
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig
from joma.randomness import keep_mask, run_keys, streams
from joma.settings import settings_of

WIDTH, HIDDEN, LENGTH, SEQUENCES, CLASSES, STEP = 8, 12, 6, 3, 5, 4
MASKED = 4
"""Positions that a read-out of masked words reads."""
FEW_TOKENS, MANY_TOKENS = 7, 11
"""Vocabularies below and above the width."""

FACTORS: dict[str, tuple[Any, ...]] = {
    **{name: each.choices for name, each in settings_of(DecoderConfig).items() if each.choices},
    "heads": (1, 2), "depth": (1, 2), "gated": (False, True),
    "frozen": (
        (), ("attention",), ("mlp",), ("qk", "norm"), ("value", "readout"), ("embedding", "positions", "output"),
    ),
    "train_embedding": (True, False), "embedding_scale": (1.0, 2.5), "residual_attention": (True, False),
    "residual_mlp": (True, False), "attention_bias": (True, False), "attention_output": (True, False),
    "qk_norm": (False, True), "softcap": (math.inf, 0.7), "negative_slope": (0.0, 0.2), "attention_scale": (1.0, 0.6),
    "causal": (True, False), "dropout": (0.0, 0.2), "tied": (False, True), "logit_scale": (1.0, 0.3),
    "identical_blocks": (False, True), "only_block": (None, 0),
}  # fmt: skip
"""Every option of the decoder with its values; sizes follow from them."""

IMPOSSIBLE: tuple[Pair, ...] = (
    frozenset({("positions", "rotary"), ("attention_logits", "free")}),
    frozenset({("readout", "class"), ("tied", True)}),
    frozenset({("readout", "masked_word"), ("causal", True)}),
    frozenset({("qk_norm", True), ("attention_logits", "free")}),
    *(
        frozenset({("negative_slope", 0.2), ("activation", name)})
        for name in settings_of(DecoderConfig)["activation"].choices
        if name != "relu"
    ),
)

ROWS = covering_array(FACTORS, IMPOSSIBLE)


def small_config(row: Mapping[str, Any]) -> DecoderConfig:
    """Fill in sizes that the options allow."""
    sizes = {
        "vocabulary": FEW_TOKENS if row.get("embedding") == "orthonormal" else MANY_TOKENS,
        "width": WIDTH,
        "hidden": HIDDEN,
        "max_length": LENGTH + 1,
        "num_classes": CLASSES if row.get("readout") == "class" else 0,
    }
    return DecoderConfig(**sizes | dict(row))


@dataclass(frozen=True)
class Pack:
    """Runs side by side: their weights, data and dropout."""

    decoder: Decoder
    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor]
    batch: Batch
    noise: Noise

    def alone(self, run: int) -> "Pack":
        """One of the runs, by itself."""
        own = slice(run, run + 1)
        return Pack(
            decoder=self.decoder,
            parameters={name: tensor[own].clone() for name, tensor in self.parameters.items()},
            gradients={name: torch.full_like(tensor[own], torch.nan) for name, tensor in self.gradients.items()},
            batch=Batch(
                tokens=self.batch.tokens[own],
                targets=self.batch.targets[own],
                rows=None if self.batch.rows is None else self.batch.rows[own],
            ),
            noise=Noise(keys=self.noise.keys[own], step=self.noise.step),
        )

    def train(self) -> Tensor:
        """Losses in training mode; the gradients are filled in."""
        return self.decoder.value_and_gradient(self.parameters, self.gradients, self.batch, self.noise)

    def drop(self, run: int):
        """The dropout of one run, for its plain twin."""
        rate = self.decoder.config.dropout

        def dropped(x: Tensor, site: str) -> Tensor:
            (stream,) = streams(self.noise.keys[run : run + 1], self.noise.step, [site])
            return torch.where(keep_mask(stream, x.shape, rate)[0], x / (1 - rate), 0.0)

        return dropped


def without_gradients(model: Model, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Room for the gradient of every parameter that is trained, with NaN in it."""
    return {name: torch.full_like(each, torch.nan) for name, each in parameters.items() if name not in model.frozen}


def make_pack(config: DecoderConfig, seeds: Sequence[int], *, length: int = LENGTH, kick: float = 0.3) -> Pack:
    """Start runs in float64, moved by a random `kick` so that no bias is zero and no block equals another."""
    decoder, starts = Decoder(config), []
    tokens, targets, rows = [], [], []
    num_targets = {"class": SEQUENCES, "masked_word": MASKED}.get(config.readout, SEQUENCES * length)
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        own = decoder.initial(seed).items()
        kicks = {name: torch.randn(each.shape, generator=generator, dtype=torch.float64) for name, each in own}
        starts.append({name: start + kick * kicks[name] for name, start in own})
        tokens.append(torch.randint(config.vocabulary, (SEQUENCES, length), generator=generator))
        targets.append(torch.randint(config.num_outputs, (num_targets,), generator=generator))
        rows.append(torch.randperm(SEQUENCES * length, generator=generator)[:MASKED])
    parameters = {name: torch.stack([start[name] for start in starts]) for name in decoder.shapes}
    return Pack(
        decoder=decoder,
        parameters=parameters,
        gradients=without_gradients(decoder, parameters),
        batch=Batch(
            tokens=torch.stack(tokens),
            targets=torch.stack(targets),
            rows=torch.stack(rows) if config.readout == "masked_word" else None,
        ),
        noise=Noise(keys=run_keys(seeds), step=torch.tensor(STEP)),
    )
