"""The paper's two models as settings of the decoder, quirks included."""

import math
from typing import Any

from joma.models.decoder_config import DecoderConfig

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
    settings: dict[str, Any] = {
        "vocabulary": vocabulary,
        "width": TEXT_WIDTH,
        "hidden": TEXT_WIDTH,
        "depth": depth,
        "norm_place": "after",
        "positions": "sinusoidal",
        "embedding_scale": math.sqrt(TEXT_WIDTH),
        "dropout": 0.2,
        "identical_blocks": True,
        "initialisation": "text",
    }
    return DecoderConfig(**settings | changes)


def paper_table1(num_classes: int, *, hidden: int = 4 * TABLE1_TOKENS, **changes: Any) -> DecoderConfig:
    """Return the classifier of Table 1; its hidden width is 400 or 4096, the sources disagree.

    A causal mask and no positions, no bias for queries, keys and values, no output projection.

    >>> paper_table1(20).causal, paper_table1(20).positions
    (True, 'none')
    """
    settings: dict[str, Any] = {
        "vocabulary": TABLE1_TOKENS,
        "width": TABLE1_WIDTH,
        "hidden": hidden,
        "depth": TABLE1_BLOCKS,
        "norm_place": "after",
        "positions": "none",
        "attention_bias": False,
        "attention_output": False,
        "readout": "class",
        "num_classes": num_classes,
        "initialisation": "table1",
    }
    return DecoderConfig(**settings | changes)
