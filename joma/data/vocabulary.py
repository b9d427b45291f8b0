"""Words as numbers: the most frequent first, equals in alphabetical order, everything else `<unk>`."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

UNKNOWN = "<unk>"
"""The word with number 0: written in a text already, beyond the cap, or not seen in training."""


def build_vocabulary(
    blocks: Iterable[Sequence[str]], cap: int | None = None
) -> tuple[Int[np.ndarray, " tokens"], tuple[str, ...]]:
    """Number the words of a text that comes in blocks; return the numbers and the words, `<unk>` the first of them.

    `cap` is the most words to keep, `<unk>` counted.

    >>> numbers, words = build_vocabulary([["b", "a", "c"], ["c", "<unk>"]])
    >>> numbers.tolist(), words
    ([3, 2, 1, 1, 0], ('<unk>', 'c', 'a', 'b'))
    """
    seen = defaultdict[str, int](None, {UNKNOWN: 0})
    seen.default_factory = seen.__len__  # a new word gets the next number
    parts = [np.fromiter(map(seen.__getitem__, block), dtype=np.int32, count=len(block)) for block in blocks]
    as_seen = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    words = list(seen)
    counts = np.bincount(as_seen, minlength=len(words)).tolist()
    ranked = sorted(range(1, len(words)), key=lambda number: (-counts[number], words[number]))
    kept = [0, *ranked][:cap]
    rank = np.zeros(len(words), dtype=np.int32)
    rank[kept] = np.arange(len(kept), dtype=np.int32)
    return rank[as_seen], tuple(words[number] for number in kept)


def look_up(blocks: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> Int[np.ndarray, " tokens"]:
    """Return the number of every word of a text that comes in blocks, 0 for words outside the vocabulary.

    >>> look_up([["a", "z"]], ("<unk>", "a")).tolist()
    [1, 0]
    """
    known = _Known(zip(vocabulary, range(len(vocabulary)), strict=True))
    parts = [np.fromiter(map(known.__getitem__, block), dtype=np.int32, count=len(block)) for block in blocks]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


class _Known(dict[str, int]):
    """Numbers of words, 0 for any other."""

    def __missing__(self, word: str) -> int:
        return 0
