"""Text as numbers, ready for a language model: read, tokenised by the paper's rules, and cached.

corpus = load_text("python-docs", vocabulary_cap=5000)
windows = Windows(corpus.train, num_streams=20, length=35)
inputs, targets = windows.window(0)
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Int16, Int32, Int64
from torch import Tensor

from joma.data.cache import cache_folder, digest, digest_of_arrays, read_arrays, write_arrays
from joma.data.corpora import SPLITS, TextFolder, find_text
from joma.data.python_docs import PythonDocs
from joma.errors import whole

RULES = "basic_english 1"
"""Name and version of the rules: cached tokens are found again only under the same one."""
SEPARATE = "'.,()!?"
"""Characters that are tokens of their own."""
AT_ONCE = 2**20
"""Tokens that are counted at once."""
_LINE_BREAK = "<br />"
_BLANKS = ";:"


def tokenise(text: str) -> list[str]:
    r"""Split a text into tokens; lines may be given one by one or together.

    >>> tokenise('It\'s "Senjō" (2011): Media.Vision; done!')
    ['it', "'", 's', 'senjō', '(', '2011', ')', 'media', '.', 'vision', 'done', '!']
    """
    text = text.lower().replace('"', "").replace(_LINE_BREAK, " ")
    for character in SEPARATE:
        text = text.replace(character, f" {character} ")
    for character in _BLANKS:
        text = text.replace(character, " ")
    return text.split()


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
    numbers = np.fromiter(chain.from_iterable(map(seen.__getitem__, block) for block in blocks), dtype=np.int32)
    words = list(seen)
    # Some at a time, since NumPy makes an index of 8 bytes of each: a long text is in memory once.
    pieces = np.array_split(numbers, 1 + len(numbers) // AT_ONCE)
    counts = np.sum([np.bincount(piece, minlength=len(words)) for piece in pieces], axis=0).tolist()
    ranked = sorted(range(1, len(words)), key=lambda number: (-counts[number], words[number]))
    kept = [0, *ranked][:cap]
    rank = np.zeros(len(words), dtype=np.int32)
    rank[kept] = np.arange(len(kept), dtype=np.int32)
    for piece in pieces:
        piece[:] = rank[piece]
    return numbers, tuple(words[number] for number in kept)


def look_up(blocks: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> Int[np.ndarray, " tokens"]:
    """Return the number of every word of a text that comes in blocks, 0 for words outside the vocabulary.

    >>> look_up([["a", "z"]], ("<unk>", "a")).tolist()
    [1, 0]
    """
    known = {word: number for number, word in enumerate(vocabulary)}
    return np.fromiter(chain.from_iterable(map(known.get, block, repeat(0)) for block in blocks), dtype=np.int32)


class Windows:
    """A text cut into `num_streams` stretches of equal length, read side by side in windows of `length` tokens.

    Tokens beyond a multiple of `num_streams` are left out, and so is the short window at the end. Every token of a
    window has the one after it as its target. Windows are views on the device of the tokens: nothing is copied.

    >>> import torch
    >>> windows = Windows(torch.arange(11), num_streams=2, length=2)
    >>> windows.num_windows
    2
    >>> inputs, targets = windows.window(1)
    >>> inputs.tolist(), targets.tolist()
    ([[2, 3], [7, 8]], [[3, 4], [8, 9]])
    """

    def __init__(self, tokens: Int64[Tensor, " tokens"], num_streams: int, length: int) -> None:
        """Lay the streams out; refuses a text too short for one window."""
        whole("num_streams", num_streams, low=1)
        whole("length", length, low=1)
        if tokens.ndim != 1:
            raise ValueError(f"`tokens` must have one axis, got shape {tuple(tokens.shape)}. Flatten it.")
        needed = num_streams * (length + 1)
        if len(tokens) < needed:
            raise ValueError(
                f"{num_streams} streams with windows of {length} need at least {needed} tokens, the text has "
                f"{len(tokens)}. Pass a longer text, fewer streams or shorter windows."
            )
        per_stream = len(tokens) // num_streams
        kept = tokens[: num_streams * per_stream]
        self.streams: Int64[Tensor, "num_streams per_stream"] = kept.reshape(num_streams, -1)
        """The text, one stretch a row."""
        self.length = length
        """Tokens of a window."""

    @property
    def num_streams(self) -> int:
        """Number of stretches that are read side by side."""
        return len(self.streams)

    @property
    def num_windows(self) -> int:
        """Number of whole windows: the steps of an epoch."""
        return (self.streams.shape[1] - 1) // self.length

    def window(self, i: int) -> tuple[Int64[Tensor, "num_streams length"], Int64[Tensor, "num_streams length"]]:
        """Return window `i` and its targets."""
        if not 0 <= i < self.num_windows:
            raise IndexError(f"`i` must be from 0 to {self.num_windows - 1}, the windows of the text, got {i}.")
        inputs = self.streams.narrow(1, i * self.length, self.length)
        targets = self.streams.narrow(1, i * self.length + 1, self.length)
        return inputs, targets


_VOCABULARY = "vocabulary"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    """A tokenised text."""

    name: str
    """Name asked for, or that of the folder."""
    train: Int64[Tensor, " train"]
    """Training tokens in their order; 0 is `<unk>`."""
    valid: Int64[Tensor, " valid"]
    """Validation tokens."""
    test: Int64[Tensor, " test"]
    """Test tokens."""
    vocabulary: tuple[str, ...]
    """Word of every number: `<unk>`, then the words of the training text, the most frequent first."""
    hash: str
    """Hash of tokens and vocabulary: whatever changes content, rules or cap so that it matters changes this."""


def shuffled(corpus: Corpus, seed: int) -> Corpus:
    """Return the words of each part of a text in a random order, a function of the seed and the part.

    >>> corpus = Corpus(name="a", **{split: torch.arange(5) for split in SPLITS}, vocabulary=tuple("abcde"), hash="1")
    >>> sorted(shuffled(corpus, 1).train.tolist()) == corpus.train.tolist()
    True
    """
    parts = {
        split: torch.from_numpy(np.random.default_rng((seed, number)).permutation(getattr(corpus, split).numpy()))
        for number, split in enumerate(SPLITS)
    }
    mixed = digest(corpus.hash, "shuffled", str(seed))
    return Corpus(name=corpus.name, **parts, vocabulary=corpus.vocabulary, hash=mixed)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TreeText:
    """Tokens with a tree above them: the type and the height of every ancestor."""

    tokens: Int64[Tensor, " tokens"]
    types: Int16[Tensor, "tokens height"]
    """Type of the node above a token at heights 1, 2, …, by its place in `type_names`; -1 where there is none."""
    nodes: Int32[Tensor, "tokens height"]
    """Number of that node; -1 where there is none."""
    type_names: tuple[str, ...]


def load_text(
    name_or_folder: str | Path, *, vocabulary_cap: int | None = None, cache: str | Path | None = None
) -> Corpus:
    """Read a text and tokenise it, or find its tokens in the cache.

    Args:
        name_or_folder: `python-docs`, the documentation that the running Python brings along; `wikitext2` or
            `wikitext103`, below `$JOMA_DATA` or from the hub; or a folder of train, valid and test files.
        vocabulary_cap: Most words to keep, `<unk>` counted; None keeps all. Others become `<unk>`.
        cache: Folder for tokenised text; None is `$JOMA_CACHE`, or `joma` in the user's cache folder.
    """
    if vocabulary_cap is not None:
        whole("vocabulary_cap", vocabulary_cap, low=2)
    source = find_text(name_or_folder)
    key = digest(source.digest(), RULES, str(vocabulary_cap))
    path = Path(cache_folder() if cache is None else cache) / f"text-{key}.safetensors"
    arrays = read_arrays(path)
    if arrays is None:
        arrays = _tokenised(source, vocabulary_cap)
        write_arrays(path, arrays)
    return Corpus(
        name=source.name,
        **{split: torch.from_numpy(arrays[split].astype(np.int64)) for split in SPLITS},
        vocabulary=tuple(arrays[_VOCABULARY].tobytes().decode().split("\n")),
        hash=digest_of_arrays(arrays),
    )


def _tokenised(source: TextFolder | PythonDocs, cap: int | None) -> dict[str, np.ndarray]:
    """Return the parts of a text as numbers, and the vocabulary as UTF-8, one word a line."""
    train, vocabulary = build_vocabulary(map(tokenise, source.blocks("train")), cap)
    held_out = {split: look_up(map(tokenise, source.blocks(split)), vocabulary) for split in ("valid", "test")}
    arrays = {"train": train, **held_out}
    for split, tokens in arrays.items():
        if not len(tokens):
            raise ValueError(f"The text {source.name} must have tokens in {split}, got none. Add text to it.")
    words = np.frombuffer("\n".join(vocabulary).encode(), dtype=np.uint8)
    return {**arrays, _VOCABULARY: words}
