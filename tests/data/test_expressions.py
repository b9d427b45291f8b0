"""Generated arithmetic against Python's own parser, and texts in random order."""

import ast

import pytest
import torch

from joma.data import Corpus, arithmetic, arithmetic_corpus, shuffled
from joma.data.expressions import OPERATORS, VOCABULARY

SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def height_of(node: ast.AST) -> int:
    return 1 + max(height_of(node.left), height_of(node.right)) if isinstance(node, ast.BinOp) else 0


def test_values_depths_and_operators_are_those_of_pythons_parser():
    found = arithmetic(20_000, seed=3)
    text = "".join(VOCABULARY[token] for token in found.tokens)
    starts = found.starts.tolist()
    assert found.operators.shape == (20_000, 6) and len(starts) > 300
    for start, end, depth in zip(starts, starts[1:], found.depths.tolist(), strict=False):
        expression, value = text[start : end - 1].split("=")
        tree = ast.parse(expression, mode="eval").body
        assert eval(expression) % 10 == int(value) and height_of(tree) == depth and text[end - 1] == ";"
        expected = torch.full((end - start, 6), -1, dtype=torch.int32)
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp):
                around = 0 if node is tree else 1  # brackets are no part of a node to Python
                span = slice(node.col_offset - around, node.end_col_offset + around)
                expected[span, height_of(node) - 1] = OPERATORS.index(SYMBOLS[type(node.op)])
        assert torch.equal(found.operators[start:end], expected)


def test_depths_from_2_to_6_are_equally_likely_and_a_seed_decides():
    found = arithmetic(200_000, seed=1)
    counts = found.depths.bincount(minlength=7)
    assert counts[:2].sum() == 0 and len(counts) == 7
    assert (counts[2:] / counts.sum() - 0.2).abs().max() < 0.03
    assert torch.equal(arithmetic(500, seed=1).tokens, found.tokens[:500])
    assert not torch.equal(arithmetic(500, seed=2).tokens, found.tokens[:500])
    assert int(arithmetic(5000, seed=1, deepest=3).depths.max()) == 3


@pytest.mark.parametrize("wrong", [{"num_tokens": 0}, {"seed": -1}, {"deepest": 1}], ids=str)
def test_sizes_that_make_no_expressions_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        arithmetic(**{"num_tokens": 10, "seed": 1} | wrong)


def test_the_corpus_is_always_the_same_and_its_parts_differ():
    one, other = arithmetic_corpus(), arithmetic_corpus()
    assert one.hash == other.hash and torch.equal(one.train, other.train)
    assert not torch.equal(one.valid, one.test) and not torch.equal(one.valid, one.train[: len(one.valid)])
    assert int(one.train.min()) == 1 and int(one.train.max()) == len(VOCABULARY) - 1


def test_shuffled_words_are_as_frequent_as_before_and_have_lost_their_order():
    parts = {"train": torch.arange(3000) % 7, "valid": torch.arange(500) % 7, "test": torch.arange(500) % 7}
    corpus = Corpus(name="cycle", **parts, vocabulary=tuple("abcdefg"), hash="1")
    mixed, again, other = shuffled(corpus, 4), shuffled(corpus, 4), shuffled(corpus, 5)
    for split, tokens in parts.items():
        assert torch.equal(getattr(mixed, split).bincount(), tokens.bincount())
        assert torch.equal(getattr(mixed, split), getattr(again, split))
        assert not torch.equal(getattr(mixed, split), getattr(other, split))
    assert not torch.equal(mixed.valid, mixed.test)
    follows = ((mixed.train[1:] - mixed.train[:-1]) % 7 == 1).double().mean()
    assert abs(float(follows) - 1 / 7) < 0.03  # before, every word followed the one below it
    assert len({corpus.hash, mixed.hash, other.hash}) == 3 and mixed.hash == again.hash
