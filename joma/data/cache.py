"""Arrays kept on disk under a key, so that work done once is found again; what is damaged is not trusted.

A file is a safetensors file with a checksum among its arrays, written whole or not at all: processes that write the
same key at the same time leave one whole file.
"""

import os
import warnings
from collections.abc import Mapping
from hashlib import blake2b, file_digest
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from joma.store.files import write_bytes

_CHECKSUM = "checksum"
_DIGEST_BYTES = 16


def cache_folder() -> Path:
    """Return `$JOMA_CACHE`, or `joma` in the user's cache folder."""
    if own := os.environ.get("JOMA_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "joma"


def digest(*parts: bytes | memoryview | str) -> str:
    """Return a hash of the parts in their order, where each begins and ends included."""
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        hasher.update(len(content).to_bytes(8, "little"))
        hasher.update(content)
    return hasher.hexdigest()


def digest_of_file(path: Path) -> str:
    """Return a hash of the content of a file of any size."""
    with path.open("rb") as file:
        return file_digest(file, "blake2b").hexdigest()


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a hash of the names, types, shapes and entries of arrays."""
    parts: list[bytes | memoryview | str] = []
    for name, array in sorted(arrays.items()):
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data  # no copy: texts are long
        parts += [name, f"{array.dtype.str} {array.shape}", content]
    return digest(*parts)


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays of a file; None where there is no such file or, with a warning, where it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        warnings.warn(f"{path} cannot be read ({error.strerror}); it is made again.", RuntimeWarning, stacklevel=2)
        return None
    try:
        arrays = load(content)
        checksum = arrays.pop(_CHECKSUM).tobytes().decode()
        whole = checksum == digest_of_arrays(arrays)
    except Exception:  # whatever a damaged file makes its decoder raise
        whole = False
    if not whole:
        warnings.warn(f"{path} is damaged; it is made again.", RuntimeWarning, stacklevel=2)
        return None
    return arrays


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file; where that cannot be done, a warning says so, and the next read makes them again."""
    checksum = np.frombuffer(digest_of_arrays(arrays).encode(), dtype=np.uint8)
    try:
        write_bytes(path, save({**arrays, _CHECKSUM: checksum}))
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}); its content will be made again next time."
        warnings.warn(message, RuntimeWarning, stacklevel=2)
