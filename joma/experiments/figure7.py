"""Figure 7: attention entropy and stable rank of the MLP's lower matrix over a series of checkpoints, by `scan`.

Always a small GPT-NeoX trained here; OPT and Pythia where the hub can be reached. The public series are never stood in
for: where they cannot be had their verdict says what it needs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from joma.experiments.experiment import FAILURE, Experiment, Fact, Result, Workplace
from joma.experiments.figure7_regimes import ENTROPY, LOWER, OURS, RANK, UNTRAINED, regimes_of
from joma.experiments.figure7_verdicts import (
    ABSENT,
    NO_ENTROPY,
    SOURCE,
    audit_verdict,
    public_verdicts,
    rank_verdict,
    salience_verdict,
)
from joma.experiments.hub_access import hub_missing, transformers_missing
from joma.experiments.neox_series import (
    SETUP_SECONDS,
    NeoxConfig,
    NeoxSeries,
    series_of,
    shared_folder,
    train_series,
    training_seconds,
)
from joma.experiments.public_series import PUBLIC, PublicSeries, is_scanned, record_of, scan_public, scanned
from joma.experiments.threads import one_thread
from joma.experiments.timetable import Piece, Tell
from joma.figures.chart import Chart, Line, Panel
from joma.measure.regime import MIN_POINTS
from joma.probe.audit import NO_FLAG, audit
from joma.probe.findings import Fault, Finding
from joma.probe.fingerprint import Fingerprint
from joma.probe.fingerprint import load as load_fingerprints
from joma.probe.scanning import scan
from joma.store import info, read
from joma.store.files import write_text
from joma.store.record import FILE_NAME as RUN
from joma.verdicts import Verdict

LOSSES = "losses.json"
"""File beside the record of a scan with the losses of what it scanned."""
SCAN_SECONDS = 0.3
"""For each checkpoint of ours: reading it, its ranks, and the entropy on a few windows of text."""
LOGARITHMIC = "The stable rank is on a logarithmic axis."
PUBLIC_SECONDS = 300.0
"""For a series of the hub: said and not counted, since it is the download that takes the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The series to scan."""

    neox: NeoxConfig
    """The one that is trained here."""
    num_windows: int
    """Windows of text for the entropy."""
    public: tuple[PublicSeries, ...] = ()
    """Series of the hub, if it can be reached."""
    small: bool
    """Whether the series is too short to refute anything."""
    seed: int = 0
    """Of the shuffled orders."""


QUICK_NEOX = NeoxConfig(
    texts=("python-docs",), vocabulary=1000, width=64, depth=4, heads=4, window=32, batch=16, num_steps=480, every=20,
    lr=2e-3, warmup=20,
)  # fmt: skip
FULL_NEOX = NeoxConfig(
    texts=("wikitext2", "python-docs"), vocabulary=10_000, width=256, depth=6, heads=8, window=128, batch=32,
    num_steps=6000, every=150, lr=1e-3, warmup=150, precision="tf32",
)  # fmt: skip


def quick() -> Config:
    """Four layers of width 64, some hundred steps on Python's documentation; no public series."""
    return Config(neox=QUICK_NEOX, num_windows=8, small=True)


def full() -> Config:
    """Six layers of width 256 on WikiText-2, and the public series if the hub can be reached now."""
    return Config(neox=FULL_NEOX, num_windows=32, public=() if hub_missing() else PUBLIC, small=False)


def missing(config: Config, workplace: Workplace) -> str:
    """Return what the series that is trained here lacks; the public ones have a verdict of their own."""
    return transformers_missing()


def compute(config: Config, workplace: Workplace) -> Result:
    """Train, scan and audit our series and its control without learning; scan the public ones; name the regimes."""
    with one_thread(workplace.device):
        return _compute(config, workplace)


def _compute(config: Config, workplace: Workplace) -> Result:
    shared = shared_folder(workplace)
    idle = replace(config.neox, lr=0.0, num_steps=MIN_POINTS, every=1, warmup=0)
    own = {OURS: series_of(config.neox, shared), UNTRAINED: series_of(idle, shared)}
    places = {name: workplace.folder.parent / f"scan-{each.key}-{config.num_windows}" for name, each in own.items()}
    workplace.work_off(
        [
            *(
                _piece(own[name], config, place, workplace.device)
                for name, place in places.items()
                if not _is_scanned(own[name], place)
            ),
            *(
                _public_piece(each, config, workplace.folder)
                for each in config.public
                if not is_scanned(each, workplace.folder)
            ),
        ]
    )
    public = {each.repository: record_of(each, workplace.folder) for each in config.public}
    scans = places | {name: place for name, place in public.items() if (place / RUN).exists()}
    curves = pd.concat([_curves(place, name) for name, place in scans.items()], ignore_index=True)
    losses = _losses(places[OURS])
    return Result(
        tables={
            "curves": curves,
            "regimes": regimes_of(curves, config.seed),
            "audit": _findings({name: audit(_fingerprints(place)) for name, place in scans.items()}),
            "loss": pd.DataFrame({"step": list(losses), "loss": list(losses.values())}),
        },
        facts={
            "text": own[OURS].corpus.name,
            "trained_on": own[OURS].trained_on,
            "num_layers": config.neox.depth,
            "num_checkpoints": len(config.neox.steps),
            "first_loss": losses[0],
            "last_loss": losses[config.neox.num_steps],
            **planted_duplicates(_fingerprints(places[OURS])),
            "public_missing": _why_no_public(config),
            **_not_had(config, workplace.folder),
        },
    )


def _not_had(config: Config, folder: Path) -> dict[str, Fact]:
    """Return what could not be had of the public series, each with its reason."""
    found = {each.repository: scanned(each, folder) for each in config.public}
    return {
        f"{kind}{name}": reason
        for name, of in found.items()
        if of is not None
        for kind, reason in ((FAILURE, of.failure), (ABSENT, of.absent), (NO_ENTROPY, of.no_entropy))
        if reason
    }


def _fingerprints(record: Path) -> list[Fingerprint]:
    return list(load_fingerprints(record).values())


def planted_duplicates(series: Sequence[Fingerprint]) -> dict[str, Fact]:
    """Put the last weights under every other step in turn, and count how often the audit says so."""
    last = series[-1]
    caught = 0
    for i, each in enumerate(series[:-1]):
        planted = replace(each, tensors=last.tensors, sketches=last.sketches, files=last.files)
        found = audit([*series[:i], planted, *series[i + 1 :]])
        caught += any(finding.kind is Fault.IDENTICAL_CHECKPOINT for finding in found)
    return {"num_planted": len(series) - 1, "num_caught": caught}


def _piece(series: NeoxSeries, config: Config, out: Path, device: str) -> Piece:
    """Train a series and scan it: the weights need not outlive the scan."""
    num_scanned = len(series.config.steps)
    return Piece(
        kind="networks",
        name=f"a small GPT-NeoX, {series.config.num_steps} steps",
        seconds=training_seconds(series, device) + SCAN_SECONDS * num_scanned,
        setup=SETUP_SECONDS,
        work=lambda tell: _train_and_scan(series, config, out, device, tell),
    )


def _train_and_scan(series: NeoxSeries, config: Config, out: Path, device: str, tell: Tell) -> None:
    train_series(series.config, series.folder.parent, device=device, tell=lambda share, doing: tell(0.8 * share, doing))
    _scan_ours(series, config, out, lambda share, doing: tell(0.8 + 0.2 * share, doing))
    write_text(out / LOSSES, json.dumps(series.losses()) + "\n")


def _is_scanned(series: NeoxSeries, out: Path) -> bool:
    """Whether the record has all checkpoints; then their weights are not needed any more."""
    if not (out / LOSSES).exists() or info(out).status != "finished":
        return False
    return set(load_fingerprints(out)) >= set(series.config.steps)


def _losses(out: Path) -> dict[int, float]:
    """Return the losses by step of the weights that were scanned."""
    return {int(step): loss for step, loss in json.loads((out / LOSSES).read_text(encoding="utf-8")).items()}


def _public_piece(series: PublicSeries, config: Config, folder: Path) -> Piece:
    """Scan a series of the hub; what was not reached is tried again by the next call, and that alone."""

    def work(tell: Tell) -> None:
        scan_public(series, folder, num_windows=config.num_windows, tell=tell)

    return Piece(kind="public series", name=f"scanning {series.repository}", seconds=PUBLIC_SECONDS, work=work)


def _scan_ours(series: NeoxSeries, config: Config, out: Path, tell: Tell) -> None:
    """Scan a series of ours on the words of its validation text."""
    tokenizer = _save_tokenizer(series)
    num_words = config.num_windows * config.neox.window
    words = [series.corpus.vocabulary[number] for number in series.corpus.valid[:num_words].tolist()]
    text = write_text(series.folder / "validation.txt", " ".join(words))
    scan(
        series.checkpoints,
        out=out,
        text=text,
        tokenizer=tokenizer,
        window=config.neox.window,
        num_windows=config.num_windows,
        progress=lambda at: tell(at.done / max(at.total, 1), f"scanning {at.name}"),
    )


def _save_tokenizer(series: NeoxSeries) -> Path:
    """Write the words as a tokenizer of Hugging Face, which gives back the numbers that the model was trained on."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 (an extra)
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    folder = series.folder / "tokenizer"
    numbers = {word: number for number, word in enumerate(series.corpus.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=series.corpus.vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def _why_no_public(config: Config) -> str:
    if config.public:
        return ""
    return "It is part of the preset `full`, and needs the Hugging Face hub." if config.small else hub_missing()


def _curves(folder: Path, name: str) -> pd.DataFrame:
    table = read(folder)
    kept = table[table["metric"].isin(LOWER) & (table["head"] < 0) & (table["layer"] >= 0)]
    return kept[["layer", "metric", "step", "value", "flag"]].assign(series=name).reset_index(drop=True)


def _findings(by_series: Mapping[str, Sequence[Finding]]) -> pd.DataFrame:
    rows = [
        (name, each.step, each.kind.value, each.kind not in NO_FLAG, each.message)
        for name, findings in by_series.items()
        for each in findings
    ]
    return pd.DataFrame(rows, columns=["series", "step", "kind", "flags_values", "message"])


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge our series, the audit, and the public series or that there are none."""
    return (
        rank_verdict(result, config.neox, small=config.small),
        salience_verdict(result, small=config.small),
        audit_verdict(result),
        *public_verdicts(result),
    )


def draw(result: Result) -> tuple[Chart, ...]:
    """Draw stable rank and entropy of each series, and the loss of ours."""
    curves, loss = result.tables["curves"], result.tables["loss"]
    charts = []
    for name in dict.fromkeys(curves["series"]):
        own = curves[curves["series"] == name]
        panels = [
            Panel(
                label, "step", label, _lines(own[own["metric"] == metric]), log_y=metric == RANK and name != UNTRAINED
            )
            for metric, label in ((RANK, "stable rank"), (ENTROPY, "attention entropy (nats)"))
            if (own["metric"] == metric).any()
        ]
        if name == OURS:
            panels.append(Panel("loss", "step", "loss (nats)", [Line("validation", loss["step"], loss["loss"])]))
        charts.append(_chart(name, panels, result.facts))
    return tuple(charts)


def _chart(name: str, panels: list[Panel], facts: Mapping[str, Fact]) -> Chart:
    about = {
        OURS: f"A small GPT-NeoX trained here on {facts['text']}, one seed; not one of the paper's. {LOGARITHMIC}",
        UNTRAINED: "Control: the same training with learning rate 0, all checkpoints alike.",
    }.get(name, f"From the Hugging Face hub; checkpoints that the audit distrusts are left out. {LOGARITHMIC}")
    return Chart(
        id=f"figure7-{name.rpartition('/')[2].lower().replace(' ', '-').replace('.', '-')}",
        title=f"Stable rank and entropy over checkpoints: {name}",
        caption=f"{about} The paper: top layers drop and bounce, bottom layers fall.",
        panels=panels,
    )


def _lines(curves: pd.DataFrame) -> list[Line]:
    """One line for each layer, with gaps where the audit distrusts a value, unless it distrusts all."""
    trusted = curves[curves["flag"] == ""]
    shown = trusted if len(trusted) else curves
    return [
        Line(f"layer {layer}", own["step"], own["value"], shade=float(layer))
        for layer, own in shown.sort_values("step").groupby("layer")
    ]


EXPERIMENT = Experiment(
    id="figure7",
    title="Checkpoint series: stable rank and attention entropy",
    place=SOURCE,
    question=(
        "Over the checkpoints of a language model, does the stable rank of the MLP's lower matrix drop and bounce back "
        "in top layers and fall in bottom layers?"
    ),
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=missing,
    in_pieces=True,
)
