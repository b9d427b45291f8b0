r"""Warns when attention goes wrong: small functions of the curves of metrics.

Collapse and uniformity are read off the entropy as a fraction of its maximum. Near the uniform end it is
$1 - \mathrm{var}(s) / (2 \log n)$ for logits s over n keys: 0.999 over 512 keys means logits that differ by 0.1, too
little to choose anything. Every network starts near there, so that alone is no alarm. It is one for attention that
became uniform, and for attention that is still uniform long after the loss has fallen.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import isfinite, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from joma.formatting import ALL_HEADS, layer_name

if TYPE_CHECKING:
    from joma.probe.measurement import Row

FRACTION, LOGIT, LOSS, GRADIENT_RANK = "entropy_fraction", "max_logit", "loss", "gradient_stable_rank"
WATCHED = (FRACTION, LOGIT, LOSS, GRADIENT_RANK)  # metrics whose curves are looked at
MIN_POINTS = 4  # fewer measurements give no forecast
LONGEST = 512  # points of a curve that are kept; of longer ones every second point of the older half is dropped


class AlertKind(StrEnum):
    """What is wrong."""

    COLLAPSE = "collapse"
    UNIFORM = "uniform"
    STILL_UNIFORM = "still uniform"
    GROWING_LOGITS = "growing logits"
    LARGE_LOGITS = "large logits"
    DEAD_HEADS = "dead heads"
    SAME_HEADS = "duplicated heads"
    GRADIENT = "gradient rank"


_MESSAGES = {
    AlertKind.COLLAPSE: "{where}: attention has collapsed at step {step:,}. Its entropy is {value:.2%} of its maximum, "
    "below {threshold:.0%} since step {since:,}.",
    AlertKind.UNIFORM: "{where}: attention has become uniform at step {step:,}. Its entropy is {value:.2%} of its "
    "maximum, above {threshold:.1%} since step {since:,}.",
    AlertKind.STILL_UNIFORM: "{where}: attention is still uniform at step {step:,}, long after the loss has fallen. "
    "This layer may be dead.",
    AlertKind.GROWING_LOGITS: "{where}: the largest logit is {value:.3g} at step {step:,} and reaches {threshold:g} at "
    "about step {forecast}.",
    AlertKind.LARGE_LOGITS: "{where}: the largest logit is {value:.3g} at step {step:,}, above {threshold:g} since "
    "step {since:,}.",
    AlertKind.DEAD_HEADS: "{where}: heads {heads} attend uniformly at step {step:,}. They may be dead.",
    AlertKind.SAME_HEADS: "{where}: heads {heads} do the same since step {since:,}.",
    AlertKind.GRADIENT: "{where}: the gradient has rank 1 at step {step:,}. Its stable rank is {value:.3g}, below "
    "{threshold:g} since step {since:,}.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """Thresholds, and how long they must be passed."""

    collapse: float = 0.05
    """Below this fraction of the largest entropy a layer looks at one key or two: e^{0.05 log 512} = 1.4 of 512."""
    uniform: float = 0.999  # above this fraction logits differ by a tenth
    alive: float = 0.99  # attention that has been below this fraction has once chosen
    patience: int = 3  # measurements in a row, so that one odd batch is no alarm
    loss_fall: float = 0.3
    """Fraction of the first loss by which it has fallen when a layer should have learned to choose."""
    long_after: float = 4.0  # a layer is still uniform at this many times the step at which the loss had fallen
    logit_bound: float = 100.0  # largest logit that is still healthy
    logit_watch: float = 30.0  # growth of smaller logits is no alarm, unless it is fast
    logit_fast: float = 20.0  # fast growth of smaller logits is no alarm
    logit_growth: float = 1.4  # factor by which fast logits grow within the measurements of a forecast
    logit_points: int = 8  # measurements from which growth is forecast
    logit_horizon: float = 1.0
    """How far ahead a forecast may lie, over the steps so far; of fast growth the early end of its interval."""
    logit_certainty: float = 3.0  # slope of the growth, in standard errors
    logit_faster: float = 2.0
    """Growth changes its pace: the interval of a forecast begins at the fit's wait divided by this."""
    logit_slower: float = 4.0
    """It ends at the fit's wait times this. The fit alone contains the true step in six collapses of ten."""
    same_heads: float = 1e-4  # relative difference of entropy and largest logit below which two heads do the same
    gradient_rank: float = 1.02  # below this stable rank a gradient has one direction
    gradient_alive: float = 2.0  # a gradient that has been above this stable rank once had several directions

    def __post_init__(self) -> None:
        ordered = 0 <= self.collapse < self.alive <= self.uniform <= 1
        wide = min(self.logit_faster, self.logit_slower) >= 1  # an interval is never narrower than its fit
        enough = self.patience >= 1 and self.logit_points >= MIN_POINTS
        for holds, needed, names in (
            (ordered, "0 <= collapse < alive <= uniform <= 1", ("collapse", "alive", "uniform")),
            (wide, "logit_faster >= 1 and logit_slower >= 1", ("logit_faster", "logit_slower")),
            (enough, f"patience >= 1 and logit_points >= {MIN_POINTS}", ("patience", "logit_points")),
        ):
            if not holds:
                got = ", ".join(f"{name}={getattr(self, name)}" for name in names)
                raise ValueError(f"An alarm needs {needed}, got {got}.")


class Forecast(NamedTuple):
    """The step at which a curve reaches a bound, with a 95 % interval."""

    step: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the step and half the width of its interval, to two digits of the latter.

        >>> str(Forecast(12412, 11790, 13034))
        '12,410 ± 620'
        """
        half = max((self.high - self.low) / 2, 1.0)
        digits = -(len(str(round(half))) - 2)
        return f"{round(self.step, digits):,.0f} ± {round(half, digits):,.0f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alarm about one site; each site has at most one of each kind."""

    kind: AlertKind
    step: int
    since: int  # step of the first of the measurements in a row
    site: str
    layer: int
    value: float  # of the metric that gave the alarm, now
    threshold: float
    heads: tuple[int, ...] = ()  # heads concerned; none where it is the layer
    forecast: Forecast | None = None

    @property
    def message(self) -> str:
        """One line with step, layer and numbers.

        >>> print(Alert(kind=AlertKind.GROWING_LOGITS, step=9000, since=8300, site="h.3.attn", layer=3, value=71.0,
        ...             threshold=100.0, forecast=Forecast(12412, 11790, 13034)).message)
        Layer 3 (h.3.attn): the largest logit is 71 at step 9,000 and reaches 100 at about step 12,410 ± 620.
        """
        name = layer_name(self.layer)
        where, heads = f"{name[0].upper()}{name[1:]} ({self.site})", ", ".join(map(str, self.heads))
        return _MESSAGES[self.kind].format(**asdict(self) | {"where": where, "heads": heads})


@dataclass(slots=True)
class MetricCurve:
    """Finite values of one metric at one site and head, by step."""

    layer: int = -1
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        """Take a measurement; a value that is not finite is passed over."""
        if isfinite(value):
            self.steps.append(step)
            self.values.append(value)
        if len(self.steps) > LONGEST:
            del self.steps[1 : LONGEST // 2 : 2], self.values[1 : LONGEST // 2 : 2]


Curves = dict[tuple[str, str, int], MetricCurve]  # curves by site, metric and head


def note(curves: Curves, step: int, rows: Iterable["Row"]) -> None:
    """Add the values of a step to the curves that are looked at."""
    for row in rows:
        if row.metric in WATCHED:
            curves.setdefault((row.site, row.metric, row.head), MetricCurve(layer=row.layer)).add(step, row.value)


def since_when(curve: MetricCurve, holds: Callable[[float], bool], patience: int) -> int | None:
    """Return the step since which the last values all hold, or None if they are fewer than `patience`.

    >>> since_when(MetricCurve(steps=[0, 10, 20, 30], values=[0.5, 0.01, 0.02, 0.01]), lambda value: value < 0.05, 3)
    10
    """
    first = len(curve.values)
    while first and holds(curve.values[first - 1]):
        first -= 1
    return curve.steps[first] if len(curve.values) - first >= patience else None


def became_uniform(fraction: MetricCurve, alarm: Alarm) -> int | None:
    """Return the step since which attention that once chose is uniform."""
    since = since_when(fraction, lambda value: value > alarm.uniform, alarm.patience)
    return since if since is not None and min(fraction.values) < alarm.alive else None


def still_uniform(fraction: MetricCurve, loss: MetricCurve, alarm: Alarm) -> int | None:
    """Return the first step of attention that never chose, long after the loss has fallen for good."""
    since = since_when(fraction, lambda value: value > alarm.uniform, alarm.patience)
    if since is None or min(fraction.values) < alarm.alive or not loss.values or loss.values[0] <= 0:
        return None
    fallen = since_when(loss, lambda value: value <= (1 - alarm.loss_fall) * loss.values[0], alarm.patience)
    is_long = fallen is not None and fraction.steps[-1] >= alarm.long_after * max(fallen, 1)
    return since if is_long and fallen is not None and since <= fallen else None


def forecast(curve: MetricCurve, bound: float, *, points: int, certainty: float = 3.0) -> Forecast | None:
    r"""Return when a growing curve reaches a bound, from its last points; None if it does not surely grow.

    A line $a + b t$ is fitted to the values and to their logarithms. Each reaches the bound at $t^* = (y - a)/b$ with
    the variance $\frac{s^2}{b^2}\big(\frac1n + \frac{(t^* - \bar t)^2}{S_{tt}}\big)$. The interval covers both: whether
    growth is linear or exponential cannot be known in advance.

    >>> forecast(MetricCurve(steps=[0, 10, 20, 30], values=[10.0, 20.0, 30.0, 40.0]), 80.0, points=4).high
    70.0
    """
    steps, values = curve.steps[-points:], curve.values[-points:]
    if len(steps) < MIN_POINTS or min(values) <= 0:
        return None
    ends = []
    for ys, goal in ((values, bound), ([log(value) for value in values], log(bound))):
        n, t_mean, y_mean = len(steps), sum(steps) / len(steps), sum(ys) / len(ys)
        spread = sum((t - t_mean) ** 2 for t in steps)
        slope = sum((t - t_mean) * (y - y_mean) for t, y in zip(steps, ys, strict=True)) / spread
        rest = sum((y - y_mean - slope * (t - t_mean)) ** 2 for t, y in zip(steps, ys, strict=True))
        noise = sqrt(rest / (n - 2))
        if slope * sqrt(spread) <= certainty * noise or slope <= 0:
            return None
        reached = t_mean + (goal - y_mean) / slope
        error = noise / slope * sqrt(1 / n + (reached - t_mean) ** 2 / spread)
        ends += [reached - 2 * error, reached + 2 * error]
    low, high = (max(end, steps[-1]) for end in (min(ends), max(ends)))
    return Forecast((low + high) / 2, low, high)


def logits_grow(logit: MetricCurve, alarm: Alarm) -> Forecast | None:
    """Return when the largest logit passes its bound, if that is near."""
    latest, now = logit.values[-alarm.patience :], logit.steps[-1]
    if len(latest) < alarm.patience or latest[-1] >= alarm.logit_bound:
        return None
    smallest, horizon = min(latest), now + alarm.logit_horizon * (now - logit.steps[0])
    is_fast = smallest >= max(alarm.logit_fast, alarm.logit_growth * logit.values[-alarm.logit_points :][0])
    found = forecast(logit, alarm.logit_bound, points=alarm.logit_points, certainty=alarm.logit_certainty)
    if found is None:
        return None
    if not (is_fast and found.low <= horizon) and not (smallest >= alarm.logit_watch and found.step <= horizon):
        return None
    low, high = now + (found.low - now) / alarm.logit_faster, now + (found.high - now) * alarm.logit_slower
    return Forecast((low + high) / 2, low, high)


def same_heads(heads: Mapping[int, tuple[MetricCurve, MetricCurve]], alarm: Alarm) -> tuple[int, ...]:
    """Return heads that agree with another one in both curves, while they choose.

    Args:
        heads: for each head the fraction of its largest entropy, and its largest logit.
        alarm: thresholds.
    """

    def agree(curves: Iterable[MetricCurve], top: float) -> Bool[np.ndarray, "heads heads"]:
        values = np.array([curve.values[-alarm.patience :] for curve in curves])
        away = np.abs(top - values)
        near = alarm.same_heads * np.maximum(away[:, None], away)
        return (np.abs(values[:, None] - values) <= near).all(axis=-1)

    chosen = {
        head: (fraction, logit)
        for head, (fraction, logit) in heads.items()
        if len(fraction.values) >= alarm.patience and fraction.values[-1] < alarm.alive
    }
    if len(chosen) < 2:  # noqa: PLR2004 (a pair)
        return ()
    fractions, logits = zip(*chosen.values(), strict=True)
    # A fraction is compared by its distance from 1, where all heads start.
    both = agree(fractions, 1.0) & agree(logits, 0.0)
    np.fill_diagonal(both, val=False)
    return tuple(sorted(head for head, has_twin in zip(chosen, both.any(axis=0), strict=True) if has_twin))


def alerts_of(curves: Curves, alarm: Alarm) -> Iterator[Alert]:
    """Yield everything that is wrong at the last measurement of each curve."""
    loss = next((curve for (_, metric, _), curve in curves.items() if metric == LOSS), MetricCurve())
    found: list[tuple[AlertKind, int | None, float, dict[str, Any]]]
    of_heads: dict[tuple[str, str], dict[int, MetricCurve]] = defaultdict(dict)
    for (site, metric, head), curve in curves.items():
        if head != ALL_HEADS:
            of_heads[site, metric][head] = curve
    for (site, metric, head), curve in curves.items():
        if head != ALL_HEADS or not curve.values:
            continue
        if metric == FRACTION:
            heads, logits = of_heads[site, FRACTION], of_heads[site, LOGIT]
            dead = {h: since for h, c in heads.items() if (since := became_uniform(c, alarm)) is not None}
            same = same_heads({h: (heads[h], logits[h]) for h in heads if h in logits}, alarm)
            uniform = became_uniform(curve, alarm)
            since_dead = max(dead.values()) if dead and uniform is None else None
            since_same = curve.steps[-alarm.patience :][0] if same else None
            collapsed = since_when(curve, lambda value: value < alarm.collapse, alarm.patience)
            found = [
                (AlertKind.COLLAPSE, collapsed, alarm.collapse, {}),
                (AlertKind.UNIFORM, uniform, alarm.uniform, {}),
                (AlertKind.STILL_UNIFORM, still_uniform(curve, loss, alarm), alarm.uniform, {}),
                (AlertKind.DEAD_HEADS, since_dead, alarm.uniform, {"heads": tuple(dead)}),
                (AlertKind.SAME_HEADS, since_same, alarm.same_heads, {"heads": same}),
            ]
        elif metric == LOGIT:
            growth = logits_grow(curve, alarm)
            since = None if growth is None else curve.steps[-alarm.logit_points :][0]
            large = since_when(curve, lambda value: value >= alarm.logit_bound, alarm.patience)
            found = [
                (AlertKind.GROWING_LOGITS, since, alarm.logit_bound, {"forecast": growth}),
                (AlertKind.LARGE_LOGITS, large, alarm.logit_bound, {}),
            ]
        elif metric == GRADIENT_RANK:  # of a gradient that once had several directions
            low = since_when(curve, lambda value: value < alarm.gradient_rank, alarm.patience)
            since = low if max(curve.values) > alarm.gradient_alive else None
            found = [(AlertKind.GRADIENT, since, alarm.gradient_rank, {})]
        else:
            continue
        more: dict[str, Any] = {"site": site, "layer": curve.layer, "step": curve.steps[-1], "value": curve.values[-1]}
        for kind, since, limit, own in found:
            if since is not None:
                yield Alert(kind=kind, since=since, threshold=limit, **more, **own)
