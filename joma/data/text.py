"""Text as numbers, ready for a language model: read, tokenised by the paper's rules, and cached.

corpus = load_text("python-docs", vocabulary_cap=5000)
windows = Windows(corpus.train, num_streams=20, length=35)
inputs, targets = windows.window(0)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from joma.data.cache import cache_folder, digest, digest_of_arrays, read_arrays, write_arrays
from joma.data.corpora import SPLITS, TextSource, find_text
from joma.data.tokenisation import RULES, tokenise
from joma.data.vocabulary import build_vocabulary, look_up
from joma.data.windows import Windows
from joma.errors import whole

__all__ = ["Corpus", "Windows", "load_text"]

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


def _tokenised(source: TextSource, cap: int | None) -> dict[str, np.ndarray]:
    """Return the parts of a text as numbers, and the vocabulary as UTF-8, one word a line."""
    train, vocabulary = build_vocabulary(_tokens(source, "train"), cap)
    arrays = {"train": train} | {split: look_up(_tokens(source, split), vocabulary) for split in ("valid", "test")}
    for split, tokens in arrays.items():
        if not len(tokens):
            raise ValueError(f"The text {source.name} must have tokens in {split}, got none. Add text to it.")
    words = np.frombuffer("\n".join(vocabulary).encode(), dtype=np.uint8)
    return {**arrays, _VOCABULARY: words}


def _tokens(source: TextSource, split: str) -> Iterator[list[str]]:
    return map(tokenise, source.blocks(split))
