"""Settings that cannot be are refused before anything is built."""

import re

import pytest

from joma.models.decoder import Decoder
from joma.models.decoder_config import CHOICES, DecoderConfig

REFUSED = {
    "heads": (
        {"heads": 3},
        r"`width` must be a multiple of `heads`, got 8 and 3\. Take `width` 6, or `heads` that divide 8\.",
    ),
    "odd head": ({"width": 6, "heads": 2}, r"even width per head, got 3 \(6 / 2\)"),
    "odd width": ({"width": 7, "positions": "sinusoidal"}, r"even `width`, got 7"),
    "free and rotary": ({"attention_logits": "free"}, r"free logits have none"),
    "a block that is not there": ({"depth": 2, "only_block": 2}, r"`only_block` must be below `depth`, 2, got 2"),
    "class without classes": ({"readout": "class"}, r"needs `num_classes`, and only that, got 0 for class"),
    "classes without class": ({"num_classes": 3}, r"got 3 for next_token"),
    "tied class": ({"readout": "class", "num_classes": 3, "tied": True}, r"cannot be tied"),
    "dropout": ({"dropout": 1.0}, r"`dropout` must lie in \[0, 1\), got 1.0"),
    "nan dropout": ({"dropout": float("nan")}, r"`dropout` must lie in \[0, 1\), got nan"),
    "depth": ({"depth": 0}, r"`depth` must be a whole number of at least 1, got 0"),
    "activation": ({"activation": "geluu"}, r"no activation named 'geluu'\. Did you mean 'gelu'\?"),
    "norm place": ({"norm_place": "befor"}, r"no norm place named 'befor'\. Did you mean 'before'\?"),
    "nan scale": ({"logit_scale": float("nan")}, r"`logit_scale` must be finite"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=list(REFUSED))
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**{"vocabulary": 11, "width": 8, "hidden": 4} | change)


@pytest.mark.parametrize(
    ("embedding", "vocabulary", "message"),
    [
        ("orthonormal", 11, r"`vocabulary` ≤ `width`, got 11 and 8"),
        ("almost_orthogonal", 8, r"`vocabulary` > `width`, got 8 and 8"),
    ],
)
def test_a_vocabulary_that_an_embedding_is_not_for_is_refused_by_the_model(embedding, vocabulary, message):
    """And not by the config: whose vocabulary it is, is known when the data are."""
    config = DecoderConfig(vocabulary=vocabulary, width=8, hidden=4, embedding=embedding)
    with pytest.raises(ValueError, match=message):
        Decoder(config)


@pytest.mark.parametrize("positions", CHOICES["positions"])
def test_the_width_that_is_offered_for_the_heads_is_taken(positions):
    for width, heads in ((10, 3), (2, 3), (20, 7)):
        settings = {"vocabulary": 11, "hidden": 4, "heads": heads, "positions": positions}
        with pytest.raises(ValueError) as refused:
            DecoderConfig(width=width, **settings)
        offered = int(re.search(r"Take `width` (\d+)", str(refused.value))[1])
        assert DecoderConfig(width=offered, **settings).head_width * heads == offered
