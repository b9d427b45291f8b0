"""Tensors are read from any file of weights; what is broken is named, and what carries code is not loaded."""

import json
import os
import pickle
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from states import walk

from joma.probe.checkpoint import TensorInfo, open_local
from joma.probe.findings import Fault, Flaw


@pytest.fixture
def state():
    return walk(1)[0]


def assert_holds(weights, state):
    assert set(weights.tensors) == set(state)
    for name, tensor in state.items():
        assert weights.tensors[name] == TensorInfo(shape=tuple(tensor.shape), dtype="float32")
        assert torch.equal(weights.read(name), tensor)


def flaw_of(path):
    with pytest.raises(Flaw) as caught:
        open_local(path)
    return caught.value


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
    if "layers" in saved.get("model", {}):  # beside a model, loose tensors are not of it
        state = {name: tensor for name, tensor in state.items() if name[0] == "l"}
    assert_holds(weights, state)
    assert weights.flaws == ()


def test_safetensors_and_a_folder_of_them(tmp_path, state):
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "training_args.bin").write_bytes(b"not weights")
    assert_holds(open_local(tmp_path / "model.safetensors"), state)
    assert_holds(open_local(tmp_path), state)


def test_half_precision_and_other_types(tmp_path):
    tensors = {
        "a": torch.randn(3, 2).bfloat16(),
        "b": torch.randn(3).to(torch.float8_e4m3fn),
        "c": torch.tensor([True]),
        "d": torch.tensor(7),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    weights = open_local(tmp_path / "x.safetensors")
    dtypes = {name: info.dtype for name, info in weights.tensors.items()}
    assert dtypes == {"a": "bfloat16", "b": "float8_e4m3fn", "c": "bool", "d": "int64"}
    assert torch.equal(weights.read("a"), tensors["a"])


@pytest.mark.parametrize("index", [True, False], ids=["index", "numbers"])
def test_shards(tmp_path, state, index):
    files = write_shards(tmp_path / "whole", state, index=index)
    assert_holds(open_local(tmp_path / "whole"), state)
    (tmp_path / "whole" / files[1]).unlink()
    weights = open_local(tmp_path / "whole")
    assert set(weights.tensors) < set(state)
    (flaw,) = weights.flaws
    assert flaw.kind is Fault.MISSING_FILE
    assert files[1] in flaw.message and flaw.evidence["present"] == [files[0], files[2]]


def test_tensors_that_the_index_names_and_no_shard_holds(tmp_path, state):
    files = write_shards(tmp_path / "x", state)
    index = tmp_path / "x" / "model.safetensors.index.json"
    record = json.loads(index.read_text())
    record["weight_map"]["lost.weight"] = files[0]
    index.write_text(json.dumps(record))
    (flaw,) = open_local(tmp_path / "x").flaws
    assert (flaw.kind, flaw.sites) == (Fault.MISSING_TENSOR, ("lost.weight",))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {}}'])
def test_a_broken_index(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert flaw_of(tmp_path).kind is Fault.UNREADABLE


def test_an_index_cannot_lead_out_of_the_folder(tmp_path, state):
    save_file(state, tmp_path / "secret.safetensors")
    (tmp_path / "step1").mkdir()
    index = {"weight_map": dict.fromkeys(state, "../secret.safetensors")}
    (tmp_path / "step1" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert flaw_of(tmp_path / "step1").kind is Fault.MISSING_FILE


@pytest.mark.parametrize("kept", [0, 4, 30, 300, -1])
def test_truncated_safetensors(tmp_path, state, kept):
    path = tmp_path / "model.safetensors"
    save_file(state, path)
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    flaw = flaw_of(path)
    assert flaw.kind is Fault.TRUNCATED
    if kept == -1:
        assert (flaw.evidence["bytes"], flaw.evidence["needed"]) == (len(content) - 1, len(content))


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_truncated_pickles(tmp_path, state, is_zip):
    path = tmp_path / "step1.bin"
    torch.save(state, path, _use_new_zipfile_serialization=is_zip)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    assert flaw_of(path).kind is Fault.TRUNCATED


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt"])
@pytest.mark.parametrize("content", [b"\xff" * 100, b"\x05\0\0\0\0\0\0\0hello", b"hello world, not weights"])
def test_junk_is_unreadable(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert flaw_of(tmp_path / name).kind in (Fault.UNREADABLE, Fault.TRUNCATED)


def test_a_pointer_of_git_lfs_is_no_weights(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123\n")
    flaw = flaw_of(path)
    assert flaw.kind is Fault.MISSING_FILE and "git lfs pull" in flaw.message


def test_a_folder_and_a_pickle_without_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert flaw_of(tmp_path).kind is Fault.MISSING_FILE
    torch.save({"epoch": 3}, tmp_path / "x.pt")
    assert "no state dict" in flaw_of(tmp_path / "x.pt").message
    assert "cannot be read: No such file" in flaw_of(tmp_path / "gone.pt").message


def test_parts_of_a_parallel_model_are_not_mixed_up(tmp_path, state):
    for rank in (0, 1):
        torch.save({"module": state}, tmp_path / f"mp_rank_0{rank}_model_states.pt")
    assert "Merge model-parallel parts" in flaw_of(tmp_path).message


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


def test_a_pickle_of_foreign_objects_is_refused_by_name(tmp_path):
    torch.save({"w": torch.ones(2, 2), "arguments": np.random.default_rng(0)}, tmp_path / "x.pt")
    flaw = flaw_of(tmp_path / "x.pt")
    assert flaw.kind is Fault.UNSAFE and any("numpy" in name for name in flaw.evidence["calls"])


def test_an_archive_that_is_not_of_pytorch(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("hello.txt", "hello")
    assert flaw_of(tmp_path / "x.pt").kind is Fault.UNREADABLE


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
