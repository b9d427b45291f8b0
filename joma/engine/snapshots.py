r"""Snapshots of one run: all that it needs to go on, in safetensors, whole or not at all, proved by a checksum.

```text
snapshots/step-000100.safetensors     parameters, moments and counters: the run goes on from here
checkpoints/step-000100.safetensors   parameters alone, kept: a series that `joma scan` measures
```
A file holds in its header the SHA-256 of the whole file, taken while zeros stood in the place of the digest: a byte
that is missing or changed, in the header too, shows. The newest snapshots are kept, one for each of several moments, so
that there is another one when the newest is damaged, and so that all runs of a pack have one in common when the process
dies between two of them.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from joma.store.files import write_bytes

SNAPSHOTS = "snapshots"
CHECKPOINTS = "checkpoints"
NUM_KEPT = 2
"""Snapshots that are left of a run that goes on."""
DAMAGED = ".damaged"
"""Added to the name of a file that is not what was written, or of another format: it is no longer a snapshot."""
FORMAT = "joma snapshot 2"
"""Moments are named like the parameters that they belong to; in the first format they were one row."""
_NAME = re.compile(r"step-(\d+)\.safetensors")
_ZEROS = b"0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_LENGTH_BYTES = 8
"""Of the number in front that gives the length of the header."""


class DamagedSnapshotError(ValueError):
    """A snapshot is not what was written, or is of another format."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The state of one run after a step."""

    step: int
    """Steps that were done."""
    tensors: dict[str, Tensor]
    run: str
    """Digits of the config that the state belongs to."""


def save_snapshot(folder: Path, snapshot: Snapshot, kind: str = SNAPSHOTS) -> Path:
    """Write a snapshot, or with kind `CHECKPOINTS` what is to be kept, into a run's folder, whole or not at all."""
    return write_bytes(folder / kind / name_of(snapshot.step), *encoded(snapshot))


def load_snapshot(path: Path) -> Snapshot:
    """Read a snapshot and hold it against its checksum; `DamagedSnapshotError` says in one line what is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedSnapshotError(f"{path} cannot be read: {error.strerror}.") from None
    return decoded(content, str(path))


def steps_of(folder: Path) -> list[int]:
    """Steps of which a run has a snapshot, ascending; whether they are whole shows when they are read."""
    matches = [_NAME.fullmatch(path.name) for path in (folder / SNAPSHOTS).glob("*.safetensors")]
    return sorted(int(match[1]) for match in matches if match)


def path_of(folder: Path, step: int) -> Path:
    """Where the snapshot of a step lies in a run's folder."""
    return folder / SNAPSHOTS / name_of(step)


def name_of(step: int) -> str:
    """Name of the file of a step.

    >>> name_of(1200)
    'step-001200.safetensors'
    """
    return f"step-{step:06d}.safetensors"


def prune(folder: Path, keep: Iterable[int]) -> None:
    """Remove a run's snapshots but those of the steps in `keep`."""
    for step in set(steps_of(folder)).difference(keep):
        path_of(folder, step).unlink(missing_ok=True)


def encoded(snapshot: Snapshot) -> tuple[bytes, memoryview]:
    """Return a snapshot as a safetensors file with its own checksum, which ends the first of two parts.

    In parts, since to put the checksum into one piece would copy the whole of it once more.
    """
    metadata = {"format": FORMAT, "step": str(snapshot.step), "run": snapshot.run, "sha256": _ZEROS.decode()}
    blank = save_tensors(dict(snapshot.tensors), metadata)
    found = _DIGEST.search(blank)
    assert found is not None
    return blank[: found.start(1)] + hashlib.sha256(blank).hexdigest().encode(), memoryview(blank)[found.end(1) :]


def decoded(content: bytes, name: str) -> Snapshot:
    """Return the snapshot that `encoded` made; `name` is for the message when it is damaged."""
    header = content[: _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")]
    found = _DIGEST.search(header)
    if found is None:
        raise DamagedSnapshotError(f"{name} has no checksum in its header: {len(content)} bytes, and not a snapshot.")
    blank = content[: found.start(1)] + _ZEROS + content[found.end(1) :]
    actual = hashlib.sha256(blank).hexdigest()
    if actual != found[1].decode():
        raise DamagedSnapshotError(
            f"{name} does not match its checksum: it says {found[1].decode()[:12]}, its {len(content)} bytes give "
            f"{actual[:12]}."
        )
    metadata = json.loads(header[_LENGTH_BYTES:])["__metadata__"]
    if metadata.get("format") != FORMAT:
        raise DamagedSnapshotError(
            f"{name} is a {metadata.get('format', 'file')!r}, and {FORMAT!r} is what is read here."
        )
    try:
        return Snapshot(step=int(metadata["step"]), run=metadata["run"], tensors=load_tensors(content))
    except (KeyError, ValueError, SafetensorError) as error:
        raise DamagedSnapshotError(f"{name} cannot be read: {' '.join(str(error).split())}.") from None
