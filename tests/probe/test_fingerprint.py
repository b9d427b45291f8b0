"""Digests tell tensors apart, sketches keep distances, and both come back from disk as they were."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.probe import fingerprint
from joma.probe.findings import Fault, Finding
from joma.probe.fingerprint import BLOCK_BYTES, NUM_BLOCKS, SKETCH_LENGTH, Fingerprint, sketch, tensor_print

LARGE = NUM_BLOCKS * BLOCK_BYTES // 4 * 3
"""Entries of a float32 tensor of which a third is looked at."""


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 300), scale=st.floats(1e-4, 1e2))
def test_sketches_keep_distances(seed, rows, scale):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, 257, generator=generator)
    b = a + scale * torch.randn(rows, 257, generator=generator)
    estimate = np.linalg.norm(sketch(a) - sketch(b))
    exact = float((a.double() - b.double()).norm())
    # the square deviates by √(2/k) = 9 %, the distance by half of that; five deviations
    assert abs(estimate / exact - 1) < 5 * np.sqrt(2 / SKETCH_LENGTH) / 2


def test_sketches_are_linear_and_of_long_tensors_too():
    a, b = torch.randn(3 * 2**20 + 5), torch.randn(3 * 2**20 + 5)
    # float32 sums of 12,000 terms
    assert np.allclose(sketch(a - 2 * b), sketch(a) - 2 * sketch(b), atol=0.02, rtol=0)
    assert np.array_equal(sketch(a), sketch(a.clone()))
    assert np.linalg.norm(sketch(a)) == pytest.approx(float(a.norm()), rel=0.25)


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
    found = tensor_print(tensor, whole=False)
    assert found == tensor_print(tensor.clone(), whole=True)
    assert (found.shape, found.num_bad) == (tuple(tensor.shape), 0)
    assert found.num_compared == tensor.numel() * tensor.element_size()


@given(place=st.integers(0, 999))
def test_one_bit_changes_the_digest(place):
    tensor = torch.linspace(-1, 1, 1000)
    changed = tensor.clone()
    changed.view(torch.int32)[place] ^= 1
    assert tensor_print(tensor, whole=True).digest != tensor_print(changed, whole=True).digest


def test_large_tensors_are_looked_at_in_blocks_over_their_whole_length():
    tensor = torch.randn(LARGE)
    found = tensor_print(tensor, whole=False)
    assert found.num_compared == NUM_BLOCKS * BLOCK_BYTES == tensor.nbytes // 3
    for place in (0, LARGE - 1):
        changed = tensor.clone()
        changed[place] += 1
        assert tensor_print(changed, whole=False).digest != found.digest
    assert tensor_print(tensor + 1e-3, whole=False).digest != found.digest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_nan_and_infinity_are_counted(dtype):
    tensor = torch.ones(100)
    tensor[3], tensor[70] = torch.nan, torch.inf
    assert tensor_print(tensor.to(dtype), whole=True).num_bad == 2
    assert tensor_print(torch.full((10,), 6e4, dtype=torch.float16), whole=True).num_bad == 0  # the sum overflows


def test_uniform_tensors_are_told():
    assert tensor_print(torch.ones(5000), whole=True).uniform
    assert not tensor_print(torch.arange(5000.0), whole=True).uniform
    late = torch.ones(5000)
    late[-1] = 2
    assert not tensor_print(late, whole=True).uniform


def test_prints_come_back_from_disk(tmp_path):
    tensor = torch.randn(20, 30)
    kept = Fingerprint(
        step=12,
        name="checkpoint-12",
        identity="abc",
        measured={"ranks": ""},
        tensors={"w": tensor_print(tensor, whole=True)},
        files={"model.safetensors": "def"},
        sketches={"w": sketch(tensor)},
        sources={"w": ("w.weight",)},
        findings=(Finding(kind=Fault.NOT_FINITE, step=12, sites=("w",), message="x", evidence={"n": 3}),),
    )
    fingerprint.save(tmp_path, kept)
    fingerprint.save(tmp_path, dataclasses.replace(kept, step=3))
    (tmp_path / "fingerprints" / "7.json").write_text('{"step": 7}')
    (tmp_path / "fingerprints" / "8.json").write_text("{")
    (tmp_path / "fingerprints" / "notes.json").write_text("{}")
    back = fingerprint.load(tmp_path)
    assert list(back) == [3, 12]
    for each in dataclasses.fields(kept):
        if each.name != "sketches":
            assert getattr(back[12], each.name) == getattr(kept, each.name)
    assert np.array_equal(back[12].sketches["w"], kept.sketches["w"])
    assert fingerprint.load(tmp_path / "nothing") == {}
