"""A series is audited: its faults are named with their evidence, and a series as it should be has none."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from states import LOWER, SITES, walk

from joma.probe import fingerprint
from joma.probe.audit import audit, flags, missing_steps
from joma.probe.findings import Fault, Finding
from joma.probe.fingerprint import SKETCH_LENGTH, Fingerprint, align, tensor_print
from joma.probe.trajectory import off_path


def print_of(state, step, *, compared=None):
    """A fingerprint as an inspection makes it; of the hub's tensors only the measured ones are compared."""
    prints = {name: tensor_print(tensor) for name, tensor in state.items()}
    if compared is not None:
        prints = {name: each if name in compared else replace(each, digest="") for name, each in prints.items()}
    return Fingerprint(
        step=step,
        name=f"step{step}",
        identity=str(step),
        tensors=prints,
        sources={site: (name,) for site, name in zip(SITES, LOWER, strict=True)},
    )


def prints_of(states, **settings):
    return [print_of(state, 100 * (i + 1), **settings) for i, state in enumerate(states)]


def kinds(findings):
    return [(finding.kind, finding.step) for finding in findings]


@given(num=st.integers(1, 12), seed=st.integers(0, 10**4), on_hub=st.booleans())
def test_a_clean_series_has_no_finding(num, seed, on_hub):
    series = prints_of(walk(num, seed), compared=LOWER if on_hub else None)
    assert audit(series) == []
    assert audit(list(reversed(series))) == []


@pytest.mark.parametrize("on_hub", [False, True])
def test_neighbours_that_are_copies_are_both_flagged(on_hub):
    states = walk(10)
    states[4] = states[3]
    series = prints_of(states, compared=LOWER if on_hub else None)
    series = [replace(each, files={"model.safetensors": each.tensors[LOWER[0]].digest}) for each in series]
    (finding,) = audit(series)
    assert finding.evidence["same_files"]
    assert kinds([finding]) == [(Fault.IDENTICAL_CHECKPOINT, 400)]
    assert finding.evidence["steps"] == [400, 500]
    assert finding.evidence["tensors_compared"] == (len(LOWER) if on_hub else len(states[0]))
    assert flags([finding], series) == {step: {"": "identical checkpoint"} for step in (400, 500)}
    (finding,) = audit(prints_of(states[:1] * 4))  # nothing but copies
    assert (finding.kind, finding.evidence["flagged"]) == (Fault.IDENTICAL_CHECKPOINT, [100, 200, 300, 400])


def test_a_warm_up_that_begins_at_rate_0_leaves_the_first_two_steps_equal():
    states = walk(6)
    states[1] = dict(states[0])
    series = [replace(each, step=i) for i, each in enumerate(prints_of(states))]
    assert audit(series) == []
    states[0] = states[0] | {LOWER[0]: torch.full_like(states[0][LOWER[0]], torch.inf)}
    series = [replace(each, step=i) for i, each in enumerate(prints_of(states))]
    assert kinds(audit(series)) == [(Fault.NOT_FINITE, 0)]


def test_a_copy_of_the_end_under_an_early_step_is_out_of_place_and_the_end_is_not_flagged():
    states = walk(12)
    states[2] = states[-1]
    series = prints_of(states)
    found = audit(series)
    assert kinds(found) == [(Fault.IDENTICAL_CHECKPOINT, 300), (Fault.OUT_OF_PLACE, 300)]
    assert "They belong to step 1200." in found[0].message
    evidence = found[1].evidence
    assert evidence["steps"] == {"before": 200, "after": 400, "nearest": 1200}
    assert evidence["distances"]["nearest"] == evidence["to_last"] == 0
    assert evidence["distances"]["before"] > 2 * evidence["across"]
    assert "belong to step 1200" in found[1].message
    assert flags(found, series) == {300: {"": "identical checkpoint; out of place"}}


def test_a_shard_of_another_step_is_named_tensor_by_tensor():
    states = walk(10)
    taken = [name for name in states[0] if name.startswith("layers.1.")]
    states[6] |= {name: states[2][name] for name in taken}
    series = prints_of(states)
    found = [finding for finding in audit(series) if finding.kind is Fault.IDENTICAL_TENSOR]
    assert kinds(found) == [(Fault.IDENTICAL_TENSOR, 700)]
    assert set(found[0].sites) == set(taken)
    assert found[0].evidence["steps"] == [300, 700]
    assert flags(found, series) == {step: {SITES[1]: "identical tensor"} for step in (300, 700)}


def test_tensors_that_never_change_or_prove_nothing_are_left_out():
    states = walk(8)
    for number, state in enumerate(states):
        state["rotary.inv_freq"] = torch.linspace(0, 1, 8)
        state["frozen.weight"] = torch.ones(8, 8).tril()
        state["bias"] = torch.zeros(8) if number < 3 else torch.full((8,), float(number))
        state["gain.weight"] = torch.ones(8, 8) if number < 3 else torch.randn(8, 8)
    states[5]["norm.weight"] = states[4]["norm.weight"]  # a vector that stood still
    assert audit(prints_of(states)) == []
    states[7]["frozen.weight"] = torch.randn(8, 8)
    assert [(each.kind, each.sites) for each in audit(prints_of(states))] == [(Fault.JUMP, ("frozen.weight",))]


def test_missing_tensors_other_shapes_and_other_types():
    states = walk(8)
    del states[1][LOWER[0]]
    states[3]["embed.weight"] = torch.randn(20, 8)
    states[5] = {name: tensor.half() for name, tensor in states[5].items()}
    found = audit(prints_of(states))
    assert kinds(found) == [(Fault.MISSING_TENSOR, 200), (Fault.SHAPE, 400), (Fault.DTYPE, 600)]
    assert found[0].sites == (LOWER[0],)
    assert (found[1].evidence["found"], found[1].evidence["usual"]) == ("20×8", "16×8")
    assert (found[2].evidence["found"], found[2].evidence["usual"]) == ("float16", "float32")
    assert set(flags(found, [])) == {200, 400}


def test_own_findings_and_gaps_come_along():
    series = prints_of(walk(9))
    broken = Finding(kind=Fault.TRUNCATED, step=500, message="cut")
    series[4] = Fingerprint(step=500, name="step500", identity="", findings=(broken,))
    del series[6]
    found = audit(series)
    assert kinds(found) == [(Fault.TRUNCATED, 500), (Fault.GAP, 700)]
    assert found[1].evidence["missing"] == [700]
    assert flags(found, series) == {500: {"": "truncated"}}


def test_weights_that_are_not_finite_take_no_part_in_distances():
    states = walk(8)
    states[3][LOWER[0]] = torch.full_like(states[3][LOWER[0]], torch.nan)
    (finding,) = audit(prints_of(states))
    assert (finding.kind, finding.step, finding.sites) == (Fault.NOT_FINITE, 400, (LOWER[0],))
    states[1] = states[3]
    assert {(Fault.NOT_FINITE, 200), (Fault.NOT_FINITE, 400)} <= set(kinds(audit(prints_of(states))))


def test_a_file_of_another_step_is_named_though_its_tensors_were_not_compared():
    shard = "model-00002-of-00002.safetensors"
    series = [
        replace(each, files={"model-00001-of-00002.safetensors": str(each.step), shard: str(each.step)})
        for each in prints_of(walk(8), compared=LOWER)
    ]
    series[5] = replace(series[5], files=series[5].files | {shard: series[2].files[shard]})
    (finding,) = audit(series)
    assert (finding.kind, finding.evidence["file"], finding.evidence["steps"]) == (
        Fault.IDENTICAL_FILE,
        shard,
        [300, 600],
    )
    assert set(flags([finding], series)) == {300, 600}


def test_a_mixed_series_is_sorted_out_by_the_steps_inside():
    """Two steps swapped and one copied, where distances alone accuse others."""
    states = walk(10)
    states[2], states[7] = states[7], states[2]
    states[5] = states[9]
    inside = [1, 2, 8, 4, 5, 10, 7, 3, 9, 10]
    series = [replace(each, counters={"epoch": float(i)}) for i, each in zip(inside, prints_of(states), strict=True)]
    found = audit(series)
    assert {each.step for each in found if each.kind is Fault.STEP} == {300, 600, 800}
    assert {each.step for each in found if each.kind is Fault.OUT_OF_PLACE} <= {300, 600, 800}


@pytest.mark.parametrize(
    ("inside", "wrong"),
    [
        ([100, 200, 300, 400, 500, 600], set()),
        ([99, 199, 299, 399, 499, 599], set()),
        ([1, 2, 3, 4, 5, 6], set()),
        ([0, 0, 1, 1, 2, 2], set()),
        ([0, 0, 9, 1, 2, 2], {300}),
        ([100, 200, 300, 100, 500, 600], {400}),
        ([1, 3, 2, 4, 5, 6], {200, 300}),
        ([None, None, 700, None, None, None], set()),
    ],
)
def test_steps_inside_are_compared_with_names(inside, wrong):
    series = [
        replace(each, counters={} if value is None else {"step": float(value)})
        for each, value in zip(prints_of(walk(6)), inside, strict=True)
    ]
    assert {each.step for each in audit(series) if each.kind is Fault.STEP} == wrong


@pytest.mark.parametrize(
    ("rename", "prefix"),
    [
        (lambda name: f"bert.{name}", "bert."),
        (lambda name: name.replace("layers.", "model.layers."), "model."),
        (lambda name: name.removeprefix("layers."), "layers."),
    ],
)
@pytest.mark.parametrize("odd", [0, 4])
def test_prefixes_are_matched_and_named(rename, prefix, odd):
    states = walk(6)
    states[odd] = {rename(name): tensor for name, tensor in states[odd].items()}
    series = prints_of(states)
    matched = [align(each, series[0].tensors)[0] for each in series]
    (finding,) = audit(matched)
    assert (finding.kind, finding.step, finding.evidence["prefix"]) == (Fault.PREFIX, 100 * (odd + 1), prefix)
    assert not flags([finding], matched)


DIMENSION = 400


def straight(n, rng):
    return np.sort(rng.uniform(size=n))[:, None] * rng.normal(size=DIMENSION) + 1e-3 * rng.normal(size=(n, DIMENSION))


def random_walk(n, rng):
    return np.cumsum(rng.normal(size=(n, DIMENSION)) * rng.uniform(0.3, 3, size=(n, 1)), axis=0)


def settling(n, rng):
    decay = np.exp(-np.arange(n) / (n / 5))[:, None]
    return 5 * decay * rng.normal(size=DIMENSION) + 0.1 * rng.normal(size=(n, DIMENSION))


def stationary(n, rng):
    x = np.zeros((n, DIMENSION))
    rate = rng.uniform(0.1, 1)
    for i in range(1, n):
        x[i] = (1 - rate) * x[i - 1] + rng.normal(size=DIMENSION)
    return x


def annealed(n, rng):
    return np.cumsum(rng.normal(size=(n, DIMENSION)) * np.linspace(1, 0.01, n)[:, None], axis=0)


def logarithmic(n, rng):
    steps = np.concatenate([[0], 2 ** np.arange(10), 1000 * np.arange(1, n)])[:n]
    return np.cumsum(rng.normal(size=(n, DIMENSION)) * np.sqrt(np.diff(steps, prepend=0))[:, None], axis=0)


MOVING = [straight, random_walk, settling, annealed, logarithmic]


cases = given(path=st.sampled_from(MOVING), n=st.integers(12, 60), early=st.floats(0, 0.3), seed=st.integers(0, 10**6))


def found(x):
    return off_path(cdist(x, x))


@given(path=st.sampled_from([*MOVING, stationary]), n=st.integers(1, 80), seed=st.integers(0, 10**6))
def test_no_false_finding_on_any_path(path, n, seed):
    assert found(path(n, np.random.default_rng(seed))) == []


@cases
@example(path=random_walk, n=12, early=0.0, seed=223)
def test_final_weights_under_an_early_step(path, n, early, seed):
    x = path(n, np.random.default_rng(seed))
    i = int(early * n)
    x[i] = x[-1]
    hits = found(x)
    if path is random_walk and len(hits) > 1:  # one of few steps, whose end fits the beginning as well as its own place
        assert [(off.index, off.rival) for off in hits] == [(i, n - 1), (n - 1, i)]
        return
    (off,) = hits
    assert (off.index, off.nearest, off.rival) == (i, n - 1, None)


@cases
def test_weights_from_near_the_end_that_the_series_does_not_have(path, n, early, seed):
    rng = np.random.default_rng(seed)
    x = path(n + 1, rng)
    i = int(early * n)
    x = np.concatenate([x[:i], x[-2:-1], x[i + 1 : -2], x[-1:]])  # the last but one, under an early step
    hits = found(x)
    assert i in [off.index for off in hits] or path in (random_walk, annealed, logarithmic)  # a walk does not get far
    assert {off.index for off in hits} <= {i}


@cases
def test_a_block_of_copies(path, n, early, seed):
    x = path(n, np.random.default_rng(seed))
    i = 1 + int(early * n)
    x[[i, i + 1]] = x[-1]
    offs = {off.index: off.rival for off in found(x)}
    if path in (straight, settling, logarithmic):
        assert offs == {i: None, i + 1: None}
    else:  # a walk of few steps does not get far: then the original is named as well
        assert offs in ({i: None, i + 1: None}, {i: n - 1, i + 1: n - 1, n - 1: i})


def test_two_checkpoints_swapped():
    rng = np.random.default_rng(0)
    for path in MOVING:
        right = wrong = 0
        for _ in range(40):
            n = int(rng.integers(12, 60))
            x, i = path(n, rng), int(rng.integers(0, n // 4))
            x[[i, n - 1]] = x[[n - 1, i]]
            indices = {off.index for off in found(x)}
            right += indices == {i, n - 1}
            wrong += bool(indices - {i, n - 1})
        assert right >= 33 and wrong <= 3, path  # a random walk of few steps does not get far


def with_row(x, i, row):
    return np.concatenate([x[:i], row[None], x[i + 1 :]])


WALK, NOISE = (
    make(20, np.random.default_rng(0)) for make in (random_walk, lambda n, rng: rng.normal(size=(n, DIMENSION)))
)
LEAP = 1 - 0.45 ** np.arange(14.0)[:, None]  # its first step is longer than all others together
PATHS = {
    "a start that was left in one leap, exchanged": (
        LEAP[[12, *range(1, 12), 0, 13]],
        {0: (None, 1, 12, None), 12: (11, 13, 0, None)},
    ),
    "the same in its place": (LEAP, {}),
    "weights of another run": (with_row(WALK, 7, 40 * NOISE[0]), {7: (6, 8, None, None)}),
    "settled, where every place is as good": (with_row(NOISE, 4, NOISE[15]), {4: (3, 5, 15, 15), 15: (14, 16, 4, 4)}),
    "three with one away": (np.array([[0.0], [9.0], [1.0]]), {1: (0, 2, None, None)}),
    "equal neighbours": (with_row(WALK, 8, WALK[7]), {}),
    "all equal": (np.zeros((5, 2)), {}),
    **{f"{n} are too few": (np.arange(n)[:, None].astype(float), {}) for n in (1, 2)},
}


@pytest.mark.parametrize("name", PATHS)
def test_single_paths(name):
    x, expected = PATHS[name]
    assert {off.index: (off.before, off.after, off.nearest, off.rival) for off in found(x)} == expected


PYTHIA = [0, *(2**i for i in range(10)), *range(1000, 143_001, 1000)]


def gaps_of(steps):
    return [missing for _, _, missing in missing_steps(steps)]


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        (PYTHIA, []),
        (sorted(set(PYTHIA) - {16, 4000, 77_000, 78_000}), [[16], [4000], [77_000, 78_000]]),
        (list(range(100, 1001, 100)), []),
        ([100, 200, 300, 500], [[400]]),
        ([100, 300, 400, 500], [[200]]),
        ([100, 200, 400, 600, 700], [[300], [500]]),
        ([100, 200, 300, 337], []),
        ([0, 1, 2, 4], []),
        ([1, 2, 4, 16], [[8]]),
        ([1, 4, 8, 16], [[2]]),
        ([1, 2, 3, 10, 20, 30, 31, 32, 33], []),
        ([100, 900], []),
        ([5], []),
        ([], []),
        ([3, 10, 40, 45, 300], []),
    ],
)
def test_grids(steps, missing):
    assert gaps_of(steps) == missing


@given(start=st.integers(0, 1000), spacing=st.integers(1, 1000), num=st.integers(6, 60), place=st.floats(0, 1))
def test_any_step_taken_from_an_even_grid_is_missed(start, spacing, num, place):
    steps = [start + spacing * i for i in range(num)]
    assert gaps_of(steps) == []
    gone = steps.pop(1 + int(place * (num - 3)))
    assert gaps_of(steps) == [[gone]]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30, unique=True).map(sorted))
def test_whatever_is_said_to_be_missing_lies_between_and_is_not_there(steps):
    for before, after, missing in missing_steps(steps):
        assert all(before < step < after for step in missing)
        assert missing == sorted(set(missing) - set(steps))


def sketch(tensor):
    return tensor_print(tensor).sketch


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 300), scale=st.floats(1e-4, 1e2))
def test_sketches_keep_distances(seed, rows, scale):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, 257, generator=generator)
    b = a + scale * torch.randn(rows, 257, generator=generator)
    estimate = np.linalg.norm(sketch(a) - sketch(b))
    exact = float((a.double() - b.double()).norm())
    # the square deviates by √(2/k), the distance by half of that; five deviations
    assert abs(estimate / exact - 1) < 5 * np.sqrt(2 / SKETCH_LENGTH) / 2


def test_sketches_are_linear_and_of_long_tensors_too():
    a, b = torch.randn(3 * 2**20 + 5), torch.randn(3 * 2**20 + 5)
    # float32 sums of 1,000 terms
    assert np.allclose(sketch(a - 2 * b), sketch(a) - 2 * sketch(b), atol=0.05, rtol=0)
    assert np.array_equal(sketch(a), sketch(a.clone()))
    assert np.linalg.norm(sketch(a)) == pytest.approx(float(a.norm()), rel=0.4)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).bfloat16(),
        torch.randn(3, 4).to(torch.float8_e4m3fn),
        torch.tensor(3.0),
        torch.zeros(0, 2),
        torch.arange(5),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(4, 6).t(),
    ],
    ids=["float32", "bfloat16", "float8", "scalar", "empty", "int", "bool", "complex", "transposed"],
)
def test_every_type_has_a_print(tensor):
    found = tensor_print(tensor)
    assert found == tensor_print(tensor.clone())
    assert (found.shape, found.num_nan, found.num_inf) == (tuple(tensor.shape), 0, 0)
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    assert found.norm == pytest.approx(float(wide.norm()), rel=1e-6)
    assert found.num_zeros == (0 if tensor.is_complex() else int((wide == 0).sum()))
    assert found.uniform == (tensor.ndim == 0)
    assert tensor_print(torch.ones(5000)).uniform
    assert not tensor_print(torch.ones(5000).index_fill(0, torch.tensor(4999), 2)).uniform


@given(place=st.integers(0, 999))
def test_one_bit_changes_the_digest(place):
    tensor = torch.linspace(-1, 1, 1000)
    changed = tensor.clone()
    changed.view(torch.int32)[place] ^= 1
    assert tensor_print(tensor).digest != tensor_print(changed).digest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_nan_and_infinity_are_counted(dtype):
    tensor = torch.ones(100)
    tensor[3], tensor[70] = torch.nan, torch.inf
    found = tensor_print(tensor.to(dtype))
    assert (found.num_nan, found.num_inf, found.largest) == (1, 1, 1.0)
    large = tensor_print(torch.full((10,), 1e30))  # the squares overflow
    assert (large.num_nan, large.num_inf) == (0, 0) and large.norm == pytest.approx(1e30 * 10**0.5)


def test_prints_come_back_from_disk(tmp_path):
    tensor = torch.randn(20, 30)
    kept = Fingerprint(
        step=12,
        name="checkpoint-12",
        identity="abc",
        measured={"ranks": ""},
        tensors={"w": tensor_print(tensor)},
        files={"model.safetensors": "def"},
        counters={"step": 12.0},
        prefix="+model.",
        sources={"w": ("w.weight",)},
        findings=(Finding(kind=Fault.NOT_FINITE, step=12, sites=("w",), message="x", evidence={"n": 3}),),
    )
    fingerprint.save(tmp_path, kept)
    fingerprint.save(tmp_path, dataclasses.replace(kept, step=3))
    (tmp_path / "fingerprints" / "7.json").write_text('{"step": 7}')
    (tmp_path / "fingerprints" / "8.json").write_text("{")
    by_version_0_1 = (
        '{"step": 9, "name": "x", "identity": "y", "tensors": {"w": {"shape": [1], "dtype": "int8", "num_bad": 0}}}'
    )
    (tmp_path / "fingerprints" / "9.json").write_text(by_version_0_1)
    (tmp_path / "fingerprints" / "notes.json").write_text("{}")
    content = (tmp_path / "fingerprints" / "3.json").read_bytes()
    for place in range(0, 8 * len(content), 7):  # whatever bit has flipped
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        (tmp_path / "fingerprints" / "4.json").write_bytes(flipped)
        assert fingerprint.load_step(tmp_path, 4) in (None, fingerprint.load_step(tmp_path, 3))
    back = fingerprint.load(tmp_path)
    assert {3, 12} <= back.keys() <= {3, 4, 12}
    assert back[12] == kept
    assert np.array_equal(back[12].tensors["w"].sketch, kept.tensors["w"].sketch)
    assert fingerprint.load(tmp_path / "nothing") == {}
