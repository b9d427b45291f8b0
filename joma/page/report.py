"""`report`: everything that was recorded under a folder, on pages that need no network."""

import os
from collections.abc import Iterable
from pathlib import Path

from joma.page.paper import VERIFICATION, read_verification, reproduction_pages
from joma.page.runs import run_pages
from joma.page.simulation import RECORD, read_simulation, simulation_page
from joma.page.site import write, write_single
from joma.paper.reproduce import FILE_NAME, read_reproduction
from joma.store import find_runs
from joma.store.files import demand_writable
from joma.theory.simulation import simulate

PAPER = "The JoMA paper, rebuilt", "What the paper claims (arXiv:2310.00535), what we found, and the numbers."
RUNS = "How these transformers learn", "Attention entropy and weight rank, layer by layer."
"""Titles and leads of the index."""


def report(folder: Path | str, *more: Path | str, out: Path | str | None = None, single: bool = False) -> Path:
    """Put every reproduction, run, simulation and verification under a folder on pages, and return the index.

    Args:
        folder: What `joma.watch` or commands with `--out` wrote into.
        more: Further folders of this kind, for the same pages.
        out: Where the pages go; `folder` itself when None.
        single: Whether to write one self-contained file instead of an index with a page for each subject.
    """
    given = [Path(folder), *map(Path, more)]
    for each in given:
        if not each.is_dir():
            raise ValueError(
                f"There is no folder {each}. Pass one that `joma.watch` or a command with `--out` wrote into."
            )
    root, place = given[0], given[0] if out is None else Path(out)
    demand_writable(place, remedy="Pass another --out.")
    if more:
        given = [each.absolute() for each in given]
        root = Path(os.path.commonpath(given))

    def under(name: str) -> list[Path]:
        return list(dict.fromkeys(path for each in given for path in sorted(each.rglob(name))))

    found = [read_reproduction(path.parent) for path in under(FILE_NAME)]
    inside = [each.folder / result.id for each in found for result in each.experiments]

    def outside(paths: Iterable[Path]) -> list[Path]:
        return [path for path in paths if not any(path.is_relative_to(each) for each in inside)]

    runs = dict.fromkeys(path for each in given for path in find_runs(each))
    verified = [answer for path in outside(under(VERIFICATION)) for answer in read_verification(path)]
    simulations = [simulate(read_simulation(path)) for path in outside(under(RECORD))]
    pages = [
        *reproduction_pages(found, verified, place),
        *run_pages(root, outside(runs)),
        *(simulation_page(each, f"simulation-{index}") for index, each in enumerate(simulations, start=1)),
    ]
    if not pages:
        raise ValueError(
            f"{folder} holds no record. Write one with `joma scan`, `joma reproduce`, `joma train`, `joma simulate` or "
            f"`joma verify` and `--out {folder}`, or with `joma.watch`."
        )
    title, lead = PAPER if found or verified else RUNS
    if single:
        return write_single(place / "index.html", pages, title=title, lead=lead)
    return write(place, pages, title=title, lead=lead)
