"""A simulation on disk and on a page: CSV, JSON, charts and the table of components."""

import json
from pathlib import Path

import pandas as pd

from joma.charts import plot, simulation_charts
from joma.claims.table import short
from joma.page.site import Page, figure, render, table, write_single
from joma.store.files import write_bytes, write_text
from joma.theory.simulation import Simulation, SimulationConfig

RECORD = "simulation.json"
TITLE = "How weights and attention learn together"
LEAD = "One hidden node of the layer that the JoMA paper (arXiv:2310.00535) analyses: its weights v over time."


def write_simulation(simulation: Simulation, folder: Path | str) -> list[Path]:
    """Write CSV, JSON, pictures and a page into the folder, which is made if need be; return their paths."""
    folder = Path(folder)
    record = json.dumps(simulation.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return [
        write_text(folder / "simulation.csv", pd.DataFrame(simulation.columns()).to_csv(index=False)),
        write_text(folder / RECORD, record),
        write_bytes(folder / "simulation.png", plot(simulation).render("png")),
        write_single(folder / "simulation.html", [simulation_page(simulation)], title=TITLE, lead=LEAD),
    ]


def read_simulation(record: Path) -> SimulationConfig:
    """Read back what was simulated, refusing a file that holds anything else."""
    try:
        return SimulationConfig(**json.loads(record.read_text(encoding="utf8"))["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{record} is not a record of `joma simulate --out` ({type(error).__name__}: {error}). Write it again, or "
            "remove it."
        ) from None


def simulation_page(simulation: Simulation, slug: str = "simulation") -> Page:
    """Return the page of one simulation."""
    rows = [{name: short(float(value), 5) for name, value in row.items()} for row in simulation.summary_rows()]
    charts = [figure(chart) for chart in simulation_charts(simulation)]
    body = render(
        "simulation",
        effects=table([{"name": name, "value": short(value, 6)} for name, value in simulation.effects().items()]),
        charts=charts,
        table=table(rows),
        exact=simulation.exact,
        obstacle=simulation.obstacle,
    )
    return Page(slug=slug, title=simulation.title, group="Theory", body=body, summary=charts[0])
