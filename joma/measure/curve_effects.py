"""Effects and names of all curves in a record: one rule for train, watch, scan and the report."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joma.measure.effects import Effects, Name, describe, name_of
from joma.metrics import METRICS

if TYPE_CHECKING:
    import pandas

ALL_HEADS = -1
FRACTION = "entropy_fraction"
DESCRIBED = ("entropy", "entropy_window", "stable_rank")
"""Metrics whose curves are described."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveEffects:
    """What the curve of one metric does at one site."""

    metric: str
    layer: int
    site: str
    effects: Effects
    name: Name


def curve_effects(table: "pandas.DataFrame") -> list[CurveEffects]:
    """Describe every curve of the `DESCRIBED` metrics over all heads, by layer, site and metric.

    Whether attention has collapsed or is uniform is read off its entropy as a fraction of the maximum, where recorded.
    Values that are not finite are left out.

    Args:
        table: rows of a record with step, metric, layer, site, head and value, as `joma.read` returns them.
    """
    wanted = table[(table["head"] == ALL_HEADS) & table["metric"].isin([*DESCRIBED, FRACTION])]
    wanted = wanted[np.isfinite(wanted["value"].astype(float))].sort_values("step")
    found = {}
    for (layer, site, metric), rows in wanted.groupby(["layer", "site", "metric"], observed=True):
        known = METRICS[metric]
        maximum = known.bounds[1] if np.isfinite(known.bounds[1]) else None
        effects = describe(rows["step"].to_numpy(), rows["value"].to_numpy(), bounds=known.bounds, maximum=maximum)
        found[layer, site, metric] = effects, name_of(effects, smallest=known.change_from(effects.start.value))
    result = []
    for (layer, site, metric), (effects, name) in found.items():
        if metric == FRACTION:
            continue
        by_fraction = found.get((layer, site, FRACTION), (None, None))[1] if metric == "entropy" else None
        is_extreme = by_fraction in (Name.COLLAPSED, Name.UNIFORM)
        result.append(
            CurveEffects(
                metric=metric,
                layer=int(layer),
                site=str(site),
                effects=effects,
                name=by_fraction if is_extreme and by_fraction is not None else name,
            )
        )
    return result
