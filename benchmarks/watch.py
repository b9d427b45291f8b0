"""What watching costs a training: every preset of `joma.watch` on a GPT-2 of 124 million parameters.

Steps with and without a measurement alternate, so that both see the same machine; a watch that measures one step in 100
costs a hundredth of the difference. On a GPU the batch is 8 × 1024 tokens in bf16, on a CPU 1 × 128 in fp32: there a
small batch makes the goal harder, since ranks cost the same whatever the batch is. The exit code is 1 when a preset
misses its goal by more than `SLACK`.
"""

import sys
import time
from contextlib import nullcontext

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from joma.probe.measurement import wait_for
from joma.probe.schedule import At
from joma.probe.watching import watch

EVERY = 100
GOALS = {"cheap": 0.005, "standard": 0.01, "full": 0.01}
"""Share of the step time."""
SLACK = 3.0
IDLE_CALLS = 10_000
FIRST = 2
"""Steps before the clock starts: allocation, and the first measurement, which starts from nothing."""


class Training:
    """A GPT-2 of the size of `gpt2`, random weights and random tokens, AdamW."""

    def __init__(self, device: torch.device) -> None:
        """Build the model on the device."""
        torch.manual_seed(0)
        self.device = device
        self.is_gpu = device.type == "cuda"
        self.num_pairs = 20 if self.is_gpu else 4
        self.batch, self.length = (8, 1024) if self.is_gpu else (1, 128)
        self.model = GPT2LMHeadModel(GPT2Config()).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=self.is_gpu)

    @property
    def size(self) -> str:
        """Parameters and batch, in words."""
        millions = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        return f"{millions:.0f}M parameters, {self.batch} × {self.length} tokens, {self.device}"

    def step(self) -> None:
        """Make one training step."""
        tokens = torch.randint(0, self.model.config.vocab_size, (self.batch, self.length), device=self.device)
        with torch.autocast("cuda", torch.bfloat16) if self.is_gpu else nullcontext():
            loss = self.model(tokens, labels=tokens).loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


def compare(training: Training, measures: str, *, probe: bool) -> tuple[float, float, float]:
    """Return the seconds of a plain step, of a measured one, and what joma itself says a measurement took.

    Of each the fastest: the one least disturbed by others.
    """
    measured = At(frozenset(range(0, 2 * (FIRST + training.num_pairs), 2)))
    tokens = torch.randint(0, 1000, (training.batch, training.length))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with watch(
        training.model, schedule=measured, measures=measures, probe_batch={"input_ids": tokens} if probe else None
    ) as seen:
        for number in range(2 * (FIRST + training.num_pairs)):
            wait_for([training.device])
            begun = time.perf_counter()
            training.step()
            seen.step(number)
            wait_for([training.device])
            if number >= 2 * FIRST:
                seconds[measured.due(number)].append(time.perf_counter() - begun)
    own = seen.frame().query(f"metric == 'seconds' and step >= {2 * FIRST}")["value"]
    return min(seconds[False]), min(seconds[True]), float(own.min())


def idle(training: Training) -> float:
    """Return the seconds of `Watch.step` at a step that is not due."""
    with watch(training.model, schedule=[0], measures="ranks") as seen:
        seen.step(1)
        begun = time.perf_counter()
        for number in range(IDLE_CALLS):
            seen.step(number + 2)
    return (time.perf_counter() - begun) / IDLE_CALLS


def main() -> int:
    """Print one line for each way to watch."""
    training = Training(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"{training.size}; a measurement every {EVERY} steps")
    waiting = idle(training)
    missed = False
    for measures, goal in GOALS.items():
        for probe in (False, True):
            plain, measured, own = compare(training, measures, probe=probe)
            share = ((measured - plain) / EVERY + waiting) / plain
            missed |= share > SLACK * goal
            what = f"{measures}, {'probe' if probe else 'training'} batch"
            print(
                f"{what:24s} {share:8.3%} of step time   goal {goal:.1%}   step {1e3 * plain:7.1f} ms, "
                f"measured {1e3 * measured:7.1f} ms, own account {1e3 * own:6.1f} ms"
            )
    print(f"a step that is not due: {1e6 * waiting:.1f} µs")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
