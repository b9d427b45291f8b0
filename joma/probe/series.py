"""The checkpoints of one training run, in the order of the steps that their names show."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joma.formatting import counted
from joma.probe.checkpoint import BUNDLES, PICKLED, SAFETENSORS, choose_files, identity_of, is_weight_file
from joma.probe.findings import Fault, Finding, Flaw, some
from joma.probe.hub import HubRevision, list_revisions
from joma.probe.structure import demand_pattern

UNITS = {
    "step": r"(?:global[-_]?)?steps?",
    "iteration": r"iter(?:ation)?s?",
    "checkpoint": r"checkpoint|ckpt|chkpt",
    "update": r"updates?|batch(?:es)?|it",
    "epoch": r"epochs?|ep",
}
"""Words before a number that make it the step, the surest first."""
CHECKPOINTS = "checkpoints"  # folder of the series that a run of `joma train` keeps
SNAPSHOTS = "snapshots"  # folder of what such a run goes on from
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_KEYED = {
    unit: re.compile(rf"(?<![a-z])(?:{word})[-_=:. ]*(?:(\d+(?:\.\d+)?)([kmb])(?![a-z0-9])|(\d+))")
    for unit, word in UNITS.items()
}
_NUMBER = re.compile(r"\d+")
_REPOSITORY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One checkpoint of a series."""

    step: int
    name: str  # name of the file, folder or revision
    files: Path | HubRevision  # a file or folder on this machine, or a revision on the hub

    def identity(self) -> str:
        """Return what changes when the checkpoint does."""
        return identity_of(self.files) if isinstance(self.files, Path) else self.files.identity()


def find_series(
    sources: Sequence[Path | str], *, revisions: str | None = None, steps: str | Sequence[int] | None = None
) -> tuple[list[Checkpoint], list[Finding]]:
    """Find the checkpoints at `sources`, by ascending step, each step once, and say what was left out.

    Args:
        sources: Folders of checkpoints, single checkpoints (folders or files), or repositories of the hub.
        revisions: Branches and tags of a repository, as a pattern such as `step*`.
        steps: Steps of the checkpoints in the order of their names, or a regular expression whose group is the step;
            read off the names when None.
    """
    if not sources:
        raise ValueError("There is nothing to scan. Pass a folder, a file, or a hub repository with `revisions`.")
    found: dict[str, Path | HubRevision] = {}
    findings: list[Finding] = []
    for source in sources:
        for name, files in _files_at(source, revisions, findings):
            unique = name if found.get(name, files) == files else f"{source}/{name}"
            found[unique] = files
    known, unknown = read_steps(found) if steps is None else given_steps(list(found), steps)
    if len(found) == 1 and not known:
        (name,) = found
        known, unknown = {name: 0}, {}
        findings.append(Finding(Fault.NAME, 0, f"{name} shows no step: it is taken as step 0."))
    for name, reason in unknown.items():
        if not known:
            raise ValueError(
                f"No step can be read off the names: {name} {reason}. "
                "Name the checkpoints like step1000 or checkpoint-100, or pass `steps`."
            )
        findings.append(Finding(Fault.NAME, -1, f"{name} {reason}: it is left out."))
    for step, count in Counter(known.values()).items():
        if count > 1:
            claimants = some([name for name, own in known.items() if own == step])
            raise ValueError(
                f"Step {step} is claimed by {claimants}. Scan one series at a time, each into its own folder."
            )
    checkpoints = [Checkpoint(step=step, name=name, files=found[name]) for name, step in known.items()]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step), findings


def given_steps(names: Sequence[str], steps: str | Sequence[int]) -> tuple[dict[str, int], dict[str, str]]:
    r"""Give names their steps: by a list in the order of the names, or by a pattern whose group is the step.

    >>> given_steps(["b10", "b9"], "0,500")
    ({'b9': 0, 'b10': 500}, {})
    >>> given_steps(["e2_s70", "e1_s50", "last"], r"s(\d+)")
    ({'e2_s70': 70, 'e1_s50': 50}, {'last': 'does not match `steps=s(\\d+)`'})
    """
    if isinstance(steps, str) and not re.fullmatch(r"[\d_,\s]+", steps):
        demand_pattern("steps", steps)
        found = {name: re.search(steps, name) for name in names}
        texts = {name: match[match.re.groups and 1] for name, match in found.items() if match is not None}
        known = {name: int(text) for name, text in texts.items() if re.fullmatch(r"\d{1,18}", text or "")}
        return known, {name: f"does not match `steps={steps}`" for name in names if name not in known}
    numbers = [int(each) for each in steps.split(",") if each.strip()] if isinstance(steps, str) else list(steps)
    if len(numbers) != len(names):
        raise ValueError(
            f"`steps` must have {counted(len(names), 'number')}, one for each checkpoint; got {len(numbers)}."
        )
    ordered = sorted(
        names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    )
    return dict(zip(ordered, numbers, strict=True)), {}


def read_steps(names: Iterable[str]) -> tuple[dict[str, int], dict[str, str]]:
    """Read the step off each name: the number after `step`, `iter`, `checkpoint`, `epoch`, or the only one.

    One word counts for all names, the surest of those that most names have. Where no name has one, the number that
    differs from name to name is the step. Returns the steps, and why the other names show none.

    >>> read_steps(["step1000-tokens4B", "step512-tokens2B", "main"])
    ({'step1000-tokens4B': 1000, 'step512-tokens2B': 512}, {'main': 'shows no number'})
    >>> read_steps(["pythia70m_300.pt", "pythia70m_9.pt"])[0]
    {'pythia70m_300.pt': 300, 'pythia70m_9.pt': 9}
    """
    names = list(dict.fromkeys(names))
    keyed = {name: {unit: _numbers_after(unit, name) for unit in UNITS} for name in names}
    counts = Counter(unit for found in keyed.values() for unit, numbers in found.items() if numbers)
    if not counts:
        return _plain_numbers(names)
    unit = max(UNITS, key=lambda unit: (counts[unit], -list(UNITS).index(unit)))
    known: dict[str, int] = {}
    unknown: dict[str, str] = {}
    for name in names:
        numbers = keyed[name][unit]
        if len(numbers) == 1:
            known[name] = numbers[0]
        elif numbers:
            unknown[name] = f"shows several steps: {', '.join(map(str, numbers))}"
        elif _NUMBER.search(_stem(name)):
            unknown[name] = f"shows no {unit} as the others do"
        else:
            unknown[name] = "shows no number"
    return known, unknown


def _numbers_after(unit: str, name: str) -> list[int]:
    found = _KEYED[unit].findall(_stem(name).lower())
    return list(dict.fromkeys(int(plain) if plain else round(float(n) * _SCALES[k]) for n, k, plain in found))


def _plain_numbers(names: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
    """Take the number that varies among names that are otherwise alike; of a single name, its only number."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_NUMBER.sub("#", _stem(name))].append(name)
    known: dict[str, int] = {}
    unknown: dict[str, str] = {}
    for members in groups.values():
        columns = list(zip(*(map(int, _NUMBER.findall(_stem(name))) for name in members), strict=True))
        varying = [column for column in columns if len(set(column)) > 1]
        chosen = columns if len(columns) == 1 else varying
        if len(chosen) == 1:
            known |= dict(zip(members, chosen[0], strict=True))
        else:
            reason = "shows several numbers, and which is the step is not clear" if columns else "shows no number"
            unknown |= dict.fromkeys(members, reason)
    return known, unknown


def _stem(name: str) -> str:
    for suffix in (SAFETENSORS, *PICKLED):
        name = name.removesuffix(suffix)
    return name


def _files_at(
    source: Path | str, revisions: str | None, findings: list[Finding]
) -> Iterable[tuple[str, Path | HubRevision]]:
    path = Path(source)
    if path.exists():
        if revisions is not None:
            raise ValueError(f"`revisions` is for repositories of the hub, and {source} lies on this machine. Drop it.")
        return _local_files(path.resolve(), findings)
    if revisions is None or not _REPOSITORY.fullmatch(str(source)):
        hint = " For a repository of the hub pass `revisions` too, such as 'step*'." if revisions is None else ""
        raise FileNotFoundError(f"There is no file or folder {source}.{hint}")
    return [(revision.name, revision) for revision in list_revisions(str(source), revisions)]


def _local_files(path: Path, findings: list[Finding]) -> list[tuple[str, Path]]:
    if path.is_file():
        if not is_weight_file(path.name):
            raise ValueError(f"{path} is no checkpoint: needed is {SAFETENSORS} or one of {', '.join(PICKLED)}.")
        name = f"{path.parent.name}/{path.name}" if path.name in BUNDLES else path.name
        return [(name, path)]
    if _is_record(path) and (path / CHECKPOINTS).is_dir():
        return _local_files(path / CHECKPOINTS, findings)
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not _is_no_checkpoint(entry))
    files = [entry.name for entry in path.iterdir() if entry.is_file()]
    inside = [folder for folder in folders if _is_checkpoint(folder)]
    if inside:
        if any(is_weight_file(name) for name in files):
            message = f"{path.name} has weights of its own next to the checkpoints in it: they are left out."
            findings.append(Finding(Fault.NAME, -1, message))
        steps, _ = read_steps([folder.name for folder in folders])
        kept = [folder for folder in folders if folder in inside or folder.name in steps]
        return [(folder.name, folder) for folder in kept]
    if _bundle(path, files):
        return [(path.name, path)]
    weights = sorted(filter(is_weight_file, files), key=lambda name: (name.endswith(SAFETENSORS), name))
    states = sorted({_stem(name): name for name in weights}.values())  # of two formats of one file the safetensors
    if not states:
        hint = ""
        if _is_record(path):
            hint = " It is a run: train with --checkpoint-every, which keeps a series, or name the folder of yours."
        elif any(map(_is_record, path.iterdir())):
            hint = " It holds runs, each of which may be a series: name one."
        raise FileNotFoundError(
            f"{path} holds no checkpoint: needed are folders with model.safetensors or pytorch_model.bin, or files "
            f"{SAFETENSORS}, {', '.join(PICKLED)}.{hint}"
        )
    return [(name, path / name) for name in states]


def _is_no_checkpoint(folder: Path) -> bool:
    """Whether a folder is hidden, the record of a run, or what it goes on from: no checkpoint whatever its name."""
    is_to_go_on_from = folder.name == SNAPSHOTS and _is_record(folder.parent)
    return folder.name.startswith(".") or _is_record(folder) or is_to_go_on_from


def _is_record(folder: Path) -> bool:
    return (folder / "run.json").exists()


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is one checkpoint: known names, or loose files that are not a series of their own."""
    files = [entry.name for entry in folder.iterdir() if entry.is_file()]
    states = [name for name in files if is_weight_file(name)]
    return _bundle(folder, files) or (bool(states) and len(set(read_steps(states)[0].values())) <= 1)


def _bundle(folder: Path, files: Sequence[str]) -> bool:
    try:
        return choose_files(files, lambda name: (folder / name).read_text("utf-8"), loose=False) is not None
    except Flaw:
        return True  # an index that is broken still says what the folder is meant to be
