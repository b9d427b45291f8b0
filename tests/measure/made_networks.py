"""Networks made to hold a known number of patterns in each neuron, and untrained ones, on contexts of known topics."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, normalize

from joma.measure.superposition import Attended

PATTERN_LENGTH, CONTEXT_LENGTH = 4, 12
VOCABULARY, WIDTH = 400, 256
BIAS = -0.3  # implicit bias of Eqn 60: a neuron needs about a third of a pattern to fire


@dataclass(frozen=True, kw_only=True)
class Made:
    """Activations and attention, with the truth behind them."""

    activations: Tensor
    attended: Attended
    topic: Tensor  # pattern in each context
    tokens: Tensor  # tokens of each pattern
    held: Tensor  # patterns that each neuron was made to hold


def made_network(
    patterns_per_neuron: int,
    noise: float,
    seed: int,
    *,
    num_contexts: int = 800,
    num_neurons: int = 32,
    num_topics: int = 25,
) -> Made:
    """Hold the given number of patterns in each neuron: w = Σ_p U_p 1 and a negative bias (Eqn 60).

    A context has the four tokens of one pattern and eight random ones. `noise` is the share of attention on the eight,
    the norm of a random part of w relative to the rest, and (a third of it) that of a random part of each activation.
    Embeddings are random directions in fewer dimensions than there are tokens, so nearly orthogonal.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, topic, ids = _contexts(generator, num_contexts, num_topics)
    weights = torch.rand(ids.shape, generator=generator)
    pattern, rest = weights.split((PATTERN_LENGTH, CONTEXT_LENGTH - PATTERN_LENGTH), dim=1)
    weights = torch.cat([(1 - noise) * normalize(pattern, p=1), noise * normalize(rest, p=1)], dim=1)
    embeddings = normalize(torch.randn(VOCABULARY, WIDTH, generator=generator))
    order = torch.rand(num_neurons, num_topics, generator=generator).argsort(dim=1)
    held = order[:, :patterns_per_neuron]
    w = embeddings[tokens[held].flatten(1)].sum(dim=1)
    w = w + noise * w.norm(dim=1, keepdim=True) * normalize(torch.randn(w.shape, generator=generator))
    response = torch.einsum("cl,cld->cd", weights, embeddings[ids]) @ w.T + BIAS
    response = response + noise / 3 * torch.randn(response.shape, generator=generator)
    attended = Attended(ids=ids, weights=weights)
    return Made(activations=response.relu(), attended=attended, topic=topic, tokens=tokens, held=held)


def untrained_network(seed: int, *, num_contexts: int = 800, num_neurons: int = 64, num_topics: int = 25) -> Made:
    """One block with random weights, on the contexts of `made_network`: attention, residual, LayerNorm, GELU."""
    generator = torch.Generator().manual_seed(seed)
    tokens, topic, ids = _contexts(generator, num_contexts, num_topics)
    x = torch.randn(VOCABULARY, WIDTH, generator=generator)[ids]
    q, k, v = torch.randn(3, WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    weights = torch.einsum("cd,cld->cl", x[:, -1] @ q, x @ k).div(WIDTH**0.5).softmax(dim=1)
    stream = layer_norm(x[:, -1] + torch.einsum("cl,cld->cd", weights, x @ v), (WIDTH,))
    activations = gelu(stream @ torch.randn(WIDTH, num_neurons, generator=generator) / WIDTH**0.5)
    attended = Attended(ids=ids, weights=weights)
    return Made(activations=activations, attended=attended, topic=topic, tokens=tokens, held=topic.new_empty(0))


def _contexts(generator: torch.Generator, num_contexts: int, num_topics: int) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randperm(VOCABULARY, generator=generator)[: num_topics * PATTERN_LENGTH].unflatten(
        0, (num_topics, -1)
    )
    topic = torch.randint(num_topics, (num_contexts,), generator=generator)
    rest = torch.randint(VOCABULARY, (num_contexts, CONTEXT_LENGTH - PATTERN_LENGTH), generator=generator)
    return tokens, topic, torch.cat([tokens[topic], rest], dim=1)
