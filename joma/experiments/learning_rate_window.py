"""Figure 8's largest learning rate on the paper's single window: what collapses there, and what ends uniform.

Asked after the result on the whole validation set was seen: it is told beside that result and decides nothing.
"""

import math
from dataclasses import dataclass

import pandas as pd

from joma.engine.grid import recipe
from joma.engine.measuring import WINDOW
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import Config
from joma.experiments.learning_rates import of_rates
from joma.experiments.rebound_shares import Count, layers_in_words
from joma.figures.numbers import fewest_letters, short
from joma.measure.regime import COLLAPSED, Kind
from joma.verdicts import Evidence

ROUNDED = 1e-6
"""Part of its value by which the entropy of uniform attention may be off: it is summed in single precision, which
rounds at 6e-8. Logits that differ by more than some thousandths take more away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCurves:
    """What the entropy of the paper's window does at one learning rate, over layers and seeds."""

    curves: pd.DataFrame
    length: int
    """Tokens of the window."""

    @classmethod
    def of(cls, result: Result, config: Config, text: str, lr: float) -> "WindowCurves":
        """Take the curves of a learning rate; there may be none."""
        regimes = result.tables["regimes"]
        curves = of_rates(regimes[regimes["metric"] == WINDOW], config, text)
        length = config.settings.get("window", recipe("figure8").base.get("window"))
        return cls(curves=curves[curves["lr"] == lr], length=int(length))

    @property
    def most(self) -> float:
        r"""Entropy where every token attends alike to all that it sees, $\frac1L \sum_{i \le L} \ln i = \ln(L!)/L$."""
        return math.lgamma(self.length + 1) / self.length

    @property
    def collapsed(self) -> Count:
        """Curves that end collapsed."""
        return Count.of(self.curves, Kind.COLLAPSED)

    @property
    def fallen(self) -> Count:
        """Curves that are at some time as low as those that end collapsed."""
        return Count(int((self.curves["lowest"] <= COLLAPSED * self.most).sum()), len(self.curves))

    @property
    def uniform(self) -> pd.DataFrame:
        """Curves that end uniform but for rounding."""
        return self.curves[(self.curves["end"] - self.most).abs() <= ROUNDED * self.most]

    def __str__(self) -> str:
        """Tell the three counts."""
        uniform = Count(len(self.uniform), len(self.curves))
        layers = f" ({layers_in_words(sorted(set(self.uniform['layer'].tolist())))})" if uniform.found else ""
        return (
            f"{self.collapsed} curves end collapsed, {self.fallen} fall to {COLLAPSED:.0%} of the largest entropy "
            f"({short(COLLAPSED * self.most)} of {self.most:.2f} nats) or less at some time, and {uniform}{layers} end "
            f"at {self.most:.6f} nats = ln({self.length}!)/{self.length}, attention uniform over the visible tokens"
        )


def window_rows(result: Result, config: Config, text: str) -> tuple[Evidence, ...]:
    """Return beside what share of the window's curves collapses at the largest learning rate, and at the usual one."""
    large, usual = (WindowCurves.of(result, config, text, lr) for lr in (max(config.rates), config.rate))
    asked = {
        "end collapsed": (large.collapsed, usual.collapsed),
        f"fall to {COLLAPSED:.0%} of the largest entropy at some time": (large.fallen, usual.fallen),
    }
    return tuple(
        count.row(
            f"curves of the paper's single window that {what} at learning rate {fewest_letters(max(config.rates))}: "
            f"{count}, asked after the result was seen",
            control=control.share,
            control_name=f"learning rate {fewest_letters(config.rate)}",
            decides=False,
        )
        for what, (count, control) in asked.items()
        if count.asked
    )


def window_in_words(result: Result, config: Config, text: str) -> str:
    """Tell what the window shows at the largest learning rate; nothing where it was not measured."""
    large = WindowCurves.of(result, config, text, max(config.rates))
    if large.curves.empty:
        return ""
    return (
        f"On the paper's single window, asked after the result was seen and deciding nothing, at "
        f"{fewest_letters(max(config.rates))} {large} (the end is the median of the last tenth of the measurements)."
    )


def window_in_short(result: Result, config: Config, text: str) -> str:
    """Tell the same where it stands beside what holds."""
    large = WindowCurves.of(result, config, text, max(config.rates))
    if large.curves.empty:
        return ""
    return (
        f"; on the paper's single window {large.collapsed} end collapsed there, {large.fallen} fall as low at some "
        f"time and {len(large.uniform)} end uniform (asked after the result was seen)"
    )
