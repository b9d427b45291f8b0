r"""Warns when a layer's attention collapses onto single keys, or goes dead uniform.

Both are read off the entropy as a fraction of its maximum, mean over a layer's rows and heads. Near the uniform end it
is $1 - \mathrm{var}(s) / (2 \log n)$ for logits s over n keys: 0.999 over 512 keys means logits that differ by 0.1, too
little to choose anything. Every network starts near there (GPT-2's initialisation gives 0.99), so that is no alarm in
itself: it is one for a layer that has been elsewhere, and for one that has not moved after many measurements.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from joma.formatting import counted, layer_name


class AlertKind(StrEnum):
    """What is wrong."""

    COLLAPSE = "collapse"
    UNIFORM = "uniform"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """Thresholds on the entropy fraction of a layer, and how long they must be passed."""

    collapse: float = 0.05
    """Below this fraction a layer looks at one key or two: over 512 keys, e^{0.05 log 512} = 1.4 of them."""
    uniform: float = 0.999
    """Above it logits differ by a tenth."""
    alive: float = 0.99
    """A layer that has been below this one has once chosen."""
    patience: int = 3
    """Measurements in a row, so that one odd batch is no alarm."""
    stuck: int = 20
    """Measurements in a row from the first on, for a layer that never chose."""

    def __post_init__(self) -> None:
        """Refuse thresholds out of order and no patience at all."""
        if not 0 <= self.collapse < self.alive <= self.uniform <= 1:
            raise ValueError(
                "An alarm needs 0 <= collapse < alive <= uniform <= 1, "
                f"got {self.collapse}, {self.alive} and {self.uniform}."
            )
        if self.patience < 1 or self.stuck < self.patience:
            raise ValueError(f"An alarm needs 1 <= patience <= stuck, got {self.patience} and {self.stuck}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alarm about one layer; each layer has at most one of each kind."""

    kind: AlertKind
    step: int
    since: int
    """Step of the first of the measurements in a row."""
    site: str
    layer: int
    fraction: float
    """Entropy over its maximum, now."""
    entropy: float
    """In nats, now."""
    threshold: float
    num_measurements: int
    """How many in a row passed the threshold."""

    @property
    def message(self) -> str:
        """One line with step, layer and numbers.

        >>> alert = Alert(kind=AlertKind.COLLAPSE, step=300, since=100, site="h.3.attn", layer=3, fraction=0.021,
        ...               entropy=0.11, threshold=0.05, num_measurements=3)
        >>> print(alert.message)
        Attention entropy has collapsed at step 300 in layer 3 (h.3.attn): 0.11 nats, 2.1 % of its maximum, below 5 % \
in 3 measurements since step 100.
        """
        what, side = _WORDS[self.kind]
        return (
            f"{what} at step {self.step} {layer_name(self.layer, 'in')} ({self.site}): {self.entropy:.3g} nats, "
            f"{100 * self.fraction:.4g} % of its maximum, {side} {100 * self.threshold:g} % "
            f"in {counted(self.num_measurements, 'measurement')} since step {self.since}."
        )


_WORDS = {
    AlertKind.COLLAPSE: ("Attention entropy has collapsed", "below"),
    AlertKind.UNIFORM: ("Attention is dead uniform", "above"),
}


@dataclass(slots=True)
class _Site:
    """What one site has shown so far."""

    kind: AlertKind | None = None
    """The trouble of the last measurements in a row, how many they are, and the step of the first."""
    in_a_row: int = 0
    since: int = 0
    has_chosen: bool = False
    reported: set[AlertKind] = field(default_factory=set)


class AlarmMonitor:
    """Follows every site and reports each kind of trouble once."""

    def __init__(self, alarm: Alarm) -> None:
        """Start with no history."""
        self.alarm = alarm
        self._sites: dict[str, _Site] = {}

    def check(self, step: int, site: str, layer: int, *, fraction: float, entropy: float) -> Alert | None:
        """Take one measurement; a value that is not finite is passed over."""
        if not isfinite(fraction):
            return None
        state = self._sites.setdefault(site, _Site())
        state.has_chosen |= fraction < self.alarm.alive
        kind = None
        if fraction < self.alarm.collapse:
            kind = AlertKind.COLLAPSE
        elif fraction > self.alarm.uniform:
            kind = AlertKind.UNIFORM
        if kind is not state.kind:
            state.kind, state.in_a_row, state.since = kind, 0, step
        state.in_a_row += 1
        if kind is None:
            return None
        enough = self.alarm.patience if kind is AlertKind.COLLAPSE or state.has_chosen else self.alarm.stuck
        if kind in state.reported or state.in_a_row < enough:
            return None
        state.reported.add(kind)
        return Alert(
            kind=kind,
            step=step,
            since=state.since,
            site=site,
            layer=layer,
            fraction=fraction,
            entropy=entropy,
            threshold=self.alarm.collapse if kind is AlertKind.COLLAPSE else self.alarm.uniform,
            num_measurements=state.in_a_row,
        )
