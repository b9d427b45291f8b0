"""A recorded training as a film: the attention entropy of every head, step by step."""

from pathlib import Path
from typing import Any

import numpy as np

from joma.metrics import metric_named
from joma.page.runs import ALL_HEADS, run_name
from joma.store import find_runs, read

METRIC = "entropy"
MAX_VALUES, MAX_FRAMES = 400_000, 400
"""Numbers of all frames together, and frames; of longer records some steps are shown."""
MAX_RUNS = 50
"""Runs of a folder that can be chosen, by name."""


def film(folder: Path | None, name: str = "") -> dict[str, Any]:
    """Return the frames of a run at or below a folder; the first one when the name is empty or unknown.

    An error is one line of text, with the runs that can be chosen.
    """
    if folder is None:
        return {"runs": []}
    named = {run_name(path, folder): path for path in find_runs(folder)[:MAX_RUNS]}
    if not named:
        return {"runs": [], "error": "No run is recorded in this folder. Pass one that watch, train or scan wrote."}
    name = name if name in named else next(iter(named))
    found: dict[str, Any] = {"runs": list(named), "name": name}
    try:
        return found | _frames(named[name])
    except (ValueError, OSError) as error:  # damaged, or nothing to show
        return found | {"error": " ".join(str(error).split())}


def _frames(folder: Path) -> dict[str, Any]:
    table = read(folder)
    table = table[(table["flag"] == "") & np.isfinite(table["value"])]
    rows = table[table["metric"] == METRIC]
    if rows.empty:
        raise ValueError("This run has no attention entropy. Measure it with joma.watch or joma train.")
    if (rows["head"] != ALL_HEADS).any():
        rows = rows[rows["head"] != ALL_HEADS]
    frames = rows.pivot_table(index="step", columns=["layer", "head"], values="value", aggfunc="mean")
    most = max(2, min(MAX_FRAMES, MAX_VALUES // frames.shape[1]))
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(most, len(frames))).round().astype(int))
    frames = frames.iloc[chosen]
    layers = frames.T.groupby(level="layer").mean().T
    loss = table[table["metric"] == "loss"].groupby("step")["value"].mean()
    loss = np.interp(frames.index, loss.index, loss) if len(loss) else []
    return {
        "label": metric_named(METRIC).axis,
        "steps": frames.index.tolist(),
        "cells": [[int(layer), "all" if head == ALL_HEADS else str(head)] for layer, head in frames.columns],
        "values": _rounded(frames.to_numpy()),
        "layers": [int(layer) for layer in layers.columns],
        "means": _rounded(layers.to_numpy().T),
        "loss": [round(float(value), 4) for value in loss],
        "lowest": float(frames.min().min()),
        "highest": float(frames.max().max()),
    }


def _rounded(values: np.ndarray) -> list[list[float | None]]:
    return [[round(value, 3) if np.isfinite(value) else None for value in row] for row in values.tolist()]
