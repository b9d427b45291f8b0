"""Whether the checkpoints of a series are what their steps say: each fault named, with its evidence."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist

from joma.formatting import counted
from joma.probe.findings import Fault, Finding, some
from joma.probe.fingerprint import Fingerprint, TensorPrint
from joma.probe.trajectory import OffPath, off_path

MATRIX_AXES = 2
NO_FLAG = {Fault.GAP, Fault.NAME, Fault.DTYPE, Fault.NO_ENTROPY}
"""Faults that leave measured values as they are."""
_OF_TENSORS = {Fault.IDENTICAL_TENSOR}
"""Faults that concern the values measured from the tensors named, and no others."""
CONSTANT_SHARE = 0.8
"""A tensor that is the same in so much of the series is meant to be: rotary frequencies, masks, frozen layers."""
_SHOWN_DIGITS = 4


def audit(series: Sequence[Fingerprint]) -> list[Finding]:
    """Audit a series by what was kept of it, in the order of the steps.

    Every fingerprint's own findings come along. What is usual is what most of the series has, and tensors that are the
    same in nearly all of it (rotary frequencies, masks, frozen layers) are expected to be so.
    """
    series = sorted(series, key=lambda each: each.step)
    groups = _identical_checkpoints(series)
    repeated = {each.step for group in groups for each in group[1:]}
    distinct = [each for each in series if each.step not in repeated]
    misplaced = _out_of_place(series)
    found = [
        *(finding for each in series for finding in each.findings),
        *_missing_tensors(series),
        *_changes(series, Fault.SHAPE, lambda tensor: tensor.shape),
        *_changes(series, Fault.DTYPE, lambda tensor: tensor.dtype),
        *(_duplicate(group, misplaced) for group in groups),
        *_identical_files(distinct),
        *_identical_tensors(distinct),
        *misplaced,
        *_gaps([each.step for each in series]),
    ]
    return sorted(found, key=lambda finding: finding.step)


def flags(findings: Iterable[Finding], series: Iterable[Fingerprint]) -> dict[int, dict[str, str]]:
    """Return why values are not to be trusted: for each step by site, with the site "" for all that are not named."""
    reasons: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    sources = {each.step: each.sources for each in series}
    for finding in findings:
        if finding.kind in NO_FLAG:
            continue
        for step in finding.evidence.get("flagged", [finding.step]):
            sites = [""]
            if finding.kind in _OF_TENSORS:
                sites = [site for site, names in sources.get(step, {}).items() if set(names) & set(finding.sites)]
            for site in sites:
                reasons[step][site].append(finding.kind.value)
    return {
        step: {site: "; ".join(dict.fromkeys([*by_site.get("", []), *kinds])) for site, kinds in by_site.items()}
        for step, by_site in reasons.items()
    }


def _identical_checkpoints(series: Sequence[Fingerprint]) -> list[list[Fingerprint]]:
    """Group the checkpoints that hold the same weights: the same files, or the same in all tensors compared."""
    ignored = _never_changing(series)
    groups: dict[Hashable, list[Fingerprint]] = defaultdict(list)
    for each in series:
        digests = {name: tensor.digest for name, tensor in each.tensors.items() if tensor.digest}
        moving = {name: digest for name, digest in digests.items() if name not in ignored} or digests
        if moving:
            groups[tuple(sorted(moving.items()))].append(each)
    return [group for group in groups.values() if len(group) > 1]


def _out_of_place(series: Sequence[Fingerprint]) -> list[Finding]:
    """Find weights that belong to another step, or to none of the series, from distances between the sketches."""
    sound = [each for each in series if each.sketches and all(np.isfinite(v).all() for v in each.sketches.values())]
    # tensors that most checkpoints have, in the shape that most have
    counts = Counter((name, each.tensors[name].shape) for each in sound for name in each.sketches)
    names = {name for (name, _), count in counts.items() if 2 * count > len(sound)}
    sound = [each for each in sound if names and names <= each.sketches.keys()]
    vectors = [np.concatenate([each.sketches[name] for name in sorted(names)]) for each in sound]
    distances = cdist(vectors, vectors) if vectors else np.zeros((0, 0))
    return [_misplaced(off, sound, distances, len(names)) for off in off_path(distances)]


def _gaps(steps: Sequence[int]) -> list[Finding]:
    """Find the steps that are missing from the grid of the others."""
    found = []
    for before, after, missing in missing_steps(steps):
        message = f"Between steps {before} and {after} the grid has {some([str(step) for step in missing])}."
        evidence = {"before": before, "after": after, "missing": missing}
        found.append(Finding(kind=Fault.GAP, step=missing[0], message=message, evidence=evidence))
    return found


def _missing_tensors(series: Sequence[Fingerprint]) -> list[Finding]:
    readable = [each for each in series if each.tensors]
    counts = Counter(name for each in readable for name in each.tensors)
    usual = [name for name, count in counts.items() if 2 * count > len(readable)]
    found = []
    for each in readable:
        missing = tuple(name for name in usual if name not in each.tensors)
        if missing and not any(finding.kind is Fault.MISSING_FILE for finding in each.findings):
            message = f"{each.name} lacks {counted(len(missing), 'tensor')} that the others have: {some(missing)}."
            evidence = {"missing": len(missing), "usual": len(usual)}
            found.append(
                Finding(kind=Fault.MISSING_TENSOR, step=each.step, sites=missing, message=message, evidence=evidence)
            )
    return found


def _changes(series: Sequence[Fingerprint], kind: Fault, of: Callable[[TensorPrint], Any]) -> list[Finding]:
    """Find tensors whose shape or type is not the one that most of the series has."""
    usual = _usual(series, of)
    found = []
    for each in series:
        changed = {name: of(tensor) for name, tensor in each.tensors.items() if of(tensor) != usual[name]}
        if changed:
            name, value = next(iter(changed.items()))
            shown, expected = _shown(value), _shown(usual[name])
            what = f"another {kind.value} of {counted(len(changed), 'tensor')}"
            message = f"{each.name} has {what}: {name} {shown}, not {expected}."
            evidence = {"tensor": name, "found": shown, "usual": expected, "changed": len(changed)}
            found.append(Finding(kind=kind, step=each.step, sites=tuple(changed), message=message, evidence=evidence))
    return found


def _duplicate(group: Sequence[Fingerprint], misplaced: Sequence[Finding]) -> Finding:
    """Word a group of equal checkpoints; flagged are those out of place, or all when none of them stands out."""
    steps = [each.step for each in group]
    wrong = [finding.step for finding in misplaced if finding.step in steps and not finding.evidence.get("rival")]
    flagged = wrong if 0 < len(wrong) < len(steps) else steps
    home = "" if len(flagged) != len(steps) - 1 else f" They belong to step {(set(steps) - set(flagged)).pop()}."
    compared = sum(tensor.num_compared for tensor in group[0].tensors.values())
    same_files = bool(group[0].files) and all(each.files == group[0].files for each in group)
    message = f"Steps {' and '.join(map(str, steps))} hold the same weights.{home}"
    evidence = {
        "steps": steps,
        "names": [each.name for each in group],
        "tensors_compared": sum(bool(tensor.digest) for tensor in group[0].tensors.values()),
        "bytes_compared": compared,
        "same_files": same_files,
        "flagged": flagged,
    }
    return Finding(kind=Fault.IDENTICAL_CHECKPOINT, step=flagged[0], message=message, evidence=evidence)


def _identical_files(distinct: Sequence[Fingerprint]) -> list[Finding]:
    """Find files that are the same at some steps, by the hub's hashes, though other files of the checkpoints differ."""
    holders: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in distinct:
        for name, digest in each.files.items():
            holders[name][digest].append(each.step)
    found = []
    for name, by_digest in holders.items():
        num_holders = sum(map(len, by_digest.values()))
        for digest, steps in by_digest.items():
            if 1 < len(steps) < CONSTANT_SHARE * num_holders:
                message = f"The file {name} is the same at steps {' and '.join(map(str, steps))}."
                evidence = {"steps": steps, "file": name, "digest": digest, "flagged": steps}
                found.append(Finding(kind=Fault.IDENTICAL_FILE, step=steps[-1], message=message, evidence=evidence))
    return found


def _identical_tensors(distinct: Sequence[Fingerprint]) -> list[Finding]:
    """Find tensors that are the same at some steps and not at others; vectors alone prove nothing.

    A vector in half precision stands still between steps now and then, and one whose entries are all equal always does.
    """
    ignored = _never_changing(distinct)
    holders: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in distinct:
        for name, tensor in each.tensors.items():
            if tensor.digest and not tensor.uniform and name not in ignored:
                holders[name, tensor.digest].append(each.step)
    shared: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for (name, _), where in holders.items():
        if len(where) > 1:
            shared[tuple(where)].append(name)
    by_step = {each.step: each.tensors for each in distinct}
    found = []
    for steps, names in shared.items():
        tensors = by_step[steps[0]]
        if not any(len(tensors[name].shape) >= MATRIX_AXES for name in names):
            continue
        listed = " and ".join(map(str, steps))
        message = f"{len(names)} of {len(tensors)} tensors are the same at steps {listed}: {some(names)}."
        evidence = {
            "steps": list(steps),
            "digests": {name: tensors[name].digest for name in names},
            "bytes_compared": sum(tensors[name].num_compared for name in names),
            "flagged": list(steps),
        }
        sites, kind = tuple(names), Fault.IDENTICAL_TENSOR
        found.append(Finding(kind=kind, step=steps[-1], sites=sites, message=message, evidence=evidence))
    return found


def _never_changing(series: Sequence[Fingerprint]) -> set[str]:
    """Names of tensors that are the same in nearly all of a series, those of another type left aside."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    dtypes = _usual(series, lambda tensor: tensor.dtype)
    for each in series:
        for name, tensor in each.tensors.items():
            if tensor.dtype == dtypes[name]:
                seen[name][tensor.digest] += 1
    return {name for name, counts in seen.items() if max(counts.values()) >= CONSTANT_SHARE * counts.total()}


def _usual(series: Sequence[Fingerprint], of: Callable[[TensorPrint], Any]) -> dict[str, Any]:
    """What most of the series has for each tensor."""
    counts: dict[str, Counter[Any]] = defaultdict(Counter)
    for each in series:
        for name, tensor in each.tensors.items():
            counts[name][of(tensor)] += 1
    return {name: count.most_common(1)[0][0] for name, count in counts.items()}


def _misplaced(
    off: OffPath, series: Sequence[Fingerprint], distances: Float[np.ndarray, "n n"], num_tensors: int
) -> Finding:
    me = series[off.index].step
    step_of = {role: series[i].step for role in ("before", "after", "nearest") if (i := getattr(off, role)) is not None}
    to = {role: _rounded(distances[off.index, getattr(off, role)]) for role in step_of}
    near = " and ".join(f"{to[role]} from step {step_of[role]}" for role in ("before", "after") if role in to)
    where = "are not of this series there" if off.nearest is None else f"belong to step {step_of['nearest']}"
    message = f"The weights under step {me} {where}: they are {near}"
    if "nearest" in to:
        message += f", and {to['nearest']} from step {step_of['nearest']}"
    across = None
    if off.before is not None and off.after is not None:
        across = _rounded(distances[off.before, off.after])
        message += f"; steps {step_of['before']} and {step_of['after']} are {across} apart"
    rival = None if off.rival is None else series[off.rival].step
    if rival is not None:
        message = f"Either the weights under step {me} or those under step {rival} are out of place: {message}"
    evidence = {
        "steps": step_of,
        "distances": to,
        "across": across,
        "to_last": _rounded(distances[off.index, -1]),
        "last": series[-1].step,
        "rival": rival,
        "tensors": num_tensors,
    }
    return Finding(kind=Fault.OUT_OF_PLACE, step=me, message=message + ".", evidence=evidence)


def _rounded(value: float) -> float:
    return float(f"{value:.{_SHOWN_DIGITS}g}")


def _shown(value: Any) -> Any:
    return "×".join(map(str, value)) or "scalar" if isinstance(value, tuple) else value


def missing_steps(steps: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield two steps in a row with what the grid has between them.

    The grid is even differences, which must show on both sides of the gap (or twice on one side, at either end) and
    explain all that lies between, with no more missing than there; or even whole ratios in the same way.

    >>> list(missing_steps([1, 2, 4, 8, 32, 64, 1000, 2000, 3000, 5000, 6000]))
    [(8, 32, [16]), (3000, 5000, [4000])]
    """
    for i in range(len(steps) - 1):
        found = _on_even_differences(steps, i) or _on_even_ratios(steps, i)
        if found:
            yield steps[i], steps[i + 1], found


def _on_even_differences(steps: Sequence[int], i: int) -> list[int]:
    if i == len(steps) - 2 and i > 0 and steps[i - 1] * steps[i + 1] == steps[i] ** 2:
        return []  # 0, 1, 2, 4: doubling has begun
    differences = [after - before for before, after in pairwise(steps)]
    for spacing in sorted({each for each in differences if each < differences[i] and differences[i] % each == 0}):
        run = _run(differences, i, spacing)
        if run is None:
            continue
        num_there = len(run) + 1
        num_missing = sum(differences[j] // spacing - 1 for j in run)
        if num_missing <= num_there:
            return list(range(steps[i] + spacing, steps[i + 1], spacing))
    return []


def _run(differences: Sequence[int], i: int, spacing: int) -> range | None:
    """Return the differences around the i-th, up to the next equal to the spacing; None if others lie between."""
    left = next((j for j in range(i - 1, -1, -1) if differences[j] == spacing), None)
    right = next((j for j in range(i + 1, len(differences)) if differences[j] == spacing), None)
    if i == 0 and differences[1:3] == [spacing, spacing]:
        return range(3)
    if i == len(differences) - 1 and list(differences[-3:-1]) == [spacing, spacing]:
        return range(i - 2, i + 1)
    if left is None or right is None:
        return None
    run = range(left, right + 1)
    return run if all(differences[j] % spacing == 0 for j in run) else None


def _on_even_ratios(steps: Sequence[int], i: int) -> list[int]:
    pairs = [(i - 1, i + 1)] if 0 < i < len(steps) - 2 else [(i + 1, i + 2)] if i == 0 else [(i - 2, i - 1)]
    for pair in pairs:
        if min(pair) < 0 or max(pair) + 1 >= len(steps) or steps[min(*pair, i)] <= 0:
            continue
        ratios = {steps[j + 1] / steps[j] for j in pair}
        if len(ratios) == 1 and (ratio := ratios.pop()).is_integer():
            return _powers_between(steps[i], steps[i + 1], int(ratio))
    return []


def _powers_between(before: int, after: int, ratio: int) -> list[int]:
    grid = [before]
    while grid[-1] < after:
        grid.append(grid[-1] * ratio)
    return grid[1:-1] if grid[-1] == after else []
