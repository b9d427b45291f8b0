"""How often curves of language models dip and rebound, in the layers where the paper says that they do."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd

from joma.experiments.language_model_config import PAPER, TEXT_NAMES, UNTRAINED, WIKITEXT103, Config
from joma.experiments.language_model_settings import NOTHING_YET, Setting, by_depth, in_words, not_yet
from joma.experiments.markdown import enumerated
from joma.figures.numbers import counted, fewest_letters
from joma.measure.regime import Kind
from joma.verdicts import Evidence, Ruling

REBOUNDS = 2 / 3
"""Share of curves from which a setting rebounds: two of three seeds."""
ABSENT = 1 / 3
"""Share of curves up to which it does not."""
SHALLOW = 2
"""Models of up to this depth are shallow: all their layers are to rebound, of deeper ones the top half."""
AFTERWARDS = "asked since the result was seen"
"""Said of numbers that were not asked for beforehand; they stand beside."""


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


def of_judged(table: pd.DataFrame, depth: int) -> pd.DataFrame:
    """Return the rows of layers that the paper says rebound."""
    return table[np.array([is_judged(layer, depth) for layer in table["layer"]], dtype=bool)]


def judged_in_words(depth: int) -> str:
    """Name the layers that the paper says rebound.

    >>> judged_in_words(1), judged_in_words(2), judged_in_words(5)
    ('its one layer', 'both layers', 'the upper 2 of 5 layers')
    """
    judged = sum(is_judged(layer, depth) for layer in range(depth))
    if judged < depth:
        return f"the upper {judged} of {depth} layers"
    return {1: "its one layer", 2: "both layers"}.get(depth, f"all {depth} layers")


def steps_in_words(steps: Iterable[int]) -> str:
    """Tell from which step to which they are.

    >>> steps_in_words([2000]), steps_in_words([34000, 32000, 33000])
    ('step 2,000', 'steps 32,000 to 34,000')
    """
    ascending = sorted(int(step) for step in steps)
    first, last = ascending[0], ascending[-1]
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


@dataclass(frozen=True, slots=True)
class Count:
    """Curves of some kind among all that were asked."""

    found: int
    asked: int

    @classmethod
    def of(cls, curves: pd.DataFrame, kind: Kind = Kind.REBOUNDING) -> "Count":
        """Count the curves of a kind, of layers and seeds."""
        return cls(int((curves["kind"] == kind.value).sum()), len(curves))

    @property
    def share(self) -> float:
        """The part of them; NaN without curves."""
        return self.found / self.asked if self.asked else math.nan

    def __str__(self) -> str:
        """As it is said: 13 of 15."""
        return f"{self.found} of {self.asked}"

    def row(
        self,
        name: str,
        *,
        threshold: float = REBOUNDS,
        at_least: bool = True,
        control: float | None = None,
        control_name: str = "",
        decides: bool = True,
    ) -> Evidence:
        """Return the share as a number of a verdict, that of most curves being demanded; `name` says whose they are."""
        return Evidence(
            name=name,
            against="the regime of each curve",
            unit="share of layers and seeds",
            value=self.share,
            threshold=threshold,
            at_least=at_least,
            control=control,
            control_name=control_name,
            decides=decides,
        )


def rebound_count(regimes: pd.DataFrame, text: str, condition: str, depth: int, lr: float, metric: str) -> Count:
    """Count the curves that rebound, over seeds and the layers that should."""
    curves = of_setting(regimes, text, condition, depth, lr, metric)
    return Count.of(of_judged(curves, depth))


def rebound_share(regimes: pd.DataFrame, text: str, condition: str, depth: int, lr: float, metric: str) -> float:
    """Return the share of the curves that rebound, over seeds and the layers that should; NaN without curves."""
    return rebound_count(regimes, text, condition, depth, lr, metric).share


def controlled_settings(config: Config) -> list[Setting]:
    """Return the paper's setting and those with one ingredient taken away, which are trained on the first text."""
    conditions = (PAPER, *config.controls)
    return [each for name in conditions for each in by_depth(config, config.texts[0], config.control_depths, name)]


def share_table(regimes: pd.DataFrame, config: Config, metric: str) -> pd.DataFrame:
    """Return the shares on the first text: of the paper's setting, of every control and of untrained models."""
    untrained = by_depth(config, config.texts[0], config.control_depths, UNTRAINED)
    rows = [
        {"condition": each.condition, "depth": each.depth, "rebounding": rebound_share(regimes, *each, metric)}
        for each in (*controlled_settings(config), *untrained)
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
    return f"What the layers do from the bottom up, by majority of seeds. {'; '.join(told).capitalize()}."


def counts_in_words(regimes: pd.DataFrame, config: Config, text: str, metric: str, where: str) -> str:
    """Tell for each depth how many curves rebound, of all layers and seeds, and which layers do in every seed."""
    told = []
    for depth in config.depths:
        curves = of_setting(regimes, text, PAPER, depth, config.rate, metric)
        if len(curves):
            size = f"{counted(depth, 'layer')} x {counted(curves['seed'].nunique(), 'seed')}"
            told.append(f"{Count.of(curves)} at depth {depth} ({size}{always_in_words(curves, '; {}')})")
    return f"Curves that dip and rebound {where}, of all layers: {', '.join(told)}." if told else ""


def always_in_words(curves: pd.DataFrame, form: str) -> str:
    """Name the layers that rebound in every seed, where others do not, in a form that has a place for it."""
    is_rebound = curves["kind"] == Kind.REBOUNDING.value
    always = [int(layer) for layer, own in is_rebound.groupby(curves["layer"]) if own.all()]
    if is_rebound.all() or not always:
        return ""
    return form.format(f"{layers_in_words(always)} in every seed")


def layers_in_words(layers: Sequence[int]) -> str:
    """Name layers by number, from the bottom up, neighbours together.

    >>> layers_in_words([0]), layers_in_words([0, 1, 3, 4, 5])
    ('layer 0', 'layers 0, 1 and 3 to 5')
    """
    ranges = [[layer for _, layer in own] for _, own in groupby(enumerate(layers), lambda at: at[1] - at[0])]
    pairs = 2
    named = [
        name for own in ranges
        for name in ([f"{own[0]} to {own[-1]}"] if len(own) > pairs else map(str, own))
    ]  # fmt: skip
    return f"layer{'s' if len(layers) > 1 else ''} {enumerated(named)}"


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
