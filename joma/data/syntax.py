r"""Python source as tokens, each with the nodes of the syntax tree above it.

The span of a node is what the parser says, widened to hold its children (a decorator lies outside the function that it
decorates otherwise) and the @ of its decorators; nodes that the parser gives no place, such as the arguments of a
function, span their children. So spans nest as the tree does, and a token belongs to the innermost node around it.

Places are offsets in the UTF-8 bytes of the source. Tokens are names, operators, numbers and strings; comments and
layout are left out. Literals with fields in them (f-strings) are leaves: before Python 3.12 they are one token.
"""

import ast
import io
import tokenize
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

_LAYOUT = {
    tokenize.ENCODING,
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
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
    leaves: Int[np.ndarray, " tokens"]
    """Innermost node around every token."""
    node_types: tuple[str, ...]
    """Name of the class of every node, as in the module `ast`."""
    node_spans: Int[np.ndarray, "nodes 2"]
    """First byte of every node, and the one after its last."""
    parents: Int[np.ndarray, " nodes"]
    """Node above every node, -1 for the module."""
    depths: Int[np.ndarray, " nodes"]
    """Number of nodes above every node."""

    def first(self, num_tokens: int) -> "SyntaxTree":
        """Return the same tree above the first tokens alone."""
        return replace(
            self,
            tokens=self.tokens[:num_tokens],
            token_spans=self.token_spans[:num_tokens],
            leaves=self.leaves[:num_tokens],
        )

    def ancestors(self, max_depth: int | None = None) -> Int[np.ndarray, "tokens depth"]:
        """Return the nodes above every token from the module down, -1 beyond the innermost.

        At most `max_depth` levels are kept, those next to the module.

        >>> tree = parse("x = f(1)")
        >>> [tree.node_types[node] for node in tree.ancestors()[tree.tokens.index("1")]]
        ['Module', 'Assign', 'Call', 'Constant']
        """
        height = int(self.depths[self.leaves].max(initial=-1)) + 1
        table = np.full((len(self.tokens), height), -1, dtype=np.int32)
        tokens, nodes = np.arange(len(self.tokens)), self.leaves
        while len(tokens):
            table[tokens, self.depths[nodes]] = nodes
            nodes = self.parents[nodes]
            tokens, nodes = tokens[nodes >= 0], nodes[nodes >= 0]
        return table[:, :max_depth]


def parse(source: str) -> SyntaxTree:
    r"""Tokenise Python source and find the nodes above every token; line ends must be \n."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that later versions refuse
            module = ast.parse(source)
        words = [word for word in tokenize.generate_tokens(io.StringIO(source).readline) if word.type not in _LAYOUT]
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise UnparsableError(f"The source must be Python of this version: {error}. Leave it out.") from None
    places = _Places(source)
    words = [word for word in words if word.string]
    token_spans = np.array([places.of_token(word) for word in words], dtype=np.int64).reshape(-1, 2)
    ats = token_spans[[word.string == "@" for word in words], 0]
    nodes, parents, depths = _preorder(module)
    node_spans = _node_spans(nodes, parents, places, ats)
    return SyntaxTree(
        tokens=tuple(word.string for word in words),
        token_spans=token_spans,
        leaves=_innermost(token_spans, node_spans),
        node_types=tuple(type(node).__name__ for node in nodes),
        node_spans=node_spans,
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

    def of_token(self, word: tokenize.TokenInfo) -> tuple[int, int]:
        return self._of_characters(*word.start), self._of_characters(*word.end)

    def _of_characters(self, line: int, column: int) -> int:
        text = self._lines[line - 1]
        return self._starts[line - 1] + (column if text.isascii() else len(text[:column].encode()))


def _preorder(
    module: ast.Module,
) -> tuple[list[Any], Int[np.ndarray, " nodes"], Int[np.ndarray, " nodes"]]:
    """Return the nodes of a tree, the number of the one above each, and how many are above each."""
    nodes: list[Any] = []
    parents: list[int] = []
    depths: list[int] = []
    waiting: list[tuple[ast.AST, int, int]] = [(module, -1, 0)]
    while waiting:  # no recursion: a long sum is a deep tree
        node, parent, depth = waiting.pop()
        number = len(nodes)
        nodes.append(node)
        parents.append(parent)
        depths.append(depth)
        if type(node).__name__ not in _LEAVES:
            children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _PLACELESS)]
            waiting.extend((child, number, depth + 1) for child in reversed(children))
    return nodes, np.array(parents), np.array(depths)


def _node_spans(
    nodes: list[Any], parents: Int[np.ndarray, " nodes"], places: _Places, ats: Int[np.ndarray, " ats"]
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


def _innermost(
    token_spans: Int[np.ndarray, "tokens 2"], node_spans: Int[np.ndarray, "nodes 2"]
) -> Int[np.ndarray, " tokens"]:
    """Return the innermost node around every token: in preorder, each node takes its tokens from the one above."""
    leaves = np.zeros(len(token_spans), dtype=np.int64)
    first = np.searchsorted(token_spans[:, 0], node_spans[:, 0])
    last = np.searchsorted(token_spans[:, 1], node_spans[:, 1], side="right")
    for number, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        leaves[start:stop] = number
    return leaves
