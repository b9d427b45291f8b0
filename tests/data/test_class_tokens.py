"""Class-conditional tokens of figures 2 and 3."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.data.frequencies import LAWS, class_tokens, tokens_hash


@given(st.sampled_from(LAWS), st.integers(0, 12), st.integers(1, 12), st.integers(1, 25), st.integers(0, 2**40))
def test_columns_are_frequencies(law, num_distinct, num_common, num_classes, seed):
    x = class_tokens(seed, law=law, num_distinct=num_distinct, num_common=num_common, num_classes=num_classes)
    assert x.shape == (num_distinct + num_common, num_classes)
    assert x.dtype == torch.float64
    assert (x >= 0).all()
    # Rounding of a sum of two dozen terms.
    torch.testing.assert_close(x.sum(dim=0), torch.ones(num_classes, dtype=torch.float64), rtol=0, atol=1e-15)


def test_smooth_columns_are_the_bump_of_the_paper_beside_random_common_tokens():
    x = class_tokens(0).numpy()
    for label in range(20):
        bump = [np.exp(-((token - 10 * label / 20) ** 2) / 30) for token in range(10)]
        # Normalising leaves ratios alone; 1e-13 is the rounding of a few products.
        np.testing.assert_allclose(x[:10, label] / x[0, label], np.array(bump) / bump[0], rtol=1e-13)
        common = x[10:, label] / x[0, label] * bump[0]
        assert ((common >= 0) & (common <= 0.5)).all()
    assert not np.allclose(x[10], x[11])


def test_random_frequencies_are_uniform_before_they_are_normalised():
    x = class_tokens(0, law="random", num_distinct=1, num_common=1, num_classes=40_000)
    # x₁ / (x₁ + x₂) of two equal uniforms has mean ½ and variance ¾ − ln 2, whatever their scale.
    spread = (0.75 - np.log(2)) ** 0.5
    assert abs(float(x[0].mean()) - 0.5) < 5 * spread / 40_000**0.5
    assert abs(float(x[0].std()) - spread) < 5 * spread / 40_000**0.5


def test_other_tokens_have_another_hash():
    assert tokens_hash([0, 1], law="random") == tokens_hash([0, 1], law="random")
    hashes = {tokens_hash(seeds, law=law) for law in LAWS for seeds in ([0], [1], [0, 1])}
    assert len(hashes) == 6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"law": "smoth"}, "'smooth'"),
        ({"num_distinct": 0, "num_common": 0}, "`num_distinct` or `num_common`"),
        ({"num_classes": 0}, "`num_classes`"),
        ({"num_common": -1}, "`num_common`"),
        ({"seed": -1}, "`seed`"),
    ],
)
def test_impossible_tables_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        class_tokens(**{"seed": 0} | given)
