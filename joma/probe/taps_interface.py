"""Hugging Face's attention interface: implementations that call no PyTorch function that could be seen.

While a tap is open, a function looked up in the interface is followed: it runs as it is, and if nothing was seen inside
(flash_attention_2, flex_attention and others with kernels of their own), what it was given is read instead.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.overrides import _pop_mode_temporarily

Follow = Callable[[Callable[[], Any], Callable[[], dict[str, Any]]], Any]
"""Runs a function, and reads the call from the second one if nothing was seen inside the first."""

_UNREADABLE = {
    "s_aux": "its softmax has a learnt sink beside the keys",
    "cu_seq_lens_q": "it packs several sequences into one row",
    "cache": "its keys are paged",
}
"""Arguments that change the softmax in a way that queries, keys and a mask do not show."""


@contextmanager
def interface_followed(follow: Follow) -> Iterator[None]:
    """Follow every function that a model looks up in Hugging Face's interface, except that of sdpa."""
    modeling = sys.modules.get("transformers.modeling_utils")
    interface = getattr(modeling, "AttentionInterface", None)
    if interface is None:
        yield
        return
    look_up = interface.__getitem__
    own = "__getitem__" in vars(interface)

    def followed(self: Any, name: str) -> Callable:
        function = look_up(self, name)
        return function if name == "sdpa" else _following(function, name, follow)

    interface.__getitem__ = followed
    try:
        yield
    finally:
        if own:
            interface.__getitem__ = look_up
        else:
            del interface.__getitem__


def _following(function: Callable, name: str, follow: Follow) -> Callable:
    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            # A compiled function would be compiled anew for the tap's mode; there is nothing to see inside.
            with _pop_mode_temporarily() if "flex" in name else nullcontext():
                return function(module, query, key, value, *args, **kwargs)

        mask = args[0] if args else kwargs.get("attention_mask")
        return follow(run, lambda: read_interface(module, query, key, mask, kwargs))

    return attention


def read_interface(module: nn.Module, query: Tensor, key: Tensor, mask: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an AttentionCall from what an implementation was given, or say why they cannot be read."""
    for name, reason in _UNREADABLE.items():
        if kwargs.get(name) is not None:
            raise ValueError(reason)
    if mask is None and _packed(kwargs.get("position_ids"), query):
        raise ValueError(_UNREADABLE["cu_seq_lens_q"])
    num_rows, num_keys = query.shape[2], key.shape[2]
    is_causal = kwargs.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    whole = mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2)  # noqa: PLR2004 (batch, keys)
    bias = kwargs.get("position_bias")
    return {
        "q": query.detach(),
        "k": key.detach(),
        "mask": _read_mask(mask, query, key),
        "bias": None if bias is None else bias.detach(),
        "scale": kwargs.get("scaling"),
        "softcap": kwargs.get("softcap") or None,  # 0 is flash attention's word for none
        # A mask for every row and key has causal order and window in it; kernels align both at the last row and key.
        "causal": bool(is_causal) and not whole and num_rows > 1,
        "window": None if whole else kwargs.get("sliding_window"),
        "offset": num_keys - num_rows if is_causal else 0,
    }


def _read_mask(mask: Any, query: Tensor, key: Tensor) -> Tensor | None:
    """Read a mask of shape (batch, keys) as padding, four axes as they are, a block mask by evaluating it."""
    num_keys = key.shape[2]
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.ndim == 2:  # noqa: PLR2004 (batch, keys)
        return mask[:, None, None, -num_keys:].bool()
    if isinstance(mask, Tensor):
        return mask[..., :num_keys].detach()
    if hasattr(mask, "mask_mod"):
        from torch.nn.attention.flex_attention import create_mask

        batch, heads = mask.shape[:2]
        return create_mask(mask.mask_mod, batch, heads, query.shape[2], num_keys, device=query.device)
    raise ValueError(f"its mask is a {type(mask).__name__}, which cannot be read")


def _packed(position_ids: Tensor | None, query: Tensor) -> bool:
    """Whether positions start again within a row: several sequences in one, which kernels keep apart."""
    if position_ids is None or position_ids.ndim != 2 or position_ids.shape[-1] != query.shape[2]:  # noqa: PLR2004
        return False
    return bool((position_ids.diff(dim=-1) < 0).any())
