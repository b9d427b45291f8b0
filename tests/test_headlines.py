"""Headline numbers, computed once more from the kept tables with pandas and SciPy alone."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

RESULTS = Path(__file__).parents[1] / "results"


def table(experiment: str, name: str, **values: object) -> pd.DataFrame:
    """Read a kept table, and keep the rows whose columns have these values."""
    found = pd.read_parquet(RESULTS / experiment / "tables" / f"{name}.parquet")
    for column, value in values.items():
        found = found[found[column] == value]
    return found


def kept(experiment: str, claim: str, key: str) -> dict:
    """Return a kept number of a claim."""
    answers = json.loads((RESULTS / experiment / "result.json").read_text(encoding="utf-8"))["answers"]
    (number,) = (
        each for answer in answers if answer["claim"] == claim for each in answer["numbers"] if each["key"] == key
    )
    return number


def rise(condition: str) -> pd.Series:
    """Return the rise of each run of figure 6 at depth 1."""
    own = table(
        "figure6", "regimes", text="wikitext2", condition=condition, depth=1, lr=1e-4, metric="entropy", layer=0
    )
    return own["end"] - own["lowest"]


def rise_of_arm(condition: str) -> pd.Series:
    """Return the rise of each run on the cause of the rebound."""
    return table("rebound-answer", "effects", condition=condition, metric="entropy", layer=0)["rise"]


def raw_rise(condition: str) -> pd.Series:
    """Return the same from the curves: the mean of the last tenth, above the lowest mean of five measurements."""
    runs = table("rebound-answer", "curves", condition=condition, metric="entropy", layer=0).groupby("seed")
    return runs.apply(lambda of: of["value"][of["step"] >= 18_000].mean() - _lowest(of.set_index("step")["value"]))


def _lowest(curve: pd.Series) -> float:
    """Return the lowest mean of five measurements between step 300, after the short first dip, and half of training."""
    return float(curve.sort_index().rolling(5, center=True).mean().loc[300:10_000].min())


def lowest_losses(depth: int) -> pd.Series:
    """Return the lowest loss of each run of figure 6."""
    return table(
        "figure6", "runs", text="wikitext2", condition="as in the paper", depth=depth, lr=1e-4, precision="bf16"
    )["best_loss"]


def speeds(flow: str) -> list[float]:
    """Return, for each run, the slope on predicted log time, with log frequency as a second regressor."""
    own = table("convergence-speeds", "times", kind="trained attention")
    columns = pd.DataFrame({"y": np.log(own["measured"]), "x": np.log(own[flow]), "f": own["log_frequency"]})
    columns -= columns.groupby([own["seed"], own["fraction"]]).transform("mean")
    return [np.linalg.lstsq(of[["x", "f"]], of["y"], rcond=None)[0][0] for _, of in columns.groupby(own["seed"])]


def contained() -> pd.Series:
    """Return whether each forecast that ended before the run did contains the step, known to the 2 of a measurement."""
    own = table("alarm", "forecasts")
    own = own[np.isfinite(own["reached"]) | (own["high"] < 150 - 2)]
    return ((own["low"] <= own["reached"]) & (own["reached"] - 2 <= own["high"])).astype(float)


def lead() -> pd.Series:
    """Return the steps from the warning to the collapse, for each run that collapses."""
    own = table("alarm", "runs", cure="none")
    own = own[(own["drive"] != "healthy") & np.isfinite(own["event"])]
    return (own["event"] - own["alarm"]).clip(lower=0)


def overlap_factor() -> pd.Series:
    """Return the largest share of its bound that the overlap of random embeddings takes, for each seed."""
    own = table("embeddings", "runs", kind="random")
    return (own["overlap"] ** 2 * own["dim"] / (8 * np.log(100))).groupby(own["seed"]).max()


def exponent(experiment: str, y: str, **arm: str) -> list[float]:
    """Return the exponent of y as a power of the size that an experiment varies, for each seed."""
    runs, size = table(experiment, "runs", **arm), {"embeddings": "dim", "width": "nodes"}[experiment]
    return [stats.linregress(np.log(own[size]), np.log(own[y])).slope for _, own in runs.groupby("seed")]


HEADLINES: dict[tuple[str, str, str], Callable] = {
    ("figure6", "figure6-losses", "depth1"): lambda: lowest_losses(1),
    ("figure6", "figure6-losses", "depth5"): lambda: lowest_losses(5),
    ("figure6", "figure6-rebound", "rise1"): lambda: rise("as in the paper"),
    ("rebound-controls", "rebound-ingredients", "linear_activation1"): lambda: rise("linear activation"),
    ("rebound-answer", "rebound-answer", "base"): lambda: rise_of_arm("base"),
    ("rebound-answer", "rebound-answer", "centred"): lambda: rise_of_arm("centred"),
    ("rebound-answer", "rebound-answer", "mean_alone"): lambda: rise_of_arm("mean alone"),
    ("rebound-answer", "rebound-answer", "without"): lambda: rise_of_arm("centred").values - rise_of_arm("base") / 3,
    ("embeddings", "embeddings-order", "exponent"): lambda: exponent("embeddings", "error", kind="random"),
    ("embeddings", "embeddings-dimensions", "factor"): overlap_factor,
    ("width", "width-one", "exponent"): lambda: exponent("width", "half_time", arm="size 1"),
    ("convergence-speeds", "speeds-printed", "slope"): lambda: speeds("printed"),
    ("convergence-speeds", "speeds-model", "slope"): lambda: speeds("model"),
    ("alarm", "alarm-warns", "lead"): lead,
    ("alarm", "alarm-forecast", "contained"): contained,
}


@pytest.mark.parametrize("headline", HEADLINES, ids=" ".join)
def test_a_headline_number_follows_from_the_kept_tables(headline):
    number, values = kept(*headline), np.asarray(HEADLINES[headline](), dtype=float)
    assert (number["n"], number["df"]) == (len(values), len(values) - 1)
    assert (number["value"], number["error"]) == pytest.approx((values.mean(), stats.sem(values)), rel=1e-6)


@pytest.mark.parametrize("condition", ["base", "centred", "mean alone"])
def test_the_answer_on_the_rebound_does_not_hang_on_the_smoother(condition):
    assert raw_rise(condition).mean() == pytest.approx(rise_of_arm(condition).mean(), abs=0.02)  # nats
