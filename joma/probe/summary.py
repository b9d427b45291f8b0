"""What the curves of a watch did, in words."""

from typing import TYPE_CHECKING

from joma.probe.readings import ALL_HEADS

if TYPE_CHECKING:
    import pandas

CURVES = {"entropy_fraction": ("Entropy", 1.0), "stable_rank": ("Stable rank", None)}
"""Metrics that are told, with their name and the largest value possible."""


def curves_in_words(frame: "pandas.DataFrame") -> list[str]:
    """Return a line for the entropy and for the rank of every site: from where to where, and the regime."""
    from joma.measure.regime import classify

    lines = []
    for metric, (name, upper) in CURVES.items():
        chosen = frame[(frame["metric"] == metric) & (frame["head"] == ALL_HEADS)].dropna(subset="value")
        for (layer, site), curve in chosen.groupby(["layer", "site"], sort=True):
            steps, values = curve["step"].to_numpy(), curve["value"].to_numpy()
            regime = classify(steps, values, upper=upper, lower=0.0 if upper else 1.0)
            course = f"{values[0]:.3g} → {values[-1]:.3g}"
            lines.append(f"{name} of layer {layer} ({site}): {course}, {regime.kind}. {regime.why}")
    return lines
