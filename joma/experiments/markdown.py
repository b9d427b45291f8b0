"""Words and tables for a Markdown document, shown as they are wherever it is read."""

import re
from collections.abc import Sequence

_CODE = re.compile(r"(`[^`]+`)")
_MARKUP = re.compile(r"([*_|<\[\]~$])")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")


def escaped(text: str) -> str:
    r"""Escape what Markdown would read as emphasis, a link or the end of a cell; code between backticks stays code.

    >>> print(escaped("|x_0| < 1 in `a_b`"))
    \|x\_0\| \< 1 in `a_b`
    """
    parts = _CODE.split(text)
    words = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    codes = [part.replace("|", r"\|") for part in parts[1::2]]
    return "".join(part for pair in zip(words, [*codes, ""], strict=True) for part in pair)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already, without the columns that are empty.

    >>> print(table(["a", "b", "c"], [["1", "", "2"]]))
    | a | c |
    |---|---|
    | 1 | 2 |
    """
    used = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    lines = [[columns[place] for place in used], *([row[place] for place in used] for row in rows)]
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(used), *body])


def first_sentence(text: str) -> str:
    """Return a text up to the end of its first sentence.

    >>> first_sentence("It is off by 0.3. The control is not.")
    'It is off by 0.3.'
    """
    return _SENTENCE_END.split(text, maxsplit=1)[0]


def enumerated(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    >>> enumerated(["a"]), enumerated(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
