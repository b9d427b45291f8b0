"""Pairs of tokens: how often windows hold them, their attention logits, and the losses where they were never seen."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from joma.engine.config import RunConfig
from joma.engine.sources import source_of
from joma.models.batch import Parameters
from joma.models.decoder import Decoder

Pairs = Float[Tensor, "V V"]
"""A number for each query, the rows, and key."""


def pair_counts(windows: Int[Tensor, "N L"], vocabulary: int) -> Int[Tensor, "V V"]:
    """Count, for each query and key, how often a window has the key at the query's position or before it.

    >>> pair_counts(torch.tensor([[0, 1, 1]]), 2).tolist()
    [[1, 0], [2, 3]]
    """
    length, counts = windows.shape[1], torch.zeros(vocabulary**2, dtype=torch.long)
    for lag in range(length):
        pairs = windows[:, lag:] * vocabulary + windows[:, : length - lag]
        counts += torch.bincount(pairs.flatten(), minlength=vocabulary**2)
    return counts.unflatten(0, (vocabulary, vocabulary))


def unseen_share(tokens: Int[Tensor, "N L"], seen: Bool[Tensor, "V V"]) -> Float[Tensor, "N L"]:
    """Return, at each position, the share of its pairs with itself and the positions before it that are not seen.

    >>> unseen_share(torch.tensor([[0, 1]]), torch.tensor([[True, True], [False, True]])).tolist()
    [[0.0, 0.5]]
    """
    unseen = (~seen)[tokens[:, :, None], tokens[:, None, :]].double().tril()
    return unseen.sum(dim=2) / torch.arange(1, tokens.shape[1] + 1)


def projected_logits(config: RunConfig, parameters: Parameters, frequency: Float[Tensor, " V"]) -> tuple[Pairs, Pairs]:
    """Return the token-by-token part of the logits that one head projects from embeddings, and the whole logits."""
    width, scale = config.model.width, config.model.attention_scale * config.model.head_width**-0.5
    weight, bias = (parameters[f"blocks.0.attention.qkv.{name}"][0].double() for name in ("weight", "bias"))
    x = parameters["embedding.weight"][0].double() * config.model.embedding_scale
    rest = x - frequency.to(x) @ x
    (q, k), (b_q, b_k) = weight[: 2 * width].split(width), bias[: 2 * width].split(width)
    return (rest @ q.T) @ (rest @ k.T).T * scale, (x @ q.T + b_q) @ (x @ k.T + b_k).T * scale


def agreement(one: Pairs, other: Pairs, seen: Bool[Tensor, "V V"]) -> float:
    """Return the correlation over pairs that are seen, less the mean of each query over these."""
    number = seen.sum(dim=1, keepdim=True).clamp(min=1)
    centred = [(each - (each * seen).sum(dim=1, keepdim=True) / number)[seen] for each in (one, other)]
    return float(torch.corrcoef(torch.stack(centred))[0, 1])


def permuted(decile: Int[np.ndarray, " N"], rng: np.random.Generator) -> Int[np.ndarray, " N"]:
    """Return a random order that leaves everything in its decile."""
    order = np.argsort(decile, kind="stable")
    found = np.empty_like(order)
    found[order] = np.lexsort((rng.random(len(decile)), decile))
    return found


def position_losses(config: RunConfig, parameters: Parameters, device: str) -> Float[np.ndarray, " N"]:
    """Return the loss at every position of the validation windows."""
    decoder, found = Decoder(config.model), []
    with torch.no_grad():  # with a tap, so that nothing is compiled for these few batches
        for batch in source_of([config], device).validation():
            rows = decoder.embed(parameters, batch.tokens)
            x = decoder.read(decoder.hidden(parameters, rows, batch.tokens, tap=lambda reading: None))[0]
            matrix, bias = (each[0] for each in decoder.readout(parameters))
            found.append(functional.cross_entropy(x @ matrix.T + bias, batch.targets[0], reduction="none").cpu())
    return torch.cat(found).double().numpy()


def advantage(gain: Float[np.ndarray, " N"], unseen: Float[np.ndarray, " N"]) -> float:
    """Return the mean gain weighted by the share of pairs not seen, minus that weighted by the share of pairs seen.

    >>> advantage(np.array([3.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0]))
    2.0
    """
    return float(np.average(gain, weights=unseen) - np.average(gain, weights=1 - unseen))
