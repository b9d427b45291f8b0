"""Grids trained on a GPU: the CPU's numbers in every precision, resumed, beside failures, within planned memory.

With `JOMA_TEST_DEVICE=cpu` the same tests run anywhere, against themselves: every line but those of the GPU. The shape
checker's wrappers do not compile, so on a GPU they are left out: `pytest -o addopts=`.
"""

import gc
import math
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from engine.small_runs import DIVERGING_RATE
from joma.engine import loop, snapshots
from joma.engine.config import OptimiserConfig, RunConfig
from joma.engine.grid import Run, recipe
from joma.engine.loop import train_pack
from joma.engine.memory import CUDA_BASE, USABLE_SHARE, footprint
from joma.engine.optimiser import NUM_MOMENTS
from joma.engine.plan import Pack
from joma.engine.sources import data_size, with_vocabulary
from joma.engine.step import NOT_FAILED, Stepper
from joma.engine.training import train
from joma.models.batch import Batch
from joma.models.decoder import Decoder
from joma.models.decoder_config import paper_language_model
from joma.models.functional import linear
from joma.store import info, read


def there() -> str:
    """Return the device that is held against the CPU."""
    return os.environ.get("JOMA_TEST_DEVICE", "cuda")


needs_a_gpu = [
    pytest.mark.skipif(there() != "cpu" and not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(
        there() != "cpu" and hasattr(linear, "__wrapped__"), reason="checked functions do not compile: -o addopts="
    ),
    pytest.mark.filterwarnings("default"),  # compilers warn of settings that are meant, such as full float32
]
pytestmark = needs_a_gpu

NUM_STEPS = 50
"""More than an epoch, so that the optimiser restarts."""
SHAPE = {"width": 40, "hidden": 48, "heads": 2, "embedding_scale": 40**0.5, "batch": 4, "window": 20}
"""Of the language models here and in the tests of experiments: shapes that are compiled once for both."""
CLASSES = {"width": 32, "hidden": 24, "batch": 32}
"""The same for networks that tell classes."""
GRID = {
    **SHAPE, "depth": 2, "lr": (1e-3, 3e-3), "seed": 1, "valid_batch": 2, "valid_windows": 4, "steps": NUM_STEPS,
    "measure_every": 10,
}  # fmt: skip
LOSSES = {"float64": (1e-9, 1e-9), "fp32": (1e-5, 1e-3), "tf32": (1e-3, 2e-3), "bf16": (3e-3, 5e-3)}
"""How far losses may be off, relative: over the first steps, and later, when a neuron at the kink of its ReLU may have
gone the other way. On the CPU, fp32 ends 1e-7 from float64, once in ten runs 1e-4, and bf16 6e-4 from fp32."""
FIRST_STEPS = 10
MEASURES = {"float64": (1e-6, 1e-6), "fp32": (1e-5, 1e-2), "tf32": (2e-3, 2e-2), "bf16": (1e-2, 5e-2)}
"""The same for entropies in nats, and for stable ranks, relative: at the start, and later."""
KEYS = ["step", "site", "metric", "layer", "head"]


def write_text(folder, num_words=150, num_tokens=2400):
    """A text whose words follow one another by a rule, with exceptions; an epoch has 30 windows of `SHAPE`."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    follows = random.integers(num_words, size=(num_words, 3))
    for split in ("train", "valid", "test"):
        words = [0]
        for choice in random.integers(4, size=num_tokens):
            words.append(follows[words[-1], choice] if choice < 3 else random.integers(num_words))
        lines = [" ".join(f"w{word}" for word in words[at : at + 15]) for at in range(0, num_tokens, 15)]
        (folder / f"{split}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module", autouse=True)
def compiled_measurements():
    """Compile measurements however few there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "MANY_MEASUREMENTS", 1)
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return str(write_text(tmp_path_factory.mktemp("data") / "text"))


@pytest.fixture(scope="module")
def records(tmp_path_factory, text):
    """A function that trains a grid on a device, once, and returns the record of each run by its learning rate."""
    known = {}

    def trained(device, precision, **changes):
        key = (device, precision, *changes.items())
        if key not in known:
            out = tmp_path_factory.mktemp("grid")
            given = {**GRID, "data": text, "precision": precision, **changes}
            known[key] = by_rate(train(given, out=out, recipe="figure6", device=device))
        return known[key]

    return trained


def by_rate(done):
    """Return the records of runs that differ in their learning rate."""
    return {RunConfig.from_dict(info(run.folder).config).optimiser.lr: read(run.folder) for run in done.runs}


def values(table, *metrics):
    """The values of some metrics in a fixed order, by all that tells them apart."""
    chosen = table[table["metric"].isin(metrics)]
    return chosen.set_index(KEYS)["value"].sort_index()


def assert_learned(table):
    """Training has changed what could have gone wrong."""
    losses = values(table, "loss").xs("validation", level="site")
    assert losses.iloc[-1] < losses.iloc[0] - 0.1


def assert_agree(found, right, *, precision):
    """Records have the same rows, with losses and ranks near each other in relation and entropies in nats."""
    for metrics, is_relative, (early, late), last in (
        (["loss"], True, LOSSES[precision], FIRST_STEPS),
        (["stable_rank"], True, MEASURES[precision], 0),
        (["entropy", "entropy_fraction", "entropy_window"], False, MEASURES[precision], 0),
    ):
        ours, theirs = values(found, *metrics), values(right, *metrics)
        assert len(theirs) and ours.index.equals(theirs.index)
        off = (ours - theirs).abs() / (theirs.abs() if is_relative else 1.0)
        is_early = theirs.index.get_level_values("step") <= last
        for part, allowed in ((off[is_early], early), (off[~is_early], late)):
            assert (part <= allowed).all(), f"{part.idxmax()} is off by {part.max():.1e}, allowed {allowed}"


def assert_same(found, right):
    """Records have the same rows with the same numbers, but for the times."""
    ours, theirs = (table.set_index(KEYS)["value"].sort_index() for table in (found, right))
    pd.testing.assert_series_equal(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("precision", list(LOSSES))
def test_a_grid_has_the_cpus_numbers(records, precision):
    right = records("cpu", "float64" if precision == "float64" else "fp32")
    found = records(there(), precision)
    assert found.keys() == right.keys() and len(found) == 2
    for lr, table in found.items():
        assert_learned(table)
        assert_agree(table, right[lr], precision=precision)


OTHER_MODELS = {
    "rotary positions, AdamW": {},
    "free logits, gated, tied, momentum": {
        "attention_logits": "free", "positions": "learned", "max_length": 20, "norm": "rms", "activation": "silu",
        "gated": True, "tied": True, "optimiser": "momentum", "lr": (3e-2, 1e-1), "schedule": "cosine",
        "dropout": 0.1,
    },
    "normed and scaled queries and keys, leaky ReLU, rates by part": {
        "qk_norm": True, "attention_scale": 2.0, "positions": "centred", "activation": "relu", "negative_slope": 0.3,
        "lr_mlp": 0.5, "lr_embedding": 2.0,
    },
    "soft cap, QK-clip, frozen parts": {  # without biases: the noise of those of keys would reach what is clipped
        "softcap": 5.0, "qk_clip": 1.0, "positions": "constant", "attention_bias": False, "frozen": "value+norm",
    },
}  # fmt: skip
"""Changes of the recipe `small`, which shares no option with the paper's model."""


@pytest.mark.parametrize("changes", OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_other_models_have_the_cpus_numbers(text, tmp_path, changes):
    given = {
        "data": text, "width": 32, "hidden": 40, "batch": 4, "window": 20, "steps": NUM_STEPS, "measure_every": 10,
        "valid_batch": 2, "valid_windows": 4, "lr": (1e-3, 3e-3), "seed": 1, "warmup": 5, **changes,
    }  # fmt: skip
    found, right = (
        by_rate(train(given, out=tmp_path / which, device=device))
        for which, device in (("found", there()), ("right", "cpu"))
    )
    for lr, table in found.items():
        assert_learned(table)
        assert_agree(table, right[lr], precision="fp32")


class Stopped(RuntimeError):
    """What ends a training early."""


def test_an_interrupted_grid_goes_on_from_its_snapshots(records, text, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    given = {**GRID, "data": text, "precision": "fp32", "snapshot_every": 10}
    begun = []

    def stop(progress):
        if progress.packs and progress.packs[0].step == 24:
            raise Stopped

    def note(progress):
        begun.extend(pack.step for pack in progress.packs)

    with pytest.raises(Stopped):
        train(given, out=tmp_path, recipe="figure6", device=there(), progress=stop)
    done = train(given, out=tmp_path, recipe="figure6", device=there(), progress=note)
    assert begun[0] == 21 and begun[-1] == NUM_STEPS
    peace = records(there(), "fp32")
    for run in done.runs:
        assert (run.status, run.step) == ("finished", NUM_STEPS)
        assert snapshots.steps_of(run.folder) == [NUM_STEPS]
    for lr, table in by_rate(done).items():
        assert_same(table, peace[lr])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_diverging_neighbour_changes_no_bit(records, precision):
    calm, beside = records(there(), precision), records(there(), precision, lr=(1e-3, DIVERGING_RATE))
    assert_same(beside[1e-3], calm[1e-3])
    assert beside[DIVERGING_RATE]["step"].max() < NUM_STEPS


ORDERED = {
    "words by product": (paper_language_model(151, depth=2, width=40, hidden=48, heads=2), 20),
    "sorted words": (paper_language_model(5003, depth=2, width=40, hidden=48, heads=2), 20),
    "a long window": (paper_language_model(151, depth=1, width=40, hidden=48, heads=2, dropout=0.0), 160),
    "free logits": (
        replace(paper_language_model(151, depth=1, width=40, hidden=48, heads=2), attention_logits="free"),
        20,
    ),
}
"""Models whose sums are taken in different ways, and the length of their windows."""


@pytest.mark.parametrize("precision", ["float64", "fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("config", "length"), ORDERED.values(), ids=ORDERED)
def test_two_trainings_are_one_bit_for_bit_beside_whatever(config, length, precision):
    """Also where thousands of rows meet in a few tokens, which is where the order of a sum shows."""
    ends = []
    for neighbour in (2e-3, DIVERGING_RATE):
        stepper = stepper_of(config, [OptimiserConfig(lr=lr, clip=0.5) for lr in (1e-3, neighbour, 3e-3)], precision)
        for step in range(8):
            batch = words(config.vocabulary, 3, 40, length, seed=step)
            few = batch.tokens % 7
            stepper.advance(replace(batch, tokens=torch.where(few < 5, few, batch.tokens)))
        ends.append((stepper.state.failed_at.tolist(), stepper.run_state(0), stepper.run_state(2)))
    (calm, *ours), (wild, *theirs) = ends
    assert calm == [NOT_FAILED] * 3 and wild[1] != NOT_FAILED
    for one, other in zip(ours, theirs, strict=True):
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_failed_run_is_masked_at_its_step_and_stays_as_it_was(text):
    model = with_vocabulary(recipe("figure6").base.update({**SHAPE, "data": text, "depth": 2})).model
    stepper = stepper_of(
        model, [OptimiserConfig(lr=1e-3, clip=0.5), OptimiserConfig(lr=DIVERGING_RATE, clip=0.5)], "fp32"
    )
    for step in range(4):
        stepper.advance(words(model.vocabulary, 2, 4, 20, seed=step))
    assert stepper.state.failed_at.tolist() == [NOT_FAILED, 1]
    assert math.isfinite(stepper.losses[0]) and math.isnan(stepper.losses[1])
    before = stepper.run_state(1)
    stepper.advance(words(model.vocabulary, 2, 4, 20, seed=5))
    after = stepper.run_state(1)
    kept = [name for name in before if name.startswith("parameters.")]
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in kept)


def stepper_of(config, optimisers, precision):
    return Stepper(
        Decoder(config),
        list(range(1, len(optimisers) + 1)),
        optimisers,
        num_steps=100,
        steps_per_epoch=50,
        precision=precision,
        device=there(),
    )


def words(vocabulary, num_runs, num_streams, length, seed=0):
    """Words of one text for all runs."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(vocabulary, (1, num_streams, length + 1), generator=generator).to(there())
    both = drawn.expand(num_runs, -1, -1)
    return Batch(tokens=both[:, :, :-1].contiguous(), targets=both[:, :, 1:].flatten(1))


def kernels_of(stepper, batch):
    """Kernels of one step by name, from a profile, without copies and clears of memory; on a CPU its products."""
    kind = "CPU" if there() == "cpu" else "CUDA"
    with torch.profiler.profile(activities=[getattr(ProfilerActivity, kind)], acc_events=True) as profile:
        stepper.advance(batch)
        if there() != "cpu":
            torch.cuda.synchronize()
    names = [each.name for each in profile.events() if each.device_type == getattr(DeviceType, kind)]
    if not names:
        pytest.fail("the profile shows nothing")
    if kind == "CPU":
        return Counter(name for name in names if name == "aten::bmm")
    return Counter(name for name in names if not name.startswith(("Memcpy", "Memset")))


def test_rounded_factors_follow_the_parameters():
    """The kernel that writes them and the copy that a resumed run starts from round alike."""
    config = paper_language_model(151, depth=2)
    stepper = stepper_of(config, [OptimiserConfig(lr=1e-2, clip=0.5)] * 2, "bf16")
    for _ in range(3):
        stepper.advance(words(151, 2, 4, 9))
    for name in stepper.model.factors:
        found, right = stepper.working_parameters[name], stepper.parameters[name].bfloat16()
        num_rows = right.shape[1]
        assert torch.equal(found[:, :num_rows], right), name
        assert not found[:, num_rows:].any(), name  # room for whole tiles


def test_sixteen_runs_have_the_kernels_of_one():
    vocabulary = 151 if there() == "cpu" else 28_782
    config = paper_language_model(vocabulary, depth=2)
    found = {}
    for num_runs in (1, 16):
        stepper = stepper_of(config, [OptimiserConfig(lr=1e-4, clip=0.5)] * num_runs, "bf16")
        batch = words(vocabulary, num_runs, 20, 35)
        for _ in range(2):
            stepper.advance(batch)
        found[num_runs] = kernels_of(stepper, batch)
    one, sixteen = (sorted((found[a] - found[b]).items()) for a, b in ((1, 16), (16, 1)))
    # a string, which pytest prints whole
    told = f"of one run alone: {one}; of sixteen alone: {sixteen}"
    assert found[1].total() == found[16].total() > 0, told


@pytest.mark.parametrize("precision", ["float64", "bf16"])
def test_every_optimiser_is_as_many_kernels_as_adam(precision):
    """In float64 all of them are compiled, Adam too; elsewhere it is a kernel of its own."""
    config = paper_language_model(151, depth=1, width=40, hidden=48, heads=2)
    found = {}
    for name in NUM_MOMENTS:
        rates = [OptimiserConfig(optimiser=name, lr=1e-3, clip=0.5, weight_decay=0.1)] * 2
        stepper, batch = stepper_of(config, rates, precision), words(151, 2, 4, 20)
        for _ in range(2):
            stepper.advance(batch)
        found[name] = kernels_of(stepper, batch)
    told = "; ".join(f"{name} alone: {sorted((own - found['adam']).items())}" for name, own in found.items())
    assert len({own.total() for own in found.values()}) == 1, told


MEMORY = {
    "text": (4, "figure8", {"depth": 2, "valid_windows": 40, "precision": "bf16"}),
    "trees": (32, "trees", {"width": 256, "hidden": 512, "tree_depth": 4, "num_classes": 3, "precision": "tf32"}),
}
"""Runs, recipe and changes: more memory than libraries take for themselves, most of it for training, for measuring."""


@pytest.mark.parametrize(("num_runs", "name", "changes"), MEMORY.values(), ids=MEMORY)
def test_planned_memory_is_enough_and_not_far_too_much(tmp_path, num_runs, name, changes):
    changes = {**changes, "steps": 3, "measure_every": 1}
    if name == "figure8":
        num_words = 150 if there() == "cpu" else 28_000
        changes["data"] = str(write_text(tmp_path / "text", num_words=num_words, num_tokens=40_000))
    if there() == "cpu":
        changes |= {"width": 16, "hidden": 16}
    base = with_vocabulary(recipe(name).base.update(changes))
    pack = Pack(runs=tuple(Run(name=f"seed{seed}", config=base.update({"seed": seed})) for seed in range(num_runs)))
    device = torch.device(there())
    planned = footprint(base, device, data_bytes=data_size(base).data_bytes).of(num_runs)
    before = _memory_from_here()
    train_pack(pack, tmp_path / "runs", device=device)
    if there() == "cpu":
        return
    taken, held = torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved() - before
    told = f"planned {planned:,}, taken {taken:,}, held {held:,}"
    assert taken <= planned, told
    assert planned - CUDA_BASE <= 2.5 * taken, told
    # More is held than is taken: the allocator rounds up, and what a captured step works with stays held for it while a
    # measurement comes on top. For that packs are planned into a share of what is free, which must hold it all.
    assert held <= planned / USABLE_SHARE, told


def _memory_from_here():
    """Return what is in use on a GPU, with everything else given back, so that the peaks are of what comes."""
    if there() == "cpu":
        return 0
    gc.collect()  # graphs of earlier tests that an exception's frames hold
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
def test_a_class_is_read_off_the_last_position_as_on_the_cpu(tmp_path, causal):
    given = {
        **CLASSES, "num_latents": [(10, 20), (20, 30)], "num_children": 2, "num_classes": 20, "lr": 1e-3,
        "seed": (1, 2), "steps": NUM_STEPS, "measure_every": 10, "precision": "fp32", "causal": causal,
    }  # fmt: skip
    found, right = (
        {run.name: read(run.folder) for run in train(given, out=tmp_path / which, recipe="table1", device=device).runs}
        for which, device in (("found", there()), ("right", "cpu"))
    )
    assert found.keys() == right.keys() and len(found) == 4
    for name, table in found.items():
        assert_learned(table)
        assert_agree(table, right[name], precision="fp32")
