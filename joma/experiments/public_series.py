"""The checkpoint series of figure 7 on the Hugging Face hub: OPT and Pythia, scanned where the hub can be reached."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from joma.data.corpora import find_text
from joma.engine.memory import free_bytes, in_words
from joma.experiments.hub_access import without_address
from joma.experiments.timetable import Tell
from joma.probe.findings import some
from joma.probe.scanning import ScanProgress, scan
from joma.store.files import write_text

PUBLIC_TEXTS = ("wikitext103", "wikitext2", "python-docs")
"""Texts for the public series: the paper's first."""
MOST_ON_A_CPU = 1_500_000_000
"""Parameters of the largest model that is run on a CPU for its entropy: a checkpoint of it takes minutes."""
BYTES_PER_PARAMETER = 5
"""Four in single precision, and a fourth of that for what a forward takes beside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicSeries:
    """Checkpoints of a model on the hub."""

    repository: str
    revisions: tuple[str, ...]
    """Patterns of the branches to scan."""
    num_parameters: int
    """About as many as the model has. For the entropy whole models are fetched and run, where they are not too large;
    ranks need the lower matrices alone."""


EARLY = ("step?", "step??", "step???")
PUBLIC = (
    PublicSeries(repository="EleutherAI/pythia-70m", revisions=(*EARLY, "step*000"), num_parameters=70_000_000),
    PublicSeries(repository="EleutherAI/pythia-1.4b", revisions=(*EARLY, "step*3000"), num_parameters=1_400_000_000),
    PublicSeries(repository="EleutherAI/pythia-6.9b", revisions=(*EARLY, "step*3000"), num_parameters=6_900_000_000),
    PublicSeries(repository="facebook/opt-2.7b", revisions=("step*",), num_parameters=2_700_000_000),
)
"""The paper's four. Of the larger Pythias every tenth thousand of steps; OPT's are scanned if the hub has any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicScan:
    """How far the scan of a series has come; what was measured is in its record."""

    failure: str = ""
    """Why not all of it was reached, and a later call is to try again."""
    absent: str = ""
    """What the hub does not have of it, or nothing can be measured of: no later call will."""
    no_entropy: str = ""
    """Why its entropy is not measured here."""


def record_of(series: PublicSeries, folder: Path) -> Path:
    """Return the folder, below `folder`, of the record that a scan makes if there is anything to record."""
    return folder / series.repository.replace("/", "-")


def scanned(series: PublicSeries, folder: Path) -> PublicScan | None:
    """Return how far a series was scanned into `folder`; None if that was not tried, or is not known."""
    try:
        return PublicScan(**json.loads(_state_of(series, folder).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # not there, or not ours
        return None


def is_scanned(series: PublicSeries, folder: Path) -> bool:
    """Whether the record has all that can be had of a series, so that the hub need not be asked."""
    found = scanned(series, folder)
    return found is not None and not found.failure


def scan_public(series: PublicSeries, folder: Path, *, num_windows: int, tell: Tell) -> PublicScan:
    """Scan a series of the hub into `record_of` it, and write down and return what could not be had of it.

    A second call measures what the record does not have.
    """
    no_entropy = why_no_entropy(series)
    text = None if no_entropy else _write_text(folder / "public.txt")
    failures: list[str] = []
    absent: list[str] = []
    for number, pattern in enumerate(series.revisions):
        try:
            found = scan(
                series.repository,
                out=record_of(series, folder),
                revisions=pattern,
                text=text,
                num_windows=num_windows,
                progress=_telling(series, number, tell),
            )
        except OSError as error:  # the hub is gone
            failures.append(without_address(str(error)))
        except ValueError as error:  # no such revisions
            absent.append(without_address(str(error)))
        else:
            if found.failures:
                reason = without_address(next(iter(found.failures.values())))
                failures.append(f"{some(list(found.failures))} could not be inspected: {reason}")
    of = PublicScan(failure=_joined(failures), absent=_joined(absent), no_entropy=no_entropy)
    write_text(_state_of(series, folder), json.dumps(asdict(of)) + "\n")
    return of


def why_no_entropy(series: PublicSeries) -> str:
    """Return why a model is too large here to be run on a text; empty where it is not."""
    has_gpu = torch.cuda.is_available()
    size = f"{series.num_parameters / 1e9:.1f} billion parameters"
    if not has_gpu and series.num_parameters > MOST_ON_A_CPU:
        return f"A model of {size} is not run on a CPU. It needs a GPU."
    needed = BYTES_PER_PARAMETER * series.num_parameters
    for device in ("cpu", "cuda") if has_gpu else ("cpu",):  # a model is built on the host, and moved from there
        free = _free_bytes(device)
        if free is not None and free < needed:
            where = "GPU" if device == "cuda" else "host"
            return f"A model of {size} needs {in_words(needed)} of the {where}'s memory, and {in_words(free)} are free."
    return ""


def _free_bytes(device: str) -> int | None:
    try:
        return free_bytes(torch.device(device))
    except OSError:  # a system that does not tell
        return None


def _state_of(series: PublicSeries, folder: Path) -> Path:
    """Return the file that tells how far a series was scanned: beside the record, since there may be none."""
    return folder / f"{record_of(series, folder).name}.json"


def _telling(series: PublicSeries, number: int, tell: Tell) -> Callable[[ScanProgress], None]:
    """Return what tells how far the scan of one pattern is, as a part of all of them."""

    def told(at: ScanProgress) -> None:
        share = (number + at.done / max(at.total, 1)) / len(series.revisions)
        tell(share, f"scanning {series.repository} {at.name}, {at.done} of {at.total}")

    return told


def _joined(reasons: list[str]) -> str:
    return " ".join(dict.fromkeys(reasons))


def _write_text(path: Path) -> Path:
    """Write the text to measure on: the test part of the first that can be had."""
    for name in PUBLIC_TEXTS:
        try:
            return write_text(path, "".join(find_text(name).blocks("test")))
        except OSError:  # neither here nor on the hub
            continue
    raise FileNotFoundError(f"The public series need one of the texts {', '.join(PUBLIC_TEXTS)}. Add one.")
