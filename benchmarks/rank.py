"""Stable rank and its tracking against what a user would call instead, on one core: `python benchmarks/rank.py`.

Each ratio is the median over rounds in which all have their turn. Rivals: a full decomposition (torch and NumPy), one
without vectors, and the strongest, NumPy's Gram matrix with `eigvalsh`. The goals are against a full decomposition.
Gaussian weights are the hardest case, with no gap at the top; trained ones have a few loud directions. Live tracking is
timed after a small move of the weights and after one a hundred times larger: four products each.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core, before torch and NumPy load their threads

import numpy as np
import torch

from joma.measure.rank import power_step, stable_rank

SHAPE = (4096, 1024)
ROUNDS = 5
QUICK, QUICK_REPEATS = 0.1, 5
"""Seconds below which a call is repeated, and how often."""
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


def timed(works: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Run all by turns, so that a busy moment hits each alike; of short ones the fastest of a few counts."""
    rounds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            first = seconds(work)
            repeats = QUICK_REPEATS if first < QUICK else 0
            rounds[name].append(min(first, *(seconds(work) for _ in range(repeats))) if repeats else first)
    return rounds


def by_gram_matrix(w: np.ndarray) -> float:
    """Stable rank by the eigenvalues of the Gram matrix."""
    eigenvalues = np.linalg.eigvalsh(w.T @ w)
    return float(eigenvalues.sum(dtype=float)) / float(eigenvalues[-1])


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
    array = w.numpy()
    rivals: dict[str, Callable[[], object]] = {
        "full SVD": lambda: torch.linalg.svd(w, full_matrices=False),
        "NumPy's": lambda: np.linalg.svd(array, full_matrices=False),
        "svdvals": lambda: torch.linalg.svdvals(w),
        "Gram matrix": lambda: by_gram_matrix(array),
    }
    ours = {
        "exact": lambda: stable_rank(w),
        **{kind: partial(power_step, weights, start) for kind, weights in moved.items()},
    }
    rounds = timed(rivals | ours)
    singular = torch.linalg.svdvals(w.double())
    truth = float(singular.square().sum() / singular[0].square())
    print(f"{name}: " + ", ".join(f"{rival} {1e3 * statistics.median(rounds[rival]):.0f} ms" for rival in rivals))
    print(f"  relative error of the Gram matrix {abs(by_gram_matrix(array) / truth - 1):.0e}")
    errors = {"exact": f"{abs(float(stable_rank(w)) / truth - 1):.0e}"}
    for kind, weights in moved.items():
        found = power_step(weights, start)
        error = abs(float(found.norm / torch.linalg.svdvals(weights.double())[0] - 1))
        errors[kind] = f"{error:.0e}, residual {float(found.residual):.0e}"
    is_missed = False
    for kind, goal in GOALS.items():
        ratios = {
            rival: statistics.median(other / own for other, own in zip(rounds[rival], rounds[kind], strict=True))
            for rival in rivals
        }
        listed = ", ".join(f"{ratio:.1f}x {rival}" for rival, ratio in ratios.items())
        took = 1e3 * statistics.median(rounds[kind])
        print(f"  {kind:11s} {took:7.2f} ms   {listed} (goal {goal:g}x full SVD), relative error {errors[kind]}")
        is_missed |= ratios["full SVD"] * SLACK < goal
    return is_missed


def main() -> int:
    """Print one block for each kind of weights."""
    torch.set_num_threads(1)
    print(f"{SHAPE[0]}x{SHAPE[1]}, float32; {machine()}")
    missed = [compare("Gaussian weights", gaussian()), compare("power-law weights", trained())]
    return int(any(missed))


if __name__ == "__main__":
    sys.exit(main())
