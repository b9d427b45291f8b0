"""A simulation on disk: CSV, JSON, PNG and an interactive page, each whole or absent."""

import json
import math
from pathlib import Path

import pandas as pd

from joma.charts import bundle, plot
from joma.page.document import Section, document, render
from joma.store.files import write_bytes, write_text
from joma.theory.simulation import Simulation, SimulationConfig

RECORD = "simulation.json"
TITLE = "How weights and attention learn together"
LEAD = "One hidden node of the layer that the JoMA paper (arXiv:2310.00535) analyses: its weights v over time."
PLOT_OPTIONS = {
    "responsive": True,
    "displaylogo": False,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "sendChartToCloud"],
}
DIGITS = 5
"""Significant digits of the table; the CSV has all of them."""


def write(simulation: Simulation, folder: Path | str) -> list[Path]:
    """Write simulation.csv, .json, .png and .html into the folder, which is made if need be; return their paths."""
    stem = Path(folder) / "simulation"
    return [
        write_text(stem.with_suffix(".csv"), table(simulation).to_csv(index=False)),
        write_text(stem.with_name(RECORD), _json(simulation)),
        write_bytes(stem.with_suffix(".png"), plot(simulation).render("png")),
        write_text(stem.with_suffix(".html"), document(TITLE, LEAD, [section(simulation)])),
    ]


def read(record: Path) -> SimulationConfig:
    """Read back what was simulated from the JSON that `write` left, refusing a file that holds anything else."""
    try:
        return SimulationConfig(**json.loads(record.read_text(encoding="utf8"))["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{record} is not a record of `joma simulate --out`: {type(error).__name__}, {error}. Remove it, or write "
            "it again."
        ) from None


def table(simulation: Simulation) -> pd.DataFrame:
    """Return every reported quantity over time, one row for each time."""
    return pd.DataFrame(simulation.columns())


def section(simulation: Simulation, *, with_bundle: bool = True) -> Section:
    """Return the simulation as a part of a page; with several on one page, only the first needs the bundle."""
    body = render(
        "simulation",
        remarks=simulation.remarks(),
        plot=plot(simulation).html() + (bundle() if with_bundle else ""),
        symbol=simulation.flow.target_symbol,
        rows=[[_cell(value) for value in row.values()] for row in simulation.summary_rows()],
        exact=simulation.exact,
        integrated=not simulation.obstacle,
    )
    return Section(anchor=f"simulation-{simulation.config.flow}", title=simulation.title, body=body)


def _cell(value: int | float) -> dict[str, str]:
    if math.isnan(value):  # a limit that is not known
        return {"raw": "", "text": ""}
    return {"raw": str(value).replace("inf", "Infinity"), "text": f"{value:.{DIGITS}g}".replace("inf", "∞")}


def _json(simulation: Simulation) -> str:
    return json.dumps(simulation.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
