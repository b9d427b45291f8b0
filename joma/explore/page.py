"""The explorer's page: served to this machine, or written as one file that needs no server."""

import base64
import gzip
import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from joma.charts import bundle_files
from joma.checks.check import checks
from joma.claims import statements
from joma.explore import playback, sliders
from joma.page.live import LocalServer
from joma.page.site import table, templates
from joma.store.files import write_text

ASSETS = (("joma.page", "page.css"), ("joma.explore", "explore.css"), ("joma.explore", "explore.js"))
TRY = {
    "thm1-linear": "flow=saliency&attention=linear",
    "thm1-exp": "flow=saliency",
    "thm1-temperature": "flow=saliency&temperature=0.5",
    "thm1-rates": "flow=model&rate_ratio=2",
    "thm1-softmax": "flow=saliency&attention=softmax",
    "thm1-sum": "flow=saliency&attention=softmax",
    "thm2": "flow=saliency",
    "thm2-limit": "flow=saliency",
    "thm2-scan-snap": "flow=saliency",
    "thm2-softmax": "flow=saliency&attention=softmax",
    "lemma2": "flow=clusters",
    "thm3": "flow=clusters",
    "eqn6": "flow=model",
    "eqn6-rate": "flow=model",
    "eqn80": "flow=printed",
    "thm4": "flow=printed",
    "thm4-order": "flow=printed",
    "thm4-linear": "flow=printed&attention=linear",
    "fig4": "flow=normalised",
    "fig4-condition": "flow=printed",
}
"""Settings of the sliders that show a statement."""


class ExploreServer(LocalServer):
    """The explorer, with the runs at or below a folder to play back."""

    assets = ASSETS

    def __init__(self, folder: Path | None = None) -> None:
        """Listen; the folder must exist."""
        super().__init__()
        self.folder = folder

    def page(self) -> str:
        """Return the page, which asks for its curves."""
        sources = [name for name in (*bundle_files(), *(name for _, name in ASSETS))]
        styles = [name for name in sources if name.endswith(".css")]
        scripts = [name for name in reversed(sources) if name.endswith(".js")]  # ours is there before charts draw
        return render(sliders.SLIDERS, self.folder, styles=styles, scripts=scripts)

    def answers(self) -> dict[str, Callable[[dict[str, str]], dict[str, Any]]]:
        """Return what gives curves for sliders, and the frames of a run."""
        return {"curves": sliders.answer, "film": lambda asked: playback.film(self.folder, asked.get("run", ""))}


def explore(folder: Path | None, ready: Callable[[str], object]) -> None:
    """Serve the explorer until Ctrl-C.

    Args:
        folder: a run, or a folder of runs, to play back; None for none.
        ready: called with the address once the server listens.
    """
    with ExploreServer(folder) as server:
        server.run(ready)


def write_static(path: Path | str, folder: Path | None = None) -> Path:
    """Write the explorer as one file that needs no server: its sliders choose from few values, computed beforehand."""
    own = {name: (files(package) / name).read_text(encoding="utf-8") for package, name in ASSETS}
    shared = bundle_files() | own
    style = "\n".join(text for name, text in shared.items() if name.endswith(".css"))
    data = {"grid": sliders.grid(), "film": playback.film(folder)}
    packed = base64.b64encode(gzip.compress(json.dumps(data, allow_nan=False).encode(), mtime=0)).decode()
    scripts = [Markup(shared[name]) for name in ("explore.js", "charts.js")]
    page = render(sliders.few_controls(), folder, inline=scripts, style=Markup(style), data=packed)
    return write_text(Path(path), page)


def render(controls: Any, folder: Path | None, **values: Any) -> str:
    """Fill the template."""
    shown = None if folder is None else os.fsencode(folder).decode("utf-8", "replace")
    look = {"styles": (), "scripts": (), "inline": (), "style": "", "data": ""}
    return (
        templates("explore")
        .get_template("explore.html.jinja")
        .render(
            controls=controls,
            folder=shown,
            starts=sliders.STARTS,
            statements=[(each, TRY.get(each.id), _checks(each.id)) for each in statements().values()],
            **look | values,
        )
    )


def _checks(statement: str) -> Markup:
    """Return how a statement is checked, as a table."""
    return table(
        [
            {
                "check": check.name,
                "against": check.against.value,
                "tolerance": f"{check.tolerance:.2g}",
                "unit": check.unit,
                "must reject": "; ".join(each.description for each in check.mutations),
            }
            for check in checks()[statement]
        ]
    )
