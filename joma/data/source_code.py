"""Python files as one stream of tokens with known latents: the syntax-tree nodes above every token.

The standard library of the running interpreter gives over a million tokens under a real hierarchy: a module holds
statements, these hold expressions, and so down to the token.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from joma.data.cache import digest, digest_of_arrays
from joma.data.standard_library import decode_source, library_files
from joma.data.syntax import SyntaxTree, UnparsableError, parse
from joma.data.vocabulary import build_vocabulary
from joma.errors import whole


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SourceTokens:
    """Tokens of Python files, one file after the other, and the path from the module down to each."""

    tokens: Int64[Tensor, " tokens"]
    """Numbers of the tokens; 0 is `<unk>`."""
    vocabulary: tuple[str, ...]
    """Token of every number, the most frequent first after `<unk>`."""
    ancestors: Int32[Tensor, "tokens depth"]
    """Type of the node above a token at each level, the module at level 0, -1 below the innermost."""
    node_ids: Int32[Tensor, "tokens depth"]
    """The node itself at each level, numbered through all files, -1 below the innermost."""
    node_types: tuple[str, ...]
    """Name of every type, as in the module `ast`."""
    files: tuple[str, ...]
    """Files that tokens came from."""
    starts: Int64[Tensor, " files"]
    """Index of the first token of every file."""
    num_skipped: int
    """Files met on the way that this version of Python does not parse."""
    hash: str
    """Hash of all of the above but the files' names."""

    @property
    def depth(self) -> Int64[Tensor, " tokens"]:
        """Number of nodes above every token that are kept."""
        return (self.node_ids >= 0).sum(1)


def load_source(
    folder: str | Path | None = None,
    *,
    max_tokens: int | None = None,
    max_depth: int | None = None,
    vocabulary_cap: int | None = None,
) -> SourceTokens:
    """Read Python files in the order of their names, tests left out.

    Args:
        folder: Where the files are; None is the standard library of the running interpreter.
        max_tokens: Stop after so many tokens, in the middle of a file; None reads all.
        max_depth: Most levels of nodes to keep, counted from the module; None keeps all.
        vocabulary_cap: Most different tokens to keep, `<unk>` counted; None keeps all. Others become `<unk>`.
    """
    for name, value, low in (
        ("max_tokens", max_tokens, 1),
        ("max_depth", max_depth, 1),
        ("vocabulary_cap", vocabulary_cap, 2),
    ):
        if value is not None:
            whole(name, value, low=low)
    trees, num_skipped = _read(folder, max_tokens)
    tokens, vocabulary = build_vocabulary((tree.tokens for tree in trees.values()), vocabulary_cap)
    node_ids = _number_through(list(trees.values()), max_depth)
    node_types, type_of_node = np.unique([t for tree in trees.values() for t in tree.node_types], return_inverse=True)
    ancestors = np.append(type_of_node, -1).astype(np.int32)[node_ids]  # the last entry is the type of node -1
    starts = np.cumsum([0, *(len(tree.tokens) for tree in trees.values())])[:-1]
    arrays = {"tokens": tokens, "ancestors": ancestors, "node_ids": node_ids, "starts": starts}
    return SourceTokens(
        tokens=torch.from_numpy(tokens.astype(np.int64)),
        vocabulary=vocabulary,
        ancestors=torch.from_numpy(ancestors),
        node_ids=torch.from_numpy(node_ids),
        node_types=tuple(node_types.tolist()),
        files=tuple(trees),
        starts=torch.from_numpy(starts),
        num_skipped=num_skipped,
        hash=digest(digest_of_arrays(arrays), *vocabulary, *node_types.tolist()),
    )


def _read(folder: str | Path | None, max_tokens: int | None) -> tuple[dict[str, SyntaxTree], int]:
    """Parse files until there are enough tokens; return the trees by file, and how many files could not be parsed."""
    files = library_files(None if folder is None else Path(folder))
    trees: dict[str, SyntaxTree] = {}
    num_skipped = 0
    num_wanted = float("inf") if max_tokens is None else max_tokens
    for file in files:
        if num_wanted <= 0:
            break
        try:
            tree = parse(decode_source(file.path.read_bytes()))
        except (UnparsableError, SyntaxError, UnicodeDecodeError):
            num_skipped += 1
            continue
        if tree.tokens:
            trees[file.name] = tree if len(tree.tokens) <= num_wanted else tree.first(int(num_wanted))
            num_wanted -= len(tree.tokens)
    if not trees:
        where = "the standard library" if folder is None else folder
        raise ValueError(
            f"Source code needs Python files with tokens in them, {where} has {len(files)} files and {num_skipped} of "
            "them do not parse. Pass a folder of Python files."
        )
    return trees, num_skipped


def _number_through(trees: list[SyntaxTree], max_depth: int | None) -> Int32[np.ndarray, "tokens depth"]:
    """Return the nodes above every token of all trees, those of a tree numbered after those of the trees before it."""
    offsets = np.cumsum([0, *(len(tree.node_types) for tree in trees)])
    tables = [tree.ancestors(max_depth) for tree in trees]
    for table, offset in zip(tables, offsets, strict=False):
        table[table >= 0] += offset
    height = max(table.shape[1] for table in tables)
    padded = [np.pad(table, ((0, 0), (0, height - table.shape[1])), constant_values=-1) for table in tables]
    return np.concatenate(padded)
