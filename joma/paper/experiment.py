"""What an experiment is: settings, a seeded computation, claims that can fail, and charts."""

import importlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from joma.charts import Chart
from joma.claims import Claim
from joma.errors import UnknownNameError, in_any_case
from joma.store.work import Store, Tables, Task

PRESETS = ("quick", "small", "full")
"""Sizes of an experiment.

- `quick`: seconds or minutes on two CPU cores, to see that it runs.
- `small`: what one CPU core trains in about an hour, or the part that a GPU trains in ten minutes. Few have it.
- `full`: the paper's settings, on one GPU.
"""

MODULES = {
    "figure1": "figure1",
    "figures2-3": "figures2_3",
    "figure4": "figure4",
    "figure5": "figure5",
    "figure6": "figures6_8",
    "rebound-controls": "figures6_8",
    "figure8": "figures6_8",
    "figure6-wikitext103": "figures6_8",
    "rebound-cause": "rebound_cause",
    "rebound-cause-depth1": "rebound_cause",
    "rebound-answer": "rebound_cause",
    "rebound-parts": "rebound_parts",
    "gradient-rank": "gradient_rank",
    "early-choice": "early_choice",
    "real-hierarchies": "real_hierarchies",
    "assumption1": "assumption1",
    "figure7": "figure7",
    "figure7-public": "figure7",
    "figure9": "figure9",
    "figure10": "figure10",
    "figure10-public": "figure10",
    "table1": "table1",
    "alarm": "alarm",
    "embeddings": "embeddings",
    "convergence-speeds": "convergence_speeds",
    "width": "width",
    "architectures": "architectures",
    "free-logits": "free_logits",
    "scale": "scale",
}
"""Experiments in the paper's order, each with the file of this folder that exports it in `EXPERIMENTS`."""


class Measured(Tables):
    """What an experiment measured: tidy tables, also as attributes, and single numbers and words as `facts`.

    >>> t = Measured(curves=pd.DataFrame({"t": [0, 1]}), facts={"lowest": 0.5, "text": "wikitext2"})
    >>> len(t.curves), t.facts["lowest"], t.facts["text"]
    (2, 0.5, 'wikitext2')
    """

    config: SimpleNamespace
    """The settings that it was computed with, as they are kept."""

    def __init__(self, facts: Mapping[str, float | str] | pd.DataFrame | None = None, **tables: pd.DataFrame) -> None:
        """Take tables by name, and facts as a mapping or as the table that keeps them."""
        super().__init__(tables)
        self.config = SimpleNamespace()
        if isinstance(facts, Mapping):
            numbers = [None if isinstance(value, str) else float(value) for value in facts.values()]
            words = [value if isinstance(value, str) else None for value in facts.values()]
            table = pd.DataFrame({"name": list(facts), "number": numbers, "text": words})
            facts = table.astype({"name": "string", "number": "float64", "text": "string"})
        if facts is not None:
            self["facts"] = facts

    def copy_with(self, **changed: Any) -> "Measured":
        """Return a copy in which some tables or the facts are others."""
        other = Measured(**{**self, **changed})
        other.config = self.config
        return other

    @property
    def facts(self) -> dict[str, Any]:
        """Single numbers and words by name."""
        rows = self["facts"].itertuples() if "facts" in self else ()
        return {str(row.name): row.number if pd.isna(row.text) else str(row.text) for row in rows}


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A figure, a table or a question of the paper: how to compute it, judge it and draw it."""

    id: str
    """Short and typeable: `figure4`, `table1`."""
    title: str
    source: str
    """Where in the paper."""
    question: str
    """What is asked, in one or two sentences."""
    presets: Mapping[str, Any]
    """The settings of each preset that it has, a frozen dataclass. No network, clock or device in it."""
    compute: Callable[[Any, Any], Measured]
    """Settings and a `Workspace` in, tables out; with `in_tasks` a `Store` instead of a workspace."""
    claims: Sequence[Claim]
    charts: Callable[[Measured], Iterable[Chart]]
    seconds: Mapping[str, float] = field(default_factory=dict)
    """About how long each preset takes, on the device that it is meant for."""
    needs: Callable[[Any, str], str] = lambda config, device: ""
    """What is missing here to run these settings on this device, in one line; empty when nothing is."""
    in_tasks: bool = False
    """Whether `compute` divides its work into tasks itself; otherwise all of it is one task."""
    text_preset: str = "full"
    """The preset that the hand-written texts on its claims speak of."""
    version: int = 1
    """To be counted up when `compute` returns something else for the same settings."""

    def draw(self, tables: Measured) -> tuple[Chart, ...]:
        """Return the charts of what was measured; none where nothing was."""
        return tuple(self.charts(tables)) if any(len(table) for table in tables.values()) else ()


def as_float32(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that is only drawn with seven digits of every number, in half the bytes."""
    return table.astype(dict.fromkeys(table.select_dtypes("float64").columns, np.float32))


def select(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values.

    >>> select(pd.DataFrame({"depth": [1, 1, 5], "seed": [1, 2, 1]}), depth=1, seed=2).index.tolist()
    [1]
    """
    for name, value in values.items():
        table = table[table[name] == value]
    return table


def crossed(**axes: Iterable[Any]) -> pd.DataFrame:
    """Return a row for every combination of the values of some columns; the last column runs fastest.

    >>> crossed(tree=["deep", "shallow"], height=[1, 2]).to_numpy().tolist()
    [['deep', 1], ['deep', 2], ['shallow', 1], ['shallow', 2]]
    """
    return pd.MultiIndex.from_product(list(axes.values()), names=list(axes)).to_frame(index=False)


def joined(parts: Iterable[Mapping[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """Return the tables of several computations, those of one name below each other."""
    found = list(parts)
    tables = {name: [each[name] for each in found] for name in (found[0] if found else ())}
    return {name: pd.concat([each for each in of if len(each)] or of, ignore_index=True) for name, of in tables.items()}


def gathered(store: Store, tasks: Sequence[Task]) -> Measured:
    """Return the tables of all tasks that are finished, those of one name joined."""
    return Measured(**joined(each.tables for each in store.gather(tasks)))


@cache
def _charts() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("joma.paper").joinpath("charts.toml").read_text(encoding="utf-8"))


def caption(id: str) -> dict[str, str]:
    """Return the options of `joma.charts` that name a chart: its id, and its title and caption in `charts.toml`."""
    return {"id": id} | {name: " ".join(_charts()[id][name].split()) for name in ("title", "caption")}


def claims_at(id: str) -> list[str]:
    """Return the claims that a chart shows by itself, from `charts.toml`."""
    return _charts().get(id, {}).get("claims", [])


def over_seeds(table: pd.DataFrame, keys: Sequence[str], column: str) -> pd.DataFrame:
    """Return `mean`, `size` and the ends `low` and `high` of two standard errors, over seeds, of a column's means."""
    means = table.groupby([*keys, "seed"])[column].mean().groupby(list(keys)).agg(["mean", "sem", "size"])
    low, high = (means["mean"] + factor * means["sem"] for factor in (-2, 2))
    return means.assign(low=low, high=high).reset_index()


def exponents(table: pd.DataFrame, x: str, y: str) -> pd.Series:
    """Return, for each seed, the exponent of a column as a power of another: the slope of their logarithms.

    >>> exponents(pd.DataFrame({"seed": [1, 1, 1], "d": [1, 2, 4], "e": [3, 12, 48]}), "d", "e").round(9).tolist()
    [2.0]
    """
    logs = np.log(table.set_index("seed")[[x, y]]).groupby("seed")
    return logs.apply(lambda own: np.polyfit(own[x], own[y], 1)[0])


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: small tensors take less time, and sums do not depend on the machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gpu_missing(device: str) -> str:
    """Return that a GPU is missing for runs of the paper's size; empty where there is one."""
    return "It needs a GPU: on a CPU these runs would take weeks." if device == "cpu" else ""


def experiment(name: str) -> Experiment:
    """Return the experiment with this id."""
    if name not in MODULES:
        raise UnknownNameError("experiment", name, MODULES)
    module = importlib.import_module(f"joma.paper.{MODULES[name]}")
    return next(each for each in module.EXPERIMENTS if each.id == name)


def find(ids: str | Iterable[str] | None = None) -> list[str]:
    """Return ids of experiments in the paper's order; all for None. `figure2` names the experiment that holds it.

    >>> find("Figure3"), find(["table1", "figure1"])
    (['figures2-3'], ['figure1', 'table1'])
    """
    if ids is None:
        return list(MODULES)
    held = {"figure2": "figures2-3", "figure3": "figures2-3"}
    given = [in_any_case(name, [*MODULES, *held]) for name in ([ids] if isinstance(ids, str) else ids)]
    wanted = {held.get(name, name) for name in given}
    for name in wanted - MODULES.keys():
        raise UnknownNameError("experiment", name, MODULES, listing="`joma reproduce --list`")
    return [name for name in MODULES if name in wanted]
