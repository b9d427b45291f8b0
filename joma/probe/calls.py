"""One attention call of a foreign model, as whatever saw it passes it on, and its measurement."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from joma.measure.entropy import AttentionStatistics, attention_entropy
from joma.measure.entropy_logits import logits_entropy
from joma.measure.masks import split_mask


class Kind(StrEnum):
    """Whose keys a call looks at."""

    SELF = "self"
    CROSS = "cross"


class Source(StrEnum):
    """Where a call was seen."""

    SDPA = "sdpa"
    """`torch.nn.functional.scaled_dot_product_attention`."""
    INTERFACE = "interface"
    """Hugging Face's attention interface: flash_attention_2, flex_attention and others registered there."""
    SOFTMAX = "softmax"
    """The softmax of an eager model; the call carries its logits."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionCall:
    """Queries, keys and everything that shapes their softmax, or the logits where a model has built them itself.

    The tensors are the model's own, detached: measure or copy them before the model goes on.
    """

    site: str
    """Qualified name of the innermost module that was running."""
    kind: Kind
    layer: int
    """Index of the layer in the model's order (an encoder's layers before its decoder's), -1 outside of the layers."""
    source: Source
    q: Float[Tensor, "B H rows D"] | None = None
    k: Float[Tensor, "B G keys D"] | None = None
    logits: Float[Tensor, "B H rows keys"] | None = None
    """What the softmax took: scale, bias, soft cap and mask are in it."""
    scale: float | None = None
    """Factor of q·kᵀ; None is 1/√D."""
    causal: bool = False
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None
    """Boolean (True is visible) or additive; broadcasts to (B, H, rows, keys)."""
    bias: Float[Tensor, "..."] | None = None
    softcap: float | None = None
    window: int | None = None
    offset: int = 0
    """Position of the first row among the keys."""
    repeat: int = 0
    """How many calls this site made before in the same forward pass: a layer that is used several times."""

    def __post_init__(self) -> None:
        """Refuse a call with neither or both of queries and logits."""
        if (self.q is None) != (self.k is None) or (self.q is None) == (self.logits is None):
            given = [name for name in ("q", "k", "logits") if getattr(self, name) is not None]
            raise ValueError(f"An AttentionCall needs `q` and `k`, or `logits`, got {given}. Pass one of the two.")

    @property
    def device(self) -> torch.device:
        """Where the call's tensors are."""
        tensor = self.logits if self.q is None else self.q
        assert tensor is not None
        return tensor.device


def measure_call(call: AttentionCall, *, companions: bool = True) -> AttentionStatistics:
    """Measure every row of a call; `companions=False` leaves out all but the entropy.

    >>> q = torch.zeros(1, 1, 4, 8)
    >>> call = AttentionCall(site="attn", kind=Kind.SELF, layer=0, source=Source.SDPA, q=q, k=q, causal=True)
    >>> measure_call(call).entropy.exp().flatten().round(decimals=4)
    tensor([1., 2., 3., 4.])
    """
    if call.logits is not None:
        return logits_entropy(call.logits, offset=call.offset, companions=companions)
    assert call.q is not None and call.k is not None
    visible, added = _hidden_and_added(call)
    return attention_entropy(
        call.q,
        call.k,
        causal=call.causal,
        mask=visible,
        window=call.window,
        bias=added,
        scale=call.scale,
        softcap=call.softcap,
        offset=call.offset,
        companions=companions,
    )


def _hidden_and_added(call: AttentionCall) -> tuple[Tensor | None, Tensor | None]:
    """Return what a call hides and what it adds to its logits.

    What a model adds is a fact, be it 0 and 1 alone, which `attention_entropy` takes for a slip of whoever calls it.
    """
    if call.mask is None or not call.mask.is_floating_point():
        return call.mask, call.bias
    parts = split_mask(call.mask)
    if parts.added is None or call.bias is None:
        return parts.visible, call.bias if parts.added is None else parts.added
    return parts.visible, parts.added + call.bias
