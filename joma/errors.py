"""Errors that say what is needed, what came and what to do, and the input checks that raise them."""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

NEAR = 0.7
"""Share of letters that a name has in common with the one that is offered for it, as `difflib` counts them."""
MOST_LISTED = 12
"""Names that a message lists, if there is another way to list more of them."""


class AssumptionError(ValueError):
    """A hypothesis of a statement fails for the input given."""


class UnknownNameError(ValueError):
    """A name that is looked up (a statement, a flow, an activation) does not exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listing: str = "", remark: str = "") -> None:
        """Word the message with the nearest name, else with all of them, or with how to list them if they are many.

        `listing` is what lists them, such as a command; `remark` a sentence on what is taken besides the names, said
        where none of them is near.
        """
        known = sorted(known)
        near = nearest(name, known)
        if near is not None:
            hint = f"Did you mean {near!r}?"
        else:
            is_long = bool(listing) and len(known) > MOST_LISTED
            named = f"{listing} lists all {len(known)} of them." if is_long else f"Known: {', '.join(known)}."
            hint = f"{named} {remark}".rstrip()
        super().__init__(f"There is no {kind} named {name!r}. {hint}")


class MissingExtraError(ImportError):
    """A package that one of joma's extras brings is not installed."""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of a package that an extra of joma brings, and say how to install it where it is missing.

    >>> import_extra("json", "report").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"This needs {package}, which is not installed. Install joma with it: pip install 'joma[{extra}]'."
        ) from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a slip may have turned into this one, None if there is none so near.

    Case does not count. Digits make a difference, so that another digit is no slip, nor is none at all; one too many or
    two in the wrong order may be.

    >>> nearest("Thm22", ["thm2", "thm5"]), nearest("thm6", ["thm2", "thm5"])
    ('thm2', None)
    """
    folded = {each.casefold(): each for each in known if _digits_agree(name, each)}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=NEAR)
    return folded[near[0]] if near else None


def in_any_case(name: str, known: Iterable[str]) -> str:
    """Return the known name that differs from this one in upper and lower case at most; without one, the name itself.

    >>> in_any_case("THM3", ["thm3", "thm4"]), in_any_case("thm6", ["thm3"])
    ('thm3', 'thm6')
    """
    known = list(known)
    return name if name in known else next((each for each in known if each.casefold() == name.casefold()), name)


def _digits_agree(one: str, other: str) -> bool:
    short, long = sorted(("".join(filter(str.isdigit, text)) for text in (one, other)), key=len)
    return bool(short) == bool(long) and (long.startswith(short) or sorted(long) == sorted(short))


def finite(name: str, value: Any) -> np.ndarray:
    """Return `value` as a float64 array, refusing NaN, infinity and anything that is not a number.

    >>> finite("mu", [1, 2])
    array([1., 2.])
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be numbers, got {value!r}. Pass a float or an array of floats.") from None
    bad = ~np.isfinite(array)
    if bad.any():
        where = "" if array.ndim == 0 else f" at index {tuple(int(i) for i in np.argwhere(bad)[0])}"
        raise ValueError(f"`{name}` must be finite, got {array[bad].flat[0]}{where}. Remove or replace that entry.")
    return array


def positive(name: str, value: Any) -> np.ndarray:
    """Return `value` as a finite float64 array with every entry above zero."""
    array = finite(name, value)
    if (array <= 0).any():
        raise ValueError(f"`{name}` must be positive, got {array.min()}. Pass a value above 0.")
    return array


def within(name: str, value: Any, low: float | int, high: float | int) -> np.ndarray:
    """Return `value` as a finite float64 array with every entry in [low, high]."""
    array = finite(name, value)
    outside = (array < low) | (array > high)
    if outside.any():
        raise ValueError(f"`{name}` must lie in [{low:g}, {high:g}], got {array[outside].flat[0]}. Rescale it.")
    return array


def shaped(axes: str, **arrays: Any) -> Any:
    """Return arrays of finite float64 numbers, one or a list of them, refusing other axes than those named.

    `axes` has a group for each array. Axes of one name have one length, and a number is a length. A leading `*` stands
    for any number of axes, `*T` for the same ones in every group. None stays None.

    >>> v, b, z0 = shaped("*T K M, *T M, M", v=[[1, 2]], b=[3, 4], z0=None)
    >>> v
    array([[1., 2.]])
    """
    known: dict[str, Any] = {axis: int(axis) for axis in axes.replace(",", " ").split() if axis.isdigit()}
    checked: list[np.ndarray | None] = []
    for (name, value), group in zip(arrays.items(), axes.split(","), strict=True):
        if value is None:
            checked.append(None)
            continue
        checked.append(array := finite(name, value))
        names, shape = group.split(), array.shape
        lengths: tuple[Any, ...] = shape
        if names[0].startswith("*"):
            num_leading = max(len(shape) - len(names) + 1, 0)
            lengths = (shape[:num_leading], *shape[num_leading:])
        wanted = [f"{axis} = {known[axis]}" if axis in known and not axis.isdigit() else axis for axis in names]
        agree = len(lengths) == len(names) and all(
            axis == "*" or length == known.setdefault(axis, length) for axis, length in zip(names, lengths, strict=True)
        )
        if not agree:
            raise ValueError(f"`{name}` must have the axes ({', '.join(wanted)}), got shape {shape}. Reshape it.")
    return checked if len(checked) > 1 else checked[0]


def whole(name: str, value: Any, *, low: int, high: float = np.inf) -> np.ndarray:
    """Return `value`, a number or several, as integers of at least `low` and at most `high`."""
    array = finite(name, value)
    wrong = (array != np.floor(array)) | (array < low) | (array > high)
    if wrong.any():
        most = "" if np.isinf(high) else f" and at most {high:g}"
        found = f"{array[wrong].flat[0]:g}"
        raise ValueError(f"`{name}` must be a whole number of at least {low}{most}, got {found}. Pass one.")
    return array.astype(np.int64)


def same_shape(**arrays: np.ndarray) -> None:
    """Refuse arrays whose shapes disagree, naming each with its shape."""
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"`{name}` {shape}" for name, shape in shapes.items())
        raise ValueError(f"Shapes must agree, got {listed}. Pass arrays of one shape.")


def broadcast(**arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Return arrays broadcast to their common shape, or name each with its shape if there is none.

    >>> broadcast(mu=np.zeros((5, 1, 3)), v0=np.zeros((2, 1)))["v0"].shape
    (5, 2, 3)
    """
    try:
        return dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))
    except ValueError:
        same_shape(**arrays)
        raise
