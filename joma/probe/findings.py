"""What is wrong with a series of checkpoints: each finding by its kind, with its evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """Kinds of findings."""

    MISSING_FILE = "missing file"  # a shard that the index names, or all weights, are not there
    TRUNCATED = "truncated"  # a file ends before its content does
    DAMAGED = "damaged"  # bytes that fail their checksum, or entries far beyond those of the neighbours
    COMPRESSED = "compressed"  # an archive whose tensors are compressed; it was not loaded
    UNREADABLE = "unreadable"
    UNSAFE = "unsafe"  # a pickle that calls for more than tensors; it was not loaded
    MISSING_TENSOR = "missing tensor"
    NOT_FINITE = "not finite"  # NaN or infinity among the weights
    ZEROED = "zeroed"  # entries that are zero here and not in the neighbours
    SCALED = "scaled"  # tensors that are a multiple of what the neighbours have
    TRANSPOSED = "transposed"
    JUMP = "jump"  # tensors that left the path of the others and came back: permuted heads, or tensors of another model
    STEP = "step inside"  # a checkpoint that holds another step or epoch than its name shows
    PREFIX = "prefix"  # names of tensors that differ from the others' by a prefix; they were matched
    SHAPE = "shape"
    DTYPE = "dtype"
    IDENTICAL_CHECKPOINT = "identical checkpoint"
    IDENTICAL_FILE = "identical file"
    """A file that the hub says is the same at several steps, in checkpoints that are not."""
    IDENTICAL_TENSOR = "identical tensor"
    OUT_OF_PLACE = "out of place"  # weights that belong to another step, or to none of the series
    GAP = "gap"  # steps that the grid of the others demands
    NAME = "name"  # a checkpoint whose name shows no step, or several
    NO_ENTROPY = "no entropy"  # the model could not be built from the checkpoint, or its attention could not be seen


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one checkpoint, or with the series at one step."""

    kind: Fault
    step: int  # the step it is about; -1 when it is about none
    message: str
    sites: tuple[str, ...] = ()  # tensors it is about; empty when it is about the checkpoint
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Flaw(Exception):
    """A checkpoint, or a file of it, that cannot be read as it should; becomes a finding when the step is known."""

    def __init__(self, kind: Fault, message: str, *, sites: tuple[str, ...] = (), **evidence: Any) -> None:
        super().__init__(message)
        self.kind, self.message, self.sites, self.evidence = kind, message, sites, evidence

    def at(self, step: int) -> Finding:
        """Return the finding for a step."""
        return Finding(self.kind, step, self.message, self.sites, self.evidence)


def some(names: Sequence[str], limit: int = 3) -> str:
    """List names for a sentence, the first few in full.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    listed = ", ".join(names[:limit])
    return listed if len(names) <= limit else f"{listed} and {len(names) - limit} more"


def first_sentence(error: Exception) -> str:
    r"""Return the start of an error's message, or its kind where it has none.

    >>> first_sentence(ValueError("no such\n  file. Pass another.")), first_sentence(EOFError())
    ('no such file', 'EOFError')
    """
    return " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__
