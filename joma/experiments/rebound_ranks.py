"""What the stable rank of the MLP's lower matrix does: from where to where it goes, and with an ingredient less."""

from collections.abc import Sequence

import pandas as pd

from joma.engine.measuring import RANK
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import PAPER, Config
from joma.experiments.language_model_settings import Setting
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_earlier_dips import RULE, EarlierDip, earlier_dips
from joma.experiments.rebound_shares import (
    AFTERWARDS,
    Count,
    always_in_words,
    controlled_settings,
    of_setting,
)
from joma.verdicts import Evidence

WHAT = "stable rank of the MLP's lower matrix"


def rank_regimes(result: Result, config: Config, text: str, depths: Sequence[int]) -> pd.DataFrame:
    """Return the regimes of the stable rank of the paper's setting, of all layers."""
    return _of_ranks(result.tables["regimes"], config, text, depths)


def ranks_in_words(result: Result, config: Config, text: str, depths: Sequence[int]) -> str:
    """Tell from where to where the stable rank goes by depth, when it is lowest, and where it bounces on the way."""
    curves = rank_regimes(result, config, text, depths)
    if curves.empty:
        return ""
    means = curves.groupby(["depth", "layer"])[["first", "end"]].mean()
    ends = [f"{_range(own)} at depth {depth}" for depth, own in means["end"].groupby("depth")]
    num_steps = result.tables["runs"]["num_steps"].max()
    verb = "falls in every layer" if (curves["end"] < curves["first"]).all() else "goes"
    bounces = "; ".join(map(str, _bounces(result, config, text, depths)))
    told = (
        f"the stable rank {verb} from {_range(means['first'])} to {', '.join(ends)} (means over seeds, smallest to "
        f"largest layer) and is lowest at step {_range(curves['lowest_step'], '{:,.0f}')} of {num_steps:,}"
    )
    return told + (f"; on the way it bounces ({AFTERWARDS}) at {bounces}" if bounces else "")


def bounces_in_words(result: Result, config: Config, text: str, depths: Sequence[int]) -> str:
    """Say what counts as a bounce on the way, where there is one."""
    found = _bounces(result, config, text, depths)
    where = enumerated([f"depth {depth}" for depth in dict.fromkeys(each.depth for each in found)])
    return f"On the way down it bounces at {where} ({RULE})." if found else ""


def controls(config: Config) -> list[Setting]:
    """Return the settings with an ingredient taken away."""
    return [each for each in controlled_settings(config) if each.condition != PAPER]


def control_rows(regimes: pd.DataFrame, config: Config) -> list[Evidence]:
    """Count the ranks that rebound with an ingredient taken away, of all layers, beside."""
    return [
        count.row(
            f"curves that dip and rebound, {WHAT}, with {each.condition}, depth {each.depth}, all layers: {count}",
            decides=False,
        )
        for each, count in _control_counts(regimes, config).items()
    ]


def controls_in_words(regimes: pd.DataFrame, config: Config) -> str:
    """Tell with which ingredients taken away ranks rebound, where and in how many curves, and with which none does."""
    counts = _control_counts(regimes, config)
    if not counts:
        return ""
    told, none = [], []
    for name in dict.fromkeys(each.condition for each in counts):
        own = [
            f"{count} at depth {each.depth}" + always_in_words(of_setting(regimes, *each, RANK), " ({})")
            for each, count in counts.items()
            if each.condition == name and count.found
        ]
        told += [f"{name} {enumerated(own)}"] if own else []
        none += [] if own else [name]
    told += [f"none with {enumerated(none)}"] if none else []
    return f"Ranks that rebound with an ingredient taken away, of all layers ({AFTERWARDS}): {'; '.join(told)}."


def _control_counts(regimes: pd.DataFrame, config: Config) -> dict[Setting, Count]:
    counts = {each: Count.of(of_setting(regimes, *each, RANK)) for each in controls(config)}
    return {each: count for each, count in counts.items() if count.asked}


def _bounces(result: Result, config: Config, text: str, depths: Sequence[int]) -> list[EarlierDip]:
    return earlier_dips(_of_ranks(result.tables["curves"], config, text, depths))


def _of_ranks(table: pd.DataFrame, config: Config, text: str, depths: Sequence[int]) -> pd.DataFrame:
    there = table[table["depth"].isin(depths) & (table["text"] == text) & (table["condition"] == PAPER)]
    return there[(there["lr"] == config.rate) & (there["metric"] == RANK)]


def _range(values: pd.Series, form: str = "{:.2g}") -> str:
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"{low}-{high}"
