"""Stable rank and its tracking against singular value decompositions, on one core: `python benchmarks/rank.py`.

Each line is a ratio measured in this run, decomposition and joma by turns, the fastest of a few each. The goals are
against a full decomposition; the one without vectors, the least that a user would call instead, stands beside it.
Gaussian weights are the hardest case, with no gap at the top; trained ones have a few loud directions. Live tracking is
timed after a small move of the weights and after one a hundred times larger: four products each.
"""

import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core, before torch loads its threads

import torch

from joma.measure.rank import power_step, stable_rank

SHAPE = (4096, 1024)
ROUNDS = 3
QUICK_REPEATS = 5
DRIFTS = {"live": 1e-4, "live, moved": 1e-2}
"""How far weights have moved since they were last measured, in units of their spread."""
GOALS = {"exact": 5.0, "live": 100.0, "live, moved": 100.0}
SLACK = 1.5


def machine() -> str:
    """Name the processor, as the system tells it."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, torch {torch.__version__}, one thread"


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def fastest(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Run all by turns, so that a busy moment hits each alike, and keep the fastest of each."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            repeats = 1 if name.startswith("svd") else QUICK_REPEATS
            best[name] = min(best[name], *(seconds(work) for _ in range(max(2, repeats))))
    return best


def gaussian() -> torch.Tensor:
    """Weights at initialisation."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def trained() -> torch.Tensor:
    """Weights with a spectrum that falls like a power, as those of trained networks do."""
    generator = torch.Generator().manual_seed(1)
    left, _ = torch.linalg.qr(torch.randn(SHAPE, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(SHAPE[1], SHAPE[1], generator=generator))
    return (left * torch.arange(1, SHAPE[1] + 1) ** -0.4) @ right.T


def compare(name: str, w: torch.Tensor) -> bool:
    """Print the ratios for one matrix, with the errors at that speed; say whether a goal was missed."""
    noise = w.std() * torch.randn(w.shape, generator=torch.Generator().manual_seed(2))
    moved = {kind: w + drift * noise for kind, drift in DRIFTS.items()}
    start = power_step(w, num_steps=96).vector
    best = fastest(
        {
            "svd": lambda: torch.linalg.svd(w, full_matrices=False),
            "svdvals": lambda: torch.linalg.svdvals(w),
            "exact": lambda: stable_rank(w),
            **{kind: partial(power_step, weights, start) for kind, weights in moved.items()},
        }
    )
    print(f"{name}: svd {best['svd'] * 1e3:.0f} ms, without vectors {best['svdvals'] * 1e3:.0f} ms")
    singular = torch.linalg.svdvals(w.double())
    errors = {"exact": f"{abs(float(stable_rank(w) * singular[0].square() / singular.square().sum() - 1)):.0e}"}
    for kind, weights in moved.items():
        found = power_step(weights, start)
        error = abs(float(found.norm / torch.linalg.svdvals(weights.double())[0] - 1))
        errors[kind] = f"{error:.0e}, residual {float(found.residual):.0e}"
    for kind, goal in GOALS.items():
        ratio, bare = best["svd"] / best[kind], best["svdvals"] / best[kind]
        print(
            f"  {kind:11s} {best[kind] * 1e3:7.2f} ms   {ratio:6.1f}x svd (goal {goal:g}x), "
            f"{bare:6.1f}x without vectors, relative error {errors[kind]}"
        )
    return any(best["svd"] / best[kind] * SLACK < goal for kind, goal in GOALS.items())


def main() -> int:
    """Print one block for each kind of weights."""
    torch.set_num_threads(1)
    print(f"{SHAPE[0]}x{SHAPE[1]}, float32; {machine()}")
    missed = [compare("Gaussian weights", gaussian()), compare("power-law weights", trained())]
    return int(any(missed))


if __name__ == "__main__":
    sys.exit(main())
