"""Whether the checkpoints of a series are what their steps say: each fault named, with its evidence.

A tensor is compared with the two before and the two after it. In between, its fault has a name if it is zero, scaled or
transposed, if it has entries far beyond theirs, or if it is far from both sides while they are near each other. The
first and the last tensor have one side only, and are odd if they hardly correlate with it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise, product
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist

from joma.formatting import counted
from joma.probe.findings import Fault, Finding, some
from joma.probe.fingerprint import SKETCH_LENGTH, Fingerprint, TensorPrint
from joma.probe.trajectory import OffPath, off_path

Series = Sequence[Fingerprint]
Groups = Sequence[Series]  # checkpoints that hold the same weights
Shapes = Mapping[str, Any]  # of most of the series, by the name of the tensor
Odd = dict[tuple[int, str], Fault]  # what is odd about a tensor, by step and name
MATRIX_AXES = 2
NO_FLAG = {Fault.GAP, Fault.NAME, Fault.DTYPE, Fault.PREFIX, Fault.NO_ENTROPY}
"""Faults that leave measured values as they are."""
_OF_TENSORS = {Fault.IDENTICAL_TENSOR}  # faults that concern the values measured from the tensors named, and no others
CONSTANT_SHARE = 0.8
"""A tensor that is the same in so much of the series is meant to be: rotary frequencies, masks, frozen layers."""
_SHOWN_DIGITS = 4

ZEROED = 0.25  # share of entries that are zero here and not on either side
WILD = 100.0  # times the largest entry of the neighbours: random bytes make numbers up to 1e38
SCALED, SCALED_AT_END = 2.5, 4.0  # ratio of norms, where the direction is the neighbours'
SAME_DIRECTION = 0.9  # cosine of what was only scaled
TURNED = 0.4  # by so much a transposed matrix correlates better with its neighbours
JUMP = 0.45  # distance of both sides from each other over that from a tensor between them; 1 for a settled run
STEADY, UNRELATED, UNRELATED_START = 0.7, 0.35, 0.2
"""Cosine of neighbours that hardly move, and of a last or first tensor that has nothing to do with them."""
FEWEST_ENTRIES = 64  # of a tensor whose distances are trusted
ROUNDING = 1e-6  # distances below this fraction of the norm are rounding


def audit(series: Series) -> list[Finding]:
    """Audit a series by what was kept of it, in the order of the steps.

    Every fingerprint's own findings come along. What is usual is what most of the series has, and tensors that are the
    same in nearly all of it (rotary frequencies, masks, frozen layers) are expected to be so.
    """
    series = sorted(series, key=lambda each: each.step)
    groups = _identical_checkpoints(series)
    repeated = {each.step for group in groups for each in group[1:]}
    distinct = [each for each in series if each.step not in repeated]
    inside, at_home = _steps_inside(series)
    shapes = _usual(series, lambda tensor: tensor.shape)
    copied = _identical_tensors(distinct)
    odd = _odd_tensors(distinct, shapes)
    shared = {(step, name) for each in copied for step in each.evidence["steps"] for name in each.sites}
    odd = {key: kind for key, kind in odd.items() if key not in shared}
    misplaced = _out_of_place(series, shapes, odd, groups, at_home)
    strayed = {finding.step for finding in misplaced}
    settled = _odd_tensors([each for each in distinct if each.step not in strayed], shapes)
    copies = {group[0].step: [each.step for each in group] for group in groups}
    jumped: dict[tuple[int, Fault], list[str]] = defaultdict(list)
    for (step, name), kind in odd.items():
        if settled.get((step, name)) == kind or (step in strayed and kind is not Fault.JUMP):
            for where in copies.get(step, [step]) if kind is Fault.NOT_FINITE else [step]:
                jumped[where, kind].append(name)
    found = [
        *(finding for each in series for finding in each.findings),
        *_prefixes(series),
        *_missing_tensors(series),
        *_changes(series, Fault.SHAPE, lambda tensor: tensor.shape),
        *_changes(series, Fault.DTYPE, lambda tensor: tensor.dtype),
        *inside,
        # after the first step of a warm-up that begins at rate 0 nothing has changed
        *(_duplicate(group, misplaced) for group in groups if [each.step for each in group] != [0, 1]),
        *_identical_files(distinct),
        *copied,
        *(_of_tensors(series, *key, names) for key, names in jumped.items()),
        *misplaced,
        *_gaps([each.step for each in series]),
    ]
    return sorted(found, key=lambda finding: finding.step)


MESSAGES = {
    Fault.NOT_FINITE: "{name} has NaN or infinity in {tensors}.",
    Fault.ZEROED: "{name} has zeros, which its neighbours do not have, in {tensors}.",
    Fault.DAMAGED: "{name} has entries far beyond those of its neighbours in {tensors}.",
    Fault.SCALED: "{name} has the weights of its neighbours times a factor in {tensors}.",
    Fault.TRANSPOSED: "{name} has the transpose of its neighbours' weights in {tensors}.",
    Fault.JUMP: "{name} has weights that do not fit between its neighbours in {tensors}.",
}


def _of_tensors(series: Series, step: int, kind: Fault, names: Sequence[str]) -> Finding:
    index = [each.step for each in series].index(step)
    each, around = series[index], series[max(0, index - 1) : index + 2]
    message = MESSAGES[kind].format(name=each.name, tensors=f"{counted(len(names), 'tensor')}: {some(names)}")
    not_finite = {name: each.tensors[name].num_nan + each.tensors[name].num_inf for name in names}
    evidence = {
        "tensor": names[0],
        "norms": {str(o.step): _rounded(o.tensors[names[0]].norm) for o in around if names[0] in o.tensors},
        "entries": {name: count for name, count in not_finite.items() if count},
    }
    return Finding(kind, step, message, tuple(names), evidence)


def _odd_tensors(series: Series, shapes: Shapes) -> Odd:
    found: Odd = {}
    for name, shape in shapes.items():
        there = [(each.step, tensor) for each in series if (tensor := _comparable(each, name, shape)) is not None]
        for i, (step, tensor) in enumerate(there):
            before = [other for _, other in there[max(0, i - 2) : i]][::-1]
            after = [other for _, other in there[i + 1 : i + 3]]
            # biases, and matrices of some initialisations, are zero at the start, and a warm-up may begin at rate 0
            kind = _oddity(tensor, before, after, is_start=step <= 1)
            if kind is not None:
                found[step, name] = kind
    for step in {each.step for each in series[:1]}:  # one matrix may be far from its start, several are not
        jumps = [key for key, kind in found.items() if key[0] == step and kind is Fault.JUMP]
        found = {key: kind for key, kind in found.items() if len(jumps) > 1 or key not in jumps}
    return found


def _comparable(each: Fingerprint, name: str, shape: tuple[int, ...]) -> TensorPrint | None:
    """Return a tensor of the usual shape that was looked at."""
    tensor = each.tensors.get(name)
    return tensor if tensor is not None and tensor.digest and tensor.shape == shape else None


def _oddity(  # noqa: C901, PLR0911 (a rule for each kind)
    tensor: TensorPrint, before: Sequence[TensorPrint], after: Sequence[TensorPrint], *, is_start: bool
) -> Fault | None:
    """Name what is odd about a tensor, given the two before and the two after it, the nearest first."""
    sides = [side for side in (before, after) if side]
    at_end = len(sides) == 1
    not_finite = tensor.num_nan + tensor.num_inf

    def everywhere(holds: Callable[[TensorPrint], bool]) -> bool:  # for some neighbour on each side
        return bool(sides) and all(any(map(holds, side)) for side in sides)

    steady = not at_end or len(sides[0]) > 1
    if everywhere(lambda other: tensor.largest > WILD * other.largest > 0) and steady and not tensor.uniform:
        return Fault.DAMAGED
    if not_finite:
        return Fault.NOT_FINITE
    if everywhere(lambda other: tensor.num_zeros - other.num_zeros >= ZEROED * tensor.num_numbers) and not (
        is_start or (not before and len(tensor.shape) < MATRIX_AXES)
    ):
        return Fault.ZEROED
    if len(tensor.shape) < MATRIX_AXES or tensor.num_numbers < FEWEST_ENTRIES or tensor.uniform:
        return None
    others = [
        [other for other in side if not other.uniform and not other.num_nan + other.num_inf and other.norm > 0]
        for side in sides
    ]
    if not all(others) or not others or tensor.norm == 0:
        return None
    least = SCALED_AT_END if at_end else SCALED
    for sign in (1, -1):

        def is_multiple(o: TensorPrint, sign: int = sign) -> bool:
            return (tensor.norm / o.norm) ** sign > least and _cosine(tensor.sketch, o.sketch) > SAME_DIRECTION

        is_steady = not at_end or (len(others[0]) > 1 and _ratio(*others[0]) < SCALED_AT_END**0.5)
        if is_steady and all(any(map(is_multiple, side)) for side in others):
            return Fault.SCALED
    if tensor.entries.size and all(
        (all if at_end else any)(
            _cosine(tensor.entries[0], o.entries[1]) > TURNED + _cosine(tensor.entries[0], o.entries[0]) for o in side
        )
        for side in others
    ):
        return Fault.TRANSPOSED
    if at_end:
        if len(others[0]) == 1:
            return None
        near, far = others[0]
        is_steady = _cosine(near.sketch, far.sketch) > STEADY
        unrelated = UNRELATED if before else UNRELATED_START
        return Fault.JUMP if is_steady and _cosine(tensor.sketch, near.sketch) < unrelated else None
    for p, n in product(*others):
        away = min(_distance(p, tensor), _distance(tensor, n))
        if away > ROUNDING * tensor.norm and _distance(p, n) < JUMP * away:
            return Fault.JUMP
    return None


def _cosine(a: Float[np.ndarray, " k"], b: Float[np.ndarray, " k"]) -> float:
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), np.finfo(float).tiny))


def _distance(a: TensorPrint, b: TensorPrint) -> float:
    return float(np.linalg.norm(a.sketch - b.sketch))


def _ratio(a: TensorPrint, b: TensorPrint) -> float:
    return max(a.norm / b.norm, b.norm / a.norm)


def _prefixes(series: Series) -> Iterator[Finding]:
    counts = Counter(each.prefix for each in series if each.tensors)
    usual = counts.most_common(1)[0][0] if counts else ""
    for each in series:
        if each.tensors and each.prefix != usual:
            difference = (each.prefix + usual).strip("+-")
            message = f"Names of tensors in {each.name} differ by the prefix {difference!r}. They were matched."
            yield Finding(Fault.PREFIX, each.step, message, evidence={"prefix": difference})


def _steps_inside(series: Series) -> tuple[list[Finding], list[int]]:
    """Compare the step or epoch that checkpoints hold with their names.

    Most of a series shows how both are related: a fixed difference, a fixed ratio, or else the same order. Returns what
    disagrees, and the steps of the checkpoints that are confirmed.
    """
    found: dict[int, Finding] = {}
    confirmed: list[int] = []
    for key in dict.fromkeys(key for each in series for key in each.counters):
        holders = [each for each in series if key in each.counters]
        if len(holders) < 3 or found:  # noqa: PLR2004 (two cannot be outvoted)
            continue
        steps, values = np.array([(each.step, each.counters[key]) for each in holders], dtype=float).T
        for each, agrees in zip(holders, _agreeing(steps, values), strict=True):
            if agrees:
                confirmed.append(each.step)
                continue
            message = f"{each.name} holds {key} {each.counters[key]:g}, which does not fit its name."
            evidence = {"key": key, "inside": each.counters[key], "name": each.name}
            found[each.step] = Finding(Fault.STEP, each.step, message, evidence=evidence)
    return list(found.values()), confirmed


def _agreeing(steps: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> list[bool]:
    """Say which values go with their steps as most do."""
    ratios = np.divide(values, steps, out=np.full(len(steps), np.nan), where=steps > 0)
    for relation in (values - steps, np.round(ratios, 6)):
        usual, count = Counter(relation[~np.isnan(relation)].tolist()).most_common(1)[0] if len(relation) else (0, 0)
        if 3 * count >= 2 * np.count_nonzero(~np.isnan(relation)) and count > 1:
            return [bool(each == usual or np.isnan(each)) for each in relation]

    def chains(values: Float[np.ndarray, " n"]) -> np.ndarray:  # length of the longest rising one to each value
        lengths = np.ones(len(values), dtype=int)
        for i, value in enumerate(values):
            lengths[i] += lengths[:i][values[:i] <= value].max(initial=0)
        return lengths

    lengths, backward = chains(values), chains(-values[::-1])[::-1]
    on_longest = lengths + backward == (lengths + backward).max()
    alone = Counter(lengths[on_longest].tolist())
    return [bool(on and alone[length] == 1) for on, length in zip(on_longest, lengths.tolist(), strict=True)]


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


def _identical_checkpoints(series: Series) -> list[list[Fingerprint]]:
    """Group the checkpoints that hold the same weights: the same files, or the same in all tensors compared."""
    ignored = _never_changing(series)
    groups: dict[Hashable, list[Fingerprint]] = defaultdict(list)
    for each in series:
        digests = {name: tensor.digest for name, tensor in each.tensors.items() if tensor.digest}
        moving = {name: digest for name, digest in digests.items() if name not in ignored} or digests
        if moving:
            groups[tuple(sorted(moving.items()))].append(each)
    return [group for group in groups.values() if len(group) > 1]


def _out_of_place(series: Series, shapes: Shapes, odd: Odd, groups: Groups, at_home: Sequence[int]) -> list[Finding]:
    """Find weights that belong to another step, or to none of the series, from distances between the sketches.

    Tensors that are odd by themselves are left out. Where nearly all of a checkpoint jumps it is out of place; where
    the rest of it is on the path, only the tensors are.
    """
    jumping = {key for key, kind in odd.items() if kind is Fault.JUMP}
    sound = [each for each in series if any(tensor.digest for tensor in each.tensors.values())]
    distances, share, num = _distances(sound, shapes, odd.keys() - jumping, groups)
    keep = [i for i in range(len(sound)) if share[i] > 0.1]  # noqa: PLR2004 (of the weights, or distances say little)
    sound, distances = [sound[i] for i in keep], distances[np.ix_(keep, keep)]
    home = [i for i, each in enumerate(sound) if each.step in at_home]
    offs = off_path(distances, home)
    without, share, _ = _distances(sound, shapes, odd.keys(), groups)
    still = {off.index for off in off_path(without, home)}
    partly = {
        off.index
        for off in offs
        if off.index not in still
        and share[off.index] > 0.02  # noqa: PLR2004
        and any(step == sound[off.index].step for step, _ in jumping)
        and off.rival is None
    }
    offs = [off for off in offs if off.index not in partly]
    strangers = {0, len(sound) - 1} - {off.index for off in offs} if len(sound) > 3 else set()  # noqa: PLR2004
    for index in sorted(strangers):
        if _is_stranger(sound, index, shapes, odd):
            offs.append(OffPath(index, *((index - 1, None) if index else (None, 1))))
    return [_misplaced(off, sound, distances, num) for off in offs]


def _distances(
    series: Series, shapes: Shapes, left_out: Collection[tuple[int, str]], groups: Groups
) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, " n"], int]:
    """Return the distances of all checkpoints, the share of the weights each is judged by, and the number of tensors.

    A pair is compared in the tensors that both have; what is left out is made up for by the size of the others' steps.
    """
    n = len(series)
    squares, weights, norms = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    total, num = 0.0, 0
    for name, shape in shapes.items():
        prints = [None if (each.step, name) in left_out else _comparable(each, name, shape) for each in series]
        there = np.array([each is not None for each in prints])
        if 2 * there.sum() <= n:
            continue
        sketches = np.stack([np.zeros(SKETCH_LENGTH) if each is None else each.sketch for each in prints])
        square = cdist(sketches, sketches, "sqeuclidean")
        indices = np.flatnonzero(there)
        weight = float(np.median([square[i, k] for i, k in pairwise(indices)])) if len(indices) > 1 else 0.0
        both = np.outer(there, there)
        squares += np.where(both, square, 0.0)
        weights += weight * both
        total, num = total + weight, num + 1
        norms += np.array([0.0 if each is None else each.norm**2 for each in prints])
    share = np.diagonal(weights) / total if total else np.ones(n)
    scaled = np.divide(squares * total, weights, out=squares.copy(), where=weights > 0)
    distances = np.sqrt(scaled + ROUNDING**2 * np.add.outer(norms, norms) / 2)
    label = np.arange(n)
    position = {each.step: i for i, each in enumerate(series)}
    for group in groups:
        label[[position[each.step] for each in group if each.step in position]] = position.get(group[0].step, -1)
    return np.where(label[:, None] == label, 0.0, distances), share, num


def _is_stranger(series: Series, index: int, shapes: Shapes, odd: Odd) -> bool:
    """Whether the first or last checkpoint is of another model: most of its matrices jump."""
    tensors = {
        name: each
        for name, each in series[index].tensors.items()
        if each.digest and len(each.shape) >= MATRIX_AXES and each.num_numbers >= FEWEST_ENTRIES and not each.uniform
    }
    jumps = [name for name in tensors if odd.get((series[index].step, name)) is Fault.JUMP]
    return 3 * len(jumps) > 2 * len(tensors) > 0


def _gaps(steps: Sequence[int]) -> Iterator[Finding]:
    for before, after, missing in missing_steps(steps):
        message = f"Missing between steps {before} and {after}: {some(list(map(str, missing)))}."
        evidence = {"before": before, "after": after, "missing": missing}
        yield Finding(Fault.GAP, missing[0], message, evidence=evidence)


def _missing_tensors(series: Series) -> Iterator[Finding]:
    readable = [each for each in series if each.tensors]
    counts = Counter(name for each in readable for name in each.tensors)
    usual = [name for name, count in counts.items() if 2 * count > len(readable)]
    for each in readable:
        missing = tuple(name for name in usual if name not in each.tensors)
        if missing and not any(finding.kind is Fault.MISSING_FILE for finding in each.findings):
            message = f"{each.name} lacks {counted(len(missing), 'tensor')} that the others have: {some(missing)}."
            evidence = {"missing": len(missing), "usual": len(usual)}
            yield Finding(Fault.MISSING_TENSOR, each.step, message, missing, evidence)


def _changes(series: Series, kind: Fault, of: Callable[[TensorPrint], Any]) -> Iterator[Finding]:
    """Find tensors whose shape or type is not the one that most of the series has."""
    usual = _usual(series, of)
    for each in series:
        changed: dict[Fault, list[str]] = defaultdict(list)
        for name, tensor in each.tensors.items():
            if of(tensor) != usual[name]:
                is_turned = kind is Fault.SHAPE and tensor.shape == usual[name][::-1]
                changed[Fault.TRANSPOSED if is_turned else kind].append(name)
        for what, names in changed.items():
            shown, expected = _shown(of(each.tensors[names[0]])), _shown(usual[names[0]])
            what_changed = f"{counted(len(names), 'tensor')} of another {kind.value}"
            message = f"{each.name} has {what_changed}: {names[0]} is {shown}, not {expected}."
            evidence = {"tensor": names[0], "found": shown, "usual": expected, "changed": len(names)}
            yield Finding(what, each.step, message, tuple(names), evidence)


def _duplicate(group: Series, misplaced: Sequence[Finding]) -> Finding:
    """Describe a group of equal checkpoints; flagged are those out of place, or all when none of them stands out."""
    steps = [each.step for each in group]
    wrong = [finding.step for finding in misplaced if finding.step in steps and not finding.evidence.get("rival")]
    flagged = wrong if 0 < len(wrong) < len(steps) else steps
    home = "" if len(flagged) != len(steps) - 1 else f" They belong to step {(set(steps) - set(flagged)).pop()}."
    message = f"Steps {' and '.join(map(str, steps))} hold the same weights.{home}"
    evidence = {
        "steps": steps,
        "names": [each.name for each in group],
        "tensors_compared": sum(bool(tensor.digest) for tensor in group[0].tensors.values()),
        "same_files": bool(group[0].files) and all(each.files == group[0].files for each in group),
        "flagged": flagged,
    }
    return Finding(Fault.IDENTICAL_CHECKPOINT, flagged[0], message, evidence=evidence)


def _identical_files(distinct: Series) -> Iterator[Finding]:
    """Find files that are the same at some steps, by the hub's hashes, though other files of the checkpoints differ."""
    holders: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in distinct:
        for file in each.files.items():
            holders[file].append(each.step)
    for (name, digest), steps in holders.items():
        if 1 < len(steps) < CONSTANT_SHARE * sum(name in each.files for each in distinct):
            message = f"The file {name} is the same at steps {' and '.join(map(str, steps))}."
            evidence = {"steps": steps, "file": name, "digest": digest, "flagged": steps}
            yield Finding(Fault.IDENTICAL_FILE, steps[-1], message, evidence=evidence)


def _identical_tensors(distinct: Series) -> list[Finding]:
    """Find tensors that are the same at some steps and not at others; vectors alone prove nothing.

    A vector in half precision stands still between steps now and then, and one whose entries are all equal always does.
    A warm-up that begins at rate 0 leaves steps 0 and 1 the same.
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
        if any(len(tensors[name].shape) >= MATRIX_AXES for name in names) and steps != (0, 1):
            listed, digests = " and ".join(map(str, steps)), {name: tensors[name].digest for name in names}
            message = f"{len(names)} of {len(tensors)} tensors are the same at steps {listed}: {some(names)}."
            evidence = {"steps": list(steps), "digests": digests, "flagged": list(steps)}
            found.append(Finding(Fault.IDENTICAL_TENSOR, steps[-1], message, tuple(names), evidence))
    return found


def _never_changing(series: Series) -> set[str]:
    """Names of tensors that are the same in nearly all of a series, those of another type left aside."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    dtypes = _usual(series, lambda tensor: tensor.dtype)
    for each in series:
        for name, tensor in each.tensors.items():
            if tensor.dtype == dtypes[name]:
                seen[name][tensor.digest] += 1
    return {name for name, counts in seen.items() if max(counts.values()) >= CONSTANT_SHARE * counts.total()}


def _usual(series: Series, of: Callable[[TensorPrint], Any]) -> dict[str, Any]:
    """What most of the series has for each tensor."""
    counts: dict[str, Counter[Any]] = defaultdict(Counter)
    for each in series:
        for name, tensor in each.tensors.items():
            counts[name][of(tensor)] += 1
    return {name: count.most_common(1)[0][0] for name, count in counts.items()}


def _misplaced(off: OffPath, series: Series, distances: Float[np.ndarray, "n n"], num_tensors: int) -> Finding:
    me = series[off.index].step
    sides = {role: i for role, i in asdict(off).items() if role != "index" and i is not None}
    steps = {role: series[i].step for role, i in sides.items()}
    across = None
    if off.before is not None and off.after is not None:
        across = _rounded(distances[off.before, off.after])
    evidence = {
        "steps": steps,
        "distances": {role: _rounded(distances[off.index, i]) for role, i in sides.items()},
        "across": across,
        "to_last": _rounded(distances[off.index, -1]),
        "last": series[-1].step,
        "rival": steps.get("rival"),
        "tensors": num_tensors,
    }
    case = "rival" if off.rival is not None else "stranger" if off.nearest is None else "nearest"
    return Finding(Fault.OUT_OF_PLACE, me, MISPLACED[case].format(me=me, **steps), evidence=evidence)


MISPLACED = {
    "rival": "The weights under step {me} or under step {rival} are out of place. Their distances do not show which.",
    "stranger": "The weights under step {me} are not of this series: they are far from their neighbours.",
    "nearest": "The weights under step {me} belong to step {nearest}.",
}


def _rounded(value: float) -> float:
    return float(f"{value:.{_SHOWN_DIGITS}g}")


def _shown(value: Any) -> Any:
    return "×".join(map(str, value)) or "scalar" if isinstance(value, tuple) else value


def missing_steps(steps: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield two steps in a row with what the grid has between them.

    The grid is even differences, which must show on both sides of the gap (or twice on one side, at either end) and
    explain all that lies between, with no more missing than there; or even integer ratios in the same way.

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
    differences = np.diff(steps).tolist()
    for spacing in sorted({each for each in differences if each < differences[i] and differences[i] % each == 0}):
        # the differences around the i-th, up to the next equal to the spacing on either side
        equal = [j for j, each in enumerate(differences) if each == spacing]
        left, right = max((j for j in equal if j < i), default=None), min((j for j in equal if j > i), default=None)
        if i == 0 and differences[1:3] == [spacing, spacing]:
            left, right = 0, 2
        elif i == len(differences) - 1 and differences[-3:-1] == [spacing, spacing]:
            left, right = i - 2, i
        elif left is None or right is None or any(each % spacing for each in differences[left:right]):
            continue
        run = differences[left : right + 1]
        num_missing = sum(each // spacing - 1 for each in run)
        if num_missing <= len(run) + 1:
            return list(range(steps[i] + spacing, steps[i + 1], spacing))
    return []


def _on_even_ratios(steps: Sequence[int], i: int) -> list[int]:
    pair = (i - 1, i + 1) if 0 < i < len(steps) - 2 else (i + 1, i + 2) if i == 0 else (i - 2, i - 1)
    if min(pair) < 0 or max(pair) + 1 >= len(steps) or steps[min(*pair, i)] <= 0:
        return []
    ratios = {steps[j + 1] / steps[j] for j in pair}
    if len(ratios) > 1 or not (ratio := ratios.pop()).is_integer():
        return []
    grid = [steps[i]]
    while grid[-1] < steps[i + 1]:
        grid.append(grid[-1] * int(ratio))
    return grid[1:-1] if grid[-1] == steps[i + 1] else []
