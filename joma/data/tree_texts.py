"""Texts with a tree above every token: generated arithmetic and JSON, and Python's standard library.

`tree_corpus` is what `joma train --data json` reads, and `tree_text` has the latents of the same tokens.
"""

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from joma.data.cache import cache_folder, digest, digest_of_arrays, read_arrays, write_arrays
from joma.data.corpora import SPLITS
from joma.data.generated import GENERATED, generated_text
from joma.data.python_docs import PythonDocs, part_of
from joma.data.source_code import SyntaxTree, read_trees
from joma.data.text import Corpus, TreeText, build_vocabulary, look_up
from joma.errors import UnknownNameError

SOURCE_CODE = "source-code"
SPLIT_TOKENS = {"train": 500_000, "valid": 50_000, "test": 50_000}
"""Tokens of each part of a generated text."""
TREE_TEXTS = (*GENERATED, SOURCE_CODE)
MAX_HEIGHT = 8
"""Largest height of a node of Python source that is kept."""
_RULES = "source-code 1"
_BETWEEN = "\0"
"""Between the words of a list; no source holds it."""


def tree_corpus(name: str, vocabulary_cap: int | None = None) -> Corpus:
    """Return `arithmetic`, `json` or `source-code` as a text of train, valid and test parts.

    Args:
        name: Generated texts are always the same; source is that of the running interpreter, tests left out.
        vocabulary_cap: Most words of source to keep, `<unk>` counted; None keeps all. Others become `<unk>`.
    """
    parts = {split: tree_text(name, split, vocabulary_cap).tokens for split in SPLITS}
    words = GENERATED[name].vocabulary if name in GENERATED else _words(source_arrays()["vocabulary"])[:vocabulary_cap]
    content = digest_of_arrays({split: tokens.numpy() for split, tokens in parts.items()})
    return Corpus(name=name, **parts, vocabulary=words, hash=digest(content, *words))


@lru_cache(maxsize=4)
def tree_text(name: str, split: str, vocabulary_cap: int | None = None) -> TreeText:
    """Return a part of `arithmetic`, `json` or `source-code` with its latents; parts are train, valid and test.

    >>> text = tree_text("arithmetic", "test")
    >>> text.type_names, text.types.shape
    (('+', '-', '*'), torch.Size([50000, 6]))
    """
    if name == SOURCE_CODE:
        arrays = source_arrays()
        tokens = arrays[f"{split}.tokens"].astype(np.int64)
        return TreeText(
            tokens=torch.from_numpy(np.where(tokens < (vocabulary_cap or np.inf), tokens, 0)),
            types=torch.from_numpy(arrays[f"{split}.types"]),
            nodes=torch.from_numpy(arrays[f"{split}.nodes"]),
            type_names=_words(arrays["types"]),
        )
    if name not in GENERATED:
        raise UnknownNameError("text with a tree", name, TREE_TEXTS)
    return generated_text(name, SPLIT_TOKENS[split], seed=SPLITS.index(split))


def source_arrays(folder: Path | None = None) -> dict[str, np.ndarray]:
    """Return tokens, types and nodes of every part of the standard library, from the cache if they are there.

    Packages are training text, and single modules are dealt out by their names, as in `python-docs`. `folder` takes the
    place of the library.
    """
    key = digest(PythonDocs(folder).digest(), _RULES, f"{sys.version_info[:2]}")
    path = Path(cache_folder()) / f"source-{key}.safetensors"
    arrays = read_arrays(path)
    if arrays is None:
        arrays = _parsed(read_trees(folder))
        write_arrays(path, arrays)
    return arrays


def _parsed(trees: dict[str, SyntaxTree]) -> dict[str, np.ndarray]:
    """Return the arrays of parsed files; words are numbered by their frequency in the training part."""
    names = sorted({kind for tree in trees.values() for kind in tree.node_types})
    number = {name: place for place, name in enumerate(names)}
    parts = {split: [tree for name, tree in trees.items() if part_of(name) == split] for split in SPLITS}
    tokens, vocabulary = build_vocabulary(tree.tokens for tree in parts["train"])
    arrays = {"vocabulary": _bytes(vocabulary), "types": _bytes(names)}
    for split, own in parts.items():
        types, nodes, first = [], [], 0
        for tree in own:
            table = tree.by_height(MAX_HEIGHT)
            kinds = np.array([*(number[name] for name in tree.node_types), -1], dtype=np.int16)
            types.append(kinds[table])  # the last is that of node -1
            nodes.append(np.where(table < 0, table, table + np.int32(first)))
            first += len(tree.node_types)
        if not own:
            raise ValueError(f"Source code needs files in each part, and {split} has none. Pass a larger folder.")
        numbers = tokens if split == "train" else look_up((tree.tokens for tree in own), vocabulary)
        of_split = {"tokens": numbers, "types": np.concatenate(types), "nodes": np.concatenate(nodes)}
        arrays |= {f"{split}.{of}": array for of, array in of_split.items()}
    return arrays


def _bytes(words: tuple[str, ...] | list[str]) -> np.ndarray:
    return np.frombuffer(_BETWEEN.join(words).encode(), dtype=np.uint8)


def _words(content: np.ndarray) -> tuple[str, ...]:
    return tuple(content.tobytes().decode().split(_BETWEEN))
