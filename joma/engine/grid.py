"""A grid of runs: every combination of the values given, each with a name that stays when the grid grows."""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joma.engine.config import BESIDE, RunConfig, digest, field_homes, parse, takes_several
from joma.errors import UnknownNameError, nearest
from joma.figures.numbers import fewest_letters

UNNAMED = ("vocabulary", *BESIDE)
"""Fields that leave a run what it is, or follow from others; they are no part of its name."""
_LENGTHS = ("epochs", "steps")
_MAX_NAME = 120
"""Longest name of a folder; file systems take 255."""
_OPTION = "--"
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of a grid."""

    name: str
    """Name of its folder, unique among runs that differ and the same in every grid that has the run."""
    config: RunConfig


def axes_of(given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values of each axis: one or several as Python has them, or text such as `"1,2,5"`; each once.

    >>> axes_of({"lr": "1e-4,0.0001,1e-3", "depth": 2, "num_latents": [(10, 20), "20x30"]})
    {'lr': (0.0001, 0.001), 'depth': (2,), 'num_latents': ((10, 20), (20, 30))}
    """
    return {name: _axis(name, value) for name, value in given.items()}


def axes_from_options(arguments: Sequence[str], others: Iterable[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Return the axes that options of a command spell: `--depth 1,2 --lr=1e-3`; a switch may stand alone.

    `others` are options that the command has itself, for the message about one that there is not.

    >>> axes_from_options(["--depth", "1,2", "--train-embedding", "--lr=1e-3"])
    {'depth': (1, 2), 'train_embedding': (True,), 'lr': (0.001,)}
    """
    given: dict[str, list[str]] = {}
    rest = list(arguments)
    while rest:
        option, has_value, value = rest.pop(0).partition("=")
        name = _field_of(option, others)
        if not has_value:
            stands_alone = not rest or rest[0].startswith(_OPTION)
            if stands_alone and not _is_switch(name):
                raise ValueError(f"The option {option} needs values, such as `{option} 1,2`, and got none. Add some.")
            value = "true" if stands_alone else rest.pop(0)
        given.setdefault(name, []).append(value)
    return axes_of({name: ",".join(values) for name, values in given.items()})


def grid(base: RunConfig, axes: Mapping[str, Sequence[Any]], named: Collection[str] = ()) -> tuple[Run, ...]:
    """Return a run for every combination of the axes, the last axis running fastest, each config once.

    A name spells the fields in `named`, which a recipe fixes, the seed, and every other field that is not as in `base`;
    the length only where the learning rate follows a schedule to its end, since otherwise a run can be made longer.
    """
    runs: dict[str, Run] = {}
    for values in itertools.product(*axes.values()):
        config = base.update(dict(zip(axes, values, strict=True)))
        run = Run(name=run_name(config, base, named), config=config)
        if runs.setdefault(run.name, run) != run:
            raise ValueError(
                f"The run {run.name} is there twice and differs in its length alone, so that the longer one holds the "
                "shorter. Give one value of `steps` or `epochs`."
            )
    if not runs:
        raise ValueError("The grid is empty, and a training needs a run at least. Give every axis a value.")
    return tuple(runs.values())


def run_name(config: RunConfig, base: RunConfig, named: Collection[str] = ()) -> str:
    """Return the name of a run, a function of its config, the base and `named` alone.

    >>> from joma.engine.recipes import recipe
    >>> base = recipe("figure6").base
    >>> run_name(base.update({"lr": 1e-5, "heads": 2, "seed": 3}), base, named=("depth", "lr"))
    'depth5-lr1e-5-heads2-seed3'
    """
    usual = base.flat()
    flat = {name: value for name, value in config.flat().items() if name not in UNNAMED}
    lasting = config.optimiser.schedule == "constant"
    differing = [
        name for name, value in flat.items() if value != usual[name] and not _is_idle_length(name, value, lasting)
    ]
    wanted = dict.fromkeys([*named, *sorted(differing), "seed"])
    del wanted["seed"]
    spelt = "-".join(name.removeprefix("num_") + _spelt(flat[name]) for name in (*wanted, "seed"))
    if len(spelt) <= _MAX_NAME:
        return spelt
    end = f"-{digest(spelt)}"
    return spelt[: _MAX_NAME - len(end)].rstrip("-") + end


def _axis(name: str, value: Any) -> tuple[Any, ...]:
    values = tuple(dict.fromkeys(parse(name, each) for each in _listed(name, value)))
    if not values:
        raise ValueError(f"The axis `{name}` is empty, so the grid has no run. Give it a value, or leave it out.")
    if name == "vocabulary":
        raise ValueError("`vocabulary` follows from the data. Set `vocabulary_cap`, or `num_tokens` for a hierarchy.")
    if name in UNNAMED and len(values) > 1:
        raise ValueError(f"`{name}` does not change a run, so it is no axis: give one value, got {len(values)}.")
    return values


def _listed(name: str, value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if value is None or not isinstance(value, Iterable):
        return [value]
    values = list(value)
    if takes_several(name) and values and not any(isinstance(each, Iterable) for each in values):
        return [tuple(values)]
    return values


def _field_of(option: str, others: Iterable[str]) -> str:
    options = {_OPTION + name.replace("_", "-"): name for name in field_homes()}
    known = {*options, *others}
    name = options.get(option.replace("_", "-"))
    if name is None and not option.startswith("-") and nearest(option, known) is None:
        raise ValueError(
            f"Settings are options with their values, such as `--depth 1,2`, and {option!r} belongs to none. Put its "
            "option before it, write several values without spaces, or leave it out."
        )
    if name is None:
        raise UnknownNameError("option", option, known, listing="`joma train --settings`")
    return name


def _is_switch(name: str) -> bool:
    try:
        return parse(name, "true") is True
    except ValueError:
        return False


def _is_idle_length(name: str, value: Any, lasting: bool) -> bool:
    return name in _LENGTHS and (lasting or value is None)


def _spelt(value: Any) -> str:
    """Spell a value so that a file system takes it and different values differ."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return "x".join(map(_spelt, value))
    if isinstance(value, str):
        safe = _UNSAFE.sub("_", value).strip("_.")
        return safe if safe == value else f"{safe[-24:]}_{digest(value)[:6]}"
    return str(value) if isinstance(value, int) else fewest_letters(value)
