"""The experiments by id, in the paper's order, each imported when it is first asked for."""

import importlib
import re
from collections.abc import Iterable

from joma.errors import UnknownNameError, in_any_case
from joma.experiments.experiment import Experiment

MODULES = {
    "figure1": "figure1",
    "figures2-3": "figures2_3",
    "figure4": "figure4",
    "figure5": "figure5",
    "figures6-8": "language_models",
    "figure7": "figure7",
    "figure9": "figure9",
    "figure10": "figure10",
    "table1": "table1",
}
"""Files of this folder that hold an experiment, by its id; each exports `EXPERIMENT`."""
SECONDS = {
    "quick": {
        "figure1": 2,
        "figures2-3": 8,
        "figure4": 6,
        "figure5": 15,
        "figures6-8": 185,
        "figure7": 26,
        "figure9": 7,
        "figure10": 13,
        "table1": 11,
    },
    "full": {
        "figure1": 4,
        "figures2-3": 32,
        "figure4": 20,
        "figure5": 90,
        "figures6-8": 1800,
        "figure7": 90,
        "figure9": 10,
        "figure10": 50,
        "table1": 1300,
    },
}
"""About how long each takes, drawing included: `quick` as measured on two CPU cores, `full` on one GPU, where figures 1
to 4 and 9 are as measured on one core of the CPU, which is all that they use."""

_HOUR, _DAY = 3600, 86400
CPU_SECONDS = {"figure5": 3 * _HOUR, "figure7": 5 * _HOUR, "figure10": 10 * _HOUR, "table1": 45 * _DAY}
"""About how long `full` takes on two CPU cores where that is not its time on a GPU: steps tried there, times their
number. The cores were shared, and tries differ by a factor of three: it tells hours from weeks, and nobody waited."""

_NUMBERED = re.compile(r"(figures?|table)(\d[\d-]*)")


def named(name: str) -> str:
    """Return an experiment's id as the paper says it.

    >>> named("figures6-8"), named("table1")
    ('Figures 6 and 8', 'Table 1')
    """
    return _NUMBERED.sub(lambda found: f"{found[1].capitalize()} {found[2].replace('-', ' and ')}", name)


def find(ids: str | Iterable[str] | None = None) -> list[str]:
    """Return these ids (one, several, or all for None) in the paper's order, refusing unknown ones with the nearest.

    Case does not count, and a figure stands for the experiment that holds it.

    >>> find(["Table1", "figure4", "table1", "figure8"])
    ['figure4', 'figures6-8', 'table1']
    """
    wanted = {_id_of(name) for name in (MODULES if ids is None else [ids] if isinstance(ids, str) else ids)}
    return [name for name in MODULES if name in wanted]


def _id_of(name: str) -> str:
    names = {each: each for each in MODULES} | {figure: each for each in MODULES for figure in _figures_of(each)}
    found = in_any_case(name, names)
    if found not in names:
        raise UnknownNameError("experiment", name, MODULES)
    return names[found]


def _figures_of(name: str) -> list[str]:
    """Return the names of the figures that one experiment holds together."""
    several = re.fullmatch(r"figures(\d+)-(\d+)", name)
    return [f"figure{number}" for number in several.groups()] if several else []


def usual_seconds(name: str, preset: str, device: str) -> float:
    """Return about how long an experiment takes from its beginning on a device.

    >>> usual_seconds("table1", "full", "cuda:0") < 3600 < 86400 < usual_seconds("table1", "full", "cpu")
    True
    """
    on_a_cpu = CPU_SECONDS if preset == "full" and device == "cpu" else {}
    return float(on_a_cpu.get(name, SECONDS[preset][name]))


def experiment(name: str) -> Experiment:
    """Return one experiment by its id."""
    [known] = find(name)
    found = importlib.import_module(f"joma.experiments.{MODULES[known]}").EXPERIMENT
    if found.id != known:
        raise ValueError(
            f"{MODULES[known]}.py holds the experiment {found.id!r} and not {known!r}. Rename one of them."
        )
    return found
