"""Memory and work of a step, counted from shapes, against the step itself."""

import gc
import tracemalloc
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.engine import memory, plan
from joma.engine.grid import axes_of, grid, recipe
from joma.engine.measuring import measure
from joma.engine.memory import USABLE_SHARE, Footprint, footprint, free_bytes, step_cost
from joma.engine.plan import counted_seconds, device_named, make_plan, tried_seconds
from joma.engine.sources import source_of, with_vocabulary
from joma.engine.step import Stepper
from joma.models.batch import Batch

CPU = torch.device("cpu")


def tree_run(**values):
    return with_vocabulary(recipe("trees").base.update(values))


MERGED = {"width": 16, "hidden": 8, "heads": 16, "depth": 3, "num_children": 3, "num_classes": 50, "steps": 10}
"""Networks on the hierarchy whose attention is most of their memory: a matrix for each head, of weighted keys."""
TURNED = {"positions": "rotary", "width": 16, "heads": 8, "causal": True, "tree_depth": 5, "depth": 2}
"""Not counted is what fused attention keeps on a CPU; a matrix would be far more."""


def stepper_of(config, seeds):
    return Stepper.of([replace(config, seed=seed) for seed in seeds], 10, 10)


@pytest.mark.parametrize(
    ("name", "values", "nearly"),
    [
        ("trees", {}, 0.02),
        ("trees", {"precision": "float64"}, 0.02),
        ("trees", {"dropout": 0.2}, 0.02),
        ("trees", {"optimiser": "sgd"}, 0.02),
        ("trees", {"optimiser": "momentum", "gated": True}, 0.02),
        ("table1", MERGED, 0.02),
        ("trees", TURNED, 0.05),
    ],
    ids=["plain", "float64", "dropout", "sgd", "momentum", "attention as a matrix", "fused attention"],
)
def test_the_count_is_what_a_real_step_allocates(name, values, nearly):
    config = with_vocabulary(recipe(name).base.update(values))
    assert (config.trained_length < config.data.length) is (name == "table1")
    source = source_of([config.update({"seed": seed}) for seed in (1, 2)])
    batch = source.batch(0)
    with memory._Tally() as tally:
        stepper_of(config, source.seeds).advance(batch)
    # The counters of the pack and the parameters as one run draws them are the difference.
    assert step_cost(config, 2).training_bytes == pytest.approx(tally.peak, rel=nearly)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_words", [2_000, 20_000])  # logits in one chunk, and in several
def test_half_precision_on_a_cpu_takes_what_is_planned(num_words, tied):
    config = recipe("figure6").base.update({"depth": 1, "width": 16, "hidden": 16, "heads": 2, "precision": "bf16"})
    config = replace(config, model=replace(config.model, vocabulary=num_words, tied=tied))
    tokens = torch.randint(num_words, (1, config.data.batch, config.data.window), generator=torch.manual_seed(0))
    batch = Batch(tokens=tokens, targets=tokens.flatten(1))
    with memory._Tally() as tally:
        stepper_of(config, [1]).advance(batch)
    planned = step_cost(config, 1, on_a_cpu=True).training_bytes
    assert tally.peak <= planned <= 1.2 * tally.peak
    assert step_cost(config, 1).training_bytes < planned


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"heads": 16, "width": 16, "hidden": 4},
        {"heads": 8, "width": 64, "hidden": 4, "attention_logits": "free"},
        {"measure_states": True, "norm_place": "after"},
    ],
    ids=["plain", "narrow heads", "free logits", "states"],
)
def test_a_measurement_fits_beside_the_training(values):
    configs = [tree_run(**values, seed=seed) for seed in (1, 2)]
    source = source_of(configs)
    with memory._Tally() as tally:
        stepper = stepper_of(configs[0], source.seeds)
        stepper.advance(source.batch(0))
        training = tally.peak
        measure(stepper.model, stepper.parameters, source, configs[0].training)
    planned = step_cost(configs[0], 2).peak_bytes
    assert training < tally.peak <= planned < 1.1 * tally.peak  # measuring is what takes most here


def test_counting_allocates_nothing():
    config = tree_run(width=4096, hidden=16384)
    gc.collect()
    before = torch.get_default_dtype()
    tracemalloc.start()
    cost = step_cost(config, 64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cost.peak_bytes > 2**36 and peak < 2**25
    assert torch.get_default_dtype() == before


@pytest.mark.parametrize("depth", [1, 2])
def test_products_are_counted(depth):
    narrow, wide = (step_cost(tree_run(width=64, hidden=hidden, depth=depth), 1) for hidden in (128, 256))
    num_rows = 128 * (8 * (depth - 1) + 1)  # all positions, but in the last block the one that the class is read off
    assert wide.flops - narrow.flops == 3 * 2 * num_rows * 2 * 64 * 128  # forward and twice backward, two matrices


def test_runs_add_up_and_kernels_do_not():
    config = tree_run()
    need = footprint(config, CPU)
    for num_runs in (2, 16):
        counted = step_cost(config, num_runs)
        assert counted.flops == num_runs * step_cost(config, 1).flops
        assert counted.num_operations == step_cost(config, 1).num_operations
        assert counted.peak_bytes <= need.of(num_runs) <= counted.peak_bytes * 1.05 + need.fixed


@given(fixed=st.integers(0, 10**9), per_run=st.integers(1, 10**9), free=st.integers(0, 10**12))
def test_the_most_that_fit_fit_and_one_more_does_not(fixed, per_run, free):
    need = Footprint(fixed=fixed, per_run=per_run)
    most = need.most(free)
    assert most == 0 or need.of(most) <= USABLE_SHARE * free
    assert need.of(most + 1) > USABLE_SHARE * free - 1  # one for whole bytes


@given(num_seeds=st.integers(1, 20), fitting=st.integers(1, 25))
def test_a_plan_splits_packs_to_fit(num_seeds, fitting):
    runs = grid(recipe("trees").base, axes_of({"seed": range(num_seeds)}))
    free = int(footprint(tree_run(), CPU).of(fitting) / USABLE_SHARE) + 2
    plan = make_plan(runs, device=CPU, memory=free, step_seconds=lambda config, num_runs: float(num_runs))
    assert all(each.num_bytes <= USABLE_SHARE * free for each in plan.packs)
    assert len(plan.packs) == -(-num_seeds // fitting)
    assert plan.seconds > num_seeds * 1000  # a second for a step of a run, and time to measure
    assert plan.as_dict()["packs"][0]["runs"][0] == "seed0"


def test_a_run_too_large_is_refused_with_numbers():
    runs = grid(recipe("trees").base, axes_of({"seed": 7}))
    with pytest.raises(ValueError, match=r"seed7 needs \S+ MiB, and 9.0 MiB may be used of 10.0 MiB that are free"):
        make_plan(runs, device=CPU, memory=10 * 2**20)


def test_time_is_estimated_from_counts_and_from_trials(monkeypatch):
    config = tree_run(width=16, hidden=16, depth=1)
    counted, tried = counted_seconds(CPU), tried_seconds
    assert 0 < counted(config, 1) < counted(config, 4) <= 4 * counted(config, 1)
    assert 0 < tried(config, 1) == tried(config, 4) / 4
    cost = step_cost(config, 1)
    monkeypatch.setattr(plan, "measured_speed", lambda device, precision: (1.0, 1.0, 1.0))
    assert counted(config, 2) == 2 * cost.flops + 2 * cost.moved_bytes + cost.num_operations


def test_a_container_with_less_than_the_host_counts(tmp_path, monkeypatch):
    limit, used, details = (tmp_path / name for name in ("max", "current", "stat"))
    monkeypatch.setattr(memory, "CONTAINER_FILES", ((limit, used, details),))
    unlimited = free_bytes(CPU)
    limit.write_text("max\n")
    used.write_text(f"{3 * 2**20}\n")
    assert free_bytes(CPU) == pytest.approx(unlimited, rel=0.2)
    limit.write_text(f"{10 * 2**20}\n")
    details.write_text(f"anon 5\ninactive_file {2**20}\n")
    assert free_bytes(CPU) == (10 - 3 + 1) * 2**20


def test_a_kernel_that_does_not_tell_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "nowhere")
    monkeypatch.setattr(memory, "CONTAINER_FILES", ())
    assert free_bytes(CPU) == 4 * 2**30


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_named(None) == device_named("cpu") == CPU
    with pytest.raises(ValueError, match="torch sees 0 GPUs"):
        device_named("cuda:1")
