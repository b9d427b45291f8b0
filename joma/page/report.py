"""`report`: the records under a folder on one self-contained page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joma.page import reproduction as reproduction_page
from joma.page import runs as run_page
from joma.page import simulation as simulation_page
from joma.page import verification as verification_page
from joma.page.document import Section, document
from joma.store.files import demand_writable, write_text
from joma.theory.simulation import simulate

TITLE = "How a transformer learns: the JoMA paper, checked"
LEAD = (
    "Every numbered statement of the paper (arXiv:2310.00535) against an independent computation, and its flows solved."
)
RUNS_TITLE = "How these transformers learn"
RUNS_LEAD = "Attention entropy and weight rank, layer by layer, from the records under {}."


def report(folder: Path | str) -> Path:
    """Put every reproduction, run, simulation and verification under `folder` on one page, `index.html` in that folder.

    Returns its path. A simulation is a function of its config, so the page solves it again from the record; what lies
    in the folders of a reproduction's experiments is told by the reproduction.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"There is no folder {folder}. Pass one that `joma.watch` or a command with `--out` wrote into."
        )
    demand_writable(folder, remedy="Make it writable, or copy it to where the page can be written.")
    found = reproduction_page.find(folder)
    inside = [place for each in found for place in reproduction_page.places(each)]
    verified = [verification_page.read(record) for record in _records(folder, verification_page.RECORD, inside)]
    rebuilt = [
        section
        for index, each in enumerate(found)
        for section in reproduction_page.sections(
            each, folder, statements=verified[0] if verified and index == 0 else (), with_plotly=index == 0
        )
    ]
    runs = run_page.sections(folder, without=inside, with_plotly=not rebuilt)
    simulations = _simulations(folder, inside)
    sections = [*rebuilt, *runs, *simulations, *map(verification_page.section, verified)]
    if not sections:
        raise ValueError(
            f"{folder} holds no record. Write one with `joma scan`, `joma reproduce`, `joma train`, `joma simulate` or "
            f"`joma verify` and `--out {folder}`, or with `joma.watch`."
        )
    if rebuilt:
        title, lead = reproduction_page.TITLE, reproduction_page.LEAD
    else:
        title, lead = (RUNS_TITLE, RUNS_LEAD.format(folder.resolve().name)) if runs else (TITLE, LEAD)
    return write_text(folder / "index.html", _writable(document(title, lead, _told_apart(sections))))


def _told_apart(sections: Sequence[Section]) -> list[Section]:
    """Number the anchors that come more than once."""
    seen: Counter[str] = Counter()
    found = []
    for section in sections:
        seen[section.anchor] += 1
        times = seen[section.anchor]
        found.append(section if times == 1 else replace(section, anchor=f"{section.anchor}-{times}"))
    return found


def _writable(page: str) -> str:
    """Replace what UTF-8 cannot hold: halves of characters, from JSON or from the names of folders."""
    return page.encode("utf-8", "replace").decode("utf-8")


def _records(folder: Path, name: str, without: Sequence[Path]) -> list[Path]:
    return [record for record in sorted(folder.rglob(name)) if not run_page.is_below(record, without)]


def _simulations(folder: Path, without: Sequence[Path]) -> list[Section]:
    configs = [simulation_page.read(record) for record in _records(folder, simulation_page.RECORD, without)]
    return [simulation_page.section(simulate(config), with_bundle=index == 0) for index, config in enumerate(configs)]
