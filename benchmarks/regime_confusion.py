"""How often the regime of a curve is named right: `python benchmarks/regime_confusion.py`.

The regime of each curve is known. Every shape meets every noise, level of noise and length, with its sizes and times
drawn at random, from fixed seeds. With `--write` the tables are put into docs/regimes.md, between its two marks; a test
holds that they are current.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from joma.measure import regime as thresholds
from joma.measure.regime import Kind, Regime, classify

DOCUMENT = Path(__file__).parents[1] / "docs/regimes.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
UPPER = float(np.log(1024))
LENGTHS = (20, 50, 120, 400)
LEVELS = (0.05, 0.1, 0.2)
NUM_SEEDS = 1
NUM_HARDEST_SEEDS = 40
BURN_IN = 100
BOTTOM = 0.02
"""A point within this part of a dip's depth is its bottom."""

Shape = Callable[[np.ndarray, np.random.Generator], np.ndarray]
Result = tuple["Case", Regime]
Noise = Callable[[int, np.random.Generator], np.ndarray]


def autocorrelated(phi: float) -> Noise:
    """Gaussian noise of unit deviation whose neighbours correlate by phi."""

    def draw(num: int, rng: np.random.Generator) -> np.ndarray:
        return lfilter([np.sqrt(1 - phi**2)], [1, -phi], rng.normal(size=num + BURN_IN))[BURN_IN:]

    return draw


def spiked(num: int, rng: np.random.Generator) -> np.ndarray:
    """White noise in which 2 % of the points jump by eight deviations."""
    return rng.normal(size=num) + (rng.random(num) < 0.02) * rng.choice([-8.0, 8.0], size=num)


NOISES: dict[str, Noise] = {
    "white": autocorrelated(0.0),
    "autocorrelated 0.3": autocorrelated(0.3),
    "autocorrelated 0.5": autocorrelated(0.5),
    "heavy tails (t, 3)": lambda num, rng: rng.standard_t(3, size=num) / np.sqrt(3),
    "spikes": spiked,
    "growing fourfold": lambda num, rng: rng.normal(size=num) * np.linspace(0.4, 1.6, num),
}


def step(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """From 0 to 1 at once."""
    return (x > rng.uniform(0.2, 0.8)).astype(float)


def dip(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Straight from 0 to -1, and straight back by a part."""
    at, back = rng.uniform(0.2, 0.7), rng.uniform(0.3, 1.0)
    return np.interp(x, [0, at, 1], [0, -1, back - 1])


def smooth_dip(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A quick fall and a slow return: the difference of two exponentials, scaled to a depth of 1."""
    slow, share = rng.uniform(1.5, 4), rng.uniform(0.5, 1.0)
    curve = np.exp(-12 * x) - 1 + share * (1 - np.exp(-slow * x))
    return curve / -curve.min()


def trough(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A fall, a stay and a return by a part."""
    back = rng.uniform(0.3, 1.0)
    return np.interp(x, [0, 0.2, 0.3, 0.6, 0.8, 1], [0, 0, -1, -1, back - 1, back - 1])


RISES: dict[str, Shape] = {
    "line": lambda x, rng: x,
    "exponential": lambda x, rng: 1 - np.exp(-rng.uniform(3, 10) * x),
    "step": step,
    "plateaus": lambda x, rng: np.minimum(np.floor(4 * x), 3) / 3,
    "early": lambda x, rng: 1 - np.exp(-50 * x),
}
"""From 0 to 1 and never down. Early: nearly all of the curve is flat, the hardest one to tell from a rebound."""
DIPS: dict[str, Shape] = {"dip": dip, "smooth dip": smooth_dip, "trough": trough}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A curve whose regime is known."""

    kind: Kind
    shape: str
    noise: str
    level: float
    """Deviation of the noise over the size of the change."""
    steps: np.ndarray
    clean: np.ndarray
    values: np.ndarray


def shapes_of(kind: Kind, rng: np.random.Generator) -> Iterator[tuple[str, Shape, float, float]]:
    """The shapes of a kind, each with where it starts and by how much it changes."""
    size = rng.uniform(1, 3)
    middle = UPPER / 2 + rng.uniform(-0.3, 0.3)
    match kind:
        case Kind.FLAT:
            yield "constant", lambda x, rng: np.zeros_like(x), middle, size
        case Kind.RISING:
            yield from ((name, shape, middle - size / 2, size) for name, shape in RISES.items())
        case Kind.FALLING:
            yield from ((name, shape, middle + size / 2, -size) for name, shape in RISES.items())
        case Kind.REBOUNDING:
            yield from ((name, shape, middle + size / 2, size) for name, shape in DIPS.items())
        case Kind.PEAKING:
            yield from ((name, shape, middle - size / 2, -size) for name, shape in DIPS.items())
        case Kind.COLLAPSED:
            yield from ((name, RISES[name], middle, 0.01 * UPPER - middle) for name in ("exponential", "step"))
        case Kind.UNIFORM:
            yield from ((name, RISES[name], middle, 0.999 * UPPER - middle) for name in ("early", "step"))


KINDS = (
    Kind.FLAT,
    Kind.FALLING,
    Kind.RISING,
    Kind.REBOUNDING,
    Kind.PEAKING,
    Kind.COLLAPSED,
    Kind.UNIFORM,
)


def cases() -> Iterator[Case]:
    """All curves, in a fixed order."""
    for kind, noise, level, num, seed in itertools.product(KINDS, NOISES, LEVELS, LENGTHS, range(NUM_SEEDS)):
        rng = np.random.default_rng([KINDS.index(kind), list(NOISES).index(noise), round(100 * level), num, seed])
        for shape_name, shape, start, change in shapes_of(kind, rng):
            yield drawn(kind, shape_name, shape, start, change, noise, level, num, rng)


def hardest_cases() -> Iterator[Case]:
    """Curves that fall early and are flat from then on: where a falling curve is most easily taken for a rebound."""
    for noise, num, seed in itertools.product(NOISES, LENGTHS, range(NUM_HARDEST_SEEDS)):
        rng = np.random.default_rng([list(NOISES).index(noise), num, seed])
        yield drawn(Kind.FALLING, "early", RISES["early"], 4.5, -2.0, noise, max(LEVELS), num, rng)


def drawn(
    kind: Kind,
    shape_name: str,
    shape: Shape,
    start: float,
    change: float,
    noise: str,
    level: float,
    num: int,
    rng: np.random.Generator,
) -> Case:
    """Draw one curve, at even or irregular steps."""
    x = np.sort(rng.random(num)) if rng.random() < 0.5 else np.linspace(0, 1, num)
    clean = start + change * shape(x, rng)
    # Near a bound the noise of an entropy shrinks: it cannot go beyond, on the average of many rows.
    room = np.minimum(1, np.minimum(clean, UPPER - clean) / (UPPER / 4))
    noisy = clean + level * abs(change) * room * NOISES[noise](num, rng)
    values = np.clip(noisy, 0, UPPER)
    return Case(kind=kind, shape=shape_name, noise=noise, level=level, steps=x, clean=clean, values=values)


def measured(curves: Iterable[Case]) -> list[Result]:
    """Classify all curves."""
    return [(case, classify(case.steps, case.values, upper=UPPER)) for case in curves]


def percent(hits: int, total: int) -> str:
    """Write a share.

    >>> percent(1, 8)
    '12.5'
    """
    return f"{100 * hits / total:.1f}" if hits else "0"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table in Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def confusion(results: Sequence[Result]) -> str:
    """Percent of the curves of each kind that were given each answer."""
    answers = (*KINDS, Kind.UNCLEAR)
    rows = []
    for kind in KINDS:
        given = Counter(regime.kind for case, regime in results if case.kind is kind)
        total = sum(given.values())
        rows.append([kind.value, str(total), *(percent(given[answer], total) for answer in answers)])
    return table(["is, % called", "curves", *(answer.value for answer in answers)], rows)


def false_rebounds(results: Sequence[Result]) -> str:
    """Percent called rebounding, by noise and length, of curves that never rise after a fall."""

    def row(name: str, own: Sequence[Result]) -> list[str]:
        by_length = ([each for each in own if len(each[0].steps) == num] for num in LENGTHS)
        verdicts = [[regime.kind is Kind.REBOUNDING for _, regime in chosen] for chosen in (*by_length, own)]
        return [name, *(percent(sum(each), len(each)) for each in verdicts)]

    rows = [row(noise, [each for each in results if each[0].noise == noise]) for noise in NOISES]
    head = ["% false rebounds", *(f"{num} points" for num in LENGTHS), "all"]
    return table(head, [*rows, row(f"all {len(results)}", results)])


def found_rebounds(results: Sequence[Result]) -> str:
    """Percent of the rebounding curves that were called so, by length and noise over rebound."""
    own = [(case, regime, case.level / rebound_of(case)) for case, regime in results if case.kind is Kind.REBOUNDING]
    bins = ((0, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, np.inf))

    def cell(num: int, low: float, high: float) -> str:
        hits = [regime.kind is Kind.REBOUNDING for case, regime, r in own if len(case.steps) == num and low < r <= high]
        return percent(sum(hits), len(hits)) if hits else "–"

    names = (f"{low:g} to {high:g}" if high < np.inf else f"over {low:g}" for low, high in bins)
    head = ["% found, noise over rebound", *names]
    return table(head, ([f"{num} points", *(cell(num, *each) for each in bins)] for num in LENGTHS))


def rebound_of(case: Case) -> float:
    """Rise after the lowest point, over the fall before it."""
    lowest = int(case.clean.argmin())
    return float(
        (case.clean[lowest:].max() - case.clean[lowest]) / (case.clean[: lowest + 1].max() - case.clean[lowest])
    )


def sizes(results: Sequence[Result]) -> str:
    """Mean errors of time, depth and rebound where a rebound was found, in units that do not depend on the curve."""
    rows = []
    for num in LENGTHS:
        errors = [errors_of(*each) for each in results if each[0].kind is each[1].kind is Kind.REBOUNDING]
        own = np.array([values for length, values in errors if length == num])
        rows.append([f"{num} points", *(f"{value:.2f}" for value in own.mean(axis=0))])
    return table(["mean error", "time", "depth", "rebound"], rows)


def errors_of(case: Case, regime: Regime) -> tuple[int, tuple[float, float, float]]:
    """Length of a curve; distance in time to the nearest point of the bottom, and errors of sizes."""
    deviation = case.level * (case.clean.max() - case.clean.min())
    bottom = case.steps[case.clean <= case.clean.min() + BOTTOM * (case.clean.max() - case.clean.min())]
    lowest = int(case.clean.argmin())
    depth, rebound = (part.max() - case.clean.min() for part in (case.clean[: lowest + 1], case.clean[lowest:]))
    time = float(np.abs(bottom - regime.dip_step).min())
    return len(case.steps), (time, abs(regime.dip_depth - depth) / deviation, abs(regime.rebound - rebound) / deviation)


def confidences(results: Sequence[Result]) -> str:
    """Percent right among the verdicts of each confidence."""
    bins = ((0.5, 0.7), (0.7, 0.9), (0.9, 0.99), (0.99, 1.01))
    rows = []
    for low, high in bins:
        right = [case.kind is regime.kind for case, regime in results if low <= regime.confidence < high]
        rows.append([f"{low:g} to {min(high, 1):g}", str(len(right)), percent(sum(right), len(right))])
    return table(["confidence", "verdicts", "% right"], rows)


THRESHOLDS = {
    "MIN_POINTS": "points; shorter curves are unclear",
    "EVIDENCE": "standard errors above what chance reaches: a difference counts",
    "MIN_HEIGHT": "of the values: smallest height of a curve without `upper`",
    "MIN_CHANGE": "of the scale: smallest change that matters",
    "MIN_REBOUND": "of the fall: smallest rebound that matters, and the other way round",
    "KEPT": "of the fall and of the rise: by so much both ends must lie above the dip",
    "COLLAPSED": "of the scale: a curve that ends lower has collapsed",
    "UNIFORM": "of the scale: a curve that ends higher is uniform",
    "HIDDEN": "of the scale: where smaller changes cannot be seen, no change is unclear rather than flat",
    "SPIKE": "deviations from the running median: a point further out is left out",
    "MAX_AUTOCORRELATION": "between neighbours: noise that is smoother is taken for signal",
}


def settings() -> str:
    """The thresholds as they stand in the code."""
    rows = ([f"`{name}`", f"{getattr(thresholds, name):g}", meaning] for name, meaning in THRESHOLDS.items())
    return table(["threshold", "value", "meaning"], rows).replace("| --- | ---: | ---: |", "| --- | ---: | --- |")


def report(results: Sequence[Result], hardest: Sequence[Result]) -> str:
    """Write all tables, with a line on what each holds."""
    monotone = [(case, regime) for case, regime in results if case.kind not in (Kind.REBOUNDING, Kind.PEAKING)]
    titled = (
        ("Thresholds:", settings()),
        ("Confusion, over all noises, levels of noise and lengths:", confusion(results)),
        ("False rebounds on flat, falling, rising, collapsed and uniform curves:", false_rebounds(monotone)),
        (
            f"The same on the hardest curve, which falls early and is flat from then on, under noise of "
            f"{max(LEVELS):.0%} of the fall; {NUM_HARDEST_SEEDS} curves a cell:",
            false_rebounds(hardest),
        ),
        ("Rebounds found, by the deviation of the noise over the size of the rebound:", found_rebounds(results)),
        ("Errors of rebounds; time as part of the curve, sizes in deviations of the noise:", sizes(results)),
        ("Confidence given, and how many of those verdicts were right:", confidences(results)),
    )
    return "\n\n".join(f"{title}\n\n{text}" for title, text in titled)


def main() -> int:
    """Print the tables, or put them into the document."""
    text = report(measured(cases()), measured(hardest_cases()))
    if "--write" in sys.argv[1:]:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
