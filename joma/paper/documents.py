"""Kept results and the pages on them: `make results` keeps those of a reproduction, `make docs` writes the pages.

`results/` holds the small part of a reproduction, results and tables, of preset `full`, or of `small` where nobody has
run the full one. Of it are written a page for each experiment in `docs/found/`, and all claims and all numbers in
`docs/reference/`, so every number in the pages is a kept one.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from joma.charts import Chart, lines
from joma.claims import Answer
from joma.claims.table import markdown, number_rows, rows
from joma.claims.text import filled, heading, named, short_answer
from joma.paper.experiment import MODULES, caption, experiment, select
from joma.paper.language_models import PAPER
from joma.paper.reproduce import FILE_NAME, RESULT, ExperimentResult, Reproduction, Status, charts_of
from joma.store.files import write_text

RESULTS, PAGES, REFERENCE, PICTURES = Path("results"), Path("docs/found"), Path("docs/reference"), Path("docs/results")
SHORT_COMMIT = 8
"""Letters of a commit that are shown."""
KEPT_PRESETS = ("small", "full")
"""Presets whose results are kept. One is replaced by the same or a later one of these."""
SHOWN_DEPTH = 2
"""Depth of the models in the first picture: two layers are easy to see."""
MANY = 20
"""Numbers of a claim from which a page shows only those that the text names."""
DATE = 10
"""Letters of a time that are its date."""
SHARED = ("number", "setting", "control is", "unit")
"""Columns of numbers that are written once above a table when all rows share them."""
SWITCHES = ("is_", "needs_")
"""Beginnings of settings that choose a preset and are no part of it."""
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
    """Return the pages on the kept results by path: one for each experiment, all claims, and all numbers."""
    found = kept(root)
    environment = Environment(loader=PackageLoader("joma.paper", "."), undefined=StrictUndefined, trim_blocks=True)
    homes = {answer.claim: result.id for result in found for answer in result.answers}
    claims = markdown(
        [
            {name: value for name, value in row.items() if name != "tested by"}  # the first column leads there
            | {"outcome": f"{row['outcome']} (small)" if result.preset == "small" else row["outcome"]}
            for result in found
            for row in rows(result.answers)
        ]
    )
    made = {
        REFERENCE / "claims.md": environment.get_template("claims.md.jinja").render(claims=_linked(claims, homes)),
        REFERENCE / "numbers.md": environment.get_template("numbers.md.jinja").render(
            results=found,
            numbered=numbered,
            numbers=lambda answer: markdown(number_rows(answer)),
            provenance=lambda result: markdown([_origin(row) for row in result.provenance]),
        ),
    }
    for result in found:
        made[PAGES / f"{result.id}.md"] = environment.get_template("found.md.jinja").render(
            result=result,
            presets=experiment(result.id).presets,
            charts=[chart.model_copy(update=words_of(chart.id)) for chart in result.charts[:1]],
            title=numbered(result.title, result.id),
            answer=_with_pages(short_answer(result.id, result.answers) or "", homes),
            heading=heading,
            text=lambda answer: text(answer, homes),
            table=judged,
            settings="; ".join(
                f"`{name}` {_setting(value)}" for name, value in result.config.items() if not name.startswith(SWITCHES)
            ),
            tables=sorted(path.name for path in (root / RESULTS / result.id / "tables").glob("*.parquet")),
        )
    return made


def words_of(chart: str) -> dict[str, str]:
    """Return title and caption of a chart as they are now; a kept result has those of the day it was computed."""
    try:
        row = caption(chart)
    except KeyError:  # its title is made from what was found
        return {}
    return {name: row[name] for name in ("title", "caption") if name in row}


def numbered(title: str, experiment: str) -> str:
    """Return the title of an experiment after the figure or table that it rebuilds, so that a reader finds it.

    >>> numbered("One wins", "figures2-3"), numbered("What it needs", "rebound-controls")
    ('Figures 2 and 3. One wins', 'What it needs')
    """
    found = re.match(r"(figures?|table)(\d+)(?:-(\d+)$)?", experiment)
    if not found:
        return title
    number = f"{found[2]} and {found[3]}" if found[3] else found[2]
    return f"{found[1].capitalize()} {number}. {title}"


def judged(answer: Answer) -> str:
    """Return the numbers that decide a claim: what they share in a line, then a table.

    Where none decides, these are all numbers, or those that the text names if there are many.
    """
    numbers = [each for each in answer.numbers if each.is_judged] or list(answer.numbers)
    numbers = named(answer) or numbers if len(numbers) > MANY else numbers
    chosen = number_rows(answer.model_copy(update={"numbers": tuple(numbers)}))
    if not chosen:
        return ""
    shared = {name: chosen[0][name] for name in SHARED if len({row[name] for row in chosen}) == 1}
    line = " · ".join(f"*{name.removesuffix(' is')}:* {value}" for name, value in shared.items() if value)
    for row in chosen:
        for name, words in (("number", "unit"), ("control", "control is")):
            if row[words] and words not in shared:
                row[name] += f" ({row[words]})"
            del row[words]
    table = [{name: value for name, value in row.items() if name not in shared} for row in chosen]
    return f"{line}\n\n{markdown(table)}".strip()


def _linked(table: str, homes: dict[str, str]) -> str:
    """Return a table whose first column links to the pages of the claims."""
    return re.sub(
        r"^\| ([\w-]+) \|",
        lambda row: f"| [{row[1]}](../found/{homes[row[1]]}.md#{row[1]}) |" if row[1] in homes else row[0],
        table,
        flags=re.MULTILINE,
    )


def _with_pages(text: str, homes: dict[str, str]) -> str:
    """Return a text whose links to claims lead to the pages that hold them."""
    return re.sub(r"\]\(([\w-]+)\.md\)", lambda link: f"]({homes[link[1]]}.md#{link[1]})", text)


def text(answer: Answer, homes: dict[str, str]) -> str:
    """Return the text on a claim without its heading; other claims are linked by the pages that hold them."""
    lines = [line for line in (filled(answer) or "").splitlines() if not line.startswith("# ")]
    return _with_pages("\n".join(lines), homes).strip()


def _setting(value: Any) -> str:
    """Return a setting as it is read best: lists and mappings without brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_setting(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(f"({_setting(each)})" if isinstance(each, list) else _setting(each) for each in value)
    return str(value)


def _origin(row: dict[str, Any]) -> dict[str, str]:
    shown = {name: str(row.get(name) or "") for name in ("task", "commit", "precision", "device", "computed")}
    return shown | {"commit": shown["commit"][:SHORT_COMMIT], "computed": shown["computed"][:DATE]}


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
    if pictures and (curves := root / RESULTS / "figure6" / "tables" / "curves.parquet").exists():
        rebound(pd.read_parquet(curves)).save(root / PICTURES, ("svg",))


def rebound(curves: pd.DataFrame) -> Chart:
    """Draw the first picture of README: the entropy of each layer at one depth, with its dip and its rise."""
    chosen = select(curves, condition=PAPER, metric="entropy", depth=SHOWN_DEPTH).sort_values("step")
    dips = chosen.loc[chosen.groupby("layer")["mean"].idxmin()]
    ends = chosen.groupby("layer").tail(1).sort_values("layer")
    rises = [f"rise {rise:+.2f}" for rise in ends["mean"].to_numpy() - dips["mean"].to_numpy()]
    marks = pd.concat([dips.assign(label="dip"), ends.assign(label=rises)])
    return lines(
        chosen,
        "step",
        "mean",
        color="layer",
        band=("low", "high"),
        x_log=True,
        marks=marks[["layer", "step", "mean", "label"]],
        id="rebound",
        title="Attention becomes sparse, then dense again",
        labels={"step": "training step", "mean": "attention entropy (nats)"},
        height=260,
    )


if __name__ == "__main__":
    keep(Path(sys.argv[2]), Path()) if sys.argv[1:2] == ["keep"] else write(Path())
