"""Interactive pictures as parts of a page: their data beside them as JSON, drawn when they come into view."""

import json
from typing import TYPE_CHECKING

from markupsafe import Markup

from joma.page.simulation import PLOT_OPTIONS

if TYPE_CHECKING:
    import plotly.graph_objects as go


def plot_scripts() -> Markup:
    """Return plotly's script and the options of all plots of a page, for the one place of a page that needs them."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415

    return Markup('<script type="application/json" id="plot-options">{}</script><script>{}</script>').format(
        script_json(json.dumps(PLOT_OPTIONS)), Markup(get_plotlyjs())
    )


def plot(figure: "go.Figure", label: str) -> Markup:
    """Return a place with the figure's data, which `page.js` draws; `label` is for those who cannot see it."""
    height = int(figure.layout.height)
    figure.layout.height = None  # the place has it, so that nothing moves when it is drawn
    return Markup(
        '<div class="figure" role="figure" aria-label="{}" style="height:{}px">'
        '<script type="application/json">{}</script></div>'
    ).format(label, height, script_json(figure.to_json()))


def script_json(text: str) -> Markup:
    r"""Make JSON safe inside of a script element: no `<` can end it, no line separator can end a line.

    >>> script_json('{"name": "</script>"}')
    Markup('{"name": "\\u003c/script>"}')
    """
    for character in ("<", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
