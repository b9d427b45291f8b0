"""A chart: a Vega-Lite spec with its title and caption, and the files and pages that are made from it.

The spec holds neither size nor theme. Both are added where it is drawn, so that one spec gives a PNG on white and an
interactive chart that follows the width and the colours of its page.
"""

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from joma.errors import import_extra
from joma.store.files import write_bytes

CHART_ID = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Ids are names of files and anchors of a page."""
FORMATS = ("png", "svg", "pdf")
VEGALITE = "6.4"
"""Version of Vega-Lite, of those that vl-convert holds."""
SCALE = 2
"""Pixels of a PNG for each unit of its size."""
WIDTH, WIDTH_OF_SEVERAL, MIN_PANEL, AXIS, GAP = 620, 900, 230, 62, 14
"""Static width of one panel and of several, the narrowest panel, and the room for a y axis and between panels."""
HEIGHTS, ASPECT = (170, 330), 0.55
"""Lowest and highest panel, and its height over its width."""
MAX_COLUMNS = 3
LEGEND_ROOM = 1000
"""Width for which builders choose the columns of legends."""
FONT = "Liberation Sans"
"""Comes with vl-convert, so that a file looks the same on every machine. One font in one weight: vl-convert writes
several into a PDF in random order."""
MIME, SCHEMA = "application/vnd.vegalite.v6+json", "https://vega.github.io/schema/vega-lite/v6.json"


THEMES: dict[str, Any] = tomllib.loads((files("joma.charts") / "themes.toml").read_text(encoding="utf8"))
"""Colours of a `light` and a `dark` page, and the `config` of Vega-Lite that names them."""


def config(theme: str) -> dict[str, Any]:
    """Return the config of Vega-Lite in the colours of a theme, `light` or `dark`."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        return THEMES[theme][value[1:]] if isinstance(value, str) and value.startswith("$") else value

    return filled(THEMES["config"]) | {"view": {"stroke": None}}  # TOML has no null


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart with its title and caption; the last expression of a notebook's cell shows it."""

    id: str
    """Name of its files, and its anchor on a page."""
    title: str
    """States what is shown."""
    caption: str
    """One or two sentences: what to look for, what bands and error bars are."""
    spec: dict[str, Any] = field(repr=False)
    """Vega-Lite without title, size and theme, as pages hold it: data in columns, which charts.js turns into rows."""

    def __post_init__(self) -> None:
        """Refuse an id that is no file name."""
        if not CHART_ID.fullmatch(self.id):
            raise ValueError(
                f"`id` must be lower-case letters, digits, - and _, got {self.id!r}. It names the files of the chart."
            )

    def to_dict(self, width: int | None = None, *, dark: bool = False) -> dict[str, Any]:
        """Return a complete Vega-Lite spec: title, size and colours included, `width` pixels wide."""
        spec = {"$schema": SCHEMA, **deepcopy(self.spec)}
        for view in _views(spec):
            if columns := view.get("data", {}).pop("columns", None):
                view["data"]["values"] = [
                    dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
                ]
        several = len(spec.get("concat", ())) > 1 and spec["columns"] > 1
        width = width or (WIDTH_OF_SEVERAL if several else WIDTH)
        fit(spec, width)
        theme = "dark" if dark else "light"
        lines = textwrap.wrap(self.title, max(20, width // 8)) or [""]
        spec["title"] = {"text": lines, "fontSize": 16, "anchor": "start", "frame": "bounds", "offset": 12}
        spec["config"] = config(theme) | {"background": THEMES[theme]["background"], "font": FONT}
        return spec

    def render(self, kind: str, width: int | None = None, *, dark: bool = False) -> bytes:
        """Draw as `png`, `svg` or `pdf`, without a browser; the same chart gives the same bytes."""
        vl_convert = import_extra("vl_convert", "report")
        if kind not in FORMATS:
            raise ValueError(f"`kind` must be one of {', '.join(FORMATS)}, got {kind!r}. Pass one of them.")
        spec = self.to_dict(width, dark=dark)
        for view in _views(spec):
            if "layer" in view:  # without what only the pointer finds
                view["layer"] = [each for each in view["layer"] if each["mark"].get("opacity") != 0]
        options: dict[str, Any] = {"vl_version": VEGALITE, "allowed_base_urls": []}
        if kind == "png":
            return vl_convert.vegalite_to_png(spec, scale=SCALE, **options)
        svg = vl_convert.vegalite_to_svg(spec, **options)
        ids = {name: f"gradient{place}" for place, name in enumerate(dict.fromkeys(re.findall(r"gradient_\d+", svg)))}
        svg = re.sub(r"gradient_\d+", lambda found: ids[found[0]], svg)  # Vega counts them over all charts
        if kind == "svg":
            return svg.encode("utf8")
        references = rb"(?:^ +/\w+ \d+ 0 R\n)+"  # of a dictionary, which vl-convert writes in random order
        in_order = lambda found: b"".join(sorted(found[0].splitlines(keepends=True)))  # noqa: E731
        return re.sub(references, in_order, vl_convert.svg_to_pdf(svg), flags=re.MULTILINE)

    def save(self, folder: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write `<id>.<format>` files into the folder, each complete or not at all, and return their paths."""
        return [write_bytes(Path(folder) / f"{self.id}.{kind}", self.render(kind)) for kind in formats]

    def html(self) -> str:
        """Return a `<figure>` for a page that holds `bundle()` once; it draws itself when it comes into view."""
        return (
            f'<figure class="joma-chart" id="{self.id}"><figcaption><strong>{escape(self.title)}</strong> '
            f"{escape(self.caption)}</figcaption>"
            f'<div class="joma-plot" role="img" aria-label="{escape(self.title)}"></div>'
            f'<script type="application/json">{_script_json(self.spec)}</script></figure>'
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {MIME: self.to_dict(), "text/html": self._repr_html_(), "text/plain": f"{self.title}\n{self.caption}"}

    def _repr_html_(self) -> str:
        """Return a still picture, which every notebook shows, offline too."""
        return f"<figure>{self.render('svg').decode('utf8')}<figcaption>{escape(self.caption)}</figcaption></figure>"


@cache
def bundle_files() -> dict[str, str]:
    """Return the files that the pages of a site share: `charts.css`, and `charts.js` for `<script defer src>`."""
    vl_convert = import_extra("vl_convert", "report")
    drawing = (files("joma.charts") / "charts.js").read_text(encoding="utf8")
    layout = {"minPanel": MIN_PANEL, "axis": AXIS, "gap": GAP, "heights": HEIGHTS, "aspect": ASPECT}
    settings = {"light": config("light"), "dark": config("dark"), "layout": layout | {"legendRoom": LEGEND_ROOM}}
    snippet = f"(() => {{ const settings = {_script_json(settings)};\n{drawing} }})();"
    script = vl_convert.javascript_bundle(snippet, vl_version=VEGALITE).replace("</script", r"<\/script")
    style = (files("joma.charts") / "charts.css").read_text(encoding="utf8")
    return {"charts.css": style, "charts.js": f"(() => {{{script}}})();"}


def bundle() -> str:
    """Return the style and the script that one page needs once for all its charts, 0.9 MB, as HTML; no network."""
    shared = bundle_files()
    return f'<style>{shared["charts.css"]}</style><script type="module">{shared["charts.js"]}</script>'


def fit(view: dict[str, Any], width: float | int, *, with_legends: bool = True) -> None:
    """Give a spec, in place, the sizes and numbers of columns that fit a width; charts.js does the same in a page."""
    is_shared = view.get("resolve", {}).get("scale", {}).get("color") == "shared"
    if with_legends and (is_shared or "concat" not in view):
        for legend in _legends(view):
            legend["columns"] = max(1, int(legend["columns"] * width / LEGEND_ROOM))
    if "concat" in view:
        columns = min(view["columns"], len(view["concat"]), max(1, int((width + GAP) // (MIN_PANEL + GAP))))
        view["columns"], view["spacing"] = columns, GAP
        for child in view["concat"]:
            fit(child, (width - GAP * (columns - 1)) / columns, with_legends=with_legends and not is_shared)
    else:
        view["width"] = round(max(width - AXIS, 60))
        view.setdefault("height", round(min(max(view["width"] * ASPECT, HEIGHTS[0]), HEIGHTS[1])))


def num_columns(num_panels: int) -> int:
    """Return how many panels stand in a row: at most three, and two where three would leave a gap.

    >>> [num_columns(num) for num in (1, 2, 3, 4, 5, 6, 8)]
    [1, 2, 3, 2, 3, 3, 2]
    """
    if num_panels % 2 == 0 and num_panels % MAX_COLUMNS:
        return 2
    return min(num_panels, MAX_COLUMNS)


def _views(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield spec
    for child in (*spec.get("concat", ()), *spec.get("layer", ())):
        yield from _views(child)


def _legends(spec: Any) -> Iterator[dict[str, Any]]:
    """Find legends whose entries stand in columns."""
    if isinstance(spec, dict):
        legend = spec.get("legend")
        if isinstance(legend, dict) and "columns" in legend:
            yield legend
        for key, each in spec.items():
            if key not in ("datasets", "data"):
                yield from _legends(each)
    elif isinstance(spec, list):
        for each in spec:
            yield from _legends(each)


def _script_json(value: Any) -> str:
    """Write JSON that is safe inside of a script element: no `<` can end it, no separator can end a line."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in ("<", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
