"""The attention kernel fits into the shared memory of every kind of GPU, by what the compiler says it takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

attention_triton = pytest.importorskip("joma.models.attention_triton", reason="Triton is not installed")

ROOM_OF_RTX_40, ROOM_OF_H200 = 101_376, 232_448
FEW, MANY = 1, 10**6


def test_the_chosen_shapes_fit():
    script = Path(__file__).with_name("compiled_attention.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for capability, found in json.loads(done.stdout).items():
        assert found
        for each in found:
            assert each["taken"] <= each["bound"] <= each["room"], (capability, each)


def test_a_gpu_with_room_gives_few_heads_more_of_it():
    assert attention_triton._shape(FEW, 64, 4, ROOM_OF_H200) == attention_triton._OF_FEW
    assert attention_triton._shape(MANY, 64, 4, ROOM_OF_H200) == attention_triton._OF_MANY
    assert attention_triton._shape(FEW, 64, 4, ROOM_OF_RTX_40) == attention_triton._SMALLEST_SHAPE
    assert attention_triton._shape(FEW, 16, 2, ROOM_OF_RTX_40) == attention_triton._OF_FEW
