"""Python source: syntax above tokens on made and real programs, and what does not parse."""

import ast

import numpy as np
import pytest

from joma.data.python_docs import decode_source, library_files
from joma.data.source_code import SyntaxTree, UnparsableError, parse_source, read_trees

FILES = {
    "a.py": "x = f(1)\n",
    "b/c.py": "def g(y):\n    return [y, x]\n",
    "b/old.py": "print 'two'\n",
    "b/latin.py": "# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"),
    "b/spoilt.py": b"x = '\xff'\n",
    "b/tests/test_c.py": "assert 1\n",
    "empty.py": "# nothing\n",
    "readme.txt": "x\n",
}
TOKENS = "x = f ( 1 ) def g ( y ) : return [ y , x ] x = 'é'".split()


@pytest.fixture
def folder(tmp_path):
    """A small library in which some files do not parse."""
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return tmp_path


def test_files_come_by_name_and_what_does_not_parse_is_left_out(folder):
    trees = read_trees(folder)
    assert list(trees) == ["a.py", "b/c.py", "b/latin.py"]
    assert [word for tree in trees.values() for word in tree.tokens] == TOKENS
    for path in folder.rglob("*.py"):
        path.write_text("print 'two'")
    with pytest.raises(ValueError, match="6 of them do not parse"):
        read_trees(folder)


# The tree of one source

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
        np.testing.assert_array_equal(parents[nodes[here]], path[here, level - 1] if level else -1)
    # None is missing: nodes begun by the start of the token, less those ended by then (those without tokens do both).
    begun, ended = (np.searchsorted(np.sort(edge), tree.token_spans[:, 0], side="right") for edge in spans.T)
    np.testing.assert_array_equal(begun - ended, (path >= 0).sum(1))


def test_paths_hold_their_tokens():
    files = list(library_files().values())
    sum_of_400 = " + ".join(["a"] * 400)  # a deep tree
    for source in (MADE, sum_of_400, *(decode_source(path.read_bytes()) for path in files[:6] + files[500:506])):
        tree, content = parse_source(source), source.encode()
        found = [content[start:stop].decode() for start, stop in tree.token_spans.tolist()]
        assert tuple(found) == tree.tokens and (tree.token_spans[1:, 0] >= tree.token_spans[:-1, 1]).all()
        assert_nested(tree)


def test_nodes_have_the_text_that_the_parser_gives_them():
    source = "x = größe(a, [b, 1])\nif x: y = 'ä' + z\n"
    tree = parse_source(source)
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
    tree = parse_source(source)
    nodes = tree.ancestors()[tree.tokens.index(token)]
    assert [tree.node_types[node] for node in nodes if node >= 0] == path.split()


def test_layout_is_left_out():
    assert parse_source("if a:  # why\n    b\n\n\nc").tokens == ("if", "a", ":", "b", "c")
    assert parse_source("# nothing\n").tokens == () and parse_source("").ancestors().shape == (0, 0)


@pytest.mark.parametrize("source", ["def", "print 'two'", "a = (", "\0", "if a:\nb"])
def test_what_is_no_python_is_refused(source):
    with pytest.raises(UnparsableError):
        parse_source(source)
