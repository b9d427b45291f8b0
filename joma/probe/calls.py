"""One attention call of any model: how it is read in the three places where it can be seen, and its measurement.

A model calls `scaled_dot_product_attention`, a kernel behind Hugging Face's attention interface, or a softmax of its
own. `sdpa_fields`, `interface_fields` and `Products` read each of these into the fields of an `AttentionCall`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from joma.measure.entropy import AttentionStatistics, attention_entropy, logits_entropy
from joma.measure.masks import split_mask


class CallKind(StrEnum):
    """Whose keys a call looks at."""

    SELF = "self"
    CROSS = "cross"


class CallSource(StrEnum):
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
    kind: CallKind
    layer: int
    """Index of the layer in the model's order (an encoder's layers before its decoder's), -1 outside of the layers."""
    source: CallSource
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
    def shape(self) -> tuple[int, int, int, int]:
        """Return (B, H, rows, keys) of the logits, built or not."""
        if self.logits is not None:
            batch, heads, rows, keys = self.logits.shape
        else:
            assert self.q is not None and self.k is not None
            batch, heads, rows, _ = self.q.shape
            keys = self.k.shape[2]
        return batch, heads, rows, keys

    @property
    def device(self) -> torch.device:
        """Return where the call's tensors are."""
        tensor = self.logits if self.q is None else self.q
        assert tensor is not None
        return tensor.device


def measure_call(call: AttentionCall, *, companions: bool = True) -> AttentionStatistics:
    """Measure every row of a call; `companions=False` leaves out all but the entropy.

    >>> q = torch.zeros(1, 1, 4, 8)
    >>> call = AttentionCall(
    ...     site="attn", kind=CallKind.SELF, layer=0, source=CallSource.SDPA, q=q, k=q, causal=True
    ... )
    >>> measure_call(call).entropy.exp().flatten().round(decimals=4)
    tensor([1., 2., 3., 4.])
    """
    if call.logits is not None:
        return logits_entropy(call.logits, offset=call.offset, companions=companions)
    assert call.q is not None and call.k is not None
    visible, added = call.mask, call.bias
    if call.mask is not None and call.mask.is_floating_point():
        # What a model adds is a fact, be it 0 and 1 alone, which `attention_entropy` takes for a caller's mistake.
        parts = split_mask(call.mask)
        terms = [term for term in (parts.added, call.bias) if term is not None]
        visible, added = parts.visible, sum(terms[1:], terms[0]) if terms else None
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


def with_heads(tensor: Tensor, num_heads: int | None) -> Tensor:
    """Give a tensor (..., rows, columns) the axes batch, heads, rows, columns.

    Missing axes become 1. Where batch and heads are one axis, `num_heads` splits it, batches outermost. Of more than
    two leading axes the first is the batch, the others are heads.
    """
    lead = tensor.shape[:-2]
    if not lead:
        return tensor[None, None]
    if len(lead) > 1:
        return tensor.flatten(1, -3)
    return tensor.unflatten(0, (-1, num_heads)) if num_heads and lead[0] % num_heads == 0 else tensor[:, None]


def sdpa_fields(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    num_heads: int | None = None,
) -> dict[str, Any]:
    """Read a call of `scaled_dot_product_attention`; values, dropout and grouping do not change the softmax.

    PyTorch aligns causal order at the first row and the first key, whatever their numbers.
    """
    del value, dropout_p, enable_gqa
    if query.is_nested or key.is_nested:
        raise ValueError("nested tensors have rows of different lengths")
    q, k = with_heads(query.detach(), num_heads), with_heads(key.detach(), num_heads)
    mask = attn_mask
    if mask is not None:
        mask = mask.detach().reshape((1,) * (query.ndim - mask.ndim) + mask.shape)
        lead = query.shape[:-2]
        if len(lead) != 2 and any(size != 1 for size in mask.shape[:-2]):  # noqa: PLR2004 (batch and heads broadcast)
            mask = mask.expand(*lead, *mask.shape[-2:])
        mask = with_heads(mask, num_heads)
    return {
        "q": q,
        "k": k if k.shape[0] == q.shape[0] else k.expand(q.shape[0], -1, -1, -1),
        "mask": mask,
        "causal": bool(is_causal),
        "scale": None if scale is None else float(scale),
    }


_UNREADABLE = {
    "s_aux": "its softmax has a learnt sink beside the keys",
    "cu_seq_lens_q": "it packs several sequences into one row",
    "cache": "its keys are paged",
}
"""Arguments that change the softmax in a way that queries, keys and a mask do not show."""


def interface_fields(
    module: nn.Module, query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Read what an implementation of Hugging Face's attention interface was given, or say why that is impossible."""
    for name, reason in _UNREADABLE.items():
        if kwargs.get(name) is not None:
            raise ValueError(reason)
    num_rows, num_keys = query.shape[2], key.shape[2]
    position = kwargs.get("position_ids")
    if mask is None and position is not None and position.ndim == 2 and position.shape[-1] == num_rows:  # noqa: PLR2004
        if bool((position.diff(dim=-1) < 0).any()):  # positions start again within a row; kernels keep those apart
            raise ValueError(_UNREADABLE["cu_seq_lens_q"])
    is_causal = kwargs.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_padding = isinstance(mask, Tensor) and mask.ndim == 2  # noqa: PLR2004 (batch, keys)
    complete = mask is not None and not is_padding
    bias = kwargs.get("position_bias")
    return {
        "q": query.detach(),
        "k": key.detach(),
        "mask": mask[:, None, None, -num_keys:].bool() if is_padding else _whole_mask(mask, query, num_keys),
        "bias": None if bias is None else bias.detach(),
        "scale": kwargs.get("scaling"),
        "softcap": kwargs.get("softcap") or None,  # flash attention writes 0 for none
        # A mask for every row and key has causal order and window in it; kernels align both at the last row and key.
        "causal": bool(is_causal) and not complete and num_rows > 1,
        "window": None if complete else kwargs.get("sliding_window"),
        "offset": num_keys - num_rows if is_causal else 0,
    }


def _whole_mask(mask: Any, query: Tensor, num_keys: int) -> Tensor | None:
    """Read a mask for every row and key; a block mask is evaluated."""
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        return mask[..., :num_keys].detach()
    if hasattr(mask, "mask_mod"):
        from torch.nn.attention.flex_attention import create_mask

        batch, heads = mask.shape[:2]
        return create_mask(mask.mask_mod, batch, heads, query.shape[2], num_keys, device=query.device)
    raise ValueError(f"its mask is a {type(mask).__name__}, which cannot be read")


SOFTMAX = frozenset({"softmax", "_softmax", "special_softmax"})
_PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm", "einsum"})
_MAPS = frozenset({"linear", "bilinear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "embedding"})
"""Functions with weights of their own: what they make of activations is no product of activations."""


class Products:
    """Follows products of activations through a forward pass, to tell which softmax is attention.

    A softmax is attention if the last matrix product behind its input multiplied activations, and the operand that gave
    the softmax its axis, the keys, is not made of parameters and buffers alone. A router's logits come from a linear
    map or a product with its weights, so do those over a vocabulary; losses take a log-softmax. Between product and
    softmax anything may happen that is not another product: scale, soft cap, bias, mask, a cast, another view.
    """

    def __init__(self, model: nn.Module) -> None:
        """Start with the model's buffers as weights; its parameters are known by their type."""
        self._weights = WeakIdKeyDictionary({buffer: True for buffer in model.buffers()})
        self._products = WeakIdKeyDictionary()
        """Tensors that stem from a product: whether its rows and its columns come from activations."""

    def follow(self, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Note what came out of a function of this name."""
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if not tensors:
            return
        note: Any
        if all(self._is_weight(tensor) for tensor in tensors):
            notes, note = self._weights, True
        elif name in _MAPS:
            return
        elif name in _PRODUCTS:
            notes, note = self._products, self._product(name, args, tensors)
        else:
            notes = self._products
            note = next((notes[tensor] for tensor in tensors if tensor in notes), None) if notes else None
        if note is not None:
            for tensor in _tensors((result,)):
                if tensor.ndim > 1 and tensor.is_floating_point():
                    notes[tensor] = note

    def logits(self, args: tuple, kwargs: dict[str, Any], num_heads: Callable[[], int | None]) -> Tensor | None:
        """Return what a softmax takes as (B, H, rows, keys) if it is attention, else None."""
        x = next(_tensors((*args, *kwargs.values())), None)
        product = None if x is None else self._products.get(x)
        if x is None or product is None:
            return None
        rows_active, columns_active = product
        axis = kwargs["dim"] if "dim" in kwargs else next((a for a in args[1:] if isinstance(a, int)), -1)
        if axis % x.ndim == x.ndim - 1 and columns_active:
            return with_heads(x.detach(), num_heads())
        if axis % x.ndim == x.ndim - 2 and rows_active:
            return with_heads(x.detach().transpose(-1, -2), num_heads())
        return None

    def _is_weight(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or tensor in self._weights

    def _product(self, name: str, args: tuple, tensors: list[Tensor]) -> tuple[bool, bool]:
        """Return whether the operands that gave a product its last two axes are activations."""
        if name == "einsum" and isinstance(args[0], str):
            inputs, _, output = args[0].replace(" ", "").partition("->")
            owners = [part.replace("...", "") for part in inputs.split(",")]

            def active(letter: str) -> bool:
                return all(not self._is_weight(t) for t, own in zip(tensors, owners, strict=True) if letter in own)

            return active(output[-2:-1]), active(output[-1:])
        left, right = [not self._is_weight(tensor) for tensor in tensors[-2:]]
        return (right, left) if name == "__rmatmul__" else (left, right)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (item for item in value if isinstance(item, Tensor))
