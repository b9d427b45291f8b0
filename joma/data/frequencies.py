r"""Class-conditional token frequencies of figures 2 and 3: one column for each class.

A column holds how often each contextual token occurs in the one sample of its class, and sums to one. The first tokens
are distinct: in the smooth case their frequency is a bump that moves over the tokens with the class,

$$x_{li} \propto e^{-(l - n i/K)^2/30}, \qquad l = 0, \dots, n-1,\quad i = 0, \dots, K-1,$$

with $n$ distinct tokens (10 in the paper); in the random case it is uniform in $[0, \frac12]$. The common tokens after
them are uniform in $[0, \frac12]$ in both.
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from joma.data.cache import digest_of_arrays
from joma.errors import UnknownNameError, whole

LAWS = ("smooth", "random")
"""How the frequency of a distinct token depends on the class."""
BUMP_SQUARE = 30.0
"""Twice the variance of the smooth bump over the tokens."""
HIGHEST = 0.5
"""Largest random frequency before the columns are normalised."""
DIGITS = 12
"""Decimal digits of a frequency that its hash is of."""


def class_tokens(
    seed: int, *, law: str = "smooth", num_distinct: int = 10, num_common: int = 10, num_classes: int = 20
) -> Float[Tensor, "M_C K"]:
    """Token frequencies X in float64, tokens by row and classes by column; every column sums to one.

    The common tokens of a seed are the same under both laws.

    >>> x = class_tokens(0)
    >>> x.shape, x.sum(dim=0).allclose(torch.ones(20, dtype=torch.float64))
    (torch.Size([20, 20]), True)
    """
    for name, number in (("num_distinct", num_distinct), ("num_common", num_common)):
        whole(name, number, low=0)
    whole("num_classes", num_classes, low=1)
    if num_distinct + num_common == 0:
        raise ValueError("A column needs a token to sum to one, got none. Pass `num_distinct` or `num_common`.")
    if law not in LAWS:
        raise UnknownNameError("law of tokens", law, LAWS)
    generator = np.random.default_rng(int(whole("seed", seed, low=0)))
    common = generator.uniform(0, HIGHEST, (num_common, num_classes))
    if law == "smooth":
        token, centre = np.arange(num_distinct)[:, None], num_distinct * np.arange(num_classes) / num_classes
        distinct = np.exp(-np.square(token - centre) / BUMP_SQUARE)
    else:
        distinct = generator.uniform(0, HIGHEST, (num_distinct, num_classes))
    x = np.concatenate([distinct, common])
    return torch.as_tensor(x / x.sum(axis=0))


def tokens_hash(seeds: Iterable[int], *, law: str) -> str:
    """Return a hash of the frequencies of some seeds: tokens that are others by now show.

    The last digits are left out, in which the exponentials of two machines may differ.

    >>> tokens_hash([0, 1], law="smooth") == tokens_hash([0, 2], law="smooth")
    False
    """
    return digest_of_arrays({str(seed): class_tokens(seed, law=law).numpy().round(DIGITS) for seed in seeds})
