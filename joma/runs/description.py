"""`run.json`: what a run is, with what it was made, and how it ended."""

import json
import platform
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

from joma.runs.files import write_text

FILE_NAME = "run.json"
FORMAT = "joma run"
SCHEMA = 1
"""Version of the layout of the folder; a reader refuses a newer one."""

Kind = Literal["watch", "scan", "train"]
Status = Literal["running", "finished", "failed"]

PACKAGES = ("joma", "torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "lightning", "ray")
"""Packages whose versions are written down."""
_GIT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What `run.json` says of a run. Values are plain JSON types; times are ISO 8601 in UTC."""

    folder: Path
    kind: str
    status: str
    """`running` until the writer was closed, whether or not its process lives; then `finished` or `failed`."""
    started: str
    ended: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    """Commit of the folder in which the run was started, if that is a git repository."""
    resumed: list[str] = field(default_factory=list)
    """When the run was opened again."""
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """Config, versions and commit before a reopening that changed them, oldest first, each with its time."""
    schema: int = SCHEMA


def load(folder: Path | str) -> RunInfo:
    """Read `run.json`, refusing what is no run and what a newer joma wrote."""
    folder = Path(folder)
    try:
        record = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{folder} is no run: it has no {FILE_NAME}. Pass the folder of a run; find_runs lists them."
        ) from None
    except ValueError as error:
        raise ValueError(f"{folder / FILE_NAME} is not JSON ({error}). Restore it from a copy.") from None
    if not is_record(record):
        raise ValueError(f"{folder / FILE_NAME} was not written by joma. Pass the folder of a run.")
    schema = record["schema"]
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ValueError(
            f"{folder} was written by a newer joma: its schema is {schema}, this one reads up to {SCHEMA}. Update joma."
        )
    missing = {"kind", "status", "started"} - record.keys()
    if missing:
        raise ValueError(f"{folder / FILE_NAME} lacks {', '.join(sorted(missing))}. Restore it from a copy.")
    known = {each.name for each in fields(RunInfo)}
    return RunInfo(**{key: value for key, value in record.items() if key in known} | {"folder": folder})


def save(info: RunInfo) -> None:
    """Write `run.json`, whole or not at all."""
    record = {each.name: getattr(info, each.name) for each in fields(info) if each.name != "folder"}
    write_text(info.folder / FILE_NAME, json.dumps({"format": FORMAT} | record, indent=1, allow_nan=False) + "\n")


def is_record(record: Any) -> bool:
    """Whether parsed JSON is a run's description, of whatever schema."""
    return isinstance(record, dict) and record.get("format") == FORMAT and "schema" in record


def started(folder: Path, kind: str, config: Any, about: Mapping[str, Any] | None) -> RunInfo:
    """Describe a run that begins now."""
    return RunInfo(
        folder=folder,
        kind=kind,
        status="running",
        started=now(),
        config=plain(config),
        about=plain(about or {}),
        versions=_versions(),
        git_commit=_git_commit(),
    )


def reopened(
    info: RunInfo, kind: str, config: Any, about: Mapping[str, Any] | None, known_by: Collection[str] = ()
) -> RunInfo:
    """Describe a run that goes on now; refuse one of another kind, and one of other values in what it is known by."""
    if kind != info.kind:
        raise ValueError(f"{info.folder} holds a run of kind {info.kind!r}, not {kind!r}. Take a new folder.")
    now = started(info.folder, kind, config, about)
    _demand_same(info, now, known_by)
    before = {name: getattr(info, name) for name in ("config", "versions", "git_commit")}
    changed = any(getattr(now, name) != value for name, value in before.items())
    return replace(
        now,
        started=info.started,
        about=info.about | now.about,
        resumed=[*info.resumed, now.started],
        earlier=[*info.earlier, {"until": now.started, **before}] if changed else info.earlier,
    )


def _demand_same(earlier: RunInfo, now: RunInfo, known_by: Collection[str]) -> None:
    """Refuse to go on with another run; what only one of them tells does not set them apart."""
    was, comes = earlier.config | earlier.about, now.config | now.about
    others = [name for name in known_by if name in was and name in comes and was[name] != comes[name]]
    if others:
        there, here = (", ".join(f"`{name}` {values[name]}" for name in others) for values in (was, comes))
        raise ValueError(
            f"{earlier.folder} holds another run, with {there}; this one has {here}. "
            "Take another folder as `out`, or remove that one."
        )


def ended(info: RunInfo, status: Status) -> RunInfo:
    """Describe the run as it ends now."""
    if status not in get_args(Status):
        raise ValueError(f"`status` must be one of {', '.join(get_args(Status))}, got {status!r}.")
    return replace(info, status=status, ended=None if status == "running" else now())


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold: dataclasses and mappings become objects, arrays and sets become lists.

    Numbers that are not finite become words, since JSON has none, and anything unknown becomes its `str`.

    >>> plain({"lr": (1e-3, float("inf")), "out": Path("runs")})
    {'lr': [0.001, 'inf'], 'out': 'runs'}
    """
    if isinstance(value, Enum):
        value = value.value
    elif is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    elif hasattr(value, "tolist"):  # NumPy and PyTorch, without importing them
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(entry) for entry in value), key=str)
    exact = value is None or isinstance(value, int | str) or (isinstance(value, float) and isfinite(value))
    return value if exact else str(value)


def now() -> str:
    """Return the time as records spell it, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def _versions() -> dict[str, str]:
    """Return what is installed, which a process looks up once: a grid opens many records."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
