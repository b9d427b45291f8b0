"""The numbered statements of the JoMA paper, read from `statements.toml`: what is printed, what is right, and why."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from joma.claims.claim import Outcome
from joma.errors import UnknownNameError, in_any_case

FORMS = {"holds": Outcome.HOLDS, "condition": Outcome.CONDITIONAL, "wrong": Outcome.WRONG}
"""Values of `form` in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A statement of the paper, with the outcome that its checks must bear out."""

    id: str
    """Short and typeable: `thm2`, `lemma5`, `eqn8`."""
    title: str
    source: str
    """Where in the paper, with numbers: `Section 3.1, Theorem 2, Eqns 4 and 22`."""
    says: str
    """The form as printed, in one line of plain mathematics."""
    form: str
    """`holds` as printed, holds under a `condition`, or is `wrong` as printed."""
    why: str
    """What breaks or what is needed, in a few sentences for someone with the paper open."""
    corrected: str = ""
    """The form that holds, or the condition. Empty when the printed form holds."""
    remark: str = ""
    computed_by: tuple[str, ...] = ()
    """Functions of `joma.theory` that compute it."""
    ours: bool = False
    """Whether it is a statement of our own, which the paper does not make."""

    @property
    def outcome(self) -> Outcome:
        """The outcome that we claim; `verify` fails when the checks do not bear it out."""
        return FORMS[self.form]


@cache
def statements() -> dict[str, Statement]:
    """Return every statement by id, in the paper's order."""
    text = resources.files("joma.claims").joinpath("statements.toml").read_text(encoding="utf-8")
    return {
        id: Statement(id=id, **{name: _clean(value) for name, value in row.items()})
        for id, row in tomllib.loads(text).items()
    }


def find(ids: str | Iterable[str] | None = None) -> list[Statement]:
    """Return the statements with these ids, each once; all for None.

    Case does not matter. An id stands for its family too: `thm5` for `thm5`, `thm5-root` and so on, `lemma` for all
    lemmas. An unknown id is refused with the nearest one.
    """
    known = statements()
    if ids is None:
        return list(known.values())
    wanted = dict.fromkeys(each for name in ([ids] if isinstance(ids, str) else ids) for each in _family(name))
    return [known[name] for name in wanted]


def _family(name: str) -> list[str]:
    exact = in_any_case(name, statements())
    part = re.compile(re.escape(name) + r"($|-|(?<!\d)\d)", re.IGNORECASE)  # thm1 has the part thm1-exp, and not thm10
    family = [each for each in statements() if each == exact or part.match(each)]
    if not family:
        raise UnknownNameError("statement", name, statements(), listing="`joma verify --list`")
    return family


def _clean(value: str | list[str] | bool) -> Any:
    """Join the lines of a wrapped text."""
    return " ".join(value.split()) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
