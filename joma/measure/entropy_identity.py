r"""The entropy alone, on many cores: with $s = c\,QK^\top$ the sum $\sum_j p_{ij}s_{ij}$ is fused attention with V = K.

$H_i = \mathrm{lse}_i - c\,\langle q_i, \mathrm{Attn}(Q, K, V{=}K)_i\rangle$, and fused kernels return the log-sum-exp.
"""

import torch
from torch import Tensor

from joma.measure.rows import Problem, Rows

FEW_THREADS = 8
"""Up to so many, row blocks are taken, which multiply half as much; measured on two. One fused call needs less memory,
and keeps any number of cores busy."""


def takes(problem: Problem) -> bool:
    """Whether a call of fused attention answers all that is asked, and this is a CPU with many threads."""
    return problem.q.device.type == "cpu" and torch.get_num_threads() > FEW_THREADS and _is_enough(problem)


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
