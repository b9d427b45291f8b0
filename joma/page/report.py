"""`report`: everything that was recorded under a folder, on pages that need no network."""

from pathlib import Path

from joma.page.paper import VERIFICATION, read_verification, reproduction_pages
from joma.page.runs import run_pages
from joma.page.simulation import RECORD, read_simulation, simulation_page
from joma.page.site import write, write_single
from joma.paper.reproduce import FILE_NAME, read_reproduction
from joma.store.files import demand_writable
from joma.theory.simulation import simulate

PAPER = "The JoMA paper, rebuilt", "What the paper claims (arXiv:2310.00535), what we found, and the numbers."
RUNS = "How these transformers learn", "Attention entropy and weight rank, layer by layer."
"""Titles and leads of the index."""


def report(folder: Path | str, *, out: Path | str | None = None, single: bool = False) -> Path:
    """Put every reproduction, run, simulation and verification under a folder on pages, and return the index.

    Args:
        folder: What `joma.watch` or commands with `--out` wrote into.
        out: Where the pages go; `folder` itself when None.
        single: Whether to write one self-contained file instead of an index with a page for each subject.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"There is no folder {folder}. Pass one that `joma.watch` or a command with `--out` wrote into."
        )
    place = folder if out is None else Path(out)
    demand_writable(place, remedy="Pass another --out.")
    found = [read_reproduction(path.parent) for path in sorted(folder.rglob(FILE_NAME))]
    inside = [each.folder / result.id for each in found for result in each.experiments]

    def records(name: str) -> list[Path]:
        paths = sorted(folder.rglob(name))
        return [path for path in paths if not any(path.is_relative_to(each) for each in inside)]

    verified = [answer for path in records(VERIFICATION) for answer in read_verification(path)]
    simulations = [simulate(read_simulation(path)) for path in records(RECORD)]
    pages = [
        *reproduction_pages(found, verified, place),
        *run_pages(folder, without=inside),
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
