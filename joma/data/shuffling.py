"""A text without its order: every word stays as often as it was, at a random place."""

import numpy as np
import torch

from joma.data.cache import digest
from joma.data.corpora import SPLITS
from joma.data.text import Corpus
from joma.errors import whole


def shuffled(corpus: Corpus, seed: int) -> Corpus:
    """Return the words of each part of a text in a random order, a function of the seed and the part.

    >>> corpus = Corpus(name="a", **{split: torch.arange(5) for split in SPLITS}, vocabulary=tuple("abcde"), hash="1")
    >>> sorted(shuffled(corpus, 1).train.tolist()) == corpus.train.tolist()
    True
    """
    whole("seed", seed, low=0)
    parts = {
        split: torch.from_numpy(np.random.default_rng((seed, number)).permutation(getattr(corpus, split).numpy()))
        for number, split in enumerate(SPLITS)
    }
    mixed = digest(corpus.hash, "shuffled", str(seed))
    return Corpus(name=corpus.name, **parts, vocabulary=corpus.vocabulary, hash=mixed)
