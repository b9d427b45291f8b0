"""What the curves of a watch did, in words."""

from typing import TYPE_CHECKING

from joma.figures.numbers import layer_name
from joma.probe.measurement import ALL_HEADS

if TYPE_CHECKING:
    import pandas

CURVES = {
    "entropy_fraction": ("Entropy", " as a fraction of its maximum", 0.0, 1.0),
    "stable_rank": ("Stable rank", "", 1.0, None),
}
"""Metrics that are told, with their name, their unit and the smallest and largest value possible."""


def curves_in_words(frame: "pandas.DataFrame") -> list[str]:
    """Return a line for the entropy and for the rank of every site: from where to where, and the regime."""
    from joma.measure.regime import classify

    lines = []
    for metric, (name, unit, lower, upper) in CURVES.items():
        chosen = frame[(frame["metric"] == metric) & (frame["head"] == ALL_HEADS)].dropna(subset="value")
        for (layer, site), curve in chosen.groupby(["layer", "site"], sort=True):
            steps, values = curve["step"].to_numpy(), curve["value"].to_numpy()
            # Rounding may carry a value over its bound, for a matrix of rank one, say.
            lowest, most = min(lower, values.min()), None if upper is None else max(upper, values.max())
            regime = classify(steps, values, lower=lowest, upper=most)
            course = f"{values[0]:.3g} → {values[-1]:.3g}"
            where = f"{layer_name(int(layer), 'of')} ({site})"
            lines.append(f"{name} {where}{unit}: {course}, {regime.kind}. {regime.why}")
    return lines
