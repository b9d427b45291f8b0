"""State dicts of a tiny transformer whose weights walk at random from step to step."""

import torch
from torch import Tensor

WIDTH, HIDDEN, NUM_LAYERS = 8, 32, 2


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"embed.weight": (16, WIDTH), "norm.weight": (WIDTH,)}
    for layer in range(NUM_LAYERS):
        for name in "qkvo":
            found[f"layers.{layer}.attn.{name}_proj.weight"] = (WIDTH, WIDTH)
        found[f"layers.{layer}.mlp.fc1.weight"] = (HIDDEN, WIDTH)
        found[f"layers.{layer}.mlp.fc1.bias"] = (HIDDEN,)
        found[f"layers.{layer}.mlp.fc2.weight"] = (WIDTH, HIDDEN)
    return found


LOWER = tuple(name for name in shapes() if name.endswith("fc1.weight"))
SITES = tuple(name.removesuffix(".weight") for name in LOWER)


def walk(num_states: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """States that walk at random, with a mask that never changes."""
    generator = torch.Generator().manual_seed(seed)
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes().items()}
    states = []
    for _ in range(num_states):
        states.append({name: tensor.clone() for name, tensor in state.items()} | {"mask": torch.ones(4, 4).tril()})
        state = {name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}
    return states
