"""Figure 7: stable rank of the MLP's lower matrix and attention entropy over a series of checkpoints, by `scan`.

`figure7` is a small GPT-NeoX trained here, with a series without learning as the control. Its unit is the model: one
seed decides nothing. `figure7-public` are the paper's own series, OPT and Pythia, from the Hugging Face hub. The claim
is about these very checkpoints, so their numbers have no sampling error.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joma.charts import Chart, beside, lines
from joma.charts.builders import slug
from joma.claims import Number, claim
from joma.data.corpora import find_text
from joma.data.text import Corpus
from joma.measure.effects import describe
from joma.metrics import METRICS
from joma.paper import neox
from joma.paper.experiment import Experiment, Measured, gathered, one_thread, select
from joma.paper.neox import NeoxConfig, hub_missing, transformers_missing
from joma.probe.audit import NO_FLAG, audit
from joma.probe.findings import Fault
from joma.probe.fingerprint import Fingerprint, load
from joma.probe.scanning import scan
from joma.probe.text import quiet_transformers
from joma.store import Store, Task, Workspace, files, read

OURS, UNTRAINED = "trained here", "untrained"
RANK, ENTROPY = "stable_rank", "entropy"
TOP, MIDDLE, BOTTOM = "top", "middle", "bottom"
CURVE = ["series", "seed", "metric", "layer"]
NUM_IDLE = 8
"""Steps of the series without learning."""
SCAN_SECONDS = 0.3
"""For each checkpoint of ours: reading it, its ranks, and the entropy on a few windows of text."""
SHARES = {
    "fall_share": "fall of the stable rank, over the start",
    "rise_share": "rise of the stable rank from its minimum, over the minimum",
}
RANK_RISE = 0.1
"""Rise of the stable rank from its minimum, as a share of it, that counts as bouncing back in top layers. What
bottom layers do is reported."""
MIN_CHANGE = 0.02
"""Smallest fall or bounce that matters, as a share of the start."""
ROUNDING = 1e-6
"""Largest change, as a share of the start, in checkpoints that are all the same."""
LEAST_CAUGHT = 0.95
"""Share of planted duplicates that the audit must find."""
MOST_ON_A_CPU = 1_500_000_000
"""Parameters of the largest model that is run on a CPU for its entropy: a checkpoint of it takes minutes."""
PUBLIC_TEXTS = ("wikitext103", "wikitext2", "python-docs")
"""Texts for the public series, the paper's first: the first that is there is used."""
SOURCE = "Section 6, Figure 7"
EARLY = ("step?", "step??", "step???")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure7Config:
    """The series that is trained here."""

    model: NeoxConfig
    num_windows: int
    """Windows of text for the entropy."""
    seeds: tuple[int, ...] = (0,)
    """One model for each."""


@dataclass(frozen=True, slots=True)
class PublicSeries:
    """Checkpoints of a model on the hub."""

    repository: str
    revisions: tuple[str, ...]
    """Patterns of the branches to scan."""
    num_parameters: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicSeriesConfig:
    """The paper's four. Of the larger Pythias every tenth thousand of steps; OPT's are scanned if the hub has any."""

    num_windows: int = 32
    series: tuple[PublicSeries, ...] = (
        PublicSeries("EleutherAI/pythia-70m", (*EARLY, "step*000"), 70_000_000),
        PublicSeries("EleutherAI/pythia-1.4b", (*EARLY, "step*3000"), 1_400_000_000),
        PublicSeries("EleutherAI/pythia-6.9b", (*EARLY, "step*3000"), 6_900_000_000),
        PublicSeries("facebook/opt-2.7b", ("step*",), 2_700_000_000),
    )


def compute(config: Figure7Config, store: Store) -> Measured:
    """Train, scan and audit one model for each seed, and the same without learning."""
    model, corpus = config.model, neox.first_text(config.model)
    idle = replace(model, lr=0.0, num_steps=NUM_IDLE, every=1, warmup=0)
    tasks = [
        Task(
            name=f"GPT-NeoX, {name}, seed {own.seed}",
            key={"model": asdict(own), "text": corpus.hash, "windows": config.num_windows},
            work=partial(_measure, name=name, model=own, corpus=corpus, num_windows=config.num_windows),
            seconds=own.seconds(store.device) + SCAN_SECONDS * len(own.checkpoints),
            kind="neox",
            precision=own.precision,
        )
        for seed in config.seeds
        for name, own in ((OURS, replace(model, seed=seed)), (UNTRAINED, replace(idle, seed=seed)))
    ]
    found = gathered(store, tasks)
    if not found:
        return found
    losses, planted = (select(found.pop(name), series=OURS) for name in ("loss", "planted"))
    by_step = losses.groupby("step")["loss"].mean()
    facts = {"text": corpus.name, "num_layers": model.depth, "num_checkpoints": len(model.checkpoints)}
    facts |= {"first_loss": by_step.get(0, np.nan), "last_loss": by_step.get(model.num_steps, np.nan)}
    facts |= {name: planted[name].sum() for name in ("num_planted", "num_caught")}
    return Measured(facts=facts, loss=losses.drop(columns="series"), effects=effects_of(found["curves"]), **found)


def compute_public(config: PublicSeriesConfig, store: Store) -> Measured:
    """Scan and audit the public series; a call that lost the hub is continued by the next."""
    tasks = [
        Task(
            name=f"scanning {each.repository}",
            key={"series": asdict(each), "windows": config.num_windows},
            work=partial(_scan_public, series=each, num_windows=config.num_windows),
            seconds=300.0,
            kind="public series",
        )
        for each in config.series
    ]
    found = gathered(store, tasks)
    return found.copy_with(effects=effects_of(found.curves)) if found else found


def _measure(
    space: Workspace, name: str, model: NeoxConfig, corpus: Corpus, num_windows: int
) -> dict[str, pd.DataFrame]:
    """Train a model, keep its checkpoints while they are scanned, and scan them on the validation text."""
    place, record = space.folder / "checkpoints", space.folder / "scan"
    training = replace(space, progress=lambda share, doing: space.progress(0.8 * share, doing))
    with one_thread():
        for step, trained in neox.train(model, corpus, training):
            folder = place / f"checkpoint-{step}"
            part = files.hidden_name(folder)
            with quiet_transformers():
                trained.save_pretrained(part)
            files.write_text(part / "loss.json", json.dumps(neox.validation_loss(trained, model, corpus)))
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(part, folder)
        files.remove_leftovers(place)
        words = [corpus.vocabulary[number] for number in corpus.valid[: num_windows * model.window].tolist()]
        text = files.write_text(space.folder / "validation.txt", " ".join(words))
        scan(
            place,
            out=record,
            text=text,
            tokenizer=_save_tokenizer(corpus, space.folder / "tokenizer"),
            window=model.window,
            num_windows=num_windows,
            progress=lambda name, done, total: space.progress(0.8 + 0.2 * done / max(total, 1), f"scanning {name}"),
        )
    steps, own = model.checkpoints, {"series": name, "seed": model.seed}
    loss = [json.loads((place / f"checkpoint-{step}" / "loss.json").read_text()) for step in steps]
    planted = pd.DataFrame([own | planted_duplicates(list(load(record).values()))])
    return _recorded(record, **own) | {
        "loss": pd.DataFrame({"step": steps, "loss": loss}).assign(**own),
        "planted": planted,
    }


def _save_tokenizer(corpus: Corpus, folder: Path) -> Path:
    """Write the words as a tokenizer of Hugging Face, which gives back the numbers that the model was trained on."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(corpus.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=corpus.vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def _recorded(record: Path, **own: Any) -> dict[str, pd.DataFrame]:
    """Return the curves of a scan, averaged over heads, and what the audit found."""
    table = read(record)
    kept = table[table["metric"].isin((RANK, ENTROPY)) & (table["head"] < 0) & (table["layer"] >= 0)]
    findings = audit(list(load(record).values()))
    rows = [(each.step, each.kind.value, each.kind not in NO_FLAG, each.message) for each in findings]
    found = pd.DataFrame(rows, columns=["step", "kind", "flags_values", "message"])
    return {
        "curves": kept[["layer", "metric", "step", "value", "flag"]].assign(**own).reset_index(drop=True),
        "audit": found.astype({"step": "int64", "flags_values": bool}).assign(**own),
    }


def planted_duplicates(series: Sequence[Fingerprint]) -> dict[str, int]:
    """Put the last weights under every other step in turn, and count how often the audit says so."""
    last, caught = series[-1], 0
    for i, each in enumerate(series[:-1]):
        planted = replace(each, tensors=last.tensors, files=last.files)
        found = audit([*series[:i], planted, *series[i + 1 :]])
        caught += any(finding.kind is Fault.IDENTICAL_CHECKPOINT for finding in found)
    return {"num_planted": len(series) - 1, "num_caught": caught}


def _scan_public(space: Workspace, series: PublicSeries, num_windows: int) -> dict[str, pd.DataFrame]:
    """Scan a series of the hub. Ranks need the lower matrices alone; for the entropy whole models are run."""
    text = None
    if series.num_parameters <= MOST_ON_A_CPU or space.device != "cpu":
        words = neox.first_found(lambda name: "".join(find_text(name).blocks("test")), PUBLIC_TEXTS)
        text = files.write_text(space.folder / "text.txt", words)
    skipped = [] if text else [f"entropy: a model of {series.num_parameters / 1e9:.1f} billion parameters needs a GPU"]
    for number, pattern in enumerate(series.revisions):
        space.progress(number / len(series.revisions), f"scanning {series.repository} {pattern}")
        try:
            record = space.folder / "scan"
            found = scan(series.repository, out=record, revisions=pattern, text=text, num_windows=num_windows)
            if found.failures:  # the next call tries them again
                raise ConnectionError("; ".join(f"{name}: {reason}" for name, reason in found.failures.items()))
        except ValueError as error:  # the hub has no such revisions
            skipped.append(f"{pattern}: {error}")
    notes = pd.DataFrame({"series": series.repository, "skipped": skipped}, dtype="string")
    if not (space.folder / "scan").exists():
        empty = pd.DataFrame(columns=[*CURVE, "step", "value", "flag"])
        return {"curves": empty, "audit": pd.DataFrame(columns=["series", "kind", "flags_values"]), "notes": notes}
    return _recorded(space.folder / "scan", series=series.repository, seed=0) | {"notes": notes}


def effects_of(curves: pd.DataFrame) -> pd.DataFrame:
    """Describe the curve of every layer, without values that the audit distrusts.

    The series without learning keeps them: it consists of copies, as it should. `bounce` is the smaller of fall and
    rise, as a share of the start.
    """
    if "seed" not in curves:  # version 0.1 trained one model
        curves = curves.assign(seed=0)
    depth, rows = curves.groupby("series")["layer"].max() + 1, []
    kept = curves[(curves["flag"] == "") | (curves["series"] == UNTRAINED)].sort_values("step")
    for key, own in kept.groupby(CURVE):
        series, _, metric, layer = key
        found = describe(own["step"], own["value"], bounds=METRICS[metric].bounds)
        start, end, dip = (each.value for each in (found.start, found.end, found.dip_time))
        fall, rise, lowest = (max(each.value, 0.0) for each in (found.fall, found.rise, found.lowest))
        row = dict(zip(CURVE, key, strict=True)) | {"part": part_of(int(layer), int(depth[series])), "start": start}
        row |= {"lowest": lowest, "dip_step": dip, "end": end, "fall": fall, "rise": rise}
        rows.append(row | {"fall_share": fall / start, "rise_share": rise / lowest, "bounce": min(fall, rise) / start})
    return pd.DataFrame(rows)


def part_of(layer: int, depth: int) -> str:
    """Return whether a layer is of the upper or the lower half; the one between two halves is neither.

    >>> [part_of(layer, 3) for layer in range(3)]
    ['bottom', 'middle', 'top']
    """
    if layer < depth // 2:
        return BOTTOM
    return TOP if layer >= depth - depth // 2 else MIDDLE


def _effects(t: Measured) -> pd.DataFrame:
    return t.effects if "effects" in t else effects_of(t.curves)


def _per_model(effects: pd.DataFrame, series: str, metric: str, part: str) -> pd.DataFrame:
    """Return the means over the layers of a part, one row for each seed."""
    own = select(effects, series=series, metric=metric, part=part)
    return own.groupby("seed")[["fall_share", "rise_share", "bounce"]].mean()


def _shape(effects: pd.DataFrame, series: str) -> Iterator[Number]:
    """Yield how far the stable rank of a series falls and rises again, in top and in bottom layers."""
    for part, (column, name) in product((TOP, BOTTOM), SHARES.items()):
        own, idle = (_per_model(effects, which, RANK, part)[column] for which in (series, UNTRAINED))
        about: dict[str, Any] = {"unit": "share", "setting": f"{part} layers"}
        about |= {"control": idle, "control_name": "learning rate 0"} if series == OURS else {}
        about |= {"at_least": RANK_RISE} if (part, column) == (TOP, "rise_share") else {}
        yield Number.mean(name, own, key=f"{part}_{column.partition('_')[0]}", **about)


@claim("figure7-rank", "Stable rank over a small GPT-NeoX series", source=SOURCE, ours=True)
def rank_numbers(t: Measured) -> list[Number]:
    """In a small GPT-NeoX too: The stable rank of the MLP's lower matrix drops and bounces back in top layers, and
    falls in bottom layers.
    """
    effects = _effects(t)
    copies = select(effects, series=UNTRAINED, metric=RANK)
    change = float(copies[["fall_share", "rise_share"]].max(axis=None))
    check = Number.exact("largest change with learning rate 0, over the start", change, at_most=ROUNDING, sanity=True)
    return [*_shape(effects, OURS), *([check] if len(copies) else [])]


@claim("figure7-public", "Stable rank over the checkpoints of OPT and Pythia", source=SOURCE)
def public_numbers(t: Measured) -> list[Number]:
    """The stable rank of the MLP's lower matrix drops and bounces back in top layers, and falls in bottom layers."""
    effects = _effects(t)
    return [
        number.model_copy(update={"error": 0.0, "setting": f"{series}, {number.setting}", "key": ""})
        for series in (effects["series"].unique() if len(effects) else ())
        for number in _shape(effects, series)
    ]


@claim("figure7-salience", "Stable rank against entropy", source=SOURCE, ours=True)
def salience_numbers(t: Measured) -> Iterator[Number]:
    """In a small GPT-NeoX too: the drop and bounce is less salient in attention patterns than in stable ranks."""
    effects = _effects(t)
    rank, entropy, idle_rank, idle_entropy = (
        _per_model(effects, series, metric, TOP) for series in (OURS, UNTRAINED) for metric in (RANK, ENTROPY)
    )
    lead, idle = rank["bounce"] - entropy["bounce"], idle_rank["bounce"] - idle_entropy["bounce"]
    name = "smaller of fall and rise, over the start, top layers: stable rank minus entropy"
    about: dict[str, Any] = {"at_least": MIN_CHANGE, "unit": "share", "key": "lead"}
    yield Number.mean(name, lead, control=idle, control_name="learning rate 0", **about)
    for metric, own in ((RANK, rank), (ENTROPY, entropy)):
        yield Number.mean(f"rise over the minimum, top layers: {metric}", own["rise_share"], key=metric)


@claim("figure7-audit", "The series is what it says", source="Our own check of the checkpoints", ours=True)
def audit_numbers(t: Measured) -> Iterator[Number]:
    """The audit passes the series that was trained here, and finds weights that stand under a wrong step."""
    if not t.facts.get("num_planted"):
        return
    ours, copies = t.audit["series"] == OURS, t.audit["kind"] == Fault.IDENTICAL_CHECKPOINT.value
    idle = float((copies & (t.audit["series"] == UNTRAINED)).sum())
    about = {"control": idle, "control_name": "a series without learning, all copies", "key": "findings"}
    flagging = (ours & t.audit["flags_values"].astype(bool)).sum()
    yield Number.exact("findings in the series trained here that flag values", flagging, at_most=0.0, **about)
    caught, none = t.facts["num_caught"] / t.facts["num_planted"], "duplicates that it finds where none was planted"
    about = {"control": float((copies & ours).sum()), "control_name": none, "unit": "share", "key": "caught"}
    yield Number.exact("planted duplicates that the audit finds", caught, at_least=LEAST_CAUGHT, **about)


CLAIMS = (rank_numbers, salience_numbers, audit_numbers)
PUBLIC_CLAIMS = (public_numbers,)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw stable rank and entropy of each series, and the loss of ours."""
    shown = t.curves[(t.curves["flag"] == "") & (t.curves["series"] != UNTRAINED)].sort_values("step")
    if "seed" in shown:
        shown = select(shown, seed=shown["seed"].min())
    for series, own in shown.groupby("series", sort=False):
        panels = []
        for metric, of in own.sort_values("metric", ascending=False, kind="stable").groupby("metric", sort=False):
            options: dict[str, Any] = {"color": "layer", "y_log": metric == RANK, "title": METRICS[metric].label}
            panels.append(lines(of.assign(**{metric: of["value"]}), "step", metric, **options))
        if series == OURS:
            panels.append(lines(t.loss, "step", "loss", title="validation loss", labels={"loss": "loss (nats)"}))
        yield beside(
            *panels,
            id=slug(f"figure7 {str(series).rpartition('/')[2]}"),
            title=f"Stable rank and entropy fall early in {'a small GPT-NeoX' if series == OURS else series}",
            caption="One model. The paper: the rank drops and bounces in top layers, and falls in bottom ones.",
        )


EXPERIMENTS = (
    Experiment(
        id="figure7",
        title="Checkpoint series: stable rank and attention entropy",
        source=SOURCE,
        question="Over the checkpoints of a language model, does the stable rank of the MLP's lower matrix drop and "
        "bounce back in top layers and fall in bottom layers?",
        presets={
            "quick": Figure7Config(model=neox.QUICK, num_windows=8),
            "full": Figure7Config(model=neox.FULL, num_windows=32),
        },
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        needs=lambda config, device: transformers_missing(),
        in_tasks=True,
    ),
    Experiment(
        id="figure7-public",
        title="The checkpoints of OPT and Pythia",
        source=SOURCE,
        question="The same of the paper's own series, from the Hugging Face hub.",
        presets={"quick": PublicSeriesConfig(num_windows=8), "full": PublicSeriesConfig()},
        compute=compute_public,
        claims=PUBLIC_CLAIMS,
        charts=charts,
        needs=lambda config, device: hub_missing(),
        in_tasks=True,
    ),
)
