"""What one row of each sequence attends to, taken from a tapped call in memory linear in the length."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.measure.masks import split_mask
from joma.measure.visibility import HIDDEN_BELOW, Visibility
from joma.probe.calls import AttentionCall


def mean_weights(call: AttentionCall, row: Int[Tensor, " B"]) -> Float[Tensor, "B keys"]:
    """Return the attention of one row of each sequence, averaged over the heads; NaN where it sees no key.

    >>> from joma.probe.calls import Kind, Source
    >>> q = torch.zeros(2, 1, 4, 8)
    >>> call = AttentionCall(site="attn", kind=Kind.SELF, layer=0, source=Source.SDPA, q=q, k=q, causal=True)
    >>> mean_weights(call, torch.tensor([1, 3]))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    rows = row.unique().tolist()
    if len(rows) == 1:
        return _softmax(_logits(call, slice(None), rows[0]))
    chosen = [(row == each).nonzero()[:, 0] for each in rows]
    parts = [_softmax(_logits(call, which, each)) for which, each in zip(chosen, rows, strict=True)]
    return torch.cat(parts)[torch.cat(chosen).argsort()]


def _softmax(logits: Float[Tensor, "b H keys"]) -> Float[Tensor, "b keys"]:
    return logits.softmax(dim=-1).mean(dim=1)


def _logits(call: AttentionCall, sequences: slice | Tensor, row: int) -> Float[Tensor, "b H keys"]:
    """Logits of one row of these sequences, hidden ones minus infinity; half precision is computed in float32."""
    if call.logits is not None:
        given = _working(call.logits[sequences, :, row])
        return given.masked_fill(given <= HIDDEN_BELOW, -torch.inf)
    assert call.q is not None and call.k is not None
    q, k = _working(call.q[sequences, :, row]), _working(call.k[sequences])
    scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
    grouped = scale * q.unflatten(1, (k.shape[1], -1))  # heads of a group share their keys
    s = torch.einsum("bghd,bgkd->bghk", grouped, k).flatten(1, 2)
    if call.softcap is not None:
        s = call.softcap * (s / call.softcap).tanh()
    parts = split_mask(_of_row(call.mask, sequences, row))
    for added in (parts.added, _of_row(call.bias, sequences, row)):
        if added is not None:
            s = s + added[:, :, 0]
    visible = Visibility(
        num_rows=1,
        num_keys=k.shape[2],
        causal=call.causal,
        window=call.window,
        offset=call.offset + row,
        mask=parts.visible,
    )
    return _hidden(s, visible)


def _hidden(s: Float[Tensor, "b H keys"], visibility: Visibility) -> Float[Tensor, "b H keys"]:
    start, stop = visibility.key_range(0, 1)
    seen = visibility.block(0, 1, s.device)
    left = torch.full_like(s, -torch.inf)
    part = s[..., start:stop]
    left[..., start:stop] = part if seen is None else part.masked_fill(~seen[:, :, 0], -torch.inf)
    return left


def _of_row(given: Tensor | None, sequences: slice | Tensor, row: int) -> Float[Tensor, "b h 1 keys"] | Tensor | None:
    """Cut one row of some sequences out of a mask or bias that broadcasts to (B, H, rows, keys)."""
    if given is None:
        return None
    given = given.reshape((1,) * (4 - given.ndim) + given.shape)
    given = given if given.shape[0] == 1 else given[sequences]
    return given if given.shape[2] == 1 else given[:, :, row : row + 1]


def _working(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
