"""Checkpoints: their files, steps and tensors; what is broken is named, and what carries code is not loaded."""

import json
import os
import pickle
import random
import re
import resource
import shutil
import time
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from states import walk

from joma.probe.checkpoint import open_local
from joma.probe.findings import Fault, Flaw
from joma.probe.fingerprint import TensorPrint
from joma.probe.series import find_series, read_steps


def assert_holds(weights, state):
    assert set(weights.tensors) == set(state)
    for name, tensor in state.items():
        assert weights.tensors[name] == TensorPrint(shape=tuple(tensor.shape), dtype="float32")
        assert torch.equal(weights.read(name), tensor)


def flaw_of(path):
    """The one flaw of a checkpoint, of which the rest can be read or nothing."""
    try:
        (flaw,) = open_local(path).flaws
    except Flaw as caught:
        return caught
    return flaw


def write_shards(folder, state, *, index=True, suffix="safetensors"):
    folder.mkdir()
    names = sorted(state)
    files = {f"model-0000{i + 1}-of-00003.{suffix}": names[i::3] for i in range(3)}
    for file, held in files.items():
        save_file({name: state[name] for name in held}, folder / file)
    if index:
        weight_map = {name: file for file, held in files.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sorted(files)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {"module": state}, "optimizer": {"state": {0: torch.ones(2)}}},
        lambda state: {"model_state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        lambda state: {f"module._orig_mod.{name}": tensor for name, tensor in state.items()},
        lambda state: (
            {"model": {"layers": {n.removeprefix("layers."): t for n, t in state.items() if n[0] == "l"}}}
            | {n: t for n, t in state.items() if n[0] != "l"}
        ),
    ],
    ids=["plain", "lightning", "nested", "parallel", "compiled", "tree"],
)
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_pickles_however_they_are_nested(tmp_path, state, wrap, is_zip):
    saved = wrap(state)
    torch.save(saved, tmp_path / "step1.pt", _use_new_zipfile_serialization=is_zip)
    weights = open_local(tmp_path / "step1.pt")
    if "layers" in saved.get("model", {}):  # next to a model, loose tensors are not of it
        state = {name: tensor for name, tensor in state.items() if name[0] == "l"}
    assert_holds(weights, state)
    assert weights.flaws == ()


def test_safetensors_of_every_type_and_a_folder_of_them(tmp_path, state):
    types = {"a": torch.bfloat16, "b": torch.float8_e4m3fn, "c": torch.bool, "d": torch.int64}
    tensors = {name: torch.ones(3, 2).to(dtype) for name, dtype in types.items()}
    save_file(state | tensors, tmp_path / "model.safetensors")
    (tmp_path / "training_args.bin").write_bytes(b"not weights")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        weights = open_local(path)
        assert {name: info.dtype for name, info in weights.tensors.items()} == {
            name: str(tensor.dtype).removeprefix("torch.") for name, tensor in (state | tensors).items()
        }
        assert all(torch.equal(weights.read(name), tensor) for name, tensor in state.items())
        assert torch.equal(weights.read("a"), tensors["a"])


@pytest.mark.parametrize("index", [True, False], ids=["index", "numbers"])
def test_shards(tmp_path, state, index):
    files = write_shards(tmp_path / "whole", state, index=index)
    assert_holds(open_local(tmp_path / "whole"), state)
    (tmp_path / "whole" / files[1]).unlink()
    assert set(open_local(tmp_path / "whole").tensors) < set(state)
    flaw = flaw_of(tmp_path / "whole")
    assert flaw.kind is Fault.MISSING_FILE
    assert files[1] in flaw.message and flaw.evidence["present"] == [files[0], files[2]]


@pytest.mark.parametrize("kept", [0, 4, 30, 300, -1, "zip", "legacy"])
def test_truncated_files(tmp_path, state, kept):
    path = tmp_path / ("step1.bin" if isinstance(kept, str) else "model.safetensors")
    if isinstance(kept, str):
        torch.save(state, path, _use_new_zipfile_serialization=kept == "zip")
    else:
        save_file(state, path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4 if isinstance(kept, str) else kept])
    flaw = flaw_of(path)
    assert flaw.kind is Fault.TRUNCATED
    if kept == -1:
        assert (flaw.evidence["bytes"], flaw.evidence["needed"]) == (len(content) - 1, len(content))


INDEX = "model.safetensors.index.json"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123\n"
SECRET = b'{"weight_map": {"a": "../secret.safetensors"}}'
JUNK = [b"\xff" * 100, b"\x05\0\0\0\0\0\0\0hello", b"hello world, not weights"]
BAD_INDICES = [b"{", b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": {"a": ["x"]}}', b"[" * 100_000]
NO_WEIGHTS = [
    *(
        (name, content, {Fault.UNREADABLE, Fault.TRUNCATED}, "")
        for name in ("x.safetensors", "x.pt")
        for content in JUNK
    ),
    *((INDEX, content, {Fault.UNREADABLE}, "") for content in BAD_INDICES),
    (INDEX, SECRET, {Fault.MISSING_FILE}, "secret"),
    ("model.safetensors", LFS, {Fault.MISSING_FILE}, "git lfs pull"),
    ("config.json", b"{}", {Fault.MISSING_FILE}, "holds no weights"),
    ("x.pt", {"epoch": 3}, {Fault.UNREADABLE}, "no state dict"),
    ("x.pt", {"w": torch.ones(2), "rng": np.random.default_rng(0)}, {Fault.UNSAFE}, "calls for .*numpy"),
]
"""Files without weights: name, content or what is pickled, kinds of the flaw, and what its message says."""


@pytest.mark.parametrize("case", NO_WEIGHTS, ids=range(len(NO_WEIGHTS)))
def test_a_file_that_holds_no_weights(tmp_path, case):
    name, content, kinds, words = case
    save_file({"a": torch.ones(2)}, tmp_path / "secret.safetensors")  # an index cannot lead out of its folder
    path = tmp_path / "step1" / name
    path.parent.mkdir()
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    flaw = flaw_of(path.parent if path.suffix == ".json" else path)
    assert flaw.kind in kinds and re.search(words, flaw.message)


def test_tensors_that_the_index_names_and_no_shard_holds(tmp_path, state):
    files = write_shards(tmp_path / "x", state)
    index = tmp_path / "x" / INDEX
    index.write_text(json.dumps({"weight_map": json.loads(index.read_text())["weight_map"] | {"lost": files[0]}}))
    flaw = flaw_of(tmp_path / "x")
    assert (flaw.kind, flaw.sites) == (Fault.MISSING_TENSOR, ("lost",))


def test_files_that_are_gone_or_of_a_parallel_model(tmp_path, state):
    assert "cannot be read: No such file" in flaw_of(tmp_path / "gone.pt").message
    for rank in (0, 1):
        torch.save({"module": state}, tmp_path / f"mp_rank_0{rank}_model_states.pt")
    assert "Merge model-parallel files" in flaw_of(tmp_path).message


@dataclass
class Malicious:
    """Runs a command when it is unpickled."""

    command: str

    def __reduce__(self):
        return os.system, (self.command,)


def save_malicious(path, marker, form):
    payload = {"layers.0.mlp.fc1.weight": torch.ones(2, 2), "x": Malicious(f"touch {marker}")}
    if form == "raw":
        path.write_bytes(pickle.dumps(payload["x"]))
    else:
        torch.save(payload, path, _use_new_zipfile_serialization=form == "zip")


@pytest.mark.parametrize("form", ["zip", "legacy", "raw"])
def test_a_pickle_that_carries_code_is_refused_by_name(tmp_path, form):
    save_malicious(tmp_path / "evil.bin", tmp_path / "ran", form)
    flaw = flaw_of(tmp_path / "evil.bin")
    assert flaw.kind is Fault.UNSAFE
    assert flaw.evidence["calls"] == ["posix.system"]
    assert not (tmp_path / "ran").exists()


def write_archive(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def save_again(path, state, *, compression=zipfile.ZIP_STORED, **changes):
    """Save a state as PyTorch does, and write the archive again: compressed, or with other content under some names."""
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    write_archive(path, entries | {f"step1/{name}.pkl": content for name, content in changes.items()}, compression)


def offset_in(path, tensor):
    return path.read_bytes().index(tensor.numpy().tobytes())


@pytest.mark.parametrize("place", [0, 100, 255])
def test_one_flipped_bit_in_an_archive_is_found_and_its_tensor_named(tmp_path, state, place):
    path = tmp_path / "step1.pt"
    torch.save({"model": state, "optimizer": {"moments": torch.randn(50)}}, path)
    assert open_local(path).check() == []
    content = bytearray(path.read_bytes())
    content[offset_in(path, state["layers.1.attn.q_proj.weight"]) + place] ^= 4
    path.write_bytes(content)
    (flaw,) = open_local(path).check()
    assert (flaw.kind, flaw.sites) == (Fault.DAMAGED, ("layers.1.attn.q_proj.weight",))


def test_bytes_outside_of_the_model_are_checked_too(tmp_path, state):
    path, moments = tmp_path / "step1.pt", torch.randn(50)
    torch.save({"model": state, "optimizer": {"moments": moments}}, path)
    for start, where in ((offset_in(path, moments), "check"), (path.read_bytes().index(b"fc1"), "open")):
        content = bytearray(path.read_bytes())
        content[start] ^= 1
        (tmp_path / "bad.pt").write_bytes(content)
        found = flaw_of(tmp_path / "bad.pt") if where == "open" else open_local(tmp_path / "bad.pt").check()[0]
        assert (found.kind, found.sites) == (Fault.DAMAGED, ())


def doubled(levels, start):
    """Return a dict whose entries are twice the same dict, and so on."""
    for _ in range(levels):
        start = {"a": start, "b": start}
    return start


def of_dicts_without_a_tensor():
    nested, end = doubled(17, {}), ONE
    for _ in range(200):
        end = {"model": {"first": nested, **end}}
    return end


def of_a_dict_in_itself():
    nested = dict(ONE)
    nested["model"] = nested
    return nested


def endless_shards(path):
    for number in ("99999999999", "9" * 200):
        path.with_name(f"model-1-of-{number}.safetensors").write_bytes(b"x")


ONE = {"w": torch.ones(2)}
DEFLATED = zipfile.ZIP_DEFLATED
INSTRUCTIONS = b"\x80\x02" + b"K\x01" * 5_000_000 + b"."
NUMBER = b"\x80\x02cbuiltins\nbytearray\n\x8a\x06" + (10**13).to_bytes(6, "little") + b"\x85R."
MANY = {"x" * 1_000_000: {str(i): torch.ones(1) for i in range(2_000)}}
HOSTILE = {
    "compressed": (Fault.COMPRESSED, lambda path: save_again(path, walk(1)[0], compression=DEFLATED)),
    "deflated bomb": (
        Fault.COMPRESSED,
        lambda path: save_again(path, ONE, compression=DEFLATED, data=b"\x80\x02" + b"0" * 64_000_000),
    ),
    "no archive of PyTorch": (Fault.UNREADABLE, lambda path: write_archive(path, {"hello.txt": "hello"})),
    "endless shards": (Fault.UNREADABLE, endless_shards),
    "bomb of instructions": (Fault.UNSAFE, lambda path: path.write_bytes(INSTRUCTIONS)),
    "bomb in an archive": (Fault.UNSAFE, lambda path: save_again(path, ONE, data=INSTRUCTIONS)),
    "doubled dicts": (Fault.UNSAFE, lambda path: torch.save({"model": doubled(60, ONE)}, path)),
    "doubled dicts without a tensor": (Fault.UNSAFE, lambda path: torch.save(of_dicts_without_a_tensor(), path)),
    "a dict in itself": (Fault.UNSAFE, lambda path: torch.save(of_a_dict_in_itself(), path)),
    "endless names": (Fault.UNSAFE, lambda path: torch.save(MANY, path)),
    "endless view": (Fault.UNSAFE, lambda path: torch.save({"w": torch.ones(1).expand(10**12)}, path)),
    "bytes from a number": (Fault.UNSAFE, lambda path: path.write_bytes(NUMBER)),
}


@pytest.mark.parametrize(("kind", "make"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_within_seconds_and_little_memory(tmp_path, kind, make):
    (tmp_path / "x").mkdir()
    make(tmp_path / "x" / "step1.pt")
    if os.path.exists("/proc/self/clear_refs"):  # forget how large the process was before, which would hide a lot
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    before, start = peak(), time.process_time()
    found = flaw_of(tmp_path / "x").kind
    seconds, kilobytes = time.process_time() - start, peak() - before
    assert found is kind
    assert seconds < 5 and kilobytes < 512 * 1024


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(
    ("form", "counters"),
    [
        ("pickle", {"step": 300.0, "epoch": 2.0}),
        ("metadata", {"step": 300.0}),
        ("trainer", {"global_step": 7.0, "epoch": 0.5}),
    ],
)
def test_the_step_inside_is_read(tmp_path, state, form, counters):
    if form == "pickle":
        torch.save({"model": state, "epoch": torch.tensor(2), "step": 300, "loss": 1.5}, tmp_path / "a.pt")
    else:
        save_file(state, tmp_path / "model.safetensors", {"step": "300"} if form == "metadata" else None)
    if form == "trainer":
        (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 7, "epoch": 0.5, "log_history": []}))
    assert open_local(tmp_path).counters == counters


def test_looking_at_one_tensor_does_not_read_the_others(tmp_path):
    """Mapped files cost memory where they are looked at: here one matrix of 4 MiB among 256 MiB."""
    large = {f"layers.{i}.weight": torch.zeros(1024, 1024) for i in range(64)}
    for path, save in ((tmp_path / "x.safetensors", save_file), (tmp_path / "x.pt", torch.save)):
        save(large, path)
        before = resident()
        weights = open_local(path)
        assert weights.read("layers.7.weight").sum() == 0
        assert resident() - before < 64 * 2**20


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
    assert read_steps(shuffled) == (names, {})


@pytest.mark.parametrize(
    ("name", "step"), [("step10k", 10_000), ("step1.5M", 1_500_000), ("step1000base", 1000), ("STEP-7", 7)]
)
def test_scaled_and_glued_numbers(name, step):
    assert read_steps([name]) == ({name: step}, {})


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
    assert read_steps(names)[1] == unknown


def write(folder, name, state=None):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(walk(1)[0] if state is None else state, folder / name)
    return folder / name


MP_RANK = "mp_rank_00_model_states.safetensors"
NEXT_TO = "has weights of its own next to the checkpoints in it: they are left out."
SERIES = {
    "a trainer's folder": (
        [*(f"checkpoint-{step}/model.safetensors" for step in (1000, 200, 30)), "logs/events.txt"],
        [(30, "checkpoint-30"), (200, "checkpoint-200"), (1000, "checkpoint-1000")],
        "",
    ),
    "weights next to the checkpoints": (
        ["checkpoint-1/model.safetensors", "model.safetensors"],
        [(1, "checkpoint-1")],
        NEXT_TO,
    ),
    "safetensors where there are both": (
        ["step2.safetensors", "step2.pt", "step10.pth", "optimizer.pt", "notes.txt"],
        [(2, "step2.safetensors"), (10, "step10.pth")],
        "",
    ),
    "a checkpoint without weights": (
        ["step1/model.safetensors", "step2/config.json"],
        [(1, "step1"), (2, "step2")],
        "",
    ),
    "the record of a scan among them": (
        ["1/model.safetensors", "2/model.safetensors", "3/run.json"],
        [(1, "1"), (2, "2")],
        "",
    ),
    "loose files below a numbered folder": (
        [f"global_step512/{MP_RANK}", f"global_step64/{MP_RANK}"],
        [(64, "global_step64"), (512, "global_step512")],
        "",
    ),
    "names without a step": (
        ["step1/model.safetensors", "step2/model.safetensors", "last/model.safetensors"],
        [(1, "step1"), (2, "step2")],
        "last shows no number: it is left out.",
    ),
}
"""Files in a folder, the steps and names of its checkpoints, and what is said about it."""


def steps_and_names(series):
    return [(checkpoint.step, checkpoint.name) for checkpoint in series[0]]


@pytest.mark.parametrize("name", SERIES)
def test_the_checkpoints_of_a_folder(tmp_path, name):
    files, expected, said = SERIES[name]
    for path in (tmp_path / each for each in files):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x") if path.suffix != ".safetensors" else write(path.parent, path.name)
    checkpoints, findings = find_series([tmp_path])
    assert steps_and_names((checkpoints, findings)) == expected
    assert checkpoints[0].files == tmp_path.resolve() / expected[0][1]
    assert [finding.kind for finding in findings] == [Fault.NAME] * bool(said)
    assert not said or said in findings[0].message


def test_single_checkpoints(tmp_path):
    write(tmp_path / "step7", "model-00001-of-00002.safetensors")
    assert steps_and_names(find_series([tmp_path / "step7"])) == [(7, "step7")]
    paths = [write(tmp_path / f"checkpoint-{step}", "model.safetensors") for step in (20, 3)]
    assert [step for step, _ in steps_and_names(find_series(paths))] == [3, 20]
    series = find_series([write(tmp_path, "final.safetensors")])
    assert steps_and_names(series) == [(0, "final.safetensors")]
    assert "taken as step 0" in series[1][0].message


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
    assert len(find_series([tmp_path / "a", tmp_path / "a"])[0]) == 1


def test_a_folder_of_series_is_no_series(tmp_path):
    for seed in (0, 1):
        for step in (1, 2):
            write(tmp_path / f"seed{seed}", f"step{step}.safetensors")
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        find_series([tmp_path])


def test_a_run_is_the_series_that_it_keeps(tmp_path):
    """Not the snapshots next to it, which are there to go on from."""
    kept, bare = (tmp_path / "runs" / name for name in ("kept", "bare"))
    for run in (kept, bare):
        write(run / "snapshots", "step-000002.safetensors")
        (run / "run.json").write_text("{}")
    write(kept / "checkpoints", "step-000001.safetensors")
    write(kept / "checkpoints", "step-000002.safetensors")
    assert len(find_series([kept])[0]) == 2
    assert find_series([kept]) == find_series([kept / "checkpoints"])
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoint.*It is a run: train with --checkpoint-every"):
        find_series([bare])
    with pytest.raises(FileNotFoundError, match="It holds runs, each of which may be a series: name one"):
        find_series([kept.parent])
