"""The lines of a watch's report that tell what entropy and stable rank did."""

from typing import TYPE_CHECKING

from joma.figures.numbers import layer_name
from joma.measure.curve_effects import curve_effects
from joma.metrics import METRICS

if TYPE_CHECKING:
    import pandas


def curves_in_words(frame: "pandas.DataFrame") -> list[str]:
    """Return a line for each layer's entropy and stable rank: start, lowest value with its step, end and name."""
    lines = []
    for each in sorted(curve_effects(frame), key=lambda found: found.metric):
        effects, metric = each.effects, METRICS[each.metric]
        where = f"{layer_name(each.layer, 'of')} ({each.site})"
        course = f"{effects.start.value:.3g} → {effects.lowest.value:.3g} (step {effects.dip_time.value:,.0f})"
        lines.append(f"{metric.axis.capitalize()} {where}: {course} → {effects.end.value:.3g}, {each.name}")
    return lines
