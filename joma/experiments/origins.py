"""What software a result comes from: versions and git commit of every state of it that worked on the result.

Pieces of an experiment may be done in several calls, on several machines and at several commits, and be put together on
yet another. A record names all of them: differing versions one after the other, and each state of the software by
itself with the pieces that it did.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from joma.store import record as store_record

UNKNOWN = "unknown"
"""Stands for a commit that was not found out, and for versions that were not written down."""
ABSENT = "none"
"""Stands for the version of a package that was not installed."""
NO_PIECES = "put together"
"""Said of software that did none: it left one unfinished, or only put together what others had done."""
_AND = " and "

Pieces = dict[str, dict[str, int]]
"""How many pieces were done, by device and kind."""


@dataclass(kw_only=True, slots=True)
class Origin:
    """One state of the software, with what it did."""

    versions: dict[str, str] = field(default_factory=dict)
    """Empty where they were not written down."""
    git_commit: str | None = None
    pieces: Pieces = field(default_factory=dict)
    """None for one that left pieces unfinished, or only put together what others had done."""

    def is_same_software(self, other: "Origin") -> bool:
        """Whether versions and commit are the same."""
        return (self.versions, self.git_commit) == (other.versions, other.git_commit)

    def add(self, kind: str, device: str) -> None:
        """Count a piece."""
        by_kind = self.pieces.setdefault(device, {})
        by_kind[kind] = by_kind.get(kind, 0) + 1


def this_process() -> Origin:
    """Return the software that runs here, which has done nothing yet."""
    return Origin(versions=store_record.versions(), git_commit=store_record.git_commit())


def told(origins: Sequence[Origin]) -> dict[str, Any]:
    """Return what a record says: versions and commit, those that differ joined, and then the origins one by one.

    >>> told([Origin(versions={"torch": "2.9"}, git_commit="a1")])
    {'versions': {'torch': '2.9'}, 'git_commit': 'a1'}
    >>> both = told([Origin(versions={"torch": "2.9"}, git_commit="a1"), Origin(versions={"torch": "2.8"})])
    >>> both["versions"], both["git_commit"], len(both["origins"])
    ({'torch': '2.9 and 2.8'}, 'a1 and unknown', 2)
    """
    if len(origins) == 1:
        return {"versions": origins[0].versions, "git_commit": origins[0].git_commit}
    names = dict.fromkeys(name for each in origins for name in each.versions)
    is_any_known = any(each.git_commit for each in origins)
    return {
        "versions": {name: joined(_version(each, name) for each in origins) for name in names},
        "git_commit": joined(each.git_commit or UNKNOWN for each in origins) if is_any_known else None,
        "origins": [asdict(each) for each in origins],
    }


def commits(about: Mapping[str, Any], num_letters: int) -> list[str]:
    """Return the commits that a record names, each shortened; none where it names none.

    >>> commits(told([Origin(git_commit="0123456789"), Origin(git_commit="9876543210")]), 7)
    ['0123456', '9876543']
    >>> commits({"git_commit": None}, 7)
    []
    """
    named = about.get("git_commit")
    return list(dict.fromkeys(commit[:num_letters] for commit in named.split(_AND))) if named else []


def commits_with_work(about: Mapping[str, Any], num_letters: int) -> list[str]:
    """Return the commits that a record names, each with the pieces that it did where there are several.

    >>> both = told([Origin(git_commit="0123456789", pieces={"cpu": {"packs": 2}}), Origin(git_commit="9876543210")])
    >>> commits_with_work(both, 7), commits_with_work({"git_commit": "0123456789"}, 7)
    (['0123456 (packs: 2)', '9876543 (put together)'], ['0123456'])
    """
    done: dict[str, dict[str, int]] = {}
    for origin in about.get("origins", ()):
        by_kind = done.setdefault((origin["git_commit"] or UNKNOWN)[:num_letters], {})
        for kind, num in (piece for own in origin["pieces"].values() for piece in own.items()):
            by_kind[kind] = by_kind.get(kind, 0) + num
    told = {commit: ", ".join(f"{kind}: {num}" for kind, num in own.items()) for commit, own in done.items()}
    return [
        f"{commit} ({told[commit] or NO_PIECES})" if commit in told else commit
        for commit in commits(about, num_letters)
    ]


def _version(origin: Origin, name: str) -> str:
    return origin.versions.get(name, ABSENT if origin.versions else UNKNOWN)


def joined(words: Iterable[str]) -> str:
    """Return words one after the other, each once.

    >>> joined(["a1", "b2", "a1"])
    'a1 and b2'
    """
    return _AND.join(dict.fromkeys(words))
