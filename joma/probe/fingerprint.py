r"""What is kept of a checkpoint's weights, so that a series can be audited without reading it again.

Of every tensor a checksum of all bytes, its norm, its largest entry, zeros, NaN and infinity are kept, and a sketch
from which distances between checkpoints follow: with random signs $s_i$,

$$y_j = \sum_{i \equiv j \,(k)} s_i w_i, \qquad E\,\|y - y'\|^2 = \|w - w'\|_F^2,$$

with a relative deviation of $\sqrt{2/k}$ of the square. The signs are the same for every checkpoint. Of a square matrix
some entries are kept with those opposite to them, which a transposition exchanges.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from pydantic import ConfigDict, PlainSerializer, PlainValidator, TypeAdapter
from torch import Tensor

from joma.probe.findings import Finding
from joma.store.files import write_text

FOLDER = "fingerprints"
SKETCH_LENGTH = 64  # k of each sketch: a distance comes out within 9 %, and over a model's 20 matrices within 2 %
_CHUNK = 2**16  # entries that are looked at together, while they are in the cache; a multiple of the sketch's length
_SMALLEST_SQUARE = 16


def _array(text: str) -> Float[np.ndarray, " k"]:
    return np.frombuffer(base64.b64decode(text), "<f8")


_TEXT = PlainSerializer(lambda array: base64.b64encode(array.astype("<f8").tobytes()).decode("ascii"))
_AS_WRITTEN = ConfigDict(extra="forbid")  # what another version wrote is made again


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPrint:
    """What is kept of one tensor."""

    __pydantic_config__ = _AS_WRITTEN
    shape: tuple[int, ...]
    dtype: str
    digest: str = ""  # checksum of all bytes with the extremes; empty for a tensor that was not looked at
    norm: float = 0.0  # Frobenius norm, without what is not finite
    largest: float = 0.0  # largest magnitude of a finite entry
    num_zeros: int = 0
    num_nan: int = 0
    num_inf: int = 0
    uniform: bool = False
    """Whether all entries are equal, as in a bias that has not moved yet: it does not distinguish checkpoints."""
    sketch: Annotated[Float[np.ndarray, " k"], PlainValidator(_array), _TEXT] = field(
        default_factory=lambda: np.zeros(0, np.float64), compare=False
    )
    entries: Annotated[Float[np.ndarray, "2 k"], PlainValidator(lambda text: _array(text).reshape(2, -1)), _TEXT] = (
        field(default_factory=lambda: np.zeros((2, 0), np.float64), compare=False)
    )
    """Of a square matrix some entries, and those opposite to them."""

    @property
    def num_numbers(self) -> int:
        """How many entries it has."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """What is kept of one checkpoint."""

    __pydantic_config__ = _AS_WRITTEN
    step: int
    name: str
    identity: str  # changes when the checkpoint does
    measured: Mapping[str, str] = field(default_factory=dict)
    """What was measured, each with the settings that it depends on."""
    tensors: Mapping[str, TensorPrint] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # hashes of its files, as on the hub
    counters: Mapping[str, float] = field(default_factory=dict)  # step, epoch and the like that it holds inside
    prefix: str = ""  # how the names of its tensors differ from those in the record
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tensors from which each site was measured
    unseen: Mapping[str, str] = field(default_factory=dict)  # sites that could not be measured, with the reason
    findings: tuple[Finding, ...] = ()  # what is wrong with it by itself


_JSON = TypeAdapter(Fingerprint)


def tensor_print(tensor: Tensor) -> TensorPrint:
    """Look at every entry of a tensor once."""
    flat = tensor.detach().reshape(-1)
    content = flat.contiguous().view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
    wide = torch.float64 if flat.dtype in (torch.float64, torch.complex128) else torch.float32
    numbers = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    squares, low, high = 0.0, np.inf, -np.inf
    num_nonzero = num_nan = num_inf = crc = 0
    total = torch.zeros(SKETCH_LENGTH, dtype=torch.float64)
    signs = _signs(wide)
    signed = torch.zeros(min(_CHUNK, -(-numbers.numel() // SKETCH_LENGTH) * SKETCH_LENGTH), dtype=wide)
    for number, chunk in enumerate(numbers.split(_CHUNK) if flat.numel() else ()):
        size = _CHUNK * flat.element_size() // (2 if flat.is_complex() else 1)
        crc = zlib.crc32(content[number * size : (number + 1) * size].data, crc)
        values = chunk.to(wide)
        square = float(torch.dot(values, values))
        if not np.isfinite(square):
            num_nan += int(values.isnan().sum())
            num_inf += int(values.isinf().sum())
            values = values.nan_to_num(0.0, 0.0, 0.0)
            square = float(values.double().square().sum())
        squares += square
        num_nonzero += int(torch.count_nonzero(values))
        extremes = torch.aminmax(values)
        low, high = min(low, float(extremes.min)), max(high, float(extremes.max))
        if len(values) < _CHUNK:
            signed.zero_()
        torch.mul(values, signs[: len(values)], out=signed[: len(values)])
        flip = 1 if number % 4 in (0, 3) else -1  # chunks that are alike do not add up
        total += flip * signed.view(-1, SKETCH_LENGTH).sum(dim=0)
    return TensorPrint(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        digest=f"{crc:08x} {low:.9g} {high:.9g}",
        norm=squares**0.5,
        largest=max(abs(low), abs(high)) if flat.numel() else 0.0,
        num_zeros=numbers.numel() - num_nonzero - num_nan - num_inf,
        num_nan=num_nan,
        num_inf=num_inf,
        uniform=low == high and not num_nan + num_inf,
        sketch=total.numpy(),
        entries=_opposite_entries(tensor),
    )


def _opposite_entries(tensor: Tensor) -> Float[np.ndarray, "2 k"]:
    """Take some entries of a square matrix, and those opposite to them; none of other tensors."""
    if tensor.ndim != 2 or tensor.shape[0] != tensor.shape[1] or tensor.shape[0] < _SMALLEST_SQUARE:  # noqa: PLR2004
        return np.zeros((2, 0), np.float64)
    rows, columns = np.random.default_rng(0).integers(0, tensor.shape[0], (2, SKETCH_LENGTH))
    columns = np.where(rows == columns, (rows + 1) % len(tensor), columns)
    both = torch.stack([tensor[rows, columns], tensor[columns, rows]])
    return (both.real if both.is_complex() else both).double().numpy()


@cache
def _signs(dtype: torch.dtype) -> Tensor:
    """Random signs for one chunk; NumPy keeps the stream of this generator as it is."""
    bits = np.unpackbits(np.random.PCG64(0).random_raw(_CHUNK // 64).view(np.uint8))
    return torch.from_numpy(2.0 * bits - 1.0).to(dtype)


def align(new: Fingerprint, reference: Mapping[str, TensorPrint]) -> tuple[Fingerprint, dict[str, str]]:
    """Match the names of a checkpoint's tensors with those of another one where a prefix is all that differs.

    Returns the fingerprint with the names of the reference, and the new name of each that was changed.
    """
    known = set(reference)
    prefixes = sorted({name.partition(".")[0] + "." for name in {*new.tensors, *known} if "." in name})
    for prefix, sign in product(prefixes, "+-"):
        renamed = {name: _renamed(name, prefix, sign) for name in new.tensors if name not in known}
        names = {name: other for name, other in renamed.items() if other in known}
        is_free = not set(names.values()) & new.tensors.keys()
        if is_free and 2 * len(names) > min(len(known), len(new.tensors)):
            sites = {site: _renamed(site, prefix, sign) for site in {**new.sources, **new.unseen}}
            aligned = replace(
                new,
                tensors={names.get(name, name): each for name, each in new.tensors.items()},
                prefix=f"{new.prefix}{sign}{prefix}",
                sources={sites[site]: tuple(names.get(n, n) for n in of) for site, of in new.sources.items()},
                unseen={sites[site]: reason for site, reason in new.unseen.items()},
            )
            return aligned, sites
    return new, {}


def _renamed(name: str, prefix: str, sign: str) -> str:
    return prefix + name if sign == "+" else name.removeprefix(prefix)


def save(folder: Path, fingerprint: Fingerprint) -> None:
    """Keep a fingerprint in the folder of a run with its checksum, completely or not at all."""
    record = json.dumps(_JSON.dump_python(fingerprint, mode="json"))
    kept = {"crc32": zlib.crc32(record.encode()), "fingerprint": record}
    write_text(folder / FOLDER / f"{fingerprint.step}.json", json.dumps(kept) + "\n")


def load(folder: Path) -> dict[int, Fingerprint]:
    """Return the fingerprints in the folder of a run, by step; one that cannot be read is left out, and made again."""
    steps = sorted(int(path.stem) for path in (folder / FOLDER).glob("*.json") if path.stem.isdigit())
    found = {step: load_step(folder, step) for step in steps}
    return {step: fingerprint for step, fingerprint in found.items() if fingerprint is not None}


def load_step(folder: Path, step: int) -> Fingerprint | None:
    """Return the fingerprint of one step, if there is one that can be read and fits its checksum."""
    try:
        kept = json.loads((folder / FOLDER / f"{step}.json").read_bytes())
        record = kept["fingerprint"]
        return _JSON.validate_json(record) if zlib.crc32(record.encode()) == kept["crc32"] else None
    except (FileNotFoundError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
