"""Kept results and the document on them: `make results` keeps a full reproduction, `make docs` writes the document.

`results/` holds the small part of a full reproduction: results and tables. `docs/results.md` and its pictures come from
them, so every number in the document is a kept one.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from joma.claims import Answer
from joma.claims.table import markdown, number_rows, rows
from joma.claims.text import filled
from joma.paper.experiment import MODULES
from joma.paper.reproduce import FILE_NAME, RESULT, ExperimentResult, Reproduction, charts_of
from joma.store.files import write_text

RESULTS, DOCUMENT, PICTURES = Path("results"), Path("docs/results.md"), Path("docs/results")
SHORT_COMMIT = 8
"""Letters of a commit that are shown."""
MOST_BYTES = 10_000_000
"""What the kept results may take in all."""
TEMPLATE = """\
<!-- Written from results/ by `make docs`; a test keeps it current. Do not edit. -->

# Results at full size

Each claim of the paper has an outcome by one rule: its 95 % interval lies past the threshold, and the difference to its
control excludes zero. The runs are those of version 0.1, except for those of the alarm. Some claims were restated on
these kept results: their thresholds, and which claims share Holm's correction, were chosen after the results were
known. They are figure5-levels, figure6-rebound, figure6-rank, rebound-ingredients, figure8-collapse, figure8-dip,
figure7-rank, figure10-patterns, fig9-lines, table1-numbers, table1-training and table1-trees; fresh runs have to
confirm them. Rises of figures 6 and 8 are measured from the lowest raw value of each run, which makes them somewhat too
large.

{{ claims }}
{% for result in experiments %}

## {{ result.title }}

{{ result.question }}
{% for chart in result.charts[:1] %}

![{{ chart.title }}](results/{{ chart.id }}.svg)

*{{ chart.title }}.* {{ chart.caption }}
{% endfor %}
{% for answer in result.answers %}

<a id="{{ answer.claim }}"></a>

### {{ answer.claim }}: {{ answer.outcome }}

{{ text(answer) or answer.says }}

{{ numbers(answer) }}
{% endfor %}

Where the numbers come from:

{{ provenance(result) }}
{% endfor %}
"""


def keep(out: Path, root: Path) -> None:
    """Copy results and tables of a reproduction into the repository, and write of them."""
    for name in MODULES:
        source, target = out / name, root / RESULTS / name
        if (source / RESULT).exists():
            shutil.rmtree(target, ignore_errors=True)
            for path in (source / RESULT, *(source / "tables").glob("*.parquet")):
                (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / path.relative_to(source))
    size = sum(path.stat().st_size for path in (root / RESULTS).rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"Kept results must stay below {MOST_BYTES:,} bytes, got {size:,}.")
    write(root)


def kept(root: Path) -> list[ExperimentResult]:
    """Read the kept results, in the paper's order."""
    paths = [root / RESULTS / name / RESULT for name in MODULES]
    return [ExperimentResult.model_validate_json(path.read_bytes()) for path in paths if path.exists()]


def document(root: Path) -> str:
    """Return docs/results.md."""
    found = kept(root)
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, autoescape=False)  # Markdown, not HTML
    return environment.from_string(TEMPLATE).render(
        claims=markdown(rows([answer for result in found for answer in result.answers])),
        experiments=found,
        text=text,
        numbers=lambda answer: markdown(number_rows(answer)) if answer.numbers else "",
        provenance=lambda result: markdown([_origin(row) for row in result.provenance]) if result.provenance else "",
    )


def text(answer: Answer) -> str:
    """Return the text on a claim without its heading; other claims are linked by their anchors."""
    lines = [line for line in (filled(answer) or "").splitlines() if not line.startswith("# ")]
    return re.sub(r"\]\(([\w-]+)\.md\)", r"](#\1)", "\n".join(lines))


def _origin(row: dict[str, Any]) -> dict[str, str]:
    shown = {name: str(row.get(name) or "") for name in ("task", "commit", "precision", "device", "computed")}
    return shown | {"commit": shown["commit"][:SHORT_COMMIT]}


def write(root: Path, *, pictures: bool = True) -> None:
    """Write the summary of the kept results, the document and its pictures."""
    found = kept(root)
    summary = Reproduction(preset="full", experiments=tuple(found))
    write_text(root / RESULTS / FILE_NAME, summary.model_dump_json(indent=1, exclude={"folder"}) + "\n")
    write_text(root / DOCUMENT, document(root))
    for result in found if pictures else ():
        for chart in charts_of(root / RESULTS, result)[:1]:
            chart.save(root / PICTURES, ("svg",))


if __name__ == "__main__":
    keep(Path(sys.argv[2]), Path()) if sys.argv[1:2] == ["keep"] else write(Path())
