"""Kept results and the pages on them: `make results` keeps those of a reproduction, `make docs` writes the pages.

`results/` holds the small part of a reproduction, results and tables, of preset `full`, or of `small` where nobody has
run the full one. `docs/found/` has a page for each experiment
and a table of all claims, written from them, so every number in the pages is a kept one.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from joma.claims import Answer
from joma.claims.table import markdown, number_rows, rows
from joma.claims.text import filled, heading
from joma.paper.experiment import MODULES, experiment
from joma.paper.reproduce import FILE_NAME, RESULT, ExperimentResult, Reproduction, Status, charts_of
from joma.store.files import write_text

RESULTS, PAGES, PICTURES = Path("results"), Path("docs/found"), Path("docs/results")
SHORT_COMMIT = 8
"""Letters of a commit that are shown."""
KEPT_PRESETS = ("small", "full")
"""Presets whose results are kept. One is replaced by the same or a later one of these."""
MOST_BYTES = 10_000_000
"""What the kept results may take in all."""


def keep(out: Path, root: Path) -> None:
    """Copy finished results and tables of a reproduction into the repository, and write of them.

    A result of preset `small` never replaces a full one.
    """
    before = {result.id: KEPT_PRESETS.index(result.preset) for result in kept(root)}
    for result in kept(out, Path()):
        source, target = out / result.id, root / RESULTS / result.id
        if result.preset not in KEPT_PRESETS[before.get(result.id, 0) :] or result.status is not Status.DONE:
            continue
        shutil.rmtree(target, ignore_errors=True)
        for path in (source / RESULT, *(source / "tables").glob("*.parquet")):
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))
    size = sum(path.stat().st_size for path in (root / RESULTS).rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"Kept results must stay below {MOST_BYTES:,} bytes, got {size:,}.")
    write(root)


def kept(root: Path, folder: Path = RESULTS) -> list[ExperimentResult]:
    """Read the kept results, in the paper's order."""
    paths = [root / folder / name / RESULT for name in MODULES]
    return [ExperimentResult.model_validate_json(path.read_bytes()) for path in paths if path.exists()]


def pages(root: Path) -> dict[Path, str]:
    """Return the pages on the kept results by path: all claims, and one for each experiment."""
    found = kept(root)
    environment = Environment(loader=PackageLoader("joma.paper", "."), undefined=StrictUndefined, trim_blocks=True)
    homes = {answer.claim: result.id for result in found for answer in result.answers}
    answers = [answer.model_copy(update=_tester(result)) for result in found for answer in result.answers]
    claims = markdown(rows(answers))
    made = {PAGES / "claims.md": environment.get_template("claims.md.jinja").render(claims=_linked(claims, homes))}
    for result in found:
        made[PAGES / f"{result.id}.md"] = environment.get_template("found.md.jinja").render(
            result=result,
            presets=experiment(result.id).presets,
            heading=heading,
            text=lambda answer: text(answer, homes),
            numbers=lambda answer: markdown(number_rows(answer)) if answer.numbers else "",
            settings=markdown([{"setting": name, "value": str(value)} for name, value in result.config.items()]),
            provenance=markdown([_origin(row) for row in result.provenance]) if result.provenance else "",
            tables=sorted(path.name for path in (root / RESULTS / result.id / "tables").glob("*.parquet")),
        )
    return made


def _linked(table: str, homes: dict[str, str]) -> str:
    """Return a table whose first column links to the pages of the claims."""
    return re.sub(
        r"^\| ([\w-]+) \|",
        lambda row: f"| [{row[1]}]({homes[row[1]]}.md#{row[1]}) |" if row[1] in homes else row[0],
        table,
        flags=re.MULTILINE,
    )


def text(answer: Answer, homes: dict[str, str]) -> str:
    """Return the text on a claim without its heading; other claims are linked by the pages that hold them."""
    lines = [line for line in (filled(answer) or "").splitlines() if not line.startswith("# ")]
    return re.sub(r"\]\(([\w-]+)\.md\)", lambda link: f"]({homes[link[1]]}.md#{link[1]})", "\n".join(lines)).strip()


def _tester(result: ExperimentResult) -> dict[str, str]:
    """Return what answers call their experiment, and its preset where that is not the full one."""
    return {"tested_by": result.id if result.preset == "full" else f"{result.id} ({result.preset})"}


def _origin(row: dict[str, Any]) -> dict[str, str]:
    shown = {name: str(row.get(name) or "") for name in ("task", "commit", "precision", "device", "computed")}
    return shown | {"commit": shown["commit"][:SHORT_COMMIT]}


def write(root: Path, *, pictures: bool = True) -> None:
    """Write the summary of the kept results, the pages and their pictures."""
    found = kept(root)
    summary = Reproduction(preset="full", experiments=tuple(found))
    write_text(root / RESULTS / FILE_NAME, summary.model_dump_json(indent=1, exclude={"folder"}) + "\n")
    for path, page in pages(root).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_text(root / path, page)
    for result in found if pictures else ():
        for chart in charts_of(root / RESULTS, result)[:1]:
            chart.save(root / PICTURES, ("svg",))


if __name__ == "__main__":
    keep(Path(sys.argv[2]), Path()) if sys.argv[1:2] == ["keep"] else write(Path())
