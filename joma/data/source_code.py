"""Python source with known latents: the syntax-tree nodes above every token.

The standard library of the running interpreter gives over a million tokens under a real hierarchy: a module holds
statements, these hold expressions, and so down to the token.
"""

import ast
import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from joma.data.python_docs import decode_source, library_files, parse_quietly

_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_LEAVES = ("JoinedStr", "TemplateStr")
_PLACELESS = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.type_ignore)
"""Nodes without a place of their own: their tokens belong to the node above."""


class UnparsableError(ValueError):
    """A text is no Python source of this version."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SyntaxTree:
    """Tokens of a source, and the nodes of its tree in preorder: node 0 is the module."""

    tokens: tuple[str, ...]
    token_spans: Int[np.ndarray, "tokens 2"]
    """First byte of every token, and the one after its last."""
    node_types: tuple[str, ...]
    """Name of the class of every node, as in the module `ast`."""
    node_spans: Int[np.ndarray, "nodes 2"]
    """First byte of every node, and the one after its last."""
    parents: Int[np.ndarray, " nodes"]
    """Node above every node, -1 for the module."""
    depths: Int[np.ndarray, " nodes"]
    """Number of nodes above every node."""

    def ancestors(self) -> Int[np.ndarray, "tokens depth"]:
        """Return the nodes above every token from the module down, -1 beyond the innermost.

        >>> tree = parse_source("x = f(1)")
        >>> [tree.node_types[node] for node in tree.ancestors()[tree.tokens.index("1")]]
        ['Module', 'Assign', 'Call', 'Constant']
        """
        first = np.searchsorted(self.token_spans[:, 0], self.node_spans[:, 0])
        last = np.searchsorted(self.token_spans[:, 1], self.node_spans[:, 1], side="right")
        around = np.flatnonzero(first < last)  # nodes with tokens
        table = np.full((len(self.tokens), int(self.depths[around].max(initial=-1)) + 1), -1, dtype=np.int32)
        for node, start, stop, depth in np.array([around, first[around], last[around], self.depths[around]]).T.tolist():
            table[start:stop, depth] = node
        return table

    def by_height(self, max_height: int) -> Int32[np.ndarray, "tokens height"]:
        """Return the node above every token at heights 1, 2, …, and -1 where there is none of that height.

        The height of a node is the number of levels of nodes with tokens below it. A name or a number has height 0.

        >>> tree = parse_source("x = f(1)")
        >>> [tree.node_types[node] for node in tree.by_height(3)[tree.tokens.index("1")]]
        ['Call', 'Assign', 'Module']
        """
        table = self.ancestors()
        depths = (table >= 0).sum(axis=1)
        tokens, levels = np.nonzero(table >= 0)
        nodes = table[tokens, levels]
        heights = np.zeros(len(self.node_types), dtype=np.int64)
        np.maximum.at(heights, nodes, depths[tokens] - 1 - levels)
        of_each = heights[nodes]
        kept = (of_each >= 1) & (of_each <= max_height)
        found = np.full((len(self.tokens), max_height), -1, dtype=np.int32)
        found[tokens[kept], of_each[kept] - 1] = nodes[kept]
        return found


def parse_source(source: str) -> SyntaxTree:
    r"""Tokenise Python source and find the nodes above every token; line ends must be \n."""
    try:
        module = parse_quietly(source)
        words = [word for word in tokenize.generate_tokens(io.StringIO(source).readline) if word.type not in _LAYOUT]
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise UnparsableError(f"The source must be Python of this version: {error}. Leave it out.") from None
    places = _Places(source)
    words = [word for word in words if word.string]
    ends = [(places.of_characters(*word.start), places.of_characters(*word.end)) for word in words]
    token_spans = np.array(ends, dtype=np.int64).reshape(-1, 2)
    ats = token_spans[[word.string == "@" for word in words], 0]
    nodes, parents, depths = _preorder(module)
    return SyntaxTree(
        tokens=tuple(word.string for word in words),
        token_spans=token_spans,
        node_types=tuple(type(node).__name__ for node in nodes),
        node_spans=_node_spans(nodes, parents, places, ats),
        parents=parents,
        depths=depths,
    )


class _Places:
    """Turns lines and columns into offsets; the parser counts columns in bytes, the tokenizer in characters."""

    def __init__(self, source: str) -> None:
        self._lines = source.split("\n")
        lengths = [len(line) if line.isascii() else len(line.encode()) for line in self._lines]
        self._starts = [0, *np.cumsum(np.array(lengths) + 1).tolist()]
        self.num_bytes = self._starts[-1] - 1

    def of_bytes(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def of_characters(self, line: int, column: int) -> int:
        text = self._lines[line - 1]
        return self._starts[line - 1] + (column if text.isascii() else len(text[:column].encode()))


def _preorder(module: ast.Module) -> tuple[tuple[Any, ...], Int[np.ndarray, " nodes"], Int[np.ndarray, " nodes"]]:
    """Return the nodes of a tree, the number of the one above each, and how many are above each."""
    found: list[tuple[Any, int, int]] = []
    waiting: list[tuple[ast.AST, int, int]] = [(module, -1, 0)]
    while waiting:  # no recursion: a long sum is a deep tree
        node, _, depth = waiting[-1]
        found.append(waiting.pop())
        if type(node).__name__ not in _LEAVES:
            children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _PLACELESS)]
            waiting.extend((child, len(found) - 1, depth + 1) for child in reversed(children))
    nodes, parents, depths = zip(*found, strict=True)
    return nodes, np.array(parents), np.array(depths)


def _node_spans(
    nodes: Sequence[Any], parents: Int[np.ndarray, " nodes"], places: _Places, ats: Int[np.ndarray, " ats"]
) -> Int[np.ndarray, "nodes 2"]:
    """Return spans that hold those of all nodes below; a node without any place has an empty one in its parent's."""
    starts, ends = [places.num_bytes] * len(nodes), [0] * len(nodes)
    above = parents.tolist()
    for number in range(len(nodes) - 1, 0, -1):  # children come after their parents, and are done first
        node = nodes[number]
        if "lineno" in node._attributes:
            starts[number] = min(starts[number], places.of_bytes(node.lineno, node.col_offset))
            ends[number] = max(ends[number], places.of_bytes(node.end_lineno, node.end_col_offset))
        if getattr(node, "decorator_list", None):
            starts[number] = int(ats[np.searchsorted(ats, starts[number]) - 1])
        starts[above[number]] = min(starts[above[number]], starts[number])
        ends[above[number]] = max(ends[above[number]], ends[number])
    starts[0], ends[0] = 0, places.num_bytes
    for number in range(1, len(nodes)):
        if ends[number] == 0:
            starts[number] = ends[number] = starts[above[number]]
    return np.array([starts, ends]).T


def read_trees(folder: str | Path | None = None) -> dict[str, SyntaxTree]:
    """Parse Python files, tests left out, in the order of their names, and leave out those that do not parse.

    Without a folder they are those of the running interpreter's standard library.
    """
    files = library_files(None if folder is None else Path(folder))
    trees: dict[str, SyntaxTree] = {}
    num_skipped = 0
    for name, path in files.items():
        try:
            tree = parse_source(decode_source(path.read_bytes()))
        except (UnparsableError, SyntaxError, UnicodeDecodeError):
            num_skipped += 1
            continue
        if tree.tokens:
            trees[name] = tree
    if not trees:
        where = "the standard library" if folder is None else folder
        raise ValueError(
            f"Source code needs Python files with tokens in them, {where} has {len(files)} files and {num_skipped} of "
            "them do not parse. Pass a folder of Python files."
        )
    return trees
