"""A text as parallel streams, read through windows: the batches of a language model."""

from jaxtyping import Int64
from torch import Tensor

from joma.errors import whole


class Windows:
    """A text cut into `num_streams` stretches of equal length, read side by side in windows of `length` tokens.

    Tokens beyond a multiple of `num_streams` are left out, and so is the short window at the end. Every token of a
    window has the one after it as its target. Windows are views on the device of the tokens: nothing is copied.

    >>> import torch
    >>> windows = Windows(torch.arange(11), num_streams=2, length=2)
    >>> windows.num_windows
    2
    >>> inputs, targets = windows.window(1)
    >>> inputs.tolist(), targets.tolist()
    ([[2, 3], [7, 8]], [[3, 4], [8, 9]])
    """

    def __init__(self, tokens: Int64[Tensor, " tokens"], num_streams: int, length: int) -> None:
        """Lay the streams out; refuses a text too short for one window."""
        whole("num_streams", num_streams, low=1)
        whole("length", length, low=1)
        if tokens.ndim != 1:
            raise ValueError(f"`tokens` must have one axis, got shape {tuple(tokens.shape)}. Flatten it.")
        needed = num_streams * (length + 1)
        if len(tokens) < needed:
            raise ValueError(
                f"{num_streams} streams with windows of {length} need at least {needed} tokens, the text has "
                f"{len(tokens)}. Pass a longer text, fewer streams or shorter windows."
            )
        per_stream = len(tokens) // num_streams
        kept = tokens[: num_streams * per_stream]
        self.streams: Int64[Tensor, "num_streams per_stream"] = kept.reshape(num_streams, -1)
        """The text, one stretch a row."""
        self.length = length
        """Tokens of a window."""

    @property
    def num_streams(self) -> int:
        """Number of stretches that are read side by side."""
        return len(self.streams)

    @property
    def num_windows(self) -> int:
        """Number of whole windows: the steps of an epoch."""
        return (self.streams.shape[1] - 1) // self.length

    def window(self, i: int) -> tuple[Int64[Tensor, "num_streams length"], Int64[Tensor, "num_streams length"]]:
        """Return window `i` and its targets."""
        if not 0 <= i < self.num_windows:
            raise IndexError(f"`i` must be from 0 to {self.num_windows - 1}, the windows of the text, got {i}.")
        inputs = self.streams.narrow(1, i * self.length, self.length)
        targets = self.streams.narrow(1, i * self.length + 1, self.length)
        return inputs, targets
