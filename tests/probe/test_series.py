"""Steps are read off names and sorted as numbers; what a folder holds is told from what lies in it."""

import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from states import walk

from joma.probe.checkpoint import LocalPlace
from joma.probe.findings import Fault
from joma.probe.series import find_series, read_steps

TEMPLATES = [
    "step{}", "global_step{}", "global-step-{}", "checkpoint-{}", "iter_{:07d}", "iteration{}", "epoch={}",
    "model_step_{}_loss_2.31.safetensors", "epoch=3-step={}.ckpt", "stage1-step{}-tokens294B", "pythia-70m-step{}",
    "{}", "ckpt_{}.pt", "model_{}.bin", "update{:05d}.pth", "llama2-7b_{}.pt",
]  # fmt: skip


@given(
    template=st.sampled_from(TEMPLATES),
    steps=st.lists(st.integers(0, 10**6), min_size=2, max_size=12, unique=True),
    seed=st.integers(0, 100),
)
def test_any_naming_gives_back_its_steps(template, steps, seed):
    names = {template.format(step): step for step in steps}
    shuffled = random.Random(seed).sample(list(names), len(names))
    found = read_steps(shuffled)
    assert found.known == names
    assert not found.unknown


@pytest.mark.parametrize(
    ("name", "step"), [("step10k", 10_000), ("step1.5M", 1_500_000), ("step1000base", 1000), ("STEP-7", 7)]
)
def test_scaled_and_glued_numbers(name, step):
    assert read_steps([name]).known == {name: step}


@pytest.mark.parametrize(
    ("names", "unknown"),
    [
        (["step1", "step2", "main"], {"main": "shows no number"}),
        (["step1", "step2", "v2"], {"v2": "shows no step as the others do"}),
        (["step1", "step1-step2"], {"step1-step2": "shows several steps: 1, 2"}),
        (
            ["a1b2", "a3b4"],
            dict.fromkeys(["a1b2", "a3b4"], "shows several numbers, and which is the step is not clear"),
        ),
        (["epoch1", "epoch2", "step7"], {"step7": "shows no epoch as the others do"}),
        (["final", "best"], dict.fromkeys(["final", "best"], "shows no number")),
    ],
)
def test_missing_and_ambiguous_numbers_are_said(names, unknown):
    assert read_steps(names).unknown == unknown


def write(folder, name, state=None):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(walk(1)[0] if state is None else state, folder / name)
    return folder / name


def steps_and_names(series):
    return [(checkpoint.step, checkpoint.name) for checkpoint in series.checkpoints]


def test_a_trainer_s_folder(tmp_path):
    for step in (1000, 200, 30):
        write(tmp_path / f"checkpoint-{step}", "model.safetensors")
    (tmp_path / "logs").mkdir()
    series = find_series([tmp_path])
    assert steps_and_names(series) == [(30, "checkpoint-30"), (200, "checkpoint-200"), (1000, "checkpoint-1000")]
    assert series.checkpoints[0].place == LocalPlace(path=tmp_path.resolve() / "checkpoint-30")
    assert series.findings == ()


def test_weights_beside_the_checkpoints_are_left_out_and_said(tmp_path):
    write(tmp_path / "checkpoint-1", "model.safetensors")
    write(tmp_path, "model.safetensors")
    series = find_series([tmp_path])
    assert steps_and_names(series) == [(1, "checkpoint-1")]
    assert [(finding.kind, "weights of its own" in finding.message) for finding in series.findings] == [
        (Fault.NAME, True)
    ]


def test_a_folder_of_state_dicts_takes_safetensors_where_there_are_both(tmp_path):
    for name in ("step2.pt", "step10.pth", "optimizer.pt", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    write(tmp_path, "step2.safetensors")
    assert steps_and_names(find_series([tmp_path])) == [(2, "step2.safetensors"), (10, "step10.pth")]


def test_a_checkpoint_without_weights_stays_in_the_series(tmp_path):
    write(tmp_path / "step1", "model.safetensors")
    (tmp_path / "step2").mkdir()
    assert steps_and_names(find_series([tmp_path])) == [(1, "step1"), (2, "step2")]


def test_the_record_of_a_scan_among_the_checkpoints_is_none_of_them(tmp_path):
    for step in (1, 2):
        write(tmp_path / f"{step}", "model.safetensors")
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "run.json").write_text("{}")
    assert [step for step, _ in steps_and_names(find_series([tmp_path]))] == [1, 2]


def test_shards_make_a_folder_one_checkpoint(tmp_path):
    write(tmp_path / "step7", "model-00001-of-00002.safetensors")
    assert steps_and_names(find_series([tmp_path / "step7"])) == [(7, "step7")]


def test_loose_files_below_a_numbered_folder(tmp_path):
    for step in (512, 64):
        write(tmp_path / f"global_step{step}", "mp_rank_00_model_states.safetensors")
    assert [step for step, _ in steps_and_names(find_series([tmp_path]))] == [64, 512]


def test_files_one_by_one(tmp_path):
    paths = [write(tmp_path / f"checkpoint-{step}", "model.safetensors") for step in (20, 3)]
    assert [step for step, _ in steps_and_names(find_series(paths))] == [3, 20]


def test_one_checkpoint_without_a_number_is_step_0_and_that_is_said(tmp_path):
    series = find_series([write(tmp_path, "final.safetensors")])
    assert steps_and_names(series) == [(0, "final.safetensors")]
    assert "taken as step 0" in series.findings[0].message


def test_names_without_a_step_are_left_out_and_said(tmp_path):
    for name in ("step1", "step2", "last"):
        write(tmp_path / name, "model.safetensors")
    series = find_series([tmp_path])
    assert [step for step, _ in steps_and_names(series)] == [1, 2]
    assert [finding.message for finding in series.findings] == ["last shows no number: it is left out."]


def test_bad_sources_are_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for name in ("final", "best"):
        write(tmp_path / "unnumbered" / name, "model.safetensors")
    cases = [
        ([tmp_path / "empty"], FileNotFoundError, "holds no checkpoint"),
        ([tmp_path / "nowhere"], FileNotFoundError, "There is no file or folder .*nowhere"),
        (["org/model"], FileNotFoundError, "For a repository of the hub pass `revisions` too"),
        ([tmp_path / "notes.txt"], ValueError, "notes.txt is no checkpoint"),
        ([tmp_path / "unnumbered"], ValueError, "No step can be read off the names"),
        ([], ValueError, "There is nothing to scan"),
    ]
    for sources, error, match in cases:
        with pytest.raises(error, match=match):
            find_series(sources)
    with pytest.raises(ValueError, match="`revisions` is for repositories of the hub"):
        find_series([tmp_path / "empty"], revisions="step*")


def test_two_series_at_once_are_refused(tmp_path):
    write(tmp_path / "a" / "step1", "model.safetensors")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match=r"Step 1 is claimed by step1, .*b/step1"):
        find_series([tmp_path / "a", tmp_path / "b"])
    assert len(find_series([tmp_path / "a", tmp_path / "a"]).checkpoints) == 1


def test_a_folder_of_series_is_no_series(tmp_path):
    for seed in (0, 1):
        for step in (1, 2):
            write(tmp_path / f"seed{seed}", f"step{step}.safetensors")
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        find_series([tmp_path])


def test_a_run_is_the_series_that_it_keeps(tmp_path):
    """Not the snapshots beside it, which are there to go on from."""
    kept, bare = (tmp_path / "runs" / name for name in ("kept", "bare"))
    for run in (kept, bare):
        write(run / "snapshots", "step-000002.safetensors")
        (run / "run.json").write_text("{}")
    write(kept / "checkpoints", "step-000001.safetensors")
    write(kept / "checkpoints", "step-000002.safetensors")
    assert len(find_series([kept]).checkpoints) == 2
    assert find_series([kept]).checkpoints == find_series([kept / "checkpoints"]).checkpoints
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoint.*It is a run: train with --checkpoint-every"):
        find_series([bare])
    with pytest.raises(FileNotFoundError, match="It holds runs, each of which may be a series: name one"):
        find_series([kept.parent])
