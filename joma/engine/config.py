"""What one run is: model, optimiser, data, training and seed, as frozen values that can be stored and compared.

A name means one thing over all parts of a `RunConfig`, so a grid axis, an option of the command and a key of `update`
are flat names such as `depth`, `lr` or `seed`. The model's `num_classes` is the only name that two parts have: it
follows the data's. Nothing here imports torch: `joma train --help` and bad settings are answered at once.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from joma.errors import UnknownNameError
from joma.models.decoder_config import DecoderConfig
from joma.settings import (
    Count,
    Counts,
    Index,
    MaybeCount,
    MaybeIndex,
    NotNegative,
    Number,
    Positive,
    SettingField,
    Share,
    settings,
    settings_of,
)
from joma.store.record import plain

Precision = Literal["float64", "fp32", "tf32", "bf16"]
TREES = "trees"
HIERARCHY = "hierarchy"
SEQUENCES = (TREES, HIERARCHY)
"""Sequences that are drawn by a seed, without end; everything else is text."""
ARITHMETIC, JSON, SOURCE_CODE = TREE_TEXTS = ("arithmetic", "json", "source-code")
"""Texts with a tree above every token (`joma.data.tree_texts`)."""
TEXTS = ("python-docs", "wikitext2", "wikitext103", *TREE_TEXTS)
"""Texts known by name; anything else is a folder of train, valid and test files."""
PER_RUN = ("lr", "weight_decay", "clip", "seed")
"""Fields in which the runs of one pack may differ: they are a number per run on the device."""
PER_RUN_OF_HIERARCHY = ("num_latents", "num_children")
"""With `hierarchy` also these, where the sequences that are trained on have one length: each run has its own."""
SAVING = ("snapshot_every", "snapshot_seconds", "checkpoint_every")
"""Fields that say when a run is saved, and leave it what it is."""
LENGTHS = ("epochs", "steps")
ADDED: Mapping[str, Any] = MappingProxyType(
    {"qk_norm": False, "softcap": "inf", "qk_clip": "inf", "negative_slope": 0.0, "attention_scale": 1.0}
    | {"measure_extra": False, "measure_states": False, "gradient_batches": 0, "mask_share": 0.15, "shuffle_seed": None}
    | dict.fromkeys(
        ("lr_embedding", "lr_positions", "lr_attention", "lr_logits", "lr_mlp", "lr_norm", "lr_readout"), 1.0
    )
)
"""Fields that version 0.1 does not have, with the value that leaves its hashes as they were."""
GONE: Mapping[str, Any] = MappingProxyType({"num_distinct": 10, "num_common": 10, "token_law": "smooth"})
"""Fields of data that version 0.1 had without a use; they are still in records, and so in hashes."""
_HASH_DIGITS = 12
_DECADE = 10.0
_EARLY_POINTS = 10
"""Measurements in a factor of ten with `early` spacing."""
MOST_MEASUREMENTS = 10**6
"""Measurements of a run at most: their steps are listed before it starts."""
MOST_SYMBOLS = 4096
"""Tokens, classes and latents of a level of sampled data at most: their law is a matrix."""
LONGEST_TREE, LONGEST_WINDOW = 1024, 8192
"""Leaves of `trees` and tokens of a window at most."""
MOST_SEQUENCES = 2**24
"""Sequences of a batch at most."""
_Symbols = Annotated[Count, Field(ge=2, le=MOST_SYMBOLS)]
_Sequences = Annotated[Count, Field(le=MOST_SEQUENCES)]


@settings
class OptimiserConfig:
    """How parameters follow their gradients."""

    optimiser: Literal["adam", "adamw", "sgd", "momentum"] = "adam"
    """Rule of a step."""
    lr: NotNegative = 1e-3
    """Learning rate; 0 leaves a run at its start, as a control."""
    lr_embedding: NotNegative = 1.0
    """Factor on the learning rate of the embedding, which is the output layer's matrix too where these are tied."""
    lr_positions: NotNegative = 1.0
    """Factor on the learning rate of learned positions."""
    lr_attention: NotNegative = 1.0
    """Factor on the learning rate of queries, keys, values, free logits and the output projection."""
    lr_logits: NotNegative = 1.0
    """Factor on the learning rate of free attention logits, on top of lr_attention."""
    lr_mlp: NotNegative = 1.0
    """Factor on the learning rate of the MLPs."""
    lr_norm: NotNegative = 1.0
    """Factor on the learning rate of the norms, those of queries and keys too."""
    lr_readout: NotNegative = 1.0
    """Factor on the learning rate of the output layer."""
    weight_decay: NotNegative = 0.0
    """Factor of the L2 term that is added to the gradient; for `adamw` decoupled from it."""
    beta1: Share = 0.9
    """Memory of Adam's first moment."""
    beta2: Share = 0.999
    """Memory of Adam's second moment."""
    epsilon: Annotated[NotNegative, Field(gt=0)] = 1e-8
    """Added to the root of Adam's second moment."""
    momentum: Share = 0.9
    """Memory of `momentum`."""
    clip: Positive = math.inf
    """Largest norm of a run's gradient, longer ones are scaled back to it; inf for none."""
    qk_clip: Positive = math.inf
    """QK-clip: largest logit of a head on a step's batch, after which its query and key weights are scaled back to it;
    inf for none. It takes another forward pass, with the logits as a matrix."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or down to zero at the last step."""
    warmup: Index = 0
    """Steps over which the learning rate rises from zero."""
    restart_every_epoch: bool = False
    """Forget the moments at the start of every epoch, as the public scripts of the paper do on text."""


@settings
class DataConfig:
    """What the model is trained on, and how it is cut into batches."""

    data: str = "python-docs"
    """`python-docs`, `wikitext2`, `wikitext103`, `arithmetic` and `json` (both generated), `source-code` (Python's
    standard library), a folder of train, valid and test files, `trees` or `hierarchy`."""
    shuffle_seed: MaybeIndex = None
    """Seed of a random order of all words of a text, the same for all runs; none keeps the order."""
    vocabulary_cap: MaybeCount = None
    """Words of a text to keep, the most frequent ones; the rest is `<unk>`."""
    batch: _Sequences = 20
    """Parallel streams of a text, or samples of a batch."""
    window: Annotated[Count, Field(le=LONGEST_WINDOW)] = 35
    """Tokens of a sequence; `trees` have as many as leaves instead."""
    mask_share: Annotated[Share, Field(gt=0)] = 0.15
    """Share of the tokens of a batch that the read-out masked_word hides and predicts; each run draws its own."""
    valid_batch: _Sequences = 10
    """Parallel streams of the validation text."""
    valid_windows: MaybeCount = None
    """Windows of the validation text to measure on; none takes all."""
    num_tokens: _Symbols = 100
    """Tokens of `hierarchy`, the last of them the padding; the paper's M."""
    num_classes: _Symbols = 20
    """Classes of sampled data."""
    num_latents: Counts = (10, 20)
    """Latents of `hierarchy` level by level from the tokens up, below the classes."""
    num_children: Count = 2
    """Latents or tokens of the level below that make one latent of `hierarchy`."""
    rho: Annotated[Number, Field(ge=-1, le=1)] = 0.8
    """Polarity of every edge of `trees`: the correlation of a latent with its parent."""
    tree_depth: Count = 3
    """Levels of edges of `trees`."""
    branching: _Symbols = 2
    """Children of every node of `trees`."""

    def __post_init__(self) -> None:
        """Refuse data without a name, and samples that are too large to draw."""
        if not self.data:
            raise UnknownNameError("data", self.data, (*TEXTS, *SEQUENCES))
        if self.shuffle_seed is not None and not self.is_text:
            raise ValueError(
                f"`shuffle_seed` puts the words of a text into random order, and {self.data!r} is none, got "
                f"{self.shuffle_seed}. Set it to none, or take a text."
            )
        if max(self.num_latents) > MOST_SYMBOLS:
            raise ValueError(f"`num_latents` must be at most {MOST_SYMBOLS} on every level, got {self.num_latents}.")
        if self.data == TREES and self.tree_depth * math.log2(self.branching) > math.log2(LONGEST_TREE):
            raise ValueError(
                f"`trees` have at most {LONGEST_TREE} leaves, got `tree_depth` {self.tree_depth} with `branching` "
                f"{self.branching}. Make one of them smaller."
            )

    @property
    def is_text(self) -> bool:
        """Whether this is a text, which has epochs, or samples without end."""
        return self.data not in SEQUENCES

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.branching**self.tree_depth if self.data == TREES else self.window


@settings
class TrainingConfig:
    """How long to train, in which precision, and when to measure and to save."""

    epochs: MaybeCount = None
    """Passes over a text; or give `steps`."""
    steps: MaybeCount = None
    """Steps of the optimiser; or give `epochs`."""
    precision: Precision = "fp32"
    """tf32 is for matrix products on a GPU; bf16 has fp32 weights."""
    measure_every: Count = 100
    """Steps between measurements, or with `log` spacing the number of them in a factor of ten."""
    measure_spacing: Literal["linear", "log", "early"] = "linear"
    """early is log, then linear once points are `measure_every` steps apart. Start and end are always measured."""
    measure_extra: bool = False
    """Whether to measure the largest attention logit of the validation set too, and of each MLP's lower matrix W norm
    and stable rank of W − W(0) and of its gradient on the next step's batch. It takes up to a step of training."""
    measure_states: bool = False
    """Whether to measure on the validation set what becomes of states: cosines between those of different blocks, Gram
    drift of a trained embedding, and where norms come after, spread and entropy of the first block's logits from each
    part of the query: token, position, their means and the bias. It takes up to a step of training."""
    gradient_batches: Index = 0
    """Next batches whose mean gradient is measured too: of every trained matrix rank and energy in the top directions,
    of the first batch and of the mean. It takes that many steps of training; 0 measures none of this."""
    snapshot_every: MaybeCount = None
    """Steps between snapshots; none saves by time alone."""
    snapshot_seconds: Annotated[NotNegative, Field(gt=0)] = 60.0
    """Seconds between snapshots to resume from after a crash; more where saving would take over 3 % of the time."""
    checkpoint_every: MaybeCount = None
    """Steps between checkpoints of the parameters that are kept, a series for `joma scan`."""

    def __post_init__(self) -> None:
        """Refuse a length that is given twice or not at all, or takes too many measurements."""
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"A run needs `epochs` or `steps`, one of the two, got {self.epochs} and {self.steps}. Give one."
            )
        self._check_measurements(self.steps or 1)

    def due_steps(self, num_steps: int) -> tuple[int, ...]:
        """Steps to measure at: the start, the end and, in between, what the spacing says.

        What is due before the end does not depend on where the end is, so that a run which is made longer has measured
        where the longer one would have.

        >>> TrainingConfig(steps=25, measure_every=10).due_steps(25)
        (0, 10, 20, 25)
        >>> TrainingConfig(steps=100, measure_every=3, measure_spacing="log").due_steps(100)
        (0, 1, 2, 5, 10, 22, 46, 100)
        """
        self._check_measurements(num_steps)
        every = self.measure_every
        match self.measure_spacing:
            case "linear":
                between = set(range(0, num_steps, every))
            case "log":
                between = _on_a_log(every, num_steps)
            case _:
                apart = every / (_DECADE ** (1 / _EARLY_POINTS) - 1)  # from here two points on the log are that far off
                between = _on_a_log(_EARLY_POINTS, min(num_steps, math.ceil(apart)))
                between |= set(range(every * math.ceil(apart / every), num_steps, every))
        return tuple(sorted({0, *between, num_steps}))

    def _check_measurements(self, num_steps: int) -> None:
        """Refuse to list more measurements than there may be."""
        is_log = self.measure_spacing == "log"
        num = self.measure_every * math.log10(num_steps) if is_log else num_steps / self.measure_every
        if num > MOST_MEASUREMENTS:
            raise ValueError(
                f"A run is measured at most {MOST_MEASUREMENTS} times, got {num_steps} steps with `measure_every` "
                f"{self.measure_every} and {self.measure_spacing} spacing. "
                "Change `measure_every`, or take fewer `steps`."
            )


@settings
class RunConfig:
    """One run: everything that its numbers depend on."""

    model: DecoderConfig
    """The model; its `vocabulary` is that of the data, see `joma.engine.sources`."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How it learns."""
    data: DataConfig = field(default_factory=DataConfig)
    """From what."""
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=1))
    """How long."""
    seed: Index = 1
    """Seed of initialisation, samples and dropout."""

    def __post_init__(self) -> None:
        """Refuse parts that do not go together."""
        if self.model.num_classes != (self.data.num_classes if self.model.readout == "class" else 0):
            raise ValueError(
                f"`num_classes` must be that of the data, {self.data.num_classes}, for a class read-out, else 0; "
                f"got {self.model.num_classes} for {self.model.readout}. Make them agree."
            )
        if self.model.readout == "class" and self.data.is_text:
            raise ValueError(
                f"A class read-out needs data with classes, got {self.data.data!r}. Take {' or '.join(SEQUENCES)}, "
                "or `readout` next_token."
            )
        if self.model.readout != "class" and not self.data.is_text:
            raise ValueError(
                f"The data {self.data.data!r} are sequences with a class, and the model predicts the next token. Set "
                "`readout` to class, or take a text."
            )
        if self.optimiser.qk_clip < math.inf and (self.model.qk_norm or self.model.attention_logits == "free"):
            raise ValueError(
                "`qk_clip` scales the weights of queries and keys, which free logits do not have and `qk_norm` undoes, "
                f"got {self.optimiser.qk_clip}. Set it to inf, or take projected logits without `qk_norm`."
            )
        if not self.data.is_text and self.training.epochs is not None:
            raise ValueError(f"The data {self.data.data!r} have no end, so no `epochs`. Pass `steps` instead.")
        if self.model.positions == "learned" and self.data.length > self.model.max_length:
            raise ValueError(
                f"Learned positions must reach over a sequence: `max_length` is {self.model.max_length}, and a "
                f"sequence has {self.data.length} tokens. Raise `max_length` or shorten `window`."
            )

    def flat(self) -> dict[str, Any]:
        """Return every field under its flat name, in the order of the parts."""
        return {name: self.get(name) for name in all_settings()}

    def get(self, name: str) -> Any:
        """Return the field with this flat name."""
        part = part_of(name)
        return getattr(getattr(self, part) if part else self, name)

    def update(self, values: Mapping[str, Any]) -> "RunConfig":
        """Return a copy with fields replaced by flat name; numbers and lists may come as text.

        Setting `steps` takes `epochs` away, and the other way round.
        """
        values = {name: parse(name, value) for name, value in values.items()}
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if values.get(one) is not None and other not in values:
                values[other] = None
        parts: dict[str, dict[str, Any]] = {part: {} for part in (*_PARTS, "")}
        for name, value in values.items():
            parts[part_of(name)][name] = value
        num_classes = values.get("num_classes", self.data.num_classes)
        is_class = values.get("readout", self.model.readout) == "class"
        parts["model"]["num_classes"] = num_classes if is_class else 0
        own = parts.pop("")
        return replace(self, **own, **{part: replace(getattr(self, part), **new) for part, new in parts.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON; infinity is the text `inf`."""
        record: dict[str, Any] = plain(self)
        record["model"]["frozen"] = "+".join(self.model.frozen)  # as version 0.1 has it, for one part
        record["data"] |= GONE
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "RunConfig":
        """Return the config that `as_dict` wrote."""
        try:
            given = {**record, "data": {name: record["data"][name] for name in record["data"] if name not in GONE}}
            parts = {name: kind(**given[name]) for name, kind in _PARTS.items()}
            return cls(**parts, seed=record["seed"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"A config of a training needs {', '.join(_PARTS)} and seed; got {error!r}.") from None

    @property
    def hash(self) -> str:
        """Digits that differ between runs that differ in anything; the same on every machine.

        How often a run is saved does not count.
        """
        return digest(self.without(SAVING))

    @property
    def shape(self) -> str:
        """Digits that runs have in common when they can be in one pack."""
        own = (*PER_RUN, *PER_RUN_OF_HIERARCHY) if self.data.data == HIERARCHY else PER_RUN
        return digest(self.without(own) | {"trained_length": self.trained_length})

    @property
    def trained_length(self) -> int:
        """Positions of a sequence in training: padding of `hierarchy` that the model cannot tell apart is merged."""
        data, model = self.data, self.model
        if data.data != HIERARCHY or model.positions != "none" or model.dropout > 0:
            return data.length
        from joma.data.hierarchy import most_tokens  # imports torch

        return min(data.length, most_tokens(data.num_latents, data.num_children, data.num_tokens) + 1)

    def without(self, names: Iterable[str]) -> dict[str, Any]:
        """Return plain types without some fields, and without those that version 0.1 lacks where nobody uses them."""
        record = self.as_dict()
        unused = [name for name, value in ADDED.items() if record[part_of(name)][name] == value]
        for name in (*names, *unused):
            part = part_of(name)
            (record[part] if part else record).pop(name)
        return record


_PARTS: dict[str, Any] = {
    "model": DecoderConfig,
    "optimiser": OptimiserConfig,
    "data": DataConfig,
    "training": TrainingConfig,
}


@cache
def all_settings() -> Mapping[str, SettingField]:
    """Return every setting under its flat name; `joma train` has an option for each."""
    parts = {name: each for kind in _PARTS.values() for name, each in settings_of(kind).items()}
    return MappingProxyType(parts | {"seed": settings_of(RunConfig)["seed"]})


def parse(name: str, value: Any) -> Any:
    """Return a value of the type of the setting with this flat name; numbers, lists and names may come as text.

    >>> parse("lr", "1e-4"), parse("num_latents", "10x20"), parse("clip", "inf"), parse("steps", "none")
    (0.0001, (10, 20), inf, None)
    """
    part_of(name)  # refuses what is no setting
    return all_settings()[name].read(value)


def check_device(name: str | None) -> None:
    """Refuse what is no name of a device, before torch is imported; None is any."""
    if name is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"`device` must be cpu, cuda or one GPU such as cuda:0, got {name!r}.")


def digest(record: Any) -> str:
    """Return the first digits of a hash of plain types."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def part_of(name: str) -> str:
    """Return the part of a config that has a flat name; '' is the run itself."""
    if name not in all_settings():
        raise UnknownNameError("setting", name, all_settings(), listing="`joma train --settings`")
    return next((part for part, kind in reversed(_PARTS.items()) if name in settings_of(kind)), "")


def _on_a_log(num_points: int, end: int) -> set[int]:
    """Return steps before the end, as many in each factor of ten, rounded."""
    total = math.ceil(num_points * math.log10(max(end, 1))) + 1
    points = {round(_DECADE ** (point / num_points)) for point in range(total)}
    return {step for step in points if step < end}
