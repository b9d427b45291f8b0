"""Whose claim a verdict judges: the paper's, one of ours that goes further, or that of a check of our own."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar

from joma.verdicts import Verdict

Claim = TypeVar("Claim")
OWN = ("joma", "our own")
"""How the source of a check of our own begins, in small letters."""
FURTHER = "asked further"
"""How the source of a claim ends that goes further than the paper's."""


class ClaimKind(StrEnum):
    """A claim by whose it is, in the order in which they are told."""

    PAPER = "claim of the paper"
    FURTHER = "claim that goes further than the paper's"
    CHECK = "check of our own"

    @property
    def several(self) -> str:
        """What more than one are called."""
        return _SEVERAL[self]


_SEVERAL = {
    ClaimKind.PAPER: "claims of the paper",
    ClaimKind.FURTHER: "claims that go further than the paper's",
    ClaimKind.CHECK: "checks of our own",
}


def kind_of(verdict: Verdict | None) -> ClaimKind:
    """Return whose claim a verdict judges, as its source says; where there is no verdict yet, the paper is asked."""
    source = "" if verdict is None else verdict.source.lower()
    if source.startswith(OWN):
        return ClaimKind.CHECK
    return ClaimKind.FURTHER if source.endswith(FURTHER) else ClaimKind.PAPER


def by_kind(claims: Iterable[Claim], verdict_of: Callable[[Claim], Verdict | None]) -> dict[ClaimKind, list[Claim]]:
    """Return the claims of each kind that there is any of."""
    sorted_out: dict[ClaimKind, list[Claim]] = {kind: [] for kind in ClaimKind}
    for claim in claims:
        sorted_out[kind_of(verdict_of(claim))].append(claim)
    return {kind: own for kind, own in sorted_out.items() if own}
