r"""The entropy alone by fused attention with V = K: for $s = c\,QK^\top$ that gives the sum $\sum_j p_{ij}s_{ij}$.

$H_i = \mathrm{lse}_i - c\,\langle q_i, \mathrm{Attn}(Q, K, V{=}K)_i\rangle$, and fused kernels return the log-sum-exp.
"""

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from joma.measure.masks import Problem, Rows

FEW_THREADS = 8
"""Up to so many, row blocks are taken unless the processor is Intel's: they multiply half as much, which pays where
torch's products, made for Intel, are slow. One fused call needs less memory, and keeps any number of cores busy."""
INTEL = "GenuineIntel"
"""What Intel's processors call their vendor."""


def takes(problem: Problem) -> bool:
    """Whether a call of fused attention answers all that is asked, and this is a CPU on which it is the faster way."""
    if problem.q.device.type != "cpu" or not _is_enough(problem):
        return False
    return torch.get_num_threads() > FEW_THREADS or is_intel()


@cache
def is_intel() -> bool:
    """Whether the processor says that it is Intel's, on Linux in a file and elsewhere to the system."""
    try:
        said = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        said = platform.processor()
    return INTEL in said


def _is_enough(problem: Problem) -> bool:
    visibility = problem.visibility
    return (
        not problem.companions
        and problem.softcap is None
        and problem.bias is None
        and visibility.window is None
        and visibility.offset == 0
        and min(visibility.num_rows, visibility.num_keys) > 0
    )


def identity_rows(problem: Problem) -> Rows:
    """Measure all rows by a fused attention call whose values are the keys themselves."""
    if not _is_enough(problem):
        raise ValueError(
            "Path 'identity' needs `companions=False`, keys, and no bias, soft cap, window or offset. "
            "Leave `path` out to take one that can do more."
        )
    q, k = problem.q.to(problem.working_dtype), problem.k.to(problem.working_dtype)
    # Softmax does not feel a shift of all keys; without it large common offsets would cancel digits.
    k = k - k.mean(dim=2, keepdim=True)
    mean_key, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, k, 0.0, problem.visibility.causal, attn_mask=_hidden(problem), scale=problem.scale
    )
    return Rows(entropy=lse - problem.scale * torch.einsum("bhrd,bhrd->bhr", q, mean_key))


def _hidden(problem: Problem) -> Tensor | None:
    """Minus infinity where the mask hides, else 0."""
    mask = problem.visibility.mask
    if mask is None:
        return None
    hidden = torch.zeros(mask.shape, dtype=problem.working_dtype).masked_fill_(~mask, -torch.inf)
    return hidden.expand(*mask.shape[:3], problem.visibility.num_keys)
