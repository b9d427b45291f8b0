"""What each layer's curve does over a series of checkpoints, in the order of the steps and in shuffled ones."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from joma.measure.regime import classify

OURS, UNTRAINED = "trained here", "untrained"
RANK, ENTROPY = "stable_rank", "entropy"
LOWER = {RANK: 1.0, ENTROPY: 0.0}
"""Smallest values possible."""
IN_ORDER, SHUFFLED = "in order", "shuffled"
TOP, MIDDLE, BOTTOM = "top", "middle", "bottom"
NUM_SHUFFLES = 20
"""Orders of the steps that the control is averaged over."""


def regimes_of(curves: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Name what each layer's curve does, in the order of the steps and in shuffled ones; flagged values are left out.

    The series without learning keeps its flagged values: it consists of copies, as it should.
    """
    kept = curves[(curves["flag"] == "") | (curves["series"] == UNTRAINED)]
    rows = [row for key, own in kept.groupby(["series", "metric", "layer"]) for row in _orders_of(key, own, seed)]
    depth = curves.groupby("series")["layer"].max() + 1
    table = pd.DataFrame(rows)
    return table.assign(
        part=[
            part_of(int(layer), int(depth[name])) for name, layer in zip(table["series"], table["layer"], strict=True)
        ]
    )


def _orders_of(key: tuple[str, str, int], own: pd.DataFrame, seed: int) -> Iterator[dict[str, object]]:
    """Yield the regime of one curve in its order and, where the series is trained, in shuffled ones."""
    series, metric, layer = key
    own = own.sort_values("step")
    values = own["value"].to_numpy()
    rng = np.random.default_rng(seed)  # the same orders for every layer: it is checkpoints that are shuffled
    orders = [np.arange(len(values)), *(rng.permutation(len(values)) for _ in range(NUM_SHUFFLES))]
    for number, order in enumerate(orders if series != UNTRAINED else orders[:1]):
        found = classify(own["step"].to_numpy(), values[order], lower=min(LOWER[metric], float(values.min())))
        yield {
            "series": series, "metric": metric, "layer": layer, "order": SHUFFLED if number else IN_ORDER,
            "kind": found.kind.value, "start": found.start, "end": found.end, "dip_step": found.dip_step,
            "dip_depth": found.dip_depth, "rebound": found.rebound, "confidence": found.confidence, "why": found.why,
        }  # fmt: skip


def part_of(layer: int, depth: int) -> str:
    """Return whether a layer is of the upper or the lower half; the one between two halves is neither.

    >>> [part_of(layer, 3) for layer in range(3)]
    ['bottom', 'middle', 'top']
    """
    if layer < depth // 2:
        return BOTTOM
    return TOP if layer >= depth - depth // 2 else MIDDLE


def of_series(regimes: pd.DataFrame, series: str, metric: str, order: str) -> pd.DataFrame:
    """Return the regimes of one series, metric and order, the bottom layer first."""
    chosen = (regimes["series"] == series) & (regimes["metric"] == metric) & (regimes["order"] == order)
    return regimes[chosen].sort_values("layer")


def turns_of(curves: pd.DataFrame, series: str, metric: str) -> pd.DataFrame:
    """Return for each layer of a series the curve's first, lowest and last value, as they are, whatever its regime.

    Indexed by layer, the bottom one first; flagged values are left out where the series is trained.
    """
    own = curves[(curves["series"] == series) & (curves["metric"] == metric)]
    own = own if series == UNTRAINED else own[own["flag"] == ""]
    by_layer = own.sort_values("step").groupby("layer")
    lowest = own.loc[by_layer["value"].idxmin()].set_index("layer")
    turns = pd.DataFrame({"first": by_layer["value"].first(), "last": by_layer["value"].last()})
    turns = turns.assign(lowest=lowest["value"], step=lowest["step"])
    turns["fall"], turns["rise"] = turns["first"] - turns["lowest"], turns["last"] - turns["lowest"]
    depth = int(curves.loc[curves["series"] == series, "layer"].max()) + 1
    return turns.assign(part=[part_of(int(layer), depth) for layer in turns.index])


def in_words(regimes: pd.DataFrame, series: str, metric: str) -> str:
    """List what the layers do, from the bottom up, or say it once where all do the same."""
    kinds = list(of_series(regimes, series, metric, IN_ORDER)["kind"])
    return f"{kinds[0]} in all layers" if len(set(kinds)) == 1 else ", ".join(kinds)
