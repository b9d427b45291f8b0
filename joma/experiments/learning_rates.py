"""Figure 8's learning rates: when and how deep the entropy dips, and whether its regime tells the best one, how early.

Three rules choose a learning rate from what is known after a part of the training: the one at which most curves of the
entropy dip and rebound; the one with the lowest validation loss so far; and any. The regret of a rule is how much
higher the loss of its choice gets in the end than that of the best one, and its mean where it cannot decide.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import linregress

from joma.engine.measuring import ENTROPY, FRACTION
from joma.experiments.experiment import Fact
from joma.experiments.language_model_config import PAPER, UNTRAINED, Config
from joma.experiments.language_model_runs import Found, validation_losses
from joma.figures.numbers import fewest_letters
from joma.measure.regime import Kind, regimes

SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Parts of the training after which the rules are asked."""
REGIME_RULE, LOSS_RULE, ANY_RULE = "entropy rebounds", "lowest loss so far", "any"
DIP_COLUMNS = [
    "text", "lr", "rebounding", "collapsed", "usual_kind", "dip_step", "typical_step", "inverse_step", "dip_depth",
    "rebound", "end_entropy", "best_loss",
]  # fmt: skip
EARLY_COLUMNS = ["text", "condition", "depth", "lr", "seed", "share", "rebounding", "loss_so_far", "best_loss"]
RULE_COLUMNS = ["text", "share", "rule", "regret", "choice"]
"""A table has its columns before there is a run."""
MIN_RATES = 3
"""Learning rates with a dip that a law of its time needs."""


def dips(regimes: pd.DataFrame, runs: pd.DataFrame, config: Config, *texts: str) -> pd.DataFrame:
    """Return by text and learning rate how often the entropy rebounds, collapses, and where its dips lie on average.

    `dip_step` is the mean over curves, `typical_step` their geometric mean, and `inverse_step` what that would be in
    inverse proportion to the learning rate, from the one that the paper calls best; NaN without a dip on either side.
    """
    rows = [row for text in texts for row in _dip_rows(regimes, runs, config, text)]
    table = pd.DataFrame(rows, columns=DIP_COLUMNS)
    known = table["typical_step"].where(table["lr"] == config.rate).groupby(table["text"]).transform("max")
    return table.assign(inverse_step=(known * config.rate / table["lr"]).where(table["typical_step"].notna()))


def _dip_rows(regimes: pd.DataFrame, runs: pd.DataFrame, config: Config, text: str) -> Iterator[dict[str, Fact]]:
    curves = of_rates(regimes[regimes["metric"] == ENTROPY], config, text)
    losses = of_rates(runs, config, text).groupby("lr")["best_loss"].mean()
    for lr, own in curves.groupby("lr"):
        rebounding = own[own["kind"] == Kind.REBOUNDING.value]
        yield {
            "text": text,
            "lr": lr,
            "rebounding": len(rebounding) / len(own),
            "collapsed": float((own["kind"] == Kind.COLLAPSED.value).mean()),
            "usual_kind": own["kind"].mode().iloc[0],
            "dip_step": rebounding["dip_step"].mean(),
            "typical_step": np.exp(np.log(rebounding["dip_step"].where(rebounding["dip_step"] > 0)).mean()),
            "dip_depth": rebounding["dip_depth"].mean(),
            "rebound": rebounding["rebound"].mean(),
            "end_entropy": own["end"].mean(),
            "best_loss": losses[lr],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerLaw:
    """The dip's time as a power of the learning rate."""

    num_rates: int
    """Learning rates with a dip."""
    exponent: float = float("nan")
    """NaN where these are fewer than `MIN_RATES`."""
    error: float = float("nan")
    """Its standard error."""

    @property
    def is_fitted(self) -> bool:
        """Whether there were learning rates enough."""
        return self.num_rates >= MIN_RATES

    def __str__(self) -> str:
        """The exponent with its error."""
        return f"{self.exponent:.2f} ± {self.error:.2f}"


def fitted_law(regimes: pd.DataFrame, config: Config, text: str, rates: Collection[float]) -> PowerLaw:
    """Fit the exponent over all curves of some learning rates that rebound."""
    curves = of_rates(regimes[regimes["metric"] == ENTROPY], config, text)
    curves = curves[(curves["kind"] == Kind.REBOUNDING.value) & (curves["dip_step"] > 0) & curves["lr"].isin(rates)]
    num_rates = curves["lr"].nunique()
    if num_rates < MIN_RATES:
        return PowerLaw(num_rates=num_rates)
    fit = linregress(np.log(curves["lr"]), np.log(curves["dip_step"]))
    return PowerLaw(num_rates=num_rates, exponent=float(fit.slope), error=float(fit.stderr))


def dip_law(regimes: pd.DataFrame, config: Config, text: str) -> dict[str, Fact]:
    """Return the law over all learning rates, as it is kept."""
    law = fitted_law(regimes, config, text, config.rates)
    return {"dip_rates": law.num_rates, "dip_exponent": law.exponent, "dip_exponent_error": law.error}


def early_signs(found: Sequence[Found], config: Config) -> pd.DataFrame:
    """Return what is known of each run of figure 8 after parts of its training."""
    rows = []
    for each in found:
        own = each.config
        is_wanted = each.condition == PAPER and own.get("depth") == config.rate_depth
        if not is_wanted:
            continue
        table = each.table()
        losses, attention = validation_losses(table), table[table["metric"].isin([ENTROPY, FRACTION])]
        length = table["step"].max() if each.run.failed_at is None else _full_length(found, each)
        for share in SHARES:
            kinds = [
                sign.regime.kind
                for sign in regimes(attention[attention["step"] <= share * length])
                if sign.metric == ENTROPY
            ]
            rows.append(
                {
                    **each.labels,
                    "share": share,
                    "rebounding": float(np.mean([kind is Kind.REBOUNDING for kind in kinds])),
                    "loss_so_far": losses[losses.index <= share * length].min(),
                    "best_loss": losses.min(),
                }
            )
    return pd.DataFrame(rows, columns=EARLY_COLUMNS)


def regrets(early: pd.DataFrame) -> pd.DataFrame:
    """Return the regret of each rule after each part of the training, by text."""
    rows = []
    for (text, share), own in early.groupby(["text", "share"]):
        by_rate = own.groupby("lr")[["rebounding", "loss_so_far", "best_loss"]].mean()
        excess = by_rate["best_loss"] - by_rate["best_loss"].min()
        chosen = {
            REGIME_RULE: by_rate["rebounding"] == by_rate["rebounding"].max(),
            LOSS_RULE: by_rate["loss_so_far"] == by_rate["loss_so_far"].min(),
            ANY_RULE: pd.Series(True, index=by_rate.index),
        }
        rows += [
            {
                "text": text,
                "share": share,
                "rule": rule,
                "regret": float(excess[which].mean()),
                "choice": ", ".join(map(fewest_letters, excess.index[which])),
            }
            for rule, which in chosen.items()
        ]
    return pd.DataFrame(rows, columns=RULE_COLUMNS)


def regrets_by_seed(early: pd.DataFrame) -> pd.DataFrame:
    """Return the same for each seed alone, whose runs are all that its rules see."""
    tables = [regrets(own).assign(seed=seed) for seed, own in early.groupby("seed")]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*RULE_COLUMNS, "seed"])


def right_and_wrong(rules: pd.DataFrame, text: str, rule: str, most: float) -> tuple[list[float], list[float]]:
    """Return the parts of the training after which a rule's regret is at most `most`, and the others.

    >>> table = pd.DataFrame({"text": "t", "rule": "r", "share": [0.2, 0.5, 1.0], "regret": [0.0, 0.3, 0.0]})
    >>> right_and_wrong(table, "t", "r", 0.1)
    ([0.2, 1.0], [0.5])
    """
    own = rules[(rules["text"] == text) & (rules["rule"] == rule)].sort_values("share")
    is_right = own["regret"] <= most
    return own.loc[is_right, "share"].tolist(), own.loc[~is_right, "share"].tolist()


def settled_from(rules: pd.DataFrame, text: str, rule: str, most: float) -> float:
    """Return the part of the training from which a rule's regret stays at most `most`; infinite if it never does.

    >>> table = pd.DataFrame({"text": "t", "rule": "r", "share": [0.2, 0.5, 1.0], "regret": [0.0, 0.3, 0.0]})
    >>> settled_from(table, "t", "r", 0.1)
    1.0
    """
    own = rules[(rules["text"] == text) & (rules["rule"] == rule)].sort_values("share")
    too_much = own.loc[own["regret"] > most, "share"]
    after = own[own["share"] > too_much.max()] if len(too_much) else own
    return float(after["share"].min()) if len(after) else float("inf")


def of_rates(table: pd.DataFrame, config: Config, text: str, condition: str = PAPER) -> pd.DataFrame:
    """Return the rows of figure 8's runs, or of the untrained ones of their depth."""
    chosen = (table["text"] == text) & (table["depth"] == config.rate_depth) & (table["condition"] == condition)
    return table[chosen] if condition == UNTRAINED else table[chosen & table["lr"].isin(config.rates)]


def _full_length(found: Sequence[Found], own: Found) -> int:
    """Steps that a run which diverged would have done: those of the others on its text."""
    return max(each.run.step for each in found if each.text == own.text)
