"""One training step of the small GPT-NeoX: plain on a CPU, on a GPU captured once and then replayed.

As written a step calls some five hundred small kernels, and a GPU would wait for most of them to be called.
"""

from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from joma.engine.precision import working_in

BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.01, 1.0
"""Pythia's optimiser: Adam with decoupled decay, the gradient clipped at norm 1."""
NUM_WARM_UPS = 2
"""Steps of the training that are done one by one before the capture: they choose kernels, and make the moments."""

Tokens = Int64[Tensor, "B L"]


class Step:
    """Moves a model by one batch after the other, all of one shape."""

    def __init__(self, model: Any, *, precision: str, device: str) -> None:
        """Take a model that lies on the device, before its first step or behind any other."""
        self.model = model
        self.parameters = dict(model.named_parameters())
        self._precision, self._device = precision, torch.device(device)
        self._is_captured = self._device.type == "cuda"
        # A graph reads the rate, and counts its steps, where they lie: on the GPU.
        self._rate = torch.zeros((), device=self._device) if self._is_captured else 0.0
        on_gpu = {"fused": True, "capturable": True} if self._is_captured else {}
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(), lr=self._rate, betas=BETAS, weight_decay=WEIGHT_DECAY, **on_gpu
        )
        self._batch: tuple[Tensor, Tensor] | None = None
        self._num_warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._beside = torch.cuda.Stream(self._device) if self._is_captured else None

    def advance(self, tokens: Tokens, targets: Tokens, rate: float) -> None:
        """Do a step. On a GPU it is queued, and nothing is waited for."""
        self._set_rate(rate)
        if not self._is_captured:
            self._move(tokens, targets)
            return
        if self._batch is None:
            self._batch = tokens.clone(), targets.clone()
        for kept, new in zip(self._batch, (tokens, targets), strict=True):
            kept.copy_(new)
        if self._num_warm < NUM_WARM_UPS:
            self._warm_up()
            return
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def loss(self, tokens: Tokens, targets: Tokens) -> Tensor:
        """Return the mean loss of the tokens."""
        mask = _causal(tokens) if self._is_captured else None
        logits = self.model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    def state(self) -> dict[str, Tensor]:
        """Return what the optimiser remembers, by name of the parameter and of the number."""
        return {
            f"{name}|{key}": value.contiguous()
            for name, parameter in self.parameters.items()
            for key, value in self.optimiser.state.get(parameter, {}).items()
        }

    def load_state(self, saved: dict[str, Tensor]) -> None:
        """Take up what `state` returned, on whatever device that was; other entries are passed over."""
        for entry, value in saved.items():
            name, _, key = entry.partition("|")
            if key:
                there = self._device if self._is_captured or key != "step" else torch.device("cpu")
                self.optimiser.state[self.parameters[name]][key] = value.to(there)

    def _set_rate(self, rate: float) -> None:
        if isinstance(self._rate, Tensor):
            self._rate.fill_(rate)
            return
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _move(self, tokens: Tokens, targets: Tokens) -> None:
        self.model.train()
        self.optimiser.zero_grad()
        with working_in(self._precision, self._device):
            self.loss(tokens, targets).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), CLIP)
        self.optimiser.step()

    def _warm_up(self) -> None:
        """Do a step on the stream that is captured later: there, gradients are added up where they were first."""
        assert self._batch is not None and self._beside is not None
        here = torch.cuda.current_stream(self._device)
        self._beside.wait_stream(here)
        with torch.cuda.stream(self._beside):
            self._move(*self._batch)
        here.wait_stream(self._beside)
        self._num_warm += 1

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record a step without doing it."""
        assert self._batch is not None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._beside):
            self._move(*self._batch)
        return graph


def _causal(tokens: Tokens) -> Bool[Tensor, "1 1 L L"]:
    """Return the mask that the model would make. To know which, it looks at numbers, and waits for the GPU."""
    length = tokens.shape[1]
    return torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()[None, None]
