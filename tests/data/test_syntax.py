"""Syntax above tokens: spans hold what is below them, paths go from the module down, on made and on real programs."""

import ast

import numpy as np
import pytest

from joma.data.python_docs import decode_source, library_files
from joma.data.source_code import SyntaxTree, UnparsableError, parse

MADE = '''@ größe[a, b:]
@b.c  # é@é
async def größe(a, /, b=(a if b else ()), *, c: int = 1) -> a:
    x: a = [f(日本, *b, k={a: b}),
      f"é{a!r:>{b}}" "x" f"{a}", b""]  # größe
    with (lambda x, y=a: b) as a, b:
        return
@b
class A(b, m=[x for x in (not a < b @ b) if 'ä#']):
    """two
lines"""
    try: del a; pass
    except b as c: global 日本
    finally: pass
if a:
    match a:
      case [a, *_] | {'k': b} if b:
        a = b, c = (a + 1)
      case _: pass
elif b: pass
else:
    from . import a as b, c
def f(): return
'''
"""Many kinds of statements and expressions, with letters of several bytes, comments and strings over lines."""


def assert_nested(tree: SyntaxTree) -> None:
    """Every node above a token holds it, is the child of the one above; none is missing."""
    spans, parents = tree.node_spans, tree.parents
    assert (spans[1:, 0] >= spans[parents[1:], 0]).all() and (spans[1:, 1] <= spans[parents[1:], 1]).all()
    np.testing.assert_array_equal(tree.depths[1:], tree.depths[parents[1:]] + 1)
    path = tree.ancestors()
    for level, nodes in enumerate(path.T):
        here = nodes >= 0
        assert (spans[nodes[here], 0] <= tree.token_spans[here, 0]).all()
        assert (spans[nodes[here], 1] >= tree.token_spans[here, 1]).all()
        above = parents[nodes[here]]
        np.testing.assert_array_equal(above, path[here, level - 1] if level else -1)
    assert_innermost(tree)


def assert_innermost(tree: SyntaxTree) -> None:
    """No node around a token is missing from its path: as many hold it as there are on the path."""
    starts, ends = np.sort(tree.node_spans[:, 0]), np.sort(tree.node_spans[:, 1])
    # Nodes begun by the start of the token, less those ended by then; nodes without tokens do both at once.
    first = tree.token_spans[:, 0]
    around = np.searchsorted(starts, first, side="right") - np.searchsorted(ends, first, side="right")
    np.testing.assert_array_equal(around, (tree.ancestors() >= 0).sum(1))


def assert_text(tree: SyntaxTree, source: str) -> None:
    """Tokens are where they are said to be, in order."""
    content = source.encode()
    for word, (start, stop) in zip(tree.tokens, tree.token_spans.tolist(), strict=True):
        assert content[start:stop].decode() == word
    assert (tree.token_spans[1:, 0] >= tree.token_spans[:-1, 1]).all()


def test_paths_hold_their_tokens():
    files = list(library_files().values())
    for source in (MADE, *(decode_source(path.read_bytes()) for path in files[:6] + files[500:506])):
        tree = parse(source)
        assert_text(tree, source)
        assert_nested(tree)


def test_nodes_have_the_text_that_the_parser_gives_them():
    source = "x = größe(a, [b, 1])\nif x: y = 'ä' + z\n"
    tree = parse(source)
    content = source.encode()
    found = [
        (name, content[start:stop].decode())
        for name, (start, stop) in zip(tree.node_types, tree.node_spans.tolist(), strict=True)
    ]
    placed = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
    expected = [(type(node).__name__, ast.get_source_segment(source, node)) for node in placed]
    assert sorted(found[1:]) == sorted(expected)


@pytest.mark.parametrize(
    ("source", "token", "path"),
    [
        ("x = f(1)", "1", "Module Assign Call Constant"),
        ("x = f(1)", "=", "Module Assign"),
        ("a + b", "+", "Module Expr BinOp"),
        ("@ a\ndef f(x): pass", "@", "Module FunctionDef"),
        ("@ a\ndef f(x): pass", "a", "Module FunctionDef Name"),
        ("def f(x, y=1): pass", "1", "Module FunctionDef arguments Constant"),
        ("def f(): pass", "(", "Module FunctionDef"),
        ("with a as b: pass", "as", "Module With withitem"),
        ("[x for y in z]", "in", "Module Expr ListComp comprehension"),
        ("import a.b as c", "b", "Module Import alias"),
    ],
)
def test_examples(source, token, path):
    tree = parse(source)
    nodes = tree.ancestors()[tree.tokens.index(token)]
    assert [tree.node_types[node] for node in nodes if node >= 0] == path.split()


def test_long_sums_are_deep_and_do_no_harm():
    tree = parse(" + ".join(["a"] * 400))
    assert tree.depths.max() > 400
    assert_nested(tree)


def test_layout_is_left_out_and_depth_can_be_cut():
    assert parse("if a:  # why\n    b\n\n\nc").tokens == ("if", "a", ":", "b", "c")
    assert parse("# nothing\n").tokens == () and parse("").ancestors().shape == (0, 0)
    tree = parse("x = [[[[1]]]]")
    np.testing.assert_array_equal(tree.ancestors(2), tree.ancestors()[:, :2])


@pytest.mark.parametrize("source", ["def", "print 'two'", "a = (", "\0", "if a:\nb"])
def test_what_is_no_python_is_refused(source):
    with pytest.raises(UnparsableError):
        parse(source)
