"""Generated arithmetic: bracketed expressions of known depth with their value, and the operators above every token.

`((3+4)*2)-5=9;` is an expression of depth 3. Its value is taken modulo 10, so that every number is one digit and the
digit after `=` depends on the hierarchy above the digits before it.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from joma.data.cache import digest, digest_of_arrays
from joma.data.text import UNKNOWN, Corpus
from joma.errors import whole

NAME = "arithmetic"
OPERATORS = "+-*"
VOCABULARY = (UNKNOWN, *"0123456789", *OPERATORS, *"()=;")
"""Tokens by number; `<unk>` never occurs."""
SHALLOWEST, DEEPEST = 2, 6
"""Depths of the expressions, each as likely as the others."""
SPLIT_TOKENS = {"train": 500_000, "valid": 50_000, "test": 50_000}
"""Tokens of each part of the corpus."""
_NUMBER = {token: number for number, token in enumerate(VOCABULARY)}
_NO_OPERATOR = _NO_NODE = -1
_BASE = 10
_HALF = 0.5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ArithmeticTokens:
    """Expressions, one after the other."""

    tokens: Int64[Tensor, " tokens"]
    """Numbers of the tokens in `VOCABULARY`."""
    operators: Int32[Tensor, "tokens height"]
    """Operator of the node above a token at heights 1, 2, …, by its place in `OPERATORS`; a digit has height 0, and a
    bracket is below the operator that it encloses. -1 where there is no node of that height above, as for the value."""
    nodes: Int32[Tensor, "tokens height"]
    """Number of that node, counted through all expressions; -1 where there is none."""
    depths: Int64[Tensor, " expressions"]
    """Depth of every expression."""
    starts: Int64[Tensor, " expressions"]
    """Index of the first token of every expression."""


def arithmetic(num_tokens: int, *, seed: int, deepest: int = DEEPEST) -> ArithmeticTokens:
    """Generate expressions until there are so many tokens; the last one may be cut.

    Args:
        num_tokens: How many tokens to return.
        seed: Of all choices: depths from 2 to `deepest`, operators, digits, and which side is deeper.
        deepest: Largest depth of an expression.

    >>> found = arithmetic(60, seed=1)
    >>> "".join(VOCABULARY[token] for token in found.tokens[: found.starts[1]])
    '(7-0)*(7+0)=9;'
    """
    whole("num_tokens", num_tokens, low=1)
    whole("seed", seed, low=0)
    whole("deepest", deepest, low=SHALLOWEST)
    draw = random.Random(seed)
    tokens: list[int] = []
    above: list[tuple[int, ...]] = []
    depths, starts = [], []
    kinds: list[int] = []
    none = (_NO_NODE,) * deepest
    while len(tokens) < num_tokens:
        depth = SHALLOWEST + int(draw.random() * (deepest - SHALLOWEST + 1))
        starts.append(len(tokens))
        depths.append(depth)
        own, over, value = _expression(draw, depth, deepest, kinds)
        end = (_NUMBER["="], _NUMBER[str(value)], _NUMBER[";"])
        tokens += [*own, *end]
        above += [*over, *([none] * len(end))]
    nodes = torch.tensor(above[:num_tokens], dtype=torch.int32)
    return ArithmeticTokens(
        tokens=torch.tensor(tokens[:num_tokens]),
        operators=torch.tensor([*kinds, _NO_OPERATOR], dtype=torch.int32)[nodes],  # the last is that of node -1
        nodes=nodes,
        depths=torch.tensor(depths),
        starts=torch.tensor(starts),
    )


def arithmetic_corpus() -> Corpus:
    """Return generated expressions as a text of train, valid and test parts; always the same ones."""
    parts = {name: arithmetic(num, seed=seed).tokens for seed, (name, num) in enumerate(SPLIT_TOKENS.items())}
    arrays: dict[str, np.ndarray] = {name: tokens.numpy() for name, tokens in parts.items()}
    return Corpus(name=NAME, **parts, vocabulary=VOCABULARY, hash=digest(digest_of_arrays(arrays), *VOCABULARY))


def _expression(
    draw: random.Random, depth: int, deepest: int, kinds: list[int]
) -> tuple[list[int], list[tuple[int, ...]], int]:
    """Return tokens of an expression of exactly this depth, the nodes above each, and its value modulo 10.

    The operator of each node is added to `kinds`, and its number is its place there. One loop over what is still to be
    written, and no calls: corpora are long. Of `random`, `random()` alone promises to stay the same.
    """
    none = (_NO_NODE,) * deepest
    tokens: list[int] = []
    above: list[tuple[int, ...]] = []
    values: list[int] = []
    waiting: list[tuple[str, int, tuple[int, ...]]] = [("", depth, none)]  # a token, or a height to be written
    while waiting:
        token, height, over = waiting.pop()
        if token:
            tokens.append(_NUMBER[token])
            above.append(over)
        elif height < 0:  # both sides are written: -1, -2 and -3 are the operators
            right, left = values.pop(), values.pop()
            values.append((left + right, left - right, left * right)[-1 - height] % _BASE)
        elif height == 0:
            values.append(int(draw.random() * _BASE))
            waiting.append((str(values[-1]), 0, over))
        else:
            operator = int(draw.random() * len(OPERATORS))
            own = (*over[: height - 1], len(kinds), *over[height:])
            kinds.append(operator)
            sides = [height - 1, int(draw.random() * height)]  # one is as deep as it must be, the other up to that
            if draw.random() >= _HALF:
                sides.reverse()
            inner = [("", sides[0], own), (OPERATORS[operator], 0, own), ("", sides[1], own)]
            if over != none:
                inner = [("(", 0, own), *inner, (")", 0, own)]
            waiting += [("", -1 - operator, own), *reversed(inner)]
    return tokens, above, values.pop()
