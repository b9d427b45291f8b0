"""One attention call of any model: how it is read in the three ways in which it can be seen, and its measurement.

A model calls `scaled_dot_product_attention`, a kernel of Hugging Face's attention interface, or a softmax of its
own. `sdpa_fields`, `interface_fields` and `Products` read each of these into the fields of an `AttentionCall`.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from joma.formatting import NO_LAYER
from joma.measure.entropy import AttentionStatistics, attention_entropy, logits_entropy
from joma.measure.masks import HIDDEN_BELOW, added_up, split_mask, with_four_axes
from joma.measure.tensors import working_dtype
from joma.probe.structure import plain_site


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionCall:
    """Queries, keys and everything that shapes their softmax, or the logits where a model has built them itself.

    The tensors are the model's own, detached: measure or copy them before the model goes on.
    """

    site: str = ""  # qualified name of the innermost module that was running
    layer: int = NO_LAYER
    """Index of the layer in the model's order (an encoder's layers before its decoder's), -1 outside of the layers."""
    is_cross: bool = False  # whether its keys are those of another sequence
    q: Float[Tensor, "B H rows D"] | None = None
    k: Float[Tensor, "B G keys D"] | None = None
    logits: Float[Tensor, "B H rows keys"] | None = None
    """What the softmax of an eager model took for the keys: scale, bias, soft cap and mask are in it."""
    scale: float | None = None  # factor of q·kᵀ; None is 1/√D
    causal: bool = False
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None
    """Boolean (True is visible) or additive; broadcasts to (B, H, rows, keys)."""
    bias: Float[Tensor, "..."] | None = None
    softcap: float | None = None
    window: int | None = None
    offset: int = 0  # position of the first row among the keys
    rows: Bool[Tensor, "B rows"] | None = None  # rows that count: False for padding, on either side. None for all.
    sink: Float[Tensor, "..."] | None = None  # logit of softmax columns that are no keys; broadcasts to (B, H, rows)
    state: Float[Tensor, "B rows d"] | None = None
    """What the layer was given, where a self-attention shows it: the residual stream."""
    repeat: int = 0  # how many times the module ran before in the same forward pass: a layer that is shared
    part: int = 0  # how many softmaxes this run of the module computed before

    def __post_init__(self) -> None:
        if (self.q is None) != (self.k is None) or (self.q is None) == (self.logits is None):
            given = [name for name in ("q", "k", "logits") if getattr(self, name) is not None]
            raise ValueError(f"An AttentionCall needs `q` and `k`, or `logits`, got {given}. Pass one of the two.")

    @property
    def label(self) -> str:
        """Return the site as records call it: without wrappers, with the pass and the softmax where there are more."""
        suffix = (f"[pass {self.repeat + 1}]" if self.repeat else "") + (f":{self.part + 1}" if self.part else "")
        return plain_site(self.site) + suffix

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


def measure_call(call: AttentionCall, *, moments: bool = False) -> AttentionStatistics:
    """Measure the rows of a call that count.

    >>> q = torch.zeros(1, 1, 4, 8)
    >>> measure_call(AttentionCall(q=q, k=q, causal=True)).entropy.exp().flatten().round(decimals=4)
    tensor([1., 2., 3., 4.])
    """
    common: dict[str, Any] = {"offset": call.offset, "rows": call.rows, "sink": call.sink, "moments": moments}
    if call.logits is not None:
        return logits_entropy(call.logits, **common)
    assert call.q is not None and call.k is not None
    visible, added = call.mask, call.bias
    if call.mask is not None and call.mask.is_floating_point():
        # What a model adds is a fact, be it 0 and 1 alone, which `attention_entropy` takes for a caller's mistake.
        parts = split_mask(call.mask)
        visible, added = parts.visible, added_up(parts.added, call.bias)
    return attention_entropy(
        call.q,
        call.k,
        causal=call.causal,
        mask=visible,
        window=call.window,
        bias=added,
        scale=call.scale,
        softcap=call.softcap,
        **common,
    )


def measure_state(call: AttentionCall) -> dict[str, Float[Tensor, "B 1 _"]]:
    r"""Norm of each counted token's state x before the layer, and $\|x - 1\bar x^\top\|/\|x\|$ of each sequence.

    The latter is 0 where all tokens of a sequence have the same state. Nothing for a call that shows no state.
    """
    if call.state is None:
        return {}
    x = call.state.to(working_dtype(call.state))
    counted = call.rows

    def strike(values: Tensor, by: float) -> Tensor:
        hidden = None if counted is None else ~counted if values.ndim == counted.ndim else ~counted[..., None]
        return values if hidden is None else values.masked_fill(hidden, by)

    x = strike(x, 0.0)
    norm = torch.linalg.vector_norm(x, dim=-1)
    num_tokens = x.shape[1] if counted is None else counted.sum(dim=-1)[:, None, None]
    apart = strike(x - x.sum(dim=1, keepdim=True) / num_tokens, 0.0)
    spread = torch.linalg.vector_norm(apart, dim=(1, 2)) / torch.linalg.vector_norm(norm, dim=1)
    norm = strike(norm, torch.nan)
    return {"state_norm": norm[:, None], "token_spread": spread[:, None, None]}


def rows_with_keys(fields: Mapping[str, Any], offset: int) -> Bool[Tensor, "B rows"] | None:
    """Return which rows of a self-attention stand at a key that some row of their sequence sees: others are padding.

    None where nothing hides a key, or rows and keys do not stand in line.
    """
    logits, mask = fields.get("logits"), fields.get("mask")
    (batch, _, num_rows), num_keys = (logits if logits is not None else fields["q"]).shape[:3], 0
    if logits is not None:  # all of which may be NaN
        num_keys, seen = logits.shape[-1], ~(logits.amax(dim=(1, 2)) <= HIDDEN_BELOW)
    elif mask is None or mask.shape[-1] == 1:
        return None
    else:
        num_keys, mask = mask.shape[-1], with_four_axes(mask)
        seen = mask.any(dim=2).any(dim=1) if mask.dtype == torch.bool else mask.amax(dim=(1, 2)) > HIDDEN_BELOW
    if offset < 0 or offset + num_rows > num_keys:
        return None
    return seen[:, offset : offset + num_rows].expand(batch, -1)


def rows_of_padding(name: str, mask: Tensor) -> Bool[Tensor, "B keys"]:
    """Read a mask (B, keys) that was passed to a module: tokens by 1, or padding by True as PyTorch's modules take it.

    Floating point numbers may be added to the logits instead.
    """
    if mask.dtype == torch.bool:
        return ~mask if "padding" in name else mask
    is_added = (mask.amin() < 0) | ("padding" in name)
    return torch.where(is_added, mask > HIDDEN_BELOW, mask > 0)


def without_extra_keys(fields: dict[str, Any], count: int) -> dict[str, Any]:
    """Turn the last keys of a call, which a module has added to those of its sequence, into a sink."""
    if count == 0:
        return fields
    q, k, logits, mask = (fields.get(name) for name in ("q", "k", "logits", "mask"))
    if logits is not None:
        return fields | {"logits": logits[..., :-count], "sink": logits[..., -count:].float().logsumexp(dim=-1)}
    assert q is not None and k is not None
    scale = q.shape[-1] ** -0.5 if fields["scale"] is None else fields["scale"]
    sink = torch.einsum("bhrd,bhed->bhre", q.float(), k[:, :, -count:].float()).mul(scale).logsumexp(dim=-1)
    return fields | {"k": k[:, :, :-count], "mask": None if mask is None else mask[..., :-count], "sink": sink}


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


def interface_fields(
    module: nn.Module, query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Read what an implementation of Hugging Face's attention interface was given, or say why that is impossible."""
    if kwargs.get("cache") is not None:
        raise ValueError("its keys are paged")
    num_rows, num_keys = query.shape[2], key.shape[2]
    starts, sink, rows = None if mask is not None else _starts(query, kwargs), kwargs.get("s_aux"), None
    if starts is not None:
        if num_rows != num_keys:
            raise ValueError("it packs several sequences into one row, and has other keys than rows")
        rows, query, key = _unpacked(starts, query, key)
        num_rows, num_keys, mask = rows.shape[1], rows.shape[1], rows
    is_causal = kwargs.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_padding = isinstance(mask, Tensor) and mask.ndim == 2  # noqa: PLR2004 (batch, keys)
    complete = mask is not None and not is_padding
    bias = kwargs.get("position_bias")
    return {
        "q": query.detach(),
        "k": key.detach(),
        "mask": mask[:, None, None, -num_keys:].bool() if is_padding else _complete_mask(mask, query, num_keys),
        "bias": None if bias is None else bias.detach(),
        "scale": kwargs.get("scaling"),
        "softcap": kwargs.get("softcap") or None,  # flash attention writes 0 for none
        # A mask for every row and key has causal order and window in it; kernels align both at the last row and key.
        "causal": bool(is_causal) and not complete and num_rows > 1,
        "window": None if complete else kwargs.get("sliding_window"),
        "offset": num_keys - num_rows if is_causal else 0,
        "sink": None if sink is None else sink.detach()[:, None],
        "rows": rows,
    }


def _starts(query: Tensor, kwargs: Mapping[str, Any]) -> Int[Tensor, " starts"] | None:
    """Return where each of several sequences begins that are packed into rows, and where the last ends; else None."""
    given, position = kwargs.get("cu_seq_lens_q"), kwargs.get("position_ids")
    if given is not None:
        return given.long()
    if position is None or position.shape != (query.shape[0], query.shape[2]) or position.shape[1] == 1:
        return None
    if not bool((position.diff(dim=-1) < 0).any()):  # positions start again within a row; kernels keep those apart
        return None
    begins = position.flatten().diff(prepend=position.new_ones(1)) != 1
    begins[:: position.shape[1]] = True
    return functional.pad(begins.nonzero()[:, 0], (0, 1), value=position.numel())


def _unpacked(starts: Int[Tensor, " starts"], *packed: Float[Tensor, "B H rows D"]) -> tuple[Tensor, ...]:
    """Give each of several packed sequences a row of its own in the batch; return what is no padding as well."""
    lengths = starts.diff()
    longest = torch.arange(int(lengths.max()), device=starts.device)
    index = (starts[:-1, None] + longest).clamp(max=int(starts[-1]) - 1)
    flat = (each.detach().transpose(0, 1).flatten(1, 2) for each in packed)
    return longest < lengths[:, None], *(each[:, index].transpose(0, 1) for each in flat)


def _complete_mask(mask: Any, query: Tensor, num_keys: int) -> Tensor | None:
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
_JOINS = frozenset({"cat", "concat", "concatenate"})


class _Product(NamedTuple):
    """The last matrix product that a tensor stems from."""

    rows_active: bool  # whether its rows come from activations
    columns_active: bool
    front: int = 0  # columns that were put before those of the product, and are no keys
    back: int = 0  # the same, after them


class Products:
    """Follows products of activations through a forward pass, to find which softmax is attention.

    A softmax is attention if the last matrix product before its input multiplied activations, and the operand that gave
    the softmax its axis, the keys, is not made of parameters and buffers alone. A router's logits come from a linear
    map or a product with its weights, so do those over a vocabulary; losses take a log-softmax. Between product and
    softmax anything may happen that is not another product: scale, soft cap, bias, mask, a cast, another view.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = WeakIdKeyDictionary({buffer: True for buffer in model.buffers()})
        self._products: MutableMapping[Tensor, _Product] = WeakIdKeyDictionary()

    def follow(self, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Note what came out of a function of this name."""
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if not tensors:
            return
        made = [tensor for tensor in _tensors((result,)) if tensor.ndim > 1 and tensor.is_floating_point()]
        if all(self._is_weight(tensor) for tensor in tensors):
            for tensor in made:
                self._weights[tensor] = True
        elif name in _PRODUCTS:
            for tensor in made:
                self._products[tensor] = self._product(name, args, tensors)
        elif name not in _MAPS and self._products and not name.startswith("new_") and not name.endswith("_like"):
            known = [tensor for tensor in tensors if tensor in self._products]
            known.sort(key=lambda tensor: not self._products[tensor].columns_active)
            for tensor in made if known else ():
                self._products[tensor] = self._carried(known[0], tensor, name, args, kwargs)

    def logits(self, args: tuple, kwargs: dict[str, Any], num_heads: Callable[[], int | None]) -> dict[str, Tensor]:
        """Return the logits (B, H, rows, keys) that a softmax takes, and those of a sink; nothing if no attention."""
        x = next(_tensors((*args, *kwargs.values())), None)
        product = None if x is None else self._products.get(x)
        if x is None or product is None:
            return {}
        axis = kwargs["dim"] if "dim" in kwargs else next((a for a in args[1:] if isinstance(a, int)), -1)
        if axis % x.ndim == x.ndim - 2 and product.rows_active:
            return {"logits": with_heads(x.detach().transpose(-1, -2), num_heads())}
        if axis % x.ndim != x.ndim - 1 or not product.columns_active:
            return {}
        logits = with_heads(x.detach(), num_heads())
        front, keys, back = logits.split((product.front, x.shape[-1] - product.front - product.back, product.back), -1)
        if front.shape[-1] + back.shape[-1] == 0:
            return {"logits": logits}
        return {"logits": keys, "sink": torch.cat((front, back), dim=-1).float().logsumexp(dim=-1)}

    def _is_weight(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or tensor in self._weights

    def _carried(self, source: Tensor, made: Tensor, name: str, args: tuple, kwargs: dict[str, Any]) -> _Product:
        """Return what is known of a tensor that was made from a product; columns put next to it are no keys."""
        product = self._products[source]
        if name in _JOINS and kwargs.get("dim", args[1] if len(args) > 1 else 0) in (-1, source.ndim - 1):
            parts = [*_tensors(args[:1] or kwargs.values())]
            keys = [i for i, part in enumerate(parts) if part in self._products]
            first, last = self._products[parts[keys[0]]], self._products[parts[keys[-1]]]
            before, after = (sum(part.shape[-1] for part in of) for of in (parts[: keys[0]], parts[keys[-1] + 1 :]))
            return product._replace(front=first.front + before, back=last.back + after)
        if name == "pad":
            left, right = (args[1] if len(args) > 1 else kwargs["pad"])[:2]
            return product._replace(front=max(0, product.front + left), back=max(0, product.back + right))
        return product if made.shape[-1] == source.shape[-1] else product._replace(front=0, back=0)

    def _product(self, name: str, args: tuple, tensors: list[Tensor]) -> _Product:
        """Return whether the operands that gave a product its last two axes are activations."""
        if name == "einsum" and isinstance(args[0], str):
            inputs, _, output = args[0].replace(" ", "").partition("->")
            owners = [part.replace("...", "") for part in inputs.split(",")]

            def active(letter: str) -> bool:
                return all(not self._is_weight(t) for t, own in zip(tensors, owners, strict=True) if letter in own)

            return _Product(active(output[-2:-1]), active(output[-1:]))
        left, right = [not self._is_weight(tensor) for tensor in tensors[-2:]]
        return _Product(right, left) if name == "__rmatmul__" else _Product(left, right)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (item for item in value if isinstance(item, Tensor))
