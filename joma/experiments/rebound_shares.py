"""How often curves of language models dip and rebound, in the layers where the paper says that they do."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import pandas as pd

from joma.experiments.language_model_config import PAPER, TEXT_NAMES, UNTRAINED, WIKITEXT103, Config
from joma.experiments.language_model_settings import NOTHING_YET, Setting, in_words, not_yet
from joma.figures.numbers import counted, fewest_letters
from joma.measure.regime import Kind
from joma.verdicts import Ruling

REBOUNDS = 2 / 3
"""Share of curves from which a setting rebounds: two of three seeds."""
ABSENT = 1 / 3
"""Share of curves up to which it does not."""
SHALLOW = 2
"""Models of up to this depth are shallow: all their layers are to rebound, of deeper ones the top half."""


def of_setting(
    table: pd.DataFrame, text: str, condition: str, depth: int, lr: float, metric: str | None = None
) -> pd.DataFrame:
    """Return the rows of runs that differ in their seed alone."""
    chosen = (table["text"] == text) & (table["condition"] == condition) & (table["depth"] == depth)
    chosen &= table["lr"] == lr
    return table[chosen] if metric is None else table[chosen & (table["metric"] == metric)]


def is_top(layer: int, depth: int) -> bool:
    """Whether a layer is in the top half; a middle one is not.

    >>> [is_top(layer, 5) for layer in range(5)]
    [False, False, False, True, True]
    """
    return 2 * layer >= depth


def is_judged(layer: int, depth: int) -> bool:
    """Whether the paper says that this layer rebounds."""
    return depth <= SHALLOW or is_top(layer, depth)


def rebound_share(regimes: pd.DataFrame, text: str, condition: str, depth: int, lr: float, metric: str) -> float:
    """Return the share of the curves that rebound, over seeds and the layers that should; NaN without curves."""
    curves = of_setting(regimes, text, condition, depth, lr, metric)
    judged = curves[[is_judged(layer, depth) for layer in curves["layer"]]]
    return float((judged["kind"] == Kind.REBOUNDING.value).mean()) if len(judged) else math.nan


def share_table(regimes: pd.DataFrame, config: Config, metric: str) -> pd.DataFrame:
    """Return the shares on the first text: of the paper's setting, of every control and of untrained models."""
    text = config.texts[0]
    settings = [(name, depth, config.rate) for name in (PAPER, *config.controls) for depth in config.control_depths]
    settings += [(UNTRAINED, depth, 0.0) for depth in config.control_depths]
    rows = [
        {"condition": name, "depth": depth, "rebounding": rebound_share(regimes, text, name, depth, lr, metric)}
        for name, depth, lr in settings
    ]
    return pd.DataFrame(rows)


def kinds_in_words(regimes: pd.DataFrame, config: Config, text: str, metric: str) -> str:
    """Tell for each depth what the layers do, from the first on, in most seeds."""
    told = []
    for depth in config.depths:
        curves = of_setting(regimes, text, PAPER, depth, config.rate, metric)
        kinds = [str(own["kind"].mode().iloc[0]) for _, own in curves.groupby("layer")]
        if kinds:
            told.append(f"depth {depth}: {alike_in_words(kinds)}")
    if not told:
        return NOTHING_YET
    return f"What the layers do from the bottom up, by depth. {'; '.join(told).capitalize()}."


def alike_in_words(kinds: Iterable[str]) -> str:
    """Name kinds in their order, neighbours that are alike together.

    >>> alike_in_words(["falling", "falling", "rebounding", "falling"])
    '2 falling, 1 rebounding, 1 falling'
    """
    return ", ".join(f"{sum(1 for _ in own)} {kind}" for kind, own in groupby(kinds))


def size_in_words(config: Config, text: str, lacking: Sequence[Setting] = ()) -> str:
    """Tell how large the models are, what cannot be decided at that size, and which settings a claim lacks."""
    name, seeds = TEXT_NAMES.get(text, text), counted(len(config.seeds), "seed")
    told = f"Models are trained on {name}, with {seeds} each."
    if config.small:
        own = config.settings
        told = (
            f"Small models on {name} (width {own['width']}, {own['steps']} steps, {seeds}, learning rate "
            f"{fewest_letters(config.rate)}) decide nothing; the full preset does."
        )
    return f"{told} {not_yet(in_words(lacking))}" if lacking else told


def decided(found: Ruling, config: Config, lacking: Sequence[Setting] = ()) -> Ruling:
    """Return the ruling on models of the paper's size; from small ones, or without all settings, nothing follows."""
    return found.undecided() if config.small or lacking else found


def id_on(name: str, text: str) -> str:
    """Return the id of a verdict on a text; WikiText-103 stands beside WikiText-2."""
    return f"{name}-{text}" if text == WIKITEXT103 else name
