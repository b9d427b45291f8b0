"""Trees above tokens: heights on written examples, source code in parts, matched tokens."""

import ast
from dataclasses import replace

import numpy as np
import pytest
import torch

from joma.data import TreeText, tree_corpus, tree_text, tree_texts
from joma.data.matched import matched_tokens
from joma.data.python_docs import part_of
from joma.data.source_code import parse_source
from joma.errors import UnknownNameError

FILES = {
    "package/a.py": "x = f(1)\nclass C:\n    def g(y):\n        return [y, x]\n",
    "package/b.py": "y = g(2, x)\n",
    **{f"module{number}.py": f"z{number} = {number}\n" for number in range(20)},
}


def test_heights_of_python_count_levels_from_below():
    tree = parse_source("for i in f(g(1), 2):\n    pass\n")
    by_height = [[tree.node_types[node] if node >= 0 else "" for node in row] for row in tree.by_height(4)]
    rows = dict(zip(tree.tokens, by_height, strict=True))
    assert rows["for"] == ["", "", "For", "Module"]
    assert rows["pass"] == ["", "", "For", "Module"]
    assert rows["f"] == ["", "Call", "For", "Module"]
    assert rows["1"] == rows["g"] == ["Call", "Call", "For", "Module"]
    assert rows["2"] == ["", "Call", "For", "Module"]
    assert np.array_equal(tree.by_height(2), tree.by_height(4)[:, :2])


def test_heights_of_python_are_those_of_pythons_parser():
    source = "def f(a, b=2):\n    if a > b[0]:\n        return g(a, -b)\n    return [x.y for x in a]\n"
    tree, module = parse_source(source), ast.parse(source)
    placeless = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)

    def level(node) -> int:
        below = [child for child in ast.iter_child_nodes(node) if not isinstance(child, placeless)]
        return 1 + max(map(level, below)) if below else 0

    expected = sorted((level(node), type(node).__name__) for node in ast.walk(module) if hasattr(node, "lineno"))
    table = tree.by_height(9)
    found = sorted({(height + 1, node) for row in table.tolist() for height, node in enumerate(row) if node >= 0})
    found = [(height, tree.node_types[node]) for height, node in found]
    assert sorted(pair for pair in found if pair[1] not in ("Module", "arguments", "comprehension")) == [
        pair for pair in expected if pair[0] > 0
    ]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small library in place of Python's, and a cache of its own."""
    for name, content in FILES.items():
        path = tmp_path / "library" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path / "cache"))
    arrays = tree_texts.source_arrays
    monkeypatch.setattr(tree_texts, "source_arrays", lambda: arrays(tmp_path / "library"))
    tree_text.cache_clear()
    yield tmp_path
    tree_text.cache_clear()


def test_source_code_has_three_parts_with_their_trees(library, monkeypatch):
    corpus, train = tree_corpus("source-code"), tree_text("source-code", "train")
    dealt = [part_of(name) for name in FILES if "/" not in name]
    assert [len(corpus.valid), len(corpus.test)] == [3 * dealt.count("valid"), 3 * dealt.count("test")]
    words = [corpus.vocabulary[token] for token in corpus.train[3 * dealt.count("train") :]]
    assert " ".join(words) == "x = f ( 1 ) class C : def g ( y ) : return [ y , x ] y = g ( 2 , x )"
    types, nodes = (table[-len(words) :] for table in (train.types, train.nodes))
    above = [[train.type_names[kind] if kind >= 0 else "" for kind in row] for row in types.tolist()]
    assert above[4] == ["Call", "Assign", "", "", "Module", "", "", ""]
    assert above[words.index("C")][3] == "ClassDef" and above[words.index("return")][1] == "Return"
    assert above[-1] == ["Call", "Assign", "Module", "", "", "", "", ""]
    assert not set(nodes[:21][nodes[:21] >= 0].tolist()) & set(nodes[21:][nodes[21:] >= 0].tolist())  # other files
    monkeypatch.setattr(tree_texts, "read_trees", None)  # from here on the cache has it
    tree_text.cache_clear()
    assert tree_corpus("source-code").hash == corpus.hash
    capped = tree_corpus("source-code", 4)
    assert capped.vocabulary == corpus.vocabulary[:4] and capped.hash != corpus.hash
    assert torch.equal(capped.train, torch.where(corpus.train < 4, corpus.train, 0))
    assert torch.equal(tree_text("source-code", "train", 4).tokens, capped.train)


@pytest.mark.parametrize("name", ["arithmetic", "json"])
def test_latents_are_of_the_tokens_that_are_trained_on(name):
    corpus = tree_corpus(name)
    for split in ("valid", "test"):
        text = tree_text(name, split)
        assert torch.equal(text.tokens, getattr(corpus, split)) and len(text.types) == len(text.nodes) == 50_000
        assert int(text.types.max()) == len(text.type_names) - 1
    assert not torch.equal(corpus.valid, corpus.test)
    with pytest.raises(UnknownNameError, match="json"):
        tree_text("jsn", "test")


def made(num: int = 4000) -> TreeText:
    """Nodes of 8 and 16 tokens with types in turn; the tokens are 0 to 3."""
    place = torch.arange(num)
    nodes = torch.stack([place // 8, num + place // 16], dim=1).int()
    return TreeText(tokens=place % 4, types=(nodes % 3).short(), nodes=nodes, type_names=("a", "b", "c"))


def test_matched_tokens_are_of_the_later_half_of_nodes_and_as_many_of_each_type():
    text = made()
    found = matched_tokens(text, num_heights=2, num_types=2, num_samples=150, num_permutations=3, seed=1)
    assert len(found) == 2 and found[0][0].shape == (2, 300) and found[0][1].shape == (2, 300, 7, 2)
    for height, (places, labels) in enumerate(found):
        assert (places[0] < 2000).all() and (places[1] >= 2000).all()
        assert (places % (8, 16)[height] >= (4, 8)[height]).all()
        assert len(places.unique()) == places.numel()
        assert (labels[:, :, :4].sum(dim=1) == 150).all()  # the tree's own, and dealt within words
        types = text.types[places, height]
        for number in range(2):
            assert len(types[labels[:, :, 0, number]].unique()) == 1  # the tree's own types
        assert (labels.sum(dim=-1) == 1).all()


def test_controls_keep_types_within_words_and_within_nodes():
    text = made()
    for height, (places, labels) in enumerate(
        matched_tokens(text, num_heights=2, num_types=3, num_samples=100, num_permutations=4, seed=2)
    ):
        for part, place in enumerate(places):
            words, nodes, kinds = text.tokens[place], text.nodes[place, height], labels[part].float().argmax(dim=-1)
            for labelling in range(1, 5):
                for word in range(4):
                    own = words == word
                    assert torch.equal(kinds[own, labelling].bincount(minlength=3), kinds[own, 0].bincount(minlength=3))
            for labelling in range(5, 9):
                pairs = torch.stack([nodes, kinds[:, labelling]], dim=1).unique(dim=0)
                assert len(pairs) == len(nodes.unique())  # a node has one type
                of_nodes = [torch.stack([nodes, kinds[:, of]], dim=1).unique(dim=0)[:, 1] for of in (0, labelling)]
                assert torch.equal(*(each.bincount(minlength=3) for each in of_nodes))
            agreement = (kinds[:, 1:] == kinds[:, :1]).double().mean(dim=0)
            assert (agreement < 0.6).all()


def test_other_seeds_choose_other_tokens_and_missing_heights_are_refused():
    settings = {"num_heights": 2, "num_types": 3, "num_samples": 50, "num_permutations": 1}
    first, again, other = (matched_tokens(made(), **settings, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    bare = replace(made(), types=torch.full((4000, 2), -1, dtype=torch.int16))
    with pytest.raises(ValueError, match="fewer heights"):
        matched_tokens(bare, **settings, seed=1)
