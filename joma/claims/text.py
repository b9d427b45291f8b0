"""Texts on claims, written by people: Markdown with placeholders that are filled from the kept numbers.

`texts/<claim>.md` begins with a heading that says what was found. `{rise:.2f}` stands for the value of the number whose
key is `rise`; `{rise_low}`, `{rise_high}`, `{rise_ci}` (half the width of the interval), `{rise_control}`,
`{rise_published}` and `{rise_n}` are what belongs to it. Texts speak of the kept results, of preset `full` or, where
there is none yet, of `small`.

`texts/answers/<experiment>.md` answers the question of an experiment in two sentences. Its placeholders name the claim
as well: `{figure6-rebound[rise1]:.2f}`.
"""

import re
import string
from collections.abc import Iterable
from importlib import resources

from joma.claims.claim import Answer
from joma.claims.number import Number

TYPED = re.compile(r"(?<![\w.])\d[\d.,]*(?![\w])")
"""A number that was typed by hand."""
_LABEL = r"(?:\d+(?:\.\d+)*|[A-Z](?:\.\d+)*\b)"
REFERENCES = re.compile(
    r"(?:Figures?|Tables?|Sections?|Theorems?|Lemmas?|Eqns?|Appendix|Assumption|WikiText-|[Dd]epths?|[Ll]ayers?|[Ll]evels?)"
    r"\s*"
    rf"{_LABEL}(?:(?:, | and | to |–){_LABEL})*|95 ?%|`[^`]*`|\]\([^)]*\)"
)
"""Numbers that name something and measure nothing, formulas in backticks, and addresses of links."""


def text_of(claim: str) -> str | None:
    """Return the text on a claim with its placeholders, None where there is none."""
    path = resources.files("joma.claims").joinpath("texts", f"{claim}.md")
    return path.read_text(encoding="utf-8") if path.is_file() else None


def filled(answer: Answer) -> str | None:
    """Return the text on an answered claim with its numbers, None where there is none or nothing was measured."""
    text = text_of(answer.claim) if answer.numbers else None
    return None if text is None else text.format_map(values(answer.numbers))


def named(answer: Answer) -> list[Number]:
    """Return the numbers that the text on a claim names."""
    fields = {name for _, name, *_ in string.Formatter().parse(text_of(answer.claim) or "") if name}
    return [each for each in answer.numbers if fields & values([each]).keys()]


def short_answer(experiment: str, answers: Iterable[Answer]) -> str | None:
    """Return the answer to an experiment's question in two sentences, None where there is none."""
    path = resources.files("joma.claims").joinpath("texts", "answers", f"{experiment}.md")
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8").strip().format_map({each.claim: values(each.numbers) for each in answers})


def heading(answer: Answer) -> str:
    """Return what was found, in one line: the heading of the text, or the claim's title where there is none."""
    text = filled(answer)
    return text.splitlines()[0].removeprefix("# ").strip() if text else answer.title


def values(numbers: Iterable[Number]) -> dict[str, float | int | None]:
    """Return what placeholders may stand for."""
    found: dict[str, float | int | None] = {}
    for each in numbers:
        if each.key:
            low, high = each.interval()
            found |= {
                each.key: each.value,
                f"{each.key}_low": low,
                f"{each.key}_high": high,
                f"{each.key}_ci": (high - low) / 2,
                f"{each.key}_control": each.control,
                f"{each.key}_published": each.published,
                f"{each.key}_n": each.n,
            }
    return found


def typed_numbers(text: str) -> list[str]:
    """Return the measured numbers in a text that were typed by hand instead of filled in.

    >>> typed_numbers("The entropy of Figure 6 rises by {rise:.2f} nats at depth 5, and by 0.3 at first.")
    ['0.3']
    """
    without = "".join(literal for literal, *_ in string.Formatter().parse(text))
    return TYPED.findall(REFERENCES.sub("", without))
