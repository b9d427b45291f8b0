"""What measuring costs, on the CPU and on a GPU that works while the CPU goes on."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

MILLISECONDS = 1e-3


def wait_for(devices: Iterable[torch.device]) -> None:
    """Wait until GPUs have done all they were told to do."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


class Stopwatch:
    """Adds up the time of the blocks it is put around; a GPU is waited for only when it is read."""

    def __init__(self, device: torch.device) -> None:
        """Time work on `device` that this thread starts."""
        self._device = device
        self._blocks: list[tuple[float, tuple[torch.cuda.Event, torch.cuda.Event] | None]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time a block."""
        begun = time.perf_counter()
        events = self._events()
        if events is not None:
            events[0].record(torch.cuda.current_stream(self._device))
        try:
            yield
        finally:
            if events is not None:
                events[1].record(torch.cuda.current_stream(self._device))
            self._blocks.append((time.perf_counter() - begun, events))

    def read(self) -> float:
        """Return the seconds so far, of each block the longer of its times on CPU and GPU, and start anew."""
        seconds = 0.0
        for on_cpu, events in self._blocks:
            on_gpu = 0.0
            if events is not None:
                events[1].synchronize()
                on_gpu = events[0].elapsed_time(events[1]) * MILLISECONDS
            seconds += max(on_cpu, on_gpu)
        self._blocks.clear()
        return seconds

    def _events(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        if self._device.type != "cuda":
            return None
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
