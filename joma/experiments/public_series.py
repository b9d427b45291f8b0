"""The checkpoint series of figure 7 on the Hugging Face hub: OPT and Pythia, scanned where the hub can be reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joma.data.corpora import find_text
from joma.experiments.hub_access import without_address
from joma.experiments.timetable import Tell
from joma.probe.findings import Finding, some
from joma.probe.scan import scan
from joma.runs.files import write_text

PUBLIC_TEXTS = ("wikitext103", "wikitext2", "python-docs")
"""Texts for the public series: the paper's first."""

Scanned = tuple[Path, tuple[Finding, ...]]
"""Folder of a scan's record, and what its audit found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicSeries:
    """Checkpoints of a model on the hub."""

    repository: str
    revisions: tuple[str, ...]
    """Patterns of the branches to scan."""
    entropy: bool
    """Whether whole models are fetched, for the entropy; ranks need the lower matrices alone."""


EARLY = ("step?", "step??", "step???")
PUBLIC = (
    PublicSeries(repository="EleutherAI/pythia-70m", revisions=(*EARLY, "step*000"), entropy=True),
    PublicSeries(repository="EleutherAI/pythia-1.4b", revisions=(*EARLY, "step*3000"), entropy=True),
    PublicSeries(repository="EleutherAI/pythia-6.9b", revisions=(*EARLY, "step*3000"), entropy=False),
    PublicSeries(repository="facebook/opt-2.7b", revisions=("step*",), entropy=False),
)
"""The paper's four. Of the larger Pythias every tenth thousand of steps; OPT's are scanned if the hub has any."""


def scan_public(
    public: Sequence[PublicSeries], folder: Path, *, num_windows: int, tell: Tell
) -> tuple[dict[str, Scanned], dict[str, str]]:
    """Scan series of the hub into folders below `folder`, and say why one could not be reached, whole or in part."""
    found: dict[str, Scanned] = {}
    failures: dict[str, str] = {}
    text = _write_text(folder / "public.txt") if public else folder
    for number, series in enumerate(public):
        out = folder / series.repository.replace("/", "-")
        for pattern in series.revisions:
            try:
                of = scan(
                    series.repository,
                    out=out,
                    revisions=pattern,
                    text=text if series.entropy else None,
                    num_windows=num_windows,
                    progress=lambda at, i=number, name=series.repository: tell(  # type: ignore[misc]
                        i / len(public), f"scanning {name} {at.name}, {at.done} of {at.total}"
                    ),
                )
            except (ValueError, OSError) as error:  # no such revisions, or the hub is gone
                failures[series.repository] = without_address(str(error))
                continue
            found[series.repository] = out, of.findings
            if of.failures:
                failures[series.repository] = f"The Hugging Face hub did not give {some(list(of.failures))}."
    return found, failures


def _write_text(path: Path) -> Path:
    """Write the text to measure on: the test part of the first that can be had."""
    for name in PUBLIC_TEXTS:
        try:
            return write_text(path, "".join(find_text(name).blocks("test")))
        except OSError:  # neither here nor on the hub
            continue
    raise FileNotFoundError(f"The public series need one of the texts {', '.join(PUBLIC_TEXTS)}. Add one.")
