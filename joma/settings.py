"""Settings as frozen pydantic dataclasses: integers stay exact, text is read as what it means, errors are one line."""

import math
from collections.abc import Callable
from dataclasses import dataclass as _plain_dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, wraps
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, dataclass_transform, get_args, get_origin

import pydantic
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from joma.errors import UnknownNameError

T = TypeVar("T")
LARGEST = 2**63 - 1
"""Largest whole number that a setting takes."""
_NO_VALUE = "none"


def _whole(value: Any) -> int:
    """Read a whole number without rounding it: `1e2` is 100, and 2**53 + 1 stays what it is."""
    try:
        exact = Decimal(str(value)) if isinstance(value, float | str) else Decimal(int(value))
        if isinstance(value, bool) or exact != exact.to_integral_value() or abs(exact) > LARGEST:
            raise ValueError
    except (InvalidOperation, TypeError, ValueError, OverflowError):
        raise ValueError("a whole number") from None
    return int(exact)


def _number(value: Any) -> float:
    """Read a number; -0.0 is 0.0, so that equal settings have equal hashes."""
    try:
        number = float(value)
        if isinstance(value, bool) or math.isnan(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError("a number") from None
    return number + 0.0


def _none(value: Any) -> Any:
    return None if isinstance(value, str) and value.lower() == _NO_VALUE else value


def _several(value: Any) -> Any:
    """Read `10x20` as two numbers, and one number as a list of one."""
    return value.split("x") if isinstance(value, str) else [value] if isinstance(value, int) else value


Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
"""A whole number of at least 1."""
Index = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
"""A whole number of at least 0."""
MaybeCount = Annotated[Count | None, BeforeValidator(_none)]
MaybeIndex = Annotated[Index | None, BeforeValidator(_none)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_several), Field(min_length=1)]
"""Several counts, such as `10x20`."""
Number = Annotated[float, BeforeValidator(_number)]
Finite = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)]
"""At least 0 and below 1."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen pydantic dataclass; the text below a field describes it, unknown fields are refused."""
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True)
    made: Any = dataclass(frozen=True, kw_only=True, slots=True, config=config)(cls)
    checked = made.__init__

    @wraps(checked)
    def __init__(self: Any, **values: Any) -> None:
        try:
            checked(self, **values)
        except ValidationError as error:
            _refuse(error, tuple(made.__pydantic_fields__))

    made.__init__ = __init__
    return made


@_plain_dataclass(frozen=True, kw_only=True, slots=True)
class SettingField:
    """One field of a settings class, for help and for values that come as text."""

    name: str
    description: str
    kind: str
    """What it takes in a word, such as `int`, or its choices."""
    choices: tuple[str, ...]
    """The names it takes; empty where anything goes."""
    takes_several: bool
    """Whether one value is several numbers or names."""
    read: Callable[[Any], Any]
    """Turns text or a plain value into the setting's type, or raises a `ValueError` of one line."""


@cache
def settings_of(kind: type) -> dict[str, SettingField]:
    """Return the fields of a settings class by name."""
    return {name: _setting(name, info) for name, info in kind.__pydantic_fields__.items()}  # type: ignore[attr-defined]


def _setting(name: str, info: Any) -> SettingField:
    adapter = TypeAdapter[Any](Annotated[(info.annotation, name, *info.metadata)])

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            _refuse(error, (), name)

    several = get_origin(info.annotation) is tuple
    item = get_args(info.annotation)[0] if several else info.annotation
    choices = get_args(item) if get_origin(item) is Literal else ()
    kind = "|".join(choices) or ("int x int" if several else _word(info.annotation))
    return SettingField(
        name=name,
        description=" ".join((info.description or "").split()).replace("`", ""),
        kind=kind,
        choices=choices,
        takes_several=several,
        read=read,
    )


def _word(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _word(get_args(kind)[0])
    if NoneType in get_args(kind):
        return _word(get_args(kind)[0]) + " or none"
    return {int: "int", float: "float", bool: "yes|no"}.get(kind, "text")


def _refuse(error: ValidationError, known: tuple[str, ...], name: str = "") -> NoReturn:
    """Raise what is wrong in one line: our own error as it is, else what the field needs and what came."""
    first = error.errors()[0]
    place, own, value = first["loc"], first.get("ctx", {}).get("error"), first["input"]
    name = name or (str(place[0]) if place else "")
    if own is not None and not name:
        raise own from None
    if first["type"] == "unexpected_keyword_argument":
        raise UnknownNameError("setting", name, known) from None
    if first["type"] == "literal_error" and isinstance(value, str):
        choices = first["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        raise UnknownNameError(name.replace("_", " "), value, filter(None, choices)) from None
    if first["type"] == "missing":
        raise ValueError(f"`{name}` is missing. Pass it.") from None
    is_switch = first["type"].startswith("bool")
    needed = "yes or no" if is_switch else str(own or first["msg"].removeprefix("Input should be "))
    raise ValueError(f"`{name}` must be {needed}, got {value!r}.") from None
