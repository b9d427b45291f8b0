"""What the attention entropy does up to the lowest validation loss of its own run, before that run overfits.

Runs have their lowest loss at steps of their own, and curves their dips, so that each curve is cut and named alone: a
mean over seeds hides rebounds that come at different steps. A shorter curve shows less, so the paper's runs are cut at
the lowest losses of the others as well, seed by seed: what is missing there is not for want of an ingredient.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from joma.engine.measuring import ENTROPY, FRACTION
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import PAPER, Config
from joma.experiments.language_model_runs import SETTING, Found, validation_losses
from joma.experiments.language_model_settings import Setting
from joma.experiments.rebound_shares import Count, controlled_settings, of_judged, of_setting
from joma.measure.regime import regimes

TABLE = "until_best"
"""Name of the table. It was asked for later than the others: results kept before do not have it."""
COLUMNS = [*SETTING, "seed", "layer", "best_of", "best_step", "kind", "confidence"]
"""`best_of` is the condition whose run of this seed and depth has its lowest loss at `best_step`."""


def regimes_until_best(found: list[Found], config: Config) -> pd.DataFrame:
    """Name every layer's curve up to the lowest loss of its run, as it is and with one ingredient taken away."""
    wanted = controlled_settings(config)
    tables = [(each, each.table()) for each in found if _setting(each) in wanted]
    best_steps = {_place(each, each.condition): validation_losses(table).idxmin() for each, table in tables}
    rows: list[dict[str, Any]] = []
    for each, table in tables:
        for name in (PAPER, *config.controls) if each.condition == PAPER else (each.condition,):
            if (best_step := best_steps.get(_place(each, name))) is not None:
                cut = table[table["step"] <= best_step]
                rows += [{**row, "best_of": name, "best_step": best_step} for row in _rows(each, cut)]
    return pd.DataFrame(rows, columns=COLUMNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class UntilBest:
    """How many curves rebound up to the lowest loss of runs, over their seeds and the layers that should."""

    own: Count
    """Of these runs."""
    usual: Count
    """Of the paper's runs of the same seeds, up to the same steps; of none where they have not ended."""

    @classmethod
    def of(cls, result: Result, setting: Setting) -> "UntilBest | None":
        """Read it off the table; None where a result does not have it."""
        if TABLE not in result.tables:
            return None
        until_best = result.tables[TABLE]
        cut = of_judged(until_best[until_best["best_of"] == setting.condition], setting.depth)
        own, usual = (Count.of(of_setting(cut, *each)) for each in (setting, setting._replace(condition=PAPER)))
        return cls(own=own, usual=usual)


def _setting(found: Found) -> Setting:
    return Setting(**{name: found.labels[name] for name in SETTING})


def _place(found: Found, condition: str) -> tuple[str, int, int]:
    return condition, found.labels["depth"], found.labels["seed"]


def _rows(found: Found, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for each in regimes(table[table["metric"].isin([ENTROPY, FRACTION])]):  # a collapse is read off the fraction
        yield {
            **found.labels,
            "layer": each.layer,
            "kind": each.regime.kind.value,
            "confidence": each.regime.confidence,
        }
