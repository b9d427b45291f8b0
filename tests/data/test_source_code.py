"""Python source: syntax above tokens on made and real programs, files joined, limits, and what does not parse."""

import ast

import numpy as np
import pytest
import torch

from joma.data.python_docs import decode_source, library_files
from joma.data.source_code import SourceTokens, SyntaxTree, UnparsableError, load_source, parse

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


@pytest.fixture(scope="module")
def library() -> SourceTokens:
    """Part of the standard library."""
    return load_source(max_tokens=20_000)


def paths(source: SourceTokens) -> list[str]:
    return [" ".join(source.node_types[t] for t in row if t >= 0) for row in source.ancestors.tolist()]


def test_files_come_one_after_the_other_and_what_does_not_parse_is_counted(folder):
    source = load_source(folder)
    assert source.files == ("a.py", "b/c.py", "b/latin.py")
    assert source.starts.tolist() == [0, 6, 18]
    assert [source.vocabulary[number] for number in source.tokens.tolist()] == TOKENS
    assert source.num_skipped == 2
    assert paths(source)[4] == "Module Assign Call Constant"
    assert paths(source)[12:14] == ["Module FunctionDef Return", "Module FunctionDef Return List"]


def test_nodes_are_numbered_through_all_files(folder):
    source = load_source(folder)
    assert source.node_ids[[0, 6, 18], 0].unique().numel() == 3  # a module for each file
    types = {}
    for nodes, kinds in zip(source.node_ids.flatten().tolist(), source.ancestors.flatten().tolist(), strict=True):
        assert types.setdefault(nodes, kinds) == kinds  # a node is of one type
    assert types[-1] == -1
    alone = parse(FILES["b/c.py"]).ancestors()
    joined = source.node_ids[6:18].numpy()
    np.testing.assert_array_equal(np.where(alone >= 0, alone + joined[0, 0], -1), joined[:, : alone.shape[1]])
    assert (joined[:, alone.shape[1] :] == -1).all()
    assert torch.equal((source.node_ids >= 0).sum(1), source.depth)


def test_a_node_has_one_parent_and_one_stretch_of_tokens(library):
    ids = library.node_ids.numpy()
    for level, nodes in enumerate(ids.T):
        begins = (nodes >= 0) & (nodes != np.concatenate([[-1], nodes[:-1]]))
        assert len(np.unique(nodes[begins])) == begins.sum()
        if level:
            pairs = np.unique(ids[nodes >= 0, level - 1 : level + 1], axis=0)
            assert len(pairs) == begins.sum()


@pytest.mark.parametrize("max_tokens", [1, 6, 7, 20])
def test_a_limit_gives_the_start_of_the_whole(folder, max_tokens):
    whole, part = load_source(folder), load_source(folder, max_tokens=max_tokens)
    height = part.node_ids.shape[1]
    assert len(part.tokens) == max_tokens
    assert [part.vocabulary[n] for n in part.tokens] == [whole.vocabulary[n] for n in whole.tokens[:max_tokens]]
    assert torch.equal(part.node_ids, whole.node_ids[:max_tokens, :height])
    assert paths(part) == paths(whole)[:max_tokens]


def test_depth_and_vocabulary_can_be_capped(folder):
    whole, capped = load_source(folder), load_source(folder, max_depth=2, vocabulary_cap=4)
    assert torch.equal(capped.node_ids, whole.node_ids[:, :2])
    assert capped.vocabulary == whole.vocabulary[:4]
    assert torch.equal(capped.tokens, torch.where(whole.tokens < 4, whole.tokens, 0))
    assert capped.hash != whole.hash


def test_the_standard_library_is_read_the_same_every_time(library):
    again = load_source(max_tokens=20_000)
    assert again.hash == library.hash
    assert again.files == library.files
    assert len(library.tokens) == 20_000
    assert {"Module", "FunctionDef", "Call", "Name"} <= set(library.node_types)


@pytest.mark.parametrize("limits", [{"max_tokens": 0}, {"max_depth": 0}, {"vocabulary_cap": 1}], ids=str)
def test_limits_that_leave_nothing_are_refused(tmp_path, limits):
    with pytest.raises(ValueError, match=f"`{next(iter(limits))}`"):
        load_source(**limits)
    (tmp_path / "old.py").write_text("print 'two'")
    with pytest.raises(ValueError, match="1 of them do not parse"):
        load_source(tmp_path)


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
        tree, content = parse(source), source.encode()
        found = [content[start:stop].decode() for start, stop in tree.token_spans.tolist()]
        assert tuple(found) == tree.tokens and (tree.token_spans[1:, 0] >= tree.token_spans[:-1, 1]).all()
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


def test_layout_is_left_out_and_depth_can_be_cut():
    assert parse("if a:  # why\n    b\n\n\nc").tokens == ("if", "a", ":", "b", "c")
    assert parse("# nothing\n").tokens == () and parse("").ancestors().shape == (0, 0)
    tree = parse("x = [[[[1]]]]")
    np.testing.assert_array_equal(tree.ancestors(2), tree.ancestors()[:, :2])


@pytest.mark.parametrize("source", ["def", "print 'two'", "a = (", "\0", "if a:\nb"])
def test_what_is_no_python_is_refused(source):
    with pytest.raises(UnparsableError):
        parse(source)
