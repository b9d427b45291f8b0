"""Generated texts against Python's own parsers."""

import ast
import json

import numpy as np
import pytest
import torch

from joma.data.generated import GENERATED, generated_text

SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
both = pytest.mark.parametrize("name", GENERATED)


def trees_of(name, num, seed):
    """Each tree's words, types and nodes; the last tree may be cut."""
    found, language = generated_text(name, num, seed=seed), GENERATED[name]
    words = [language.vocabulary[token] for token in found.tokens]
    ends = [place + 1 for place, word in enumerate(words) if word == language.end(["1", "+", "1"])[-1]]
    for start, end in zip([0, *ends], ends, strict=False):
        yield words[start:end], found.types[start:end], found.nodes[start:end]


def operations(words):
    """Height, kind, first token and end of every operation; Python leaves out the brackets around it."""
    tree = ast.parse("".join(words[: words.index("=")]), mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            around = 0 if node is tree else 1
            height = height_of([node.left, node.right])
            yield height, SYMBOLS[type(node.op)], node.col_offset - around, node.end_col_offset + around


def containers(words):
    """The same of every object and array."""
    stack, kinds = [], {"{": "object", "[": "array"}
    for place, word in enumerate(words):
        if word in kinds:
            stack.append((place, []))
        elif word in "}]":
            start, below = stack.pop()
            height = 1 + max(below, default=0)
            yield height, kinds[words[start]], start, place + 1
            if stack:
                stack[-1][1].append(height)


def height_of(value):
    """Levels of containers, or of operations."""
    if isinstance(value, ast.BinOp):
        return height_of([value.left, value.right])
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(height_of, value.values() if isinstance(value, dict) else value))


@both
def test_trees_are_those_of_pythons_parser(name):
    heights, kinds = [], GENERATED[name].kinds
    for words, types, nodes in trees_of(name, 20_000, seed=3):
        if name == "json":
            value = json.loads("".join(words))
            assert json.dumps(value, separators=(",", ":")) + "\n" == "".join(words)  # no key comes twice
            found = list(containers(words))
        else:
            expression, value = "".join(words[:-1]).split("=")
            assert eval(expression) % 10 == int(value)
            value, found = ast.parse(expression, mode="eval").body, list(operations(words))
        expected = torch.full((len(words), 6), -1, dtype=torch.int16)
        for height, kind, first, end in found:
            expected[first:end, height - 1] = kinds.index(kind)
            assert len(nodes[first:end, height - 1].unique()) == 1  # one node
        assert torch.equal(types, expected) and torch.equal(nodes >= 0, types >= 0)
        heights.append(max(height for height, *_ in found))
        assert heights[-1] == height_of(value)
    assert np.allclose(np.bincount(heights, minlength=7)[2:] / len(heights), 0.2, atol=0.07) and min(heights) == 2


@both
def test_a_node_has_one_type_and_its_tokens_lie_together(name):
    found = generated_text(name, 5000, seed=2)
    pairs = torch.stack([found.nodes, found.types.int()], dim=-1).flatten(0, 1).unique(dim=0)
    assert len(pairs) == len(found.nodes.unique())
    for nodes in found.nodes.T:
        runs = nodes[torch.cat([torch.tensor([True]), nodes[1:] != nodes[:-1]])]
        assert len(runs[runs >= 0]) == len(nodes[nodes >= 0].unique())


@both
def test_texts_follow_their_seed_and_sizes_that_make_no_text_are_refused(name):
    first = generated_text(name, 3000, seed=1)
    assert torch.equal(generated_text(name, 500, seed=1).tokens, first.tokens[:500])
    assert not torch.equal(generated_text(name, 3000, seed=2).tokens, first.tokens)
    assert (generated_text(name, 3000, seed=1, deepest=3).types >= 0).any(0).tolist() == [True, True, True]
    assert int(first.tokens.min()) == 1 and int(first.tokens.max()) == len(GENERATED[name].vocabulary) - 1
    for wrong in ({"num_tokens": 0}, {"seed": -1}, {"deepest": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            generated_text(name, **{"num_tokens": 10, "seed": 1} | wrong)
