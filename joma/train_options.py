"""The options of `joma train`: one for each setting, made from the settings' own types, defaults and descriptions."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from joma.engine.config import all_settings, part_of
from joma.engine.grid import DEFAULT, Recipe
from joma.engine.grid import recipe as recipe_named

NOT_AN_OPTION = ("vocabulary",)
"""Follows from the data."""
_PANELS = {"model": "Model", "optimiser": "Optimiser", "data": "Data", "training": "Training", "": "Training"}


class _PlainFlags:
    """Shows flags in the help without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, of which flags take no value that could be named."""
        found = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return found


class PlainCommand(_PlainFlags, TyperCommand):
    """A command with plain flags."""


class PlainGroup(_PlainFlags, TyperGroup):
    """A group of commands with plain flags, listed with those first that most users come for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of README."""
        first = ("scan", "compare", "report", "train")
        return sorted(super().list_commands(ctx), key=lambda name: (*first, name).index(name))


class LoneSwitches(PlainCommand):
    """Lets a switch stand alone: `--gated` is `--gated yes`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments once every lone switch has its value."""
        switches = {option_name(each.name) for each in all_settings().values() if each.kind == "yes|no"}
        given: list[str] = []
        for at, argument in enumerate(args, start=1):
            given.append(argument)
            if argument in switches and (at == len(args) or args[at].startswith("--")):
                given.append("yes")
        return super().parse_args(ctx, given)


def option_name(setting: str) -> str:
    """Return the option of a setting.

    >>> option_name("num_latents")
    '--num-latents'
    """
    return "--" + setting.replace("_", "-")


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting, in place of its `**settings`."""
    own = inspect.signature(command).parameters.values()
    kept = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
    defaults = {each["option"]: each["value"] for each in listing(recipe_named(DEFAULT), {})}
    annotations = {
        name: _annotation(name, defaults[option_name(name)]) for name in all_settings() if name not in NOT_AN_OPTION
    }
    made = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    signature = inspect.Signature([*kept, *made])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return command


def listing(recipe: Recipe, given: Mapping[str, tuple[Any, ...]]) -> list[dict[str, str]]:
    """Return every setting with the values that a grid of the recipe has, as plain rows."""
    values = {name: (value,) for name, value in recipe.base.flat().items()} | {**recipe.axes, **given}
    return [
        {
            "option": option_name(name),
            "value": ",".join(map(_spelt, values[name])),
            "type": each.kind,
            "what it is": each.description,
        }
        for name, each in all_settings().items()
    ]


def _annotation(name: str, default: str) -> Any:
    setting = all_settings()[name]
    words = setting.choices or (("yes", "no") if setting.kind == "yes|no" else ())

    def complete(incomplete: str) -> list[str]:
        *before, last = incomplete.split(",")
        return [",".join([*before, word]) for word in words if word.startswith(last)]

    option = typer.Option(
        help=setting.description,
        metavar=setting.kind,
        show_default=default,
        rich_help_panel=f"{_PANELS[part_of(name)]} settings",
        autocompletion=complete if words else None,
    )
    return Annotated[list[str] | None, option]


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ("+" if isinstance(value[0], str) else "x").join(map(str, value)) if value else "none"
    return "none" if value is None else str(value)
