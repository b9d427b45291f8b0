"""A snapshot comes back as it was written, or not at all."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from joma.engine import snapshots
from joma.engine.snapshots import DamagedSnapshotError, Snapshot

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool)


def made(step=100, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"t{number}": (torch.randn(2, number + 1, generator=generator) * 3).to(dtype)
        for number, dtype in enumerate(DTYPES)
    }
    return Snapshot(step=step, run="abc", tensors={**tensors, "count": torch.tensor(7)})


def assert_equal(found, expected):
    assert (found.step, found.run, found.tensors.keys()) == (expected.step, expected.run, expected.tensors.keys())
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor), name


@given(step=st.integers(0, 10**12), seed=st.integers(0, 2**32 - 1))
def test_what_was_written_comes_back_bit_for_bit(step, seed):
    snapshot = made(step, seed)
    assert_equal(snapshots.decoded(b"".join(snapshots.encoded(snapshot)), "it"), snapshot)


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_a_torn_file_and_a_longer_one_show(at, bit):
    content = b"".join(snapshots.encoded(made()))
    flipped, place = bytearray(content), int(at * len(content))
    flipped[place] ^= 1 << bit
    for damaged in (bytes(flipped), content[:place], content + b"\0"):
        with pytest.raises(DamagedSnapshotError, match="it "):
            snapshots.decoded(damaged, "it")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": snapshots.FORMAT}, "cannot be read: 'step'"),
        ({"format": "joma snapshot 1", "step": "3", "run": "0"}, "is a 'joma snapshot 1', and"),
        ({}, "is a 'file', and"),
    ],
)
def test_a_file_that_only_has_a_checksum_is_no_snapshot(metadata, message):
    blank = save({"w": torch.zeros(2)}, {"sha256": "0" * 64, **metadata})
    digest = hashlib.sha256(blank).hexdigest().encode()
    with pytest.raises(DamagedSnapshotError, match=message):
        snapshots.decoded(blank.replace(b"0" * 64, digest, 1), "it")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DamagedSnapshotError, match="cannot be read: No such file"):
        snapshots.load_snapshot(tmp_path / "step-000001.safetensors")
