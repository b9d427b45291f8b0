"""Settings that cannot be are refused before anything is built."""

import re

import pytest

from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig
from joma.settings import settings_of

REFUSED = {
    "heads": ({"heads": 3}, r"`width` .* `heads`"),
    "odd head": ({"width": 6, "heads": 2}, r"\(6 / 2\)"),
    "odd width": ({"width": 7, "positions": "sinusoidal"}, r"even `width`"),
    "free and rotary": ({"attention_logits": "free"}, r"`attention_logits`"),
    "a block that is not there": ({"depth": 2, "only_block": 2}, r"`only_block`"),
    "class without classes": ({"readout": "class"}, r"`num_classes`"),
    "classes without class": ({"num_classes": 3}, r"`num_classes`"),
    "tied class": ({"readout": "class", "num_classes": 3, "tied": True}, r"`tied`"),
    "dropout": ({"dropout": 1.0}, r"`dropout`"),
    "nan dropout": ({"dropout": float("nan")}, r"`dropout`"),
    "depth": ({"depth": 0}, r"`depth`"),
    "activation": ({"activation": "geluu"}, r"'gelu'\?"),
    "norm place": ({"norm_place": "befor"}, r"'before'\?"),
    "nan scale": ({"logit_scale": float("nan")}, r"`logit_scale`"),
    "unknown": ({"hiden": 4}, r"'hidden'\?"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=list(REFUSED))
def test_impossible_settings_are_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as refused:
        DecoderConfig(**{"vocabulary": 11, "width": 8, "hidden": 4} | change)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("embedding", "vocabulary"), [("orthonormal", 11), ("almost_orthogonal", 8)])
def test_a_vocabulary_that_an_embedding_is_not_for_is_refused_by_the_model(embedding, vocabulary):
    """And not by the config: whose vocabulary it is, is known when the data are."""
    config = DecoderConfig(vocabulary=vocabulary, width=8, hidden=4, embedding=embedding)
    with pytest.raises(ValueError, match=f"got {vocabulary} and 8"):
        Decoder(config)


@pytest.mark.parametrize("positions", settings_of(DecoderConfig)["positions"].choices)
def test_the_width_that_is_offered_for_the_heads_is_taken(positions):
    for width, heads in ((10, 3), (2, 3), (20, 7)):
        settings = {"vocabulary": 11, "hidden": 4, "heads": heads, "positions": positions}
        with pytest.raises(ValueError) as refused:
            DecoderConfig(width=width, **settings)
        offered = int(re.search(r"Take `width` (\d+)", str(refused.value))[1])
        assert DecoderConfig(width=offered, **settings).head_width * heads == offered
