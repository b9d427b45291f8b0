r"""Can attention entropy choose the learning rate early?

Figure 6's recipe is trained at many learning rates, and after 5, 10 or 20 % of training one rate is chosen by what is
known by then. The *regret* is the final validation loss of the chosen rate minus the lowest of all rates, in nats.

Loss alone chooses the lowest loss. Other single predictors choose the rate at which they are lowest, or highest,
whichever had the smaller regret in the models they are fitted on. Loss with entropy chooses the lowest loss + c × slope
of the bottom layer's entropy. The factor c that had the smallest regret in the models it is fitted on is taken; of
equals the one closest to 0, so that an entropy that says nothing leaves the loss alone. Slopes are per factor e in
steps, from half of the time on.

At full size rules are fitted on depth 5 and tested on depths 2 and 10; the small sizes fit on one depth and test on the
other. One number for each seed, the mean over the depths tested. Control: the entropy of other rates, in random order
within each sweep, fitted and tested like the true one. A run that diverges ends with the loss it started from, and is
not chosen once that is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.charts import Chart, lines, points
from joma.claims import Number, claim
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered, over_seeds, select
from joma.paper.language_models import (
    ENTROPY,
    LONG,
    LOSS,
    PAPER,
    Settings,
    needs,
    one_task,
    small,
)
from joma.store import Store

TIMES = (0.05, 0.1, 0.2)
"""Parts of training after which a rate is chosen."""
JUDGED_TIME = 0.1
LOGIT, GRADIENT_RANK, ENTROPY_SLOPE = "max_logit", "gradient_stable_rank", "slope of the entropy"
PREDICTORS = ("loss", "slope of the loss", ENTROPY_SLOPE, "slope of the largest logit", "gradient rank")
BOTH, SHUFFLED, BEFORE = "loss with entropy", "entropy of other rates", "best rate of the fit"
FACTORS = sorted([0.0, *(sign * size for sign in (1, -1) for size in np.geomspace(0.01, 10, 31))], key=abs)
"""Candidates for c, in nats of loss for a slope of one nat."""
NUM_PERMUTATIONS = 20
ROOM = 0.01
"""Regret of the loss alone, in nats, below which there is no room for a better choice and nothing is judged."""
HALVED, SMALLEST = 0.5, 1e-9
"""Part of the loss's regret that must be gained, and the least gain that counts as one."""
RUN = ["depth", "seed", "lr"]
MEASURED = {"measure_every": 10, "measure_spacing": "log"}


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyChoiceConfig:
    """Learning rates, depths and seeds; no earlier result used these seeds."""

    text: str = "wikitext2"
    settings: Mapping[str, Any] = field(default_factory=lambda: LONG | MEASURED)
    rate: float = 1e-4
    """The recipe's; the runs have `rates`."""
    rates: tuple[float, ...] = (
        1e-5, 1.7e-5, 2.8e-5, 4.7e-5, 8e-5, 1.3e-4, 2.2e-4, 3.8e-4, 6.3e-4, 1.1e-3, 1.8e-3, 3e-3
    )  # fmt: skip
    depths: tuple[int, ...] = (2, 5, 10)
    fitted: int | None = 5
    """Depth on which rules are fitted; None fits them on all depths but the one that is tested."""
    seeds: tuple[int, ...] = (301, 302, 303, 304, 305)
    needs_gpu: bool = True


SMALL = EarlyChoiceConfig(
    rates=(3e-4, 7e-4, 1.6e-3, 3.5e-3, 8e-3, 1.8e-2, 4e-2, 9e-2), depths=(1, 2), fitted=None,
    seeds=(311, 312, 313, 314, 315), needs_gpu=False,
    settings=small(1000, 32, steps=1000, valid_windows=10, **MEASURED),
)  # fmt: skip
"""Eight rates over as large a range, larger as the training is shorter; 1,000 words and width 32."""
QUICK = EarlyChoiceConfig(
    text="python-docs", rates=(1e-3, 5e-3, 2e-2, 8e-2), depths=(1, 2), fitted=None, seeds=(1, 2), needs_gpu=False,
    settings=small(500, 16, steps=100, valid_windows=1, **MEASURED),
)  # fmt: skip


def compute(config: EarlyChoiceConfig, store: Store) -> Measured:
    """Train every depth at every rate, a task for each depth, and choose."""
    metrics = (LOSS, ENTROPY, LOGIT, GRADIENT_RANK)
    own: Settings = {"metrics": metrics, "measure_extra": True, "lr": config.rates}
    t = gathered(store, [one_task(config, store.device, PAPER, depth, **own) for depth in config.depths])
    if set(config.depths) - set(t.runs["depth"] if t else ()):  # a rule needs them all
        return Measured()
    found = []
    for (_, run), (_, curves) in zip(t.runs.groupby(RUN), t.curves.groupby(RUN), strict=True):
        row = run.iloc[0]
        about = row[RUN].to_dict() | {"final": row["end_loss" if row["status"] == "finished" else "first_loss"]}
        for time in TIMES:
            stop = time * config.settings["steps"]
            is_known = row["status"] == "finished" or row["failed_at"] > stop
            found.append(about | {"time": time} | (features_of(curves, stop) if is_known else {}))
    features = pd.DataFrame(found)
    return t.copy_with(features=features, choices=choices(features, config.fitted))


def features_of(curves: pd.DataFrame, stop: float) -> dict[str, float]:
    """Return the predictors of one run at a step."""
    curves = curves[curves["step"] <= stop * (1 + 1e-9)].astype({"value": float})
    loss = select(curves, metric=LOSS).set_index("step")["value"]
    entropy = select(curves, metric=ENTROPY, layer=0).set_index("step")["value"]
    logit = select(curves, metric=LOGIT).groupby("step")["value"].max()
    ranks = select(curves, metric=GRADIENT_RANK).groupby("step")["value"].mean()
    late = [of[of.index >= stop / 2] for of in (loss, entropy, logit)]
    slopes = [np.polyfit(np.log(of.index.to_numpy(dtype=float)), of, 1)[0] for of in late]
    return dict(zip(PREDICTORS, (loss.iloc[-1], *slopes, ranks.iloc[-1]), strict=True))


def choices(features: pd.DataFrame, fitted: int | None) -> pd.DataFrame:
    """Return the regret of every rule at every time, for each seed of each depth that is tested.

    Args:
        features: A row for each run and time: depth, seed, rate, final loss, and the predictors.
        fitted: Depth on which rules are fitted; None fits on all but the one that is tested.
    """
    rows = []
    for time, now in features.groupby("time"):
        for depth in sorted(set(now["depth"]) - {fitted}):
            is_known = now["depth"] == fitted if fitted else now["depth"] != depth
            known, asked = Sweeps(now[is_known]), Sweeps(now[now["depth"] == depth])
            found = {name: fit(known, asked, None, name, (1.0, -1.0)) for name in PREDICTORS[1:]}
            found["loss"] = 0.0, asked.regret(asked["loss"])
            found[BOTH] = fit(known, asked, "loss", ENTROPY_SLOPE, FACTORS)
            generators = [np.random.default_rng([NUM_PERMUTATIONS, i]) for i in range(NUM_PERMUTATIONS)]
            others = [(known.permuted(ENTROPY_SLOPE, rng), asked.permuted(ENTROPY_SLOPE, rng)) for rng in generators]
            permuted = [fit(*each, "loss", ENTROPY_SLOPE, FACTORS) for each in others]
            found[SHUFFLED] = np.nan, np.mean([regret for _, regret in permuted], axis=0)
            found[BEFORE] = np.nan, asked.regret(np.broadcast_to(known["final"].mean(axis=0), asked["final"].shape))
            for name, (factor, regrets) in found.items():
                about = {"time": time, "depth": depth, "predictor": name, "factor": factor}
                rows.append(pd.DataFrame({**about, "seed": asked.seeds, "regret": regrets}))
    return pd.concat(rows, ignore_index=True)


class Sweeps(dict[str, Float[np.ndarray, "S N"]]):
    """Predictors and final losses of several sweeps over the same N rates, a row for each depth and seed."""

    def __init__(self, runs: pd.DataFrame) -> None:
        """Arrange the runs."""
        tables = {name: runs.pivot(index=RUN[:2], columns="lr", values=name) for name in ("final", *PREDICTORS)}
        super().__init__({name: table.to_numpy() for name, table in tables.items()})
        self.seeds = tables["final"].index.get_level_values("seed").to_numpy()

    def regret(self, score: Float[np.ndarray, "S N"]) -> Float[np.ndarray, " S"]:
        """Return the regret of choosing the lowest score in each sweep; NaN is not chosen."""
        chosen = np.where(np.isnan(score), np.inf, score).argmin(axis=1)[:, None]
        return np.take_along_axis(self["final"], chosen, axis=1)[:, 0] - self["final"].min(axis=1)

    def permuted(self, name: str, rng: np.random.Generator) -> "Sweeps":
        """Return a copy in which a predictor is that of other rates, in random order in each sweep."""
        other = copy(self)
        other[name] = rng.permuted(np.nan_to_num(self[name]), axis=1)
        return other


def fit(
    known: Sweeps, asked: Sweeps, base: str | None, name: str, factors: Sequence[float]
) -> tuple[float, Float[np.ndarray, " S"]]:
    """Return the factor of a predictor, added to `base`, with the smallest mean regret, and its regrets elsewhere."""
    scores = [[(of[base] if base else 0.0) + factor * of[name] for of in (known, asked)] for factor in factors]
    best = int(np.argmin([known.regret(score).mean() for score, _ in scores]))
    return factors[best], asked.regret(scores[best][1])


def of_seeds(t: Measured, predictor: str) -> pd.Series:
    """Return the regret of a rule at the time that is judged, by seed: the mean over depths."""
    return select(t.choices, predictor=predictor, time=JUDGED_TIME).groupby("seed")["regret"].mean()


@claim("early-choice-entropy", "Entropy helps to choose the learning rate", source="Our question", ours=True)
def entropy_numbers(t: Measured) -> Iterator[Number]:
    """After 10 % of training, loss with entropy chooses a rate with less than half the regret of loss alone. Where that
    is below 0.01 nats there is no room, and nothing is judged.
    """
    loss, both, shuffled = (of_seeds(t, name) for name in ("loss", BOTH, SHUFFLED))
    has_room = loss.mean() >= ROOM
    about: Settings = {"unit": "nats", "control_name": SHUFFLED, "paired": True}
    for words, key, share, limit in (("minus", "less", 1.0, -SMALLEST), ("minus half", "halved", HALVED, 0.0)):
        name = f"regret of loss with entropy {words} that of loss alone"
        values, control = both - share * loss, shuffled - share * loss
        yield Number.mean(name, values, control=control, at_most=limit if has_room else None, key=key, **about)
    yield Number.mean("regret of loss alone", loss, unit="nats", key="loss")
    yield Number.mean("regret of loss with entropy", both, unit="nats", key="both")
    yield Number.exact("room: regret of loss alone reaches 0.01 nats (1) or not (0)", float(has_room), key="room")


@claim("early-choice-predictors", "Regret of each predictor", source="Our question", primary=False, ours=True)
def predictor_numbers(t: Measured) -> Iterator[Number]:
    """The regret of choosing by each predictor, at each time and depth."""
    for (time, depth, name), own in t.choices.groupby(["time", "depth", "predictor"], sort=False):
        setting = f"depth {depth}, after {time:.0%}"
        yield Number.mean(f"regret, {name}", own["regret"], unit="nats", setting=setting)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw regrets over time, and final loss and early entropy over rates."""
    regrets = over_seeds(t.choices, ["predictor", "depth", "time"], "regret")
    yield points(regrets, "predictor", "mean", color="time", facet="depth", **caption("early-choice"))
    for id, column in (("rates", "final"), ("entropy", ENTROPY_SLOPE)):
        own = over_seeds(select(t.features, time=JUDGED_TIME), ["depth", "lr"], column)
        yield lines(own, "lr", "mean", color="depth", x_log=True, **caption(f"early-choice-{id}"))


EXPERIMENTS = (
    Experiment(
        **catalogue("early-choice"),
        presets={"quick": QUICK, "small": SMALL, "full": EarlyChoiceConfig()},
        compute=compute,
        claims=(entropy_numbers, predictor_numbers),
        charts=charts,
        needs=needs,
        in_tasks=True,
    ),
)
