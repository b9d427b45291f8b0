r"""What is kept of a checkpoint's weights, so that a series can be audited without reading it again.

Each tensor is kept as a digest: of all its bytes if it was measured or is small, else of blocks spread over it.
Measured tensors are kept as a sketch too, from which distances between checkpoints follow: with random signs $s_i$,

$$y_j = \sum_{i \equiv j \,(k)} s_i w_i, \qquad E\,\|y - y'\|^2 = \|w - w'\|_F^2,$$

with a relative deviation of $\sqrt{2/k}$ of the square. The signs are the same for every checkpoint.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from joma.probe.findings import Finding
from joma.store.files import write_text

FOLDER = "fingerprints"
SKETCH_LENGTH = 256
"""k of each sketch: distances over six matrices come out within 2 %."""
NUM_BLOCKS = 16
BLOCK_BYTES = 4096
_CHUNK = 2**20
"""Entries that are sketched at once; a multiple of the sketch's length and of 8."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPrint:
    """What is kept of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    digest: str = ""
    """Hash of the bytes compared; empty for a tensor that was not looked at."""
    num_compared: int = 0
    """Bytes that went into the digest."""
    num_bad: int = 0
    """Entries among them that are NaN or infinite."""
    uniform: bool = False
    """Whether all of them are equal, as in a bias that has not moved yet: it does not distinguish checkpoints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """What is kept of one checkpoint."""

    step: int
    name: str
    identity: str
    """Changes when the checkpoint does."""
    measured: Mapping[str, str] = field(default_factory=dict)
    """What was measured, each with the settings that it depends on."""
    tensors: Mapping[str, TensorPrint] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Hashes of its files, as on the hub."""
    sketches: Mapping[str, Float[np.ndarray, " k"]] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tensors from which each site was measured."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Sites that could not be measured, with the reason."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with it by itself."""


def tensor_print(tensor: Tensor, *, whole: bool) -> TensorPrint:
    """Hash a tensor and look for NaN and infinity; unless `whole`, in blocks spread over it if it is large."""
    flat = tensor.detach().reshape(-1)
    seen = flat if whole else _spread(flat)
    return TensorPrint(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        digest=blake2b(_bytes_of(seen), digest_size=16).hexdigest(),
        num_compared=seen.numel() * seen.element_size(),
        num_bad=_num_bad(seen),
        uniform=_is_uniform(seen),
    )


def sketch(tensor: Tensor) -> Float[np.ndarray, " k"]:
    """Project a tensor on `SKETCH_LENGTH` numbers so that distances are kept on average."""
    flat = tensor.detach().reshape(-1)
    total = np.zeros(SKETCH_LENGTH)
    for chunk, signs in zip(flat.split(_CHUNK), _signs(), strict=False):
        values = chunk.to(torch.float32 if chunk.dtype != torch.float64 else torch.float64).numpy()
        signed = np.where(signs[: len(values)], values, -values)
        padded = np.pad(signed, (0, -len(signed) % SKETCH_LENGTH))
        total += padded.reshape(-1, SKETCH_LENGTH).sum(axis=0, dtype=np.float64)
    return total


def save(folder: Path, fingerprint: Fingerprint) -> None:
    """Keep a fingerprint in the folder of a run, whole or not at all."""
    record = asdict(fingerprint) | {
        "sketches": {
            name: base64.b64encode(values.astype("<f8").tobytes()).decode("ascii")
            for name, values in fingerprint.sketches.items()
        },
        "findings": [finding.as_dict() for finding in fingerprint.findings],
    }
    write_text(folder / FOLDER / f"{fingerprint.step}.json", json.dumps(record) + "\n")


def load(folder: Path) -> dict[int, Fingerprint]:
    """Return the fingerprints in the folder of a run, by step; one that cannot be read is left out, and made again."""
    steps = sorted(int(path.stem) for path in (folder / FOLDER).glob("*.json") if path.stem.isdigit())
    found = {step: load_step(folder, step) for step in steps}
    return {step: fingerprint for step, fingerprint in found.items() if fingerprint is not None}


def load_step(folder: Path, step: int) -> Fingerprint | None:
    """Return the fingerprint of one step, if there is one that can be read."""
    try:
        record = json.loads((folder / FOLDER / f"{step}.json").read_text(encoding="utf-8"))
        tensors = record["tensors"].items()
        return Fingerprint(
            **{
                **record,
                "tensors": {name: TensorPrint(**(each | {"shape": tuple(each["shape"])})) for name, each in tensors},
                "sketches": {
                    name: np.frombuffer(base64.b64decode(text), dtype="<f8")
                    for name, text in record["sketches"].items()
                },
                "sources": {site: tuple(names) for site, names in record["sources"].items()},
                "findings": tuple(map(Finding.from_dict, record["findings"])),
            }
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _spread(flat: Tensor) -> Tensor:
    """Take blocks at even distances, the first and the last entries among them."""
    length = BLOCK_BYTES // flat.element_size()
    if flat.numel() <= NUM_BLOCKS * length:
        return flat
    starts = np.linspace(0, flat.numel() - length, NUM_BLOCKS).astype(int).tolist()
    return torch.cat([flat[start : start + length] for start in starts])


def _bytes_of(flat: Tensor) -> Any:
    return flat.contiguous().view(torch.uint8).numpy()


def _num_bad(flat: Tensor) -> int:
    """Count NaN and infinity; a chunk with a finite sum has neither, and that costs a tenth."""
    if not (flat.is_floating_point() or flat.is_complex()):
        return 0
    count = 0
    for chunk in map(_wide, flat.split(_CHUNK)):
        total = chunk.sum() if chunk.is_complex() else chunk.sum(dtype=torch.float64)
        count += 0 if bool(torch.isfinite(total)) else int((~torch.isfinite(chunk)).sum())
    return count


def _is_uniform(flat: Tensor) -> bool:
    """Whether all entries are equal; most tensors show in their first chunk that they are not."""
    return all(bool((_wide(chunk) == _wide(flat[:1])).all()) for chunk in flat.split(_CHUNK // 1024)) and len(flat) > 0


def _wide(flat: Tensor) -> Tensor:
    """Types of one byte know few operations."""
    return flat.float() if flat.element_size() == 1 else flat


def _signs() -> Iterator[np.ndarray]:
    """Yield random bits for one chunk after the other; NumPy keeps the stream of this generator as it is."""
    generator = np.random.PCG64(0)
    while True:
        yield np.unpackbits(generator.random_raw(_CHUNK // 64).view(np.uint8)).view(bool)
