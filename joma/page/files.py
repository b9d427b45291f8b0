"""Writing files so that a reader finds the whole file or none, even when the writer dies half way."""

import os
from pathlib import Path
from secrets import token_hex


def write_bytes(path: Path | str, content: bytes) -> Path:
    """Write `content` under another name in the same folder, then rename it to `path`; folders are made as needed.

    Whoever reads `path` sees the old file until the new one is complete. A write that fails leaves nothing behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # the rename must not reach the disk before the content
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def write_text(path: Path | str, content: str) -> Path:
    """Write text as UTF-8, line ends as they are; see `write_bytes`."""
    return write_bytes(path, content.encode("utf-8"))
