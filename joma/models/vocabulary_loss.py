r"""Cross-entropy of hidden states against an output matrix: loss and gradients in one go.

For logits $s = h W^\top + b$ and target $y$ the loss is $\mathrm{lse}(s) - s_y$ and its gradient $\mathrm{softmax}(s) -
e_y$. Autograd keeps the logits in float32 from the forward to the backward: the largest tensor of a small model by far.
Here a chunk of rows is multiplied out in the working precision, its gradient overwrites it at once, both products of
the backward are taken from there, and the chunk is gone. Three products, and no logits outlive them.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.models.functional import compiled

CHUNK_BYTES = 2**26
"""Logits of one run that exist at a time. A run's own, so that packing runs together adds no kernels."""

Hidden = Float[Tensor, "R N D"]
Weight = Float[Tensor, "R W D"]
"""May have rows of zeros after those of the V words, so that products take whole tiles (`Layout.rooms`)."""
Bias = Float[Tensor, "R V"]
Logits = Float[Tensor, "R N W"]
Targets = Int[Tensor, "R N"]
RowWeights = Float[Tensor, "R N"]


def loss_and_gradients(
    hidden: Hidden,
    weight: Weight,
    bias: Bias,
    targets: Targets,
    weights: RowWeights | None = None,
    *,
    scale: float = 1.0,
    weight_gradient: Weight | None = None,
    bias_gradient: Bias | None = None,
    working: torch.dtype | None = None,
) -> tuple[Float[Tensor, " R"], Hidden]:
    """Loss of each run and its gradient with respect to `hidden`; the other two gradients are written where they go.

    `scale` multiplies the logits, `weights` the rows (None is the mean). Products are taken in the dtype `working`
    (that of `hidden` when None) and accumulated in that of `hidden`. A gradient whose buffer is None is not computed.

    >>> h, w = torch.zeros(1, 2, 3), torch.ones(1, 4, 3)
    >>> loss_and_gradients(h, w, torch.zeros(1, 4), torch.zeros(1, 2, dtype=torch.int64))[0]
    tensor([1.3863])
    """
    rows = _row_weights(hidden, weights)
    working = hidden.dtype if working is None else working
    hidden_low, weight_low = hidden.to(working), _rounded(weight, working)
    losses: list[Tensor] = []
    hidden_gradient = torch.empty_like(hidden)
    chunks = list(_chunks(hidden.shape[1], weight.shape[1] * _logit_bytes(hidden, working)))
    weight_sum = _sum_for(weight_gradient, hidden, len(chunks))
    bias_sum = _sum_for(bias_gradient, hidden, len(chunks))
    for chunk in chunks:
        part, is_first = hidden_low[:, chunk], chunk.start == 0
        logits = torch.bmm(part, weight_low.mT)
        losses.append(
            _differentiate(logits, bias, targets[:, chunk], rows[:, chunk], scale, bias_sum, add=not is_first)
        )
        _product(logits, weight_low, out=hidden_gradient[:, chunk])
        if weight_sum is not None:
            _product(logits.mT, part, out=weight_sum, add=not is_first)
    for gradient, total in ((weight_gradient, weight_sum), (bias_gradient, bias_sum)):
        if gradient is not None and total is not None and total is not gradient:
            gradient.copy_(total)
    return sum(losses[1:], start=losses[0]), hidden_gradient


def loss(
    hidden: Hidden,
    weight: Weight,
    bias: Bias,
    targets: Targets,
    weights: RowWeights | None = None,
    *,
    scale: float = 1.0,
    working: torch.dtype | None = None,
) -> Float[Tensor, " R"]:
    """Loss of each run alone, chunk by chunk; see `loss_and_gradients`."""
    rows = _row_weights(hidden, weights)
    working = hidden.dtype if working is None else working
    hidden_low, weight_low = hidden.to(working), _rounded(weight, working)
    losses: list[Tensor] = []
    for chunk in _chunks(hidden.shape[1], weight.shape[1] * _logit_bytes(hidden, working)):
        logits = torch.bmm(hidden_low[:, chunk], weight_low.mT)
        losses.append(_value(logits, bias, targets[:, chunk], rows[:, chunk], scale))
    return sum(losses[1:], start=losses[0])


def _sum_for(gradient: Tensor | None, hidden: Hidden, num_chunks: int) -> Tensor | None:
    """Return where the parts of a gradient are added up: where it belongs, unless that is less precise."""
    if gradient is None or gradient.dtype == hidden.dtype or num_chunks == 1:
        return gradient
    return hidden.new_empty(gradient.shape)


def _row_weights(hidden: Hidden, weights: RowWeights | None) -> RowWeights:
    if weights is not None:
        return weights
    return hidden.new_full((1, 1), 1 / hidden.shape[1]).expand(hidden.shape[:2])


def _rounded(weight: Weight, dtype: torch.dtype) -> Weight:
    """The weight in another precision; on a GPU compiled, since torch's own cast crawls over views of a buffer."""
    return compiled(_cast)(weight, dtype) if weight.is_cuda and dtype != weight.dtype else weight.to(dtype)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype)


def _logit_bytes(hidden: Hidden, working: torch.dtype) -> int:
    """Return what a logit takes: without our kernel it is also there in full precision, which is what counts."""
    return working.itemsize if hidden.is_cuda else max(working.itemsize, hidden.dtype.itemsize)


def _chunks(num_rows: int, bytes_per_row: int) -> Iterator[slice]:
    """Slices of equal length, or nearly, that stay within `CHUNK_BYTES`."""
    num_chunks = -(-num_rows * bytes_per_row // CHUNK_BYTES)
    length = -(-num_rows // max(num_chunks, 1))
    return (slice(start, min(start + length, num_rows)) for start in range(0, num_rows, length))


def _differentiate(
    logits: Logits,
    bias: Bias,
    targets: Targets,
    rows: RowWeights,
    scale: float,
    bias_gradient: Bias | None,
    *,
    add: bool,
) -> Float[Tensor, " R"]:
    """Return each run's share of the loss; overwrite the logits by their gradient, and fill or add to the bias's."""
    if _in_a_kernel(logits):
        from joma.models import vocabulary_loss_triton  # noqa: PLC0415 (Triton is there where a GPU is)

        return vocabulary_loss_triton.differentiate(logits, bias, targets, rows, scale, bias_gradient, add=add)
    words = logits[..., : bias.shape[1]]  # what follows them is zero, and stays
    log_p = torch.log_softmax(_scaled(words, bias, rows.dtype, scale), dim=-1)
    picked = log_p.gather(-1, targets[..., None])
    value = -(picked[..., 0] * rows).sum(dim=1)
    gradient = log_p.exp_()
    gradient.scatter_(-1, targets[..., None], picked.exp() - 1)
    torch.mul(gradient, (scale * rows)[..., None], out=words)
    if bias_gradient is not None:
        total = words.sum(dim=1, dtype=rows.dtype)
        bias_gradient.add_(total) if add else bias_gradient.copy_(total)
    return value


def _value(logits: Logits, bias: Bias, targets: Targets, rows: RowWeights, scale: float) -> Float[Tensor, " R"]:
    if _in_a_kernel(logits):
        from joma.models import vocabulary_loss_triton  # noqa: PLC0415

        return vocabulary_loss_triton.value(logits, bias, targets, rows, scale)
    log_p = torch.log_softmax(_scaled(logits[..., : bias.shape[1]], bias, rows.dtype, scale), dim=-1)
    return -(log_p.gather(-1, targets[..., None])[..., 0] * rows).sum(dim=1)


def _scaled(words: Float[Tensor, "R N V"], bias: Bias, dtype: torch.dtype, scale: float) -> Float[Tensor, "R N V"]:
    exact = words.to(dtype).add_(bias[:, None])
    return exact if scale == 1 else exact.mul_(scale)


def _in_a_kernel(logits: Tensor) -> bool:
    """The kernel sums in float32."""
    return logits.is_cuda and logits.dtype != torch.float64


def _product(a: Tensor, b: Tensor, *, out: Tensor, add: bool = False) -> None:
    """Batched product into `out`, or added to it; sums are taken in the precision of `out`."""
    if a.dtype == out.dtype and not add:
        torch.bmm(a, b, out=out)
    elif a.dtype == out.dtype:
        torch.baddbmm(out, a, b, out=out)
    elif a.is_cuda and add:
        torch.baddbmm(out, a, b, out_dtype=out.dtype, out=out)
    elif a.is_cuda:
        torch.bmm(a, b, out_dtype=out.dtype, out=out)
    else:
        product = torch.bmm(a.to(out.dtype), b.to(out.dtype))
        out.add_(product) if add else out.copy_(product)
