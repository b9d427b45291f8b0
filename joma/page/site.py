"""HTML pages from templates: an index with a page for each subject, or all of it in one self-contained file.

Every word from outside is escaped by the templates. Pages need no network: style, script and the charts' library lie
in `assets/`, or in the file itself.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import joma
from joma.charts import Chart, bundle, bundle_files
from joma.claims.table import short
from joma.store.files import write_text

NUMBER = re.compile(r"[-−]?\d[\d,.]*(e[-+]?\d+)?( ±.*)?|[≤≥] .*|∞|–?")
"""Cells that are set flush right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page: its file name, its title and its HTML."""

    slug: str
    title: str
    body: Markup
    group: str = ""
    """Heading under which the navigation lists it."""
    summary: str = ""
    """What the index shows of it."""
    label: str = ""
    """Its short name in the navigation; the title if empty."""
    headline: int = 0
    """Its place among the pages that the index shows first, from 1; 0 for none of them."""


def render(template: str, **values: Any) -> Markup:
    """Fill one of the templates in this folder."""
    return Markup(templates("page").get_template(f"{template}.html.jinja").render(**values))


def table(rows: Sequence[dict[str, Any]], *, outcomes: bool = False) -> Markup:
    """Return rows as a sortable table; columns that are empty throughout are left out.

    Args:
        rows: Cells by the name of their column: text, `Markup`, or numbers, which get few digits.
        outcomes: Whether the column `outcome` can be filtered and has colours.
    """
    cells = [{name: cell if isinstance(cell, str) else short(cell) for name, cell in row.items()} for row in rows]
    names = [name for name in (cells[0] if cells else ()) if any(row[name] for row in cells)]
    numeric = {name: all(NUMBER.fullmatch(row[name]) for row in cells) for name in names}
    return render("table", rows=cells, names=names, numeric=numeric, outcomes=outcomes)


def link(address: str, text: str) -> Markup:
    """Return a link to another page, `page.html#place`, or to a place on the same page."""
    return Markup('<a href="{}">{}</a>').format(address, text)


def figure(chart: Chart) -> Markup:
    """Return a chart as it stands on a page."""
    return Markup(chart.html())


def write(folder: Path, pages: Sequence[Page], *, title: str, lead: str) -> Path:
    """Write an index and a page for each subject into a folder, with the style and scripts that they share."""
    shared = {**bundle_files(), "joma.css": _file("page.css"), "joma.js": _file("page.js")}
    for name, content in shared.items():
        write_text(folder / "assets" / name, content)
    styles = [name for name in shared if name.endswith(".css")]
    scripts = [name for name in shared if name.endswith(".js")]
    assets = render("assets", styles=styles, scripts=scripts)
    common = {"title": title, "lead": lead, "pages": pages, "assets": assets}
    for page in pages:
        _write(folder / f"{page.slug}.html", render("page", page=page, **common))
    return _write(folder / "index.html", render("index", **common))


def write_single(path: Path, pages: Sequence[Page], *, title: str, lead: str) -> Path:
    """Write all pages as one self-contained file, in which links between pages lead to its sections."""
    assets = Markup(f"<style>{_file('page.css')}</style>{bundle()}<script type=module>{_file('page.js')}</script>")
    names = "|".join(re.escape(page.slug) for page in pages)
    one = str(render("single", assets=assets, title=title, lead=lead, pages=pages))
    one = re.sub(rf'href="(?:{names})\.html(#[^"]+)"', r'href="\1"', one)
    one = re.sub(rf'href="({names})\.html"', r'href="#\1"', one)
    return _write(path, one.replace('"index.html"', '"#"'))


def _file(name: str) -> str:
    return (files("joma.page") / name).read_text(encoding="utf8")


def _write(path: Path, page: str) -> Path:
    """Write a page; what UTF-8 cannot hold, from JSON or names of folders, is replaced."""
    return write_text(path, page.encode("utf-8", "replace").decode("utf-8"))


def groups(pages: Iterable[Page]) -> dict[str, list[Page]]:
    """Return pages by the heading under which they are listed."""
    found: dict[str, list[Page]] = {}
    for page in pages:
        found.setdefault(page.group, []).append(page)
    return found


def code(text: str) -> Markup:
    """Escape a text and show what stands between backticks as code.

    >>> code("`joma report` <here>")
    Markup('<code>joma report</code> &lt;here&gt;')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def prose(text: str, addresses: Mapping[str, str]) -> Markup:
    r"""Return a hand-written text (headings, bold, links, code, paragraphs) as HTML, without its first heading.

    Links to documents that are on none of the pages become plain text.

    >>> prose("# Found\n\n**We find** `x`, see [that](fig4-order.md).", {"fig4-order": "figure4.html#fig4-order"})
    Markup('<p><strong>We find</strong> <code>x</code>, see <a href="figure4.html#fig4-order">that</a>.</p>')
    """

    def linked(found: re.Match[str]) -> str:
        return link(addresses[found[2]], Markup(found[1])) if found[2] in addresses else found[1]

    paragraphs = [part for part in text.split("\n\n") if part.strip() and not part.startswith("# ")]
    found = []
    for part in paragraphs:
        line = str(code(" ".join(part.split())))
        line = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", line)
        line = re.sub(r"\[([^\]]+)\]\((?:[\w.-]+/)*([\w-]+)\.md(?:#[\w-]+)?\)", linked, line)
        found.append(f"<p>{line}</p>")
    return Markup("".join(found))


@cache
def templates(folder: str) -> Environment:
    """Return the templates of a folder of joma. They escape what they are given and refuse names without a value."""
    look: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader("joma", folder), autoescape=True, **look)
    environment.filters |= {"code": code, "slug": lambda text: re.sub(r"\W+", "-", str(text)).strip("-")}
    environment.globals |= {"groups": groups, "version": joma.__version__}
    return environment
