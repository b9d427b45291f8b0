"""Speed of an audit of all tensors, ranks apart, over that of sha256sum in the same run; files are in the cache."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from safetensors.torch import save_file

from joma.probe.checkpoint import open_local
from joma.probe.fingerprint import tensor_print

GOAL = 0.5
NUM_LAYERS, WIDTH = 8, 1024
REPEATS = 4


def main() -> None:
    """Print a line for each format and type."""
    torch.set_num_threads(1)
    shapes = [(WIDTH, WIDTH)] * 4 + [(4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (WIDTH,)]
    state = {f"layers.{i}.{j}": torch.randn(shape) for i in range(NUM_LAYERS) for j, shape in enumerate(shapes)}
    with TemporaryDirectory() as folder:
        for dtype in (torch.float32, torch.bfloat16):
            tensors = {name: tensor.to(dtype) for name, tensor in state.items()}
            for name, save in (("step1.safetensors", save_file), ("step1.pt", torch.save)):
                path = Path(folder) / name
                save(tensors, path)
                audit = partial(_audit, path)
                checksum = partial(subprocess.run, ["sha256sum", path], check=True, capture_output=True)
                times = [(_seconds(checksum), _seconds(audit)) for _ in range(REPEATS)]
                summed, audited = map(min, zip(*times, strict=True))
                size = path.stat().st_size / 1e9
                ratio = summed / audited
                sys.stdout.write(
                    f"audit of {name}, {str(dtype).removeprefix('torch.')}: {size / audited:.2f} GB/s, "
                    f"sha256sum {size / summed:.2f} GB/s, ratio {ratio:.2f} (goal {GOAL})\n"
                )


def _audit(path: Path) -> None:
    weights = open_local(path)
    assert not weights.check()
    for name in weights.tensors:
        tensor_print(weights.read(name))


def _seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


if __name__ == "__main__":
    main()
