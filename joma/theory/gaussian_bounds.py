r"""Lemmas 6 and 7: two functions that bound the integrals behind Theorem 4, with their sharp constants."""

import numpy as np
from scipy import special

from joma.errors import finite
from joma.types import Real

G_SUP_AT = 1.3069297277192810
r"""Where Lemma 7's $G$ is largest; there $G = 1/y$, since $G' = 1 - yG$."""
G_SUP = 0.7651520803227094
r"""$\sup G$, the sharp constant of Lemma 7 (printed: 1)."""
SMALL_G_SUP_AT = 1.1209064227785341
r"""Where Lemma 6's $g$ is largest, $\sqrt{-\tfrac12 - W_{-1}(-\tfrac12e^{-1/2})}$: the non-zero root of Eqn 75."""
SMALL_G_SUP = 0.6381726863389515
r"""$\max g$, the sharp constant of Lemma 6 (printed: $1/\sqrt2 = 0.7071$)."""


def small_g(y: Real) -> np.ndarray:
    r"""$g(y) = (1 - e^{-y^2})/y$, with $0 \le g \le$ `SMALL_G_SUP` on $y\ge0$ (Lemma 6).

    >>> bool(abs(small_g(SMALL_G_SUP_AT) - SMALL_G_SUP) < 1e-15)
    True
    """
    y = finite("y", y)
    return np.asarray(y * special.exprel(-np.square(y)))


def gaussian_g(y: Real) -> np.ndarray:
    r"""$G(y) = e^{-y^2/2}\int_0^y e^{x^2/2}dx = \sqrt2\,D(y/\sqrt2)$ with Dawson's D, $\le$ `G_SUP` (Lemma 7).

    >>> bool(abs(gaussian_g(G_SUP_AT) - G_SUP) < 1e-15)
    True
    """
    return np.asarray(np.sqrt(2) * special.dawsn(finite("y", y) / np.sqrt(2)))
