"""Results for the repository, from the folder of a reproduction: `python -m joma.experiments.keeping joma-out .`."""

import json
import shutil
import sys
from pathlib import Path

from PIL import Image

from joma.experiments import documents, record
from joma.experiments.publication import FIGURES, TABLES
from joma.experiments.publication import FILE_NAME as RESULT
from joma.experiments.record import Status
from joma.experiments.reproduction import charts_of
from joma.store.files import write_text

MOST_BYTES = 2 * 10**6
"""What the kept records and tables may take in all."""
PICTURE = ".png"
COLOURS = 256


def keep(out: Path, root: Path) -> list[Path]:
    """Copy records and tables of a reproduction to `results/`, its pictures to `docs/results/`, and write the document.

    What is not small stays behind: training runs, CSV beside Parquet, other formats of the pictures. An unfinished
    experiment is kept as the part that it is, and the document says so before anything else.
    """
    done = record.read(out)
    if ids := [each.id for each in done.experiments if each.status is Status.FAILED]:
        raise ValueError(f"A kept experiment must not have failed, as {', '.join(ids)} did in {out}. Run it again.")
    sources = _small_files(out, [each.id for each in done.experiments])
    size = sum(path.stat().st_size for path in sources)
    if size > MOST_BYTES:
        largest = max(sources, key=lambda path: path.stat().st_size)
        raise ValueError(f"Kept results must stay below {MOST_BYTES:,} bytes, got {size:,}. Make {largest} smaller.")
    pictures = [
        (out / each.id / FIGURES / f"{chart}{PICTURE}", Path(each.id))
        for each in done.experiments
        for chart in each.charts
    ]
    if missing := [str(path) for path, _ in pictures if not path.exists()]:
        raise FileNotFoundError(
            f"Every chart needs its picture, and {missing[0]} is not there. Run the experiment again."
        )
    results, figures = root / documents.RESULTS, root / documents.FIGURES
    for folder in (results, figures):  # only now, when all that is kept is there
        shutil.rmtree(folder, ignore_errors=True)
    written = [_copy(path, results / path.relative_to(out)) for path in sources]
    for each in done.experiments:
        if each.charts:
            written.append(write_text(results / each.id / documents.CAPTIONS, _captions(out, each.id)))
    written += [_smaller(picture, figures / place / picture.name) for picture, place in pictures]
    return [*written, *documents.write(root)]


def _smaller(source: Path, target: Path) -> Path:
    """Copy a picture with as many colours as one byte counts: a third of the size, and nothing to see of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(source) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    return target


def _captions(out: Path, name: str) -> str:
    """What the charts of an experiment are called and what is said below them, by their id, as JSON."""
    words = {chart.id: {"title": chart.title, "caption": chart.caption} for chart in charts_of(out, name)}
    return json.dumps(words, indent=1, ensure_ascii=False) + "\n"


def _small_files(out: Path, ids: list[str]) -> list[Path]:
    tables = [path for name in ids for path in sorted((out / name / TABLES).glob("*.parquet"))]
    return [out / record.FILE_NAME, *(out / name / RESULT for name in ids), *tables]


def _copy(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(source, target))


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
