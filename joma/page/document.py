"""One self-contained HTML document from sections; every word from outside is escaped by the templates."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import joma
from joma.figures.numbers import short

BACKTICKS = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page: its anchor, its heading and its HTML."""

    anchor: str
    title: str
    body: str
    short: str = ""
    """Title in the list of sections, where that is another."""


def render(template: str, **values: Any) -> str:
    """Fill one of the templates in this folder."""
    return _environment().get_template(f"{template}.html.jinja").render(**values)


def document(title: str, lead: str, sections: list[Section]) -> str:
    """Put sections on one page, with style and script inlined."""
    folder = files("joma.page")
    return render(
        "document",
        title=title,
        lead=lead,
        sections=sections,
        version=joma.__version__,
        style=(folder / "page.css").read_text(encoding="utf8"),
        script=(folder / "page.js").read_text(encoding="utf8"),
    )


def code(text: str) -> Markup:
    """Escape a text and show what stands between backticks as code.

    >>> code("`joma report` <here>")
    Markup('<code>joma report</code> &lt;here&gt;')
    """
    return Markup(BACKTICKS.sub(r"<code>\1</code>", str(escape(text))))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("joma", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["number"] = short
    environment.filters["code"] = code
    environment.filters["slug"] = lambda text: text.replace(" ", "-")
    return environment
