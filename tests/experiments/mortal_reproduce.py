"""A process whose children reproduce fake experiments and are killed; it is told what to do line by line, as JSON."""

import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from store.mortality import ended, obey_orders

from experiments.fakes import Config, fake, fake_in_pieces, install
from joma.experiments.reproduction import reproduce


def obey(out: str, log: str, num_steps: int, pause: float, **death: float) -> dict[str, float]:
    """Reproduce in a child that may die; return how it ended, and after how long."""

    def work() -> None:
        config = Config(num_steps=num_steps, seeds=(3, 4)[:num_steps], pause=pause, log=log)
        install([fake("whole", config), fake_in_pieces("pieces", config)])
        reproduce(out=out, device="cpu")

    begun = time.monotonic()
    return {"ended": ended(work, **death), "seconds": time.monotonic() - begun}


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    obey_orders(obey)
