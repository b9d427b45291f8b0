"""`report`: the records under a folder on one self-contained page."""

import json
from pathlib import Path

from joma.page import simulation as simulation_page
from joma.page import verification as verification_page
from joma.page.document import Section, document
from joma.runs.files import write_text
from joma.theory.simulation import SimulationConfig, simulate

TITLE = "How a transformer learns: the JoMA paper, checked"
LEAD = (
    "Every numbered statement of the paper (arXiv:2310.00535) against an independent computation, and its flows solved."
)


def report(folder: Path | str) -> Path:
    """Put every verification and simulation under `folder` on one page, `index.html` in that folder; return its path.

    A simulation is a function of its config, so the page solves it again from the record.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"There is no folder {folder}. Pass one that `joma verify --out` or `joma simulate --out` wrote."
        )
    sections = [*_verifications(folder), *_simulations(folder)]
    if not sections:
        raise ValueError(
            f"{folder} holds no record. Write one with `joma verify --out {folder}` or `joma simulate --out {folder}`."
        )
    return write_text(folder / "index.html", document(TITLE, LEAD, sections))


def _verifications(folder: Path) -> list[Section]:
    return [
        verification_page.section(verification_page.read(record))
        for record in sorted(folder.rglob(verification_page.RECORD))
    ]


def _simulations(folder: Path) -> list[Section]:
    configs = [
        json.loads(record.read_text(encoding="utf8"))["config"]
        for record in sorted(folder.rglob(simulation_page.RECORD))
    ]
    return [
        simulation_page.section(simulate(SimulationConfig(**config)), with_plotly=index == 0)
        for index, config in enumerate(configs)
    ]
