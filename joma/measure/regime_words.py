"""A regime in words: what was found, and what the points may be that were left out at the ends of the curve."""

from joma.measure.regime_findings import COLLAPSED, MIN_CHANGE, UNIFORM, Findings
from joma.measure.regime_kinds import DOWN, LAST_WAY, UP, Kind
from joma.measure.regime_strays import Stray, Strays

CHANGE = {DOWN: "fall", UP: "rise"}


def told(kind: Kind, found: Findings, gap: float) -> str:
    """Word what was found; `gap` is how far the first and the last value lie apart as they were measured."""
    dip, peak, kept = found.dip, found.peak, _kept(found.strays)
    last = found.strays.last
    ends = f"ends at {found.end:.3g}" if last is None else f"is at {found.end:.3g} up to step {last.step:g}"
    return {
        Kind.COLLAPSED: f"{ends}, at most {COLLAPSED:.0%} of the scale",
        Kind.UNIFORM: f"{ends}, at least {UNIFORM:.0%} of the largest value possible",
        Kind.REBOUNDING: f"falls by {dip.depth:.3g} to step {dip.step:g}, then rises by {dip.rebound:.3g}",
        Kind.PEAKING: f"rises by {peak.depth:.3g} to step {peak.step:g}, then falls by {peak.rebound:.3g}",
        Kind.FALLING: f"falls by {found.fall.size:.3g}{kept}",
        Kind.RISING: f"rises by {found.rise.size:.3g}{kept}",
        Kind.FLAT: f"flat{kept}" if kept else _no_change(found, gap),
        Kind.UNCLEAR: f"a change of {found.detectable:.2g} would not be seen",
    }[kind]


def doubt(kind: Kind, strays: Strays) -> str:
    """Word what the points may be that were left out at the ends; empty where none matters."""
    said = []
    if strays.first is not None and kind not in (Kind.COLLAPSED, Kind.UNIFORM):  # these tell of the end alone
        said.append(f"{_alone('first', strays.first, 'at the start')} the end of an earlier {CHANGE[strays.first.way]}")
    if strays.last is not None:
        what = "a further" if strays.last.way == LAST_WAY.get(kind) else "the beginning of a"
        said.append(f"{_alone('last', strays.last, 'at the end')} {what} {CHANGE[strays.last.way]}")
    return "; ".join(said)


def _no_change(found: Findings, gap: float) -> str:
    unseen = f"{max(MIN_CHANGE * found.scale, found.detectable):.2g}"
    if gap < float(unseen):
        return f"no change of {unseen} or more"
    return f"no lasting change of {unseen} or more, though first and last point differ by {gap:.2g}"


def _kept(strays: Strays) -> str:
    """Say to which steps a verdict applies where points were left out."""
    first, last = strays.first, strays.last
    if first is None:
        return "" if last is None else f" up to step {last.step:g}"
    return f" from step {first.step:g} " + ("on" if last is None else f"to step {last.step:g}")


def _alone(which: str, stray: Stray, where: str) -> str:
    if stray.num == 1:
        return f"the {which} point, {stray.value:.3g}, stands alone and may be"
    return f"the {which} {stray.num} points, {stray.value:.3g} {where}, stand alone and may be"
