"""Models under a tap, and modules whose attention is written in many ways."""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_utils import AttentionInterface

from joma.probe.calls import measure_call
from joma.probe.taps import tap


def tapped(model, **call):
    """Run a model under a tap: the calls with their statistics, and what went unseen."""
    seen, unseen = [], []
    with torch.no_grad(), tap(model, lambda c: seen.append((c, measure_call(c))), on_unseen=unseen.append):
        model(**call)
    return seen, unseen


def entropies(model, **call):
    """Entropy of every row of every call, in order."""
    return [statistics.entropy for _, statistics in tapped(model, **call)[0]]


def snapshot(model):
    """Everything that a tap touches."""
    hooks = [
        {name: len(value) for name, value in vars(module).items() if "hooks" in name} for module in model.modules()
    ]
    stack = torch.overrides._get_current_function_mode_stack()
    return hooks, len(stack), "__getitem__" in vars(AttentionInterface), torch.backends.mha.get_fastpath_enabled()


def encoder(dropout=0.0):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()


class Sdpa(nn.Module):
    """One call, made with whatever function and arguments it is given."""

    def __init__(self, function, **arguments):
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, q, k, v):
        return self.function(q, k, v, **self.arguments)


class Eager(nn.Module):
    """Attention of one head, its softmax written in different ways."""

    def __init__(self, way):
        super().__init__()
        self.way, self.linear = way, nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.linear(x).chunk(3, -1)
        return self.way(q, k) @ v


WAYS = {
    "torch.softmax": lambda q, k: torch.softmax(q @ k.mT, -1),
    "method": lambda q, k: (q @ k.transpose(1, 2)).softmax(-1),
    "module": lambda q, k: nn.Softmax(dim=-1)(torch.bmm(q, k.mT)),
    "special": lambda q, k: torch.special.softmax(torch.matmul(q, k.mT), dim=-1),
    "einsum": lambda q, k: torch.einsum("bld,bsd->bls", q, k).softmax(dim=2),
    "keys first": lambda q, k: (k @ q.mT).softmax(dim=-2).mT,
    "in place": lambda q, k: (q @ k.mT).mul_(1.0).add_(0.0).softmax(-1),
    "masked, capped, cast": lambda q, k: (torch.tanh((q @ k.mT).double() / 1e6) * 1e6).where(
        torch.ones(5, 5, dtype=torch.bool), -torch.inf
    ).softmax(-1, dtype=torch.float32),
}  # fmt: skip


class Largest(TorchDispatchMode):
    """Remembers the most elements that any operation made; views of what was there take no memory."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out
