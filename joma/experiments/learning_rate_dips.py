"""When the entropy dips by learning rate: the verdict on the law of its time, and where there is a dip at all."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from joma.experiments.experiment import Result
from joma.experiments.language_model_config import Config
from joma.experiments.language_model_settings import NOTHING_YET, Setting, absent, by_rate
from joma.experiments.learning_rates import MIN_RATES, PowerLaw, fitted_law
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_shares import ABSENT, REBOUNDS, decided, id_on, size_in_words
from joma.figures.numbers import fewest_letters
from joma.verdicts import Evidence, Finding, Verdict, finding, ruling

EXPONENT_TOLERANCE = 0.25
"""Distance of the exponent of the dip's time from -1 that counts as in proportion."""
AFTERWARDS = "chosen after the result was seen"
"""Said of numbers that no threshold was set for beforehand."""
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
    dips = dips_on(result, text)
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
        + _dips_in_words(dips, are_all=not lacking)
        + (f" {_narrow_in_words(narrow, rebounding)}" if is_narrow and not lacking else ""),
        correction=f"the dip's step goes with the learning rate to the power of {law}"
        + (f"; at those where most curves rebound, of {narrow} (a restriction {AFTERWARDS})" if is_narrow else ""),
        evidence=() if lacking else (evidence,),
    )


def _dips_in_words(dips: pd.DataFrame, *, are_all: bool) -> str:
    """Tell where the dip lies by learning rate, and where there are all of them, from where to where it exists."""
    if dips.empty:
        return NOTHING_YET
    known = dips[dips["rebounding"] > 0]
    told = [
        f"{fewest_letters(row.lr)}: step {row.dip_step:,.0f}, fall {row.dip_depth:.3f}, rise {row.rebound:.3f}, "
        f"in {row.rebounding:.0%} of the curves"
        for row in known.itertuples()
    ]
    products = ", ".join(f"{row.lr * row.dip_step:.3g} at {fewest_letters(row.lr)}" for row in known.itertuples())
    reach = f"Most curves rebound at {_enumerated(rates)}." if (rates := _rebounding(dips)) else NOWHERE
    few = dips[dips["rebounding"] <= ABSENT].groupby("usual_kind", sort=False)["lr"]
    breaks = "; ".join(f"{kind} at {_enumerated(lrs)}" for kind, lrs in few)
    sentences = [
        f"{'; '.join(told)}." if told else "",
        f"Step times learning rate, which the law keeps the same: {products}." if told else "",
        reach if are_all else "",
        f"Where few rebound, the usual curve is {breaks}." if breaks else "",
    ]
    return " ".join(filter(None, sentences))


def _narrow_in_words(law: PowerLaw, rates: Sequence[float]) -> str:
    """Tell the law where the curves follow the claim, which was looked for once the law over all had been seen."""
    return (
        f"Over {_enumerated(rates)} alone the exponent is {law}. This restriction, to learning rates at which most "
        f"curves rebound, was {AFTERWARDS}: it decides nothing."
    )


def _rebounding(dips: pd.DataFrame) -> list[float]:
    """Return the learning rates at which most curves rebound."""
    return dips.loc[dips["rebounding"] >= REBOUNDS, "lr"].tolist()


def _enumerated(rates: Iterable[float]) -> str:
    return enumerated([fewest_letters(rate) for rate in rates])
