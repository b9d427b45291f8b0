"""Generated JSON: nested objects and arrays of known height, and the containers above every token.

A document such as `{"id":[3,true],"tag":{"name":"b"}}` ends with a line break. Which bracket closes a container, and
what follows it, depends on the containers above.
"""

import random

import torch

from joma.data.text import UNKNOWN, TreeText
from joma.errors import whole

NAME = "json"
KINDS = ("object", "array")
"""Types of nodes."""
KEYS = ('"id"', '"tag"', '"name"', '"kind"', '"size"', '"next"', '"list"', '"data"')
SCALARS = (*"0123456789", "true", "false", "null", '"a"', '"b"', '"c"', '"d"')
END = "\n"
VOCABULARY = (UNKNOWN, *"{}[]:,", *KEYS, *SCALARS, END)
"""Tokens by number; `<unk>` never occurs."""
SHALLOWEST, DEEPEST = 2, 6
"""Heights of the documents, each as likely as the others."""
MOST_VALUES = 3
"""Values of a container at most; one at least."""
_NUMBER = {token: number for number, token in enumerate(VOCABULARY)}
_NONE = -1
_HALF = 0.5


def json_tokens(num_tokens: int, *, seed: int, deepest: int = DEEPEST) -> TreeText:
    r"""Generate documents until there are so many tokens; the last one may be cut.

    Nodes are containers. A scalar has height 0; brackets, keys and commas are below the container that they belong to.

    Args:
        num_tokens: How many tokens to return.
        seed: Of all choices: heights from 2 to `deepest`, kinds, numbers of values, keys and scalars.
        deepest: Largest height of a document.

    >>> "".join(VOCABULARY[token] for token in json_tokens(30, seed=186).tokens).split("\n")[0]
    '{"data":{"kind":"a"},"id":[8,["d"]]}'
    """
    whole("num_tokens", num_tokens, low=1)
    whole("seed", seed, low=0)
    whole("deepest", deepest, low=SHALLOWEST)
    draw = random.Random(seed)
    words: list[str] = []
    above: list[tuple[int, ...]] = []
    kinds: list[int] = []
    none = (_NONE,) * deepest
    while len(words) < num_tokens:
        height = SHALLOWEST + int(draw.random() * (deepest - SHALLOWEST + 1))
        waiting: list[tuple[str, int, tuple[int, ...]]] = [(END, 0, none), ("", height, none)]
        while waiting:  # a token, or a container of a height that is to be written
            token, height, over = waiting.pop()
            if not token and height > 0:
                own = (*over[: height - 1], len(kinds), *over[height:])
                kinds.append(int(draw.random() >= _HALF))
                waiting += reversed(_container(draw, kinds[-1], height, own))
            else:
                words.append(token or SCALARS[int(draw.random() * len(SCALARS))])
                above.append(over)
    nodes = torch.tensor(above[:num_tokens], dtype=torch.int32)
    return TreeText(
        tokens=torch.tensor([_NUMBER[word] for word in words[:num_tokens]]),
        types=torch.tensor([*kinds, _NONE], dtype=torch.int16)[nodes],  # the last is that of node -1
        nodes=nodes,
        type_names=KINDS,
    )


def _container(
    draw: random.Random, kind: int, height: int, own: tuple[int, ...]
) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return what a container is written as: one value is as deep as it must be, the others up to that."""
    num = 1 + int(draw.random() * MOST_VALUES)
    heights = [int(draw.random() * height) for _ in range(num)]
    heights[int(draw.random() * num)] = height - 1
    first = int(draw.random() * len(KEYS))
    step = 1 + 2 * int(draw.random() * len(KEYS) / 2)  # odd, and the number of keys is a power of 2: no key comes twice
    found = [("{["[kind], 0, own)]
    for number, below in enumerate(heights):
        found += [(",", 0, own)] * (number > 0)
        if KINDS[kind] == "object":
            found += [(KEYS[(first + number * step) % len(KEYS)], 0, own), (":", 0, own)]
        found.append(("", below, own))
    return [*found, ("}]"[kind], 0, own)]
