"""How well a label can be read off hidden neurons: balanced accuracy of the best neuron, and of a linear probe.

Balanced accuracy is (share of hits + share of correct rejections) / 2; ½ is chance. What is chosen or fitted on the
first half of the samples is scored on the second.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

RIDGE = 0.1  # penalty of the probe, in units of a neuron's sum of squares
_CHANCE = 0.5


def best_neuron(hidden: Float[Tensor, "2 N F"], truth: Bool[Tensor, "2 N L"]) -> Float[Tensor, " L"]:
    """Return for each label the balanced accuracy of the neuron that is best on the first half."""
    return _best(hidden[:, :, None], truth)


def linear_probe(hidden: Float[Tensor, "2 N F"], truth: Bool[Tensor, "2 N L"]) -> Float[Tensor, " L"]:
    """Return for each label the balanced accuracy of a ridge regression on all neurons."""
    x = (hidden - hidden[0].mean(dim=0)) / hidden[0].std(dim=0).clamp(min=1e-6)
    wanted = truth[0].to(x.dtype) - truth[0].to(x.dtype).mean(dim=0)
    gram = x[0].T @ x[0] + RIDGE * x.shape[1] * torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
    return _best((x @ torch.linalg.solve(gram, x[0].T @ wanted))[..., None], truth)


def _best(scores: Float[Tensor, "2 N #L F"], truth: Bool[Tensor, "2 N L"]) -> Float[Tensor, " L"]:
    """Return for each label the balanced accuracy of the best of F scores.

    A score says yes on one side of the middle between its means with and without the label.
    """
    on, off = (each[0] for each in _means(scores, truth))
    hits, alarms = _means((scores > (on + off) / 2).to(scores.dtype), truth)
    balanced = _CHANCE + torch.where(on > off, hits - alarms, alarms - hits) / 2
    best = balanced[0].argmax(dim=1, keepdim=True)
    return balanced[1].gather(1, best)[:, 0]


def _means(values: Float[Tensor, "2 N #L F"], truth: Bool[Tensor, "2 N L"]) -> list[Float[Tensor, "2 L F"]]:
    """Return the means over samples with each label and without it, of both halves."""
    masks = truth.to(values.dtype), (~truth).to(values.dtype)
    return [torch.einsum("hnlf,hnl->hlf", values, each) / each.sum(dim=1).clamp(min=1)[..., None] for each in masks]
