"""Figure 7: attention entropy and stable rank of the MLP's lower matrix over a series of checkpoints, by `scan`.

Always a small GPT-NeoX trained here; OPT and Pythia where the hub can be reached. The public series are never stood in
for: where they cannot be had their verdict says what it needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from joma.experiments.experiment import Experiment, Fact, Result, Workplace
from joma.experiments.figure7_regimes import ENTROPY, LOWER, OURS, RANK, UNTRAINED, regimes_of
from joma.experiments.figure7_verdicts import SOURCE, audit_verdict, public_verdicts, rank_verdict, salience_verdict
from joma.experiments.hub_access import hub_missing, transformers_missing
from joma.experiments.neox_series import NeoxConfig, NeoxSeries, Told, shared_folder, train_series
from joma.experiments.public_series import PUBLIC, PublicSeries, Scanned, scan_public
from joma.experiments.threads import one_thread
from joma.figures.chart import Chart, Line, Panel
from joma.measure.regime import MIN_POINTS
from joma.probe.audit import NO_FLAG, audit
from joma.probe.findings import Fault, Finding
from joma.probe.fingerprint import Fingerprint
from joma.probe.fingerprint import load as load_fingerprints
from joma.probe.scan import scan
from joma.runs.files import write_text
from joma.runs.record import read
from joma.verdicts import Verdict


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
    num_steps=6000, every=150, lr=1e-3, warmup=150,
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
    tell = workplace.progress
    ours = train_series(config.neox, shared, device=workplace.device, tell=_part(tell, 0.0, 0.6))
    idle = replace(config.neox, lr=0.0, num_steps=MIN_POINTS, every=1, warmup=0)
    control = train_series(idle, shared, device=workplace.device, tell=_part(tell, 0.6, 0.65))
    scans = {
        OURS: _scan_ours(ours, config, workplace.folder / "scan", _part(tell, 0.65, 0.85)),
        UNTRAINED: _scan_ours(control, config, workplace.folder / "scan-untrained", _part(tell, 0.85, 0.95)),
    }
    reached, failures = scan_public(
        config.public, workplace.folder, num_windows=config.num_windows, tell=_part(tell, 0.95, 1.0)
    )
    scans |= reached
    curves = pd.concat([_curves(folder, name) for name, (folder, _) in scans.items()], ignore_index=True)
    losses = ours.losses()
    return Result(
        tables={
            "curves": curves,
            "regimes": regimes_of(curves, config.seed),
            "audit": _findings({name: findings for name, (_, findings) in scans.items()}),
            "loss": pd.DataFrame({"step": list(losses), "loss": list(losses.values())}),
        },
        facts={
            "text": ours.corpus.name,
            "num_layers": config.neox.depth,
            "num_checkpoints": len(config.neox.steps),
            "first_loss": losses[0],
            "last_loss": losses[config.neox.num_steps],
            **planted_duplicates(list(load_fingerprints(scans[OURS][0]).values())),
            "public_missing": _why_no_public(config),
            **{f"failure {name}": reason for name, reason in failures.items()},
        },
    )


def planted_duplicates(series: Sequence[Fingerprint]) -> dict[str, Fact]:
    """Put the last weights under every other step in turn, and count how often the audit says so."""
    last = series[-1]
    caught = 0
    for i, each in enumerate(series[:-1]):
        planted = replace(each, tensors=last.tensors, sketches=last.sketches, files=last.files)
        found = audit([*series[:i], planted, *series[i + 1 :]])
        caught += any(finding.kind is Fault.IDENTICAL_CHECKPOINT for finding in found)
    return {"num_planted": len(series) - 1, "num_caught": caught}


def _part(tell: Told, start: float, stop: float) -> Told:
    return lambda share, doing: tell(start + share * (stop - start), doing)


def _scan_ours(series: NeoxSeries, config: Config, out: Path, tell: Told) -> Scanned:
    """Scan a series of ours on the words of its validation text."""
    tokenizer = _save_tokenizer(series)
    num_words = config.num_windows * config.neox.window
    words = [series.corpus.vocabulary[number] for number in series.corpus.valid[:num_words].tolist()]
    text = write_text(series.folder / "validation.txt", " ".join(words))
    found = scan(
        series.checkpoints,
        out=out,
        text=text,
        tokenizer=tokenizer,
        window=config.neox.window,
        num_windows=config.num_windows,
        progress=lambda at: tell(at.done / max(at.total, 1), f"scanning {at.name}"),
    )
    return out, found.findings


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
            Panel(label, "step", label, _lines(own[own["metric"] == metric]))
            for metric, label in ((RANK, "stable rank"), (ENTROPY, "attention entropy (nats)"))
            if (own["metric"] == metric).any()
        ]
        if name == OURS:
            panels.append(Panel("loss", "step", "loss (nats)", [Line("validation", loss["step"], loss["loss"])]))
        charts.append(_chart(name, panels, result.facts))
    return tuple(charts)


def _chart(name: str, panels: list[Panel], facts: Mapping[str, Fact]) -> Chart:
    about = {
        OURS: f"A small GPT-NeoX trained here on {facts['text']}; not one of the paper's models.",
        UNTRAINED: "Control: the same training with learning rate 0, all checkpoints alike.",
    }.get(name, "From the Hugging Face hub; checkpoints that the audit distrusts are left out.")
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
)
