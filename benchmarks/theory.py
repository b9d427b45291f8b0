"""Speed of the theory on one core, and the accuracy that was reached at that speed: `make bench`.

Every row has a goal; the exit code is 1 when a row misses it by more than `SLACK`, since machines are shared and noisy.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core, before NumPy loads its threads

import numpy as np
from scipy.integrate import quad

from joma.theory.convergence import fraction_learned
from joma.theory.winner_take_all import LinearFlow

SLACK = 3.0
REPEATS = 3


def best_seconds(work: Callable[[], object]) -> float:
    """Return the fastest of a few runs: the one least disturbed by others."""

    def once() -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    return min(once() for _ in range(REPEATS))


def theorem2() -> tuple[float, str]:
    """A million points of Theorem 2's solution: 1000 times of 1000 tokens."""
    flow = LinearFlow(delta=np.random.default_rng(0).normal(size=(1, 1000)))
    t = np.linspace(0, 0.999 * flow.blow_up_time(), 1000)
    return best_seconds(lambda: flow.solution(t)), "10^6 points of Theorem 2's solution"


def inverse_of_learning_time() -> tuple[float, str]:
    """A hundred thousand points of F⁻¹, with the residual of a sample of them against adaptive quadrature."""
    rng = np.random.default_rng(1)
    mu, t = rng.uniform(0.1, 4, 100_000), rng.uniform(0.01, 2, 100_000)
    seconds = best_seconds(lambda: fraction_learned(t, mu))
    r = fraction_learned(t, mu)
    sample = np.flatnonzero(r < 1 - 1e-6)[:300]
    residual = max(abs(_learning_time(r[i], mu[i]) - t[i]) for i in sample)
    return seconds, f"10^5 points of F^-1 (|F(r) - t| <= {residual:.0e} by quadrature)"


def _learning_time(r: float, mu: float) -> float:
    return quad(lambda x: np.exp(-((mu * x) ** 2) / 2) / (1 - x), 0, r, epsabs=1e-13, epsrel=1e-13, limit=400)[0]


def help_text() -> tuple[float, str]:
    """The command's first answer."""
    command = [sys.executable, "-m", "joma", "--help"]
    return best_seconds(lambda: subprocess.run(command, capture_output=True, check=True)), "joma --help"


def main() -> int:
    """Print one line for each benchmark."""
    missed = False
    for benchmark, goal in ((theorem2, 1.0), (inverse_of_learning_time, 2.0), (help_text, 0.5)):
        seconds, what = benchmark()
        missed |= seconds > SLACK * goal
        print(f"{what:70s} {seconds:7.3f} s   goal {goal:g} s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
