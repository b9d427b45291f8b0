"""When the entropy dips by learning rate: the verdict on the law of its time, and where there is a dip at all."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from joma.engine.measuring import ENTROPY
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import Config
from joma.experiments.language_model_settings import NOTHING_YET, Setting, absent, by_rate
from joma.experiments.learning_rates import MIN_RATES, PowerLaw, fitted_law, of_rates
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_shares import ABSENT, REBOUNDS, Count, decided, id_on, size_in_words
from joma.figures.numbers import fewest_letters, short
from joma.measure.regime import Kind
from joma.verdicts import Evidence, Finding, Verdict, finding, ruling

EXPONENT_TOLERANCE = 0.25
"""Distance of the exponent of the dip's time from -1 that counts as in proportion."""
AFTERWARDS = "chosen after the result was seen"
"""Said of numbers that no threshold was set for beforehand."""
MANY = 100
"""From here on two digits are said without a power of ten."""
NOWHERE = "At no learning rate do most curves rebound."


def lacking_rates(result: Result, config: Config, text: str) -> list[Setting]:
    """Return the settings of figure 8 that are not there."""
    return absent(by_rate(config, text), result.tables["runs"])


def dips_on(result: Result, text: str) -> pd.DataFrame:
    """Return what the entropy does on a text, by learning rate."""
    dips = result.tables["dips"]
    return dips[dips["text"] == text]


def dip_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether the dip's time goes with the inverse of the learning rate, and tell where the dip breaks."""
    lacking = lacking_rates(result, config, text)
    dips, curves = dips_on(result, text), entropies_of(result, config, text)
    exponent, error = (
        float(result.facts.get(f"dip_{name} {text}", math.nan)) for name in ("exponent", "exponent_error")
    )
    law = PowerLaw(num_rates=int(result.facts.get(f"dip_rates {text}", 0)), exponent=exponent, error=error)
    rebounding = _rebounding(dips)
    narrow = fitted_law(result.tables["regimes"], config, text, rebounding)
    is_narrow = narrow.is_fitted and narrow.num_rates < law.num_rates
    evidence = Evidence(
        name="exponent of the dip's step as a power of the learning rate"
        + (f": {law}" if law.is_fitted else ", not fitted"),
        against="-1: as many steps times learning rate at every learning rate",
        unit="distance",
        value=abs(exponent + 1),
        threshold=EXPONENT_TOLERANCE,
        control=1.0,
        control_name="a dip at the same step for all learning rates",
    )
    found = ruling([finding(evidence) if law.is_fitted else Finding.OPEN])
    return decided(found, config, lacking).verdict(
        id=id_on("figure8-dip", text),
        title="Time and depth of the dip",
        source="Figure 8, asked further",
        claim="The dip comes in inverse proportion to the learning rate.",
        explanation=f"{size_in_words(config, text, lacking)} "
        + ("" if lacking else f"{law.num_rates} learning rates have a dip, {MIN_RATES} are needed for a law. ")
        + _dips_in_words(dips, curves, are_all=not lacking)
        + (f" {_narrow_in_words(narrow, rebounding, curves)}" if is_narrow and not lacking else ""),
        correction=f"the dip's step goes with the learning rate to the power of {law}"
        + (f"; at those where most curves rebound, of {narrow} (a restriction {AFTERWARDS})" if is_narrow else ""),
        evidence=() if lacking else (evidence,),
    )


def _dips_in_words(dips: pd.DataFrame, curves: pd.DataFrame, *, are_all: bool) -> str:
    """Tell where the dip lies by learning rate, and where there are all of them, from where to where it exists."""
    if dips.empty:
        return NOTHING_YET
    times = {lr: _Times.of(own) for lr, own in curves.groupby("lr")}
    known = dips[dips["lr"].isin(times) & (dips["rebounding"] > 0)]
    told = [
        f"{fewest_letters(row.lr)}: {times[row.lr]}, fall {row.dip_depth:.2f}, rise {row.rebound:.2f}"
        for row in known.itertuples()
    ]
    products = ", ".join(
        f"{_two_digits(lr * each.mean)} at {fewest_letters(lr)}"
        for lr, each in times.items()
        if math.isfinite(each.mean)
    )
    reach = f"Most curves rebound at {rates_in_words(rates)}." if (rates := _rebounding(dips)) else NOWHERE
    few = dips[dips["rebounding"] <= ABSENT].groupby("usual_kind", sort=False)["lr"]
    breaks = "; ".join(f"{kind} at {rates_in_words(lrs)}" for kind, lrs in few)
    sentences = [
        f"Step of the dip (geometric mean over the curves that rebound, range and their number), and mean fall and "
        f"rise in nats: {'; '.join(told)}."
        if told
        else "",
        f"Mean step times learning rate, which the law keeps the same: {products}." if products else "",
        reach if are_all else "",
        f"Where few rebound, the usual curve is {breaks}." if breaks else "",
    ]
    return " ".join(filter(None, sentences))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Times:
    """When the curves of one learning rate dip."""

    mean: float
    """Geometric, since the steps of layers differ by factors."""
    first: float
    last: float
    count: Count

    @classmethod
    def of(cls, curves: pd.DataFrame) -> "_Times":
        steps = curves.loc[(curves["kind"] == Kind.REBOUNDING.value) & (curves["dip_step"] > 0), "dip_step"]
        mean = math.exp(np.log(steps).mean()) if len(steps) else math.nan
        return cls(mean=mean, first=steps.min(), last=steps.max(), count=Count.of(curves))

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return f"at the very start ({self.count} curves)"
        spread = "" if self.first == self.last else f"{self.first:,.0f} to {self.last:,.0f}, "
        return f"step {_rounded(self.mean):,} ({spread}{self.count} curves)"


def _two_digits(value: float) -> str:
    return short(value) if value < MANY else f"{_rounded(value):,}"


def _rounded(step: float) -> int:
    """Keep two digits of a mean of steps that spread over a factor of ten."""
    return int(round(step, 1 - math.floor(math.log10(step))))


def _narrow_in_words(law: PowerLaw, rates: Sequence[float], curves: pd.DataFrame) -> str:
    """Tell the law where the curves follow the claim, which was looked for once the law over all had been seen."""
    others = {lr: Count.of(own) for lr, own in curves[~curves["lr"].isin(rates)].groupby("lr")}
    rest = enumerated([f"{count} at {fewest_letters(lr)}" for lr, count in others.items() if count.found])
    return (
        f"Over {rates_in_words(rates)} alone the exponent is {law}; the rest of the fit is curves that rebound "
        f"elsewhere, {rest}. This restriction, to learning rates at which most curves rebound, was {AFTERWARDS}: it "
        "decides nothing."
    )


def entropies_of(result: Result, config: Config, text: str) -> pd.DataFrame:
    """Return the curves of figure 8's entropy."""
    regimes = result.tables["regimes"]
    return of_rates(regimes[regimes["metric"] == ENTROPY], config, text)


def _rebounding(dips: pd.DataFrame) -> list[float]:
    """Return the learning rates at which most curves rebound."""
    return dips.loc[dips["rebounding"] >= REBOUNDS, "lr"].tolist()


def rates_in_words(rates: Iterable[float]) -> str:
    """Name learning rates as the paper writes them."""
    return enumerated([fewest_letters(rate) for rate in rates])
