"""What one run is: model, optimiser, data, training and seed, as frozen values that can be stored and compared.

A name means one thing over all parts of a `RunConfig`, so a grid axis, an option of the command and a key of `update`
are flat names such as `depth`, `lr` or `seed`. The model's `num_classes` is the only name that two parts have: it
follows the data's.
"""

import hashlib
import json
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from joma.data.hierarchy import most_tokens
from joma.errors import UnknownNameError, positive, whole, within
from joma.models.decoder_config import DecoderConfig

OPTIMISERS = ("adam", "adamw", "sgd", "momentum")
SCHEDULES = ("constant", "linear", "cosine")
PRECISIONS = ("float64", "fp32", "tf32", "bf16")
SPACINGS = ("linear", "log", "early")
TOKEN_LAWS = ("smooth", "random")
TREES = "trees"
HIERARCHY = "hierarchy"
CLASS_TOKENS = "class-tokens"
SEQUENCES = (TREES, HIERARCHY)
"""Sequences that are drawn by a seed, without end: what a decoder is trained on where that is no text."""
SAMPLED_DATA = (*SEQUENCES, CLASS_TOKENS)
"""All data that are drawn by a seed; everything else is text."""
TEXTS = ("python-docs", "wikitext2", "wikitext103")
"""Texts known by name; anything else is a folder of train, valid and test files."""
PER_RUN = ("lr", "weight_decay", "clip", "seed")
"""Fields in which the runs of one pack may differ: they are a number per run on the device."""
PER_RUN_OF_HIERARCHY = ("num_latents", "num_children")
"""With `hierarchy` also these, where the sequences that are trained on have one length: each run has its own."""
BESIDE = ("snapshot_every", "snapshot_seconds", "checkpoint_every")
"""Fields that leave a run what it is: when it is saved."""
_HASH_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserConfig:
    """How parameters follow their gradients."""

    optimiser: str = "adam"
    """`adam`, `adamw`, `sgd` or `momentum`."""
    lr: float = 1e-3
    """Learning rate; 0 leaves a run at its start, as a control."""
    weight_decay: float = 0.0
    """Factor of the L2 term that is added to the gradient; for `adamw` decoupled from it."""
    beta1: float = 0.9
    """Memory of Adam's first moment."""
    beta2: float = 0.999
    """Memory of Adam's second moment."""
    epsilon: float = 1e-8
    """What is added to the root of Adam's second moment."""
    momentum: float = 0.9
    """Memory of `momentum`."""
    clip: float = math.inf
    """Largest norm of a run's gradient; longer ones are scaled back to it."""
    schedule: str = "constant"
    """Learning rate after the warm-up: `constant`, or down to zero at the last step as `linear` or `cosine`."""
    warmup: int = 0
    """Steps over which the learning rate rises from zero."""
    restart_every_epoch: bool = False
    """Forget the moments at the start of every epoch, as the public scripts of the paper do on text."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        _known("optimiser", self.optimiser, OPTIMISERS)
        _known("schedule", self.schedule, SCHEDULES)
        _not_negative("lr", self.lr)
        _not_negative("weight_decay", self.weight_decay)
        for name in ("beta1", "beta2", "momentum"):
            _fraction(name, getattr(self, name))
        positive("epsilon", self.epsilon)
        if not self.clip > 0:
            raise ValueError(f"`clip` must be positive, got {self.clip}. Pass a norm above 0, or inf for none.")
        whole("warmup", self.warmup, low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What the model is trained on, and how it is cut into batches."""

    data: str = "python-docs"
    """`python-docs`, `wikitext2`, `wikitext103`, a folder of train, valid and test files, `trees` or `hierarchy`;
    `class-tokens` are for the analysed layer in Python, and no decoder reads them."""
    vocabulary_cap: int | None = None
    """Words of a text to keep, the most frequent ones; the rest is `<unk>`."""
    batch: int = 20
    """Parallel streams of a text, or samples of a batch."""
    window: int = 35
    """Tokens of a sequence; for `trees` it is the number of leaves, whatever is said here."""
    valid_batch: int = 10
    """Parallel streams of the validation text."""
    valid_windows: int | None = None
    """Windows of the validation text to measure on; all when None."""
    num_tokens: int = 100
    """Tokens of `hierarchy`, the last of them the padding; the paper's M."""
    num_classes: int = 20
    """Classes of sampled data."""
    num_latents: tuple[int, ...] = (10, 20)
    """Latents of `hierarchy` level by level from the tokens up, below the classes."""
    num_children: int = 2
    """Latents or tokens of the level below that make one latent of `hierarchy`."""
    rho: float = 0.8
    """Polarity of every edge of `trees`: the correlation of a latent with its parent."""
    tree_depth: int = 3
    """Levels of edges of `trees`."""
    branching: int = 2
    """Children of every node of `trees`."""
    num_distinct: int = 10
    """Only for the analysed layer in Python, `joma.data.class_tokens`: tokens whose frequency depends on the class."""
    num_common: int = 10
    """Only for the analysed layer in Python, `joma.data.class_tokens`: tokens that all classes share."""
    token_law: str = "smooth"
    """Only for the analysed layer in Python, `joma.data.class_tokens`: frequencies of the distinct tokens over the
    classes, `smooth` bumps or `random`."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and a name that is nearly one of ours."""
        if not self.data:
            raise UnknownNameError("data", self.data, (*TEXTS, *SEQUENCES))
        for name in ("batch", "window", "valid_batch", "num_children", "tree_depth", "num_common", "num_distinct"):
            whole(name, getattr(self, name), low=1)
        for name in ("num_tokens", "num_classes", "branching"):
            whole(name, getattr(self, name), low=2)
        whole("num_latents", self.num_latents, low=1)
        if not self.num_latents:
            raise ValueError("`num_latents` must have a number for each level, got none. Pass some, such as 10x20.")
        within("rho", self.rho, -1, 1)
        _known("law of tokens", self.token_law, TOKEN_LAWS)
        for name in ("vocabulary_cap", "valid_windows"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low=1)

    @property
    def is_text(self) -> bool:
        """Whether this is a text, which has epochs, or samples without end."""
        return self.data not in SAMPLED_DATA

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.branching**self.tree_depth if self.data == TREES else self.window


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How long to train, in which precision, and when to measure and to save."""

    epochs: int | None = None
    """Passes over a text; or give `steps`."""
    steps: int | None = None
    """Steps of the optimiser; or give `epochs`."""
    precision: str = "fp32"
    """`float64`, `fp32`, `tf32` (matrix products on a GPU) or `bf16` (with fp32 weights)."""
    measure_every: int = 100
    """Steps between measurements, or with `log` spacing the number of them in a factor of ten."""
    measure_spacing: str = "linear"
    """`linear`, `log`, or `early`: on a log at first, until points are `measure_every` steps apart, then linear. The
    start and the end are always measured."""
    snapshot_every: int | None = None
    """Steps between snapshots; none but by time when None."""
    snapshot_seconds: float = 60.0
    """Seconds between snapshots to go on from after a crash; more where saving would take over 3 % of the time."""
    checkpoint_every: int | None = None
    """Steps between checkpoints of the parameters that are kept, a series for `joma scan`; none when None."""

    def __post_init__(self) -> None:
        """Refuse unknown names, numbers out of range, and a length that is given twice or not at all."""
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"A run needs `epochs` or `steps`, one of the two, got {self.epochs} and {self.steps}. Give one."
            )
        for name in ("epochs", "steps", "snapshot_every", "checkpoint_every"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low=1)
        whole("measure_every", self.measure_every, low=1)
        positive("snapshot_seconds", self.snapshot_seconds)
        _known("precision", self.precision, PRECISIONS)
        _known("spacing", self.measure_spacing, SPACINGS)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run: everything that its numbers depend on."""

    model: DecoderConfig
    """The model; its `vocabulary` is that of the data, see `joma.engine.extent`."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How it learns."""
    data: DataConfig = field(default_factory=DataConfig)
    """From what."""
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=1))
    """How long."""
    seed: int = 1
    """Seed of initialisation, samples and dropout."""

    def __post_init__(self) -> None:
        """Refuse parts that do not go together."""
        whole("seed", self.seed, low=0)
        if self.data.data == CLASS_TOKENS:
            raise ValueError(
                f"{CLASS_TOKENS!r} are frequencies for the analysed layer, and a decoder reads sequences. Take "
                f"{' or '.join(SEQUENCES)}, or build the layer in Python with joma.models.layer.AnalysedLayer."
            )
        if self.model.num_classes != self._num_classes(self.model.readout, self.data):
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
        if not self.data.is_text and self.training.epochs is not None:
            raise ValueError(f"The data {self.data.data!r} have no end, so no `epochs`. Pass `steps` instead.")
        if self.model.positions == "learned" and self.data.length > self.model.max_length:
            raise ValueError(
                f"Learned positions must reach over a sequence: `max_length` is {self.model.max_length}, and a "
                f"sequence has {self.data.length} tokens. Raise `max_length` or shorten `window`."
            )

    def flat(self) -> dict[str, Any]:
        """Return every field under its flat name, in the order of the parts."""
        return {name: self.get(name) for name in field_homes()}

    def get(self, name: str) -> Any:
        """Return the field with this flat name."""
        part = _home(name)
        return getattr(getattr(self, part) if part else self, name)

    def update(self, values: Mapping[str, Any]) -> "RunConfig":
        """Return a copy with fields replaced by flat name; numbers and lists may come as text.

        Setting `steps` takes `epochs` away, and the other way round.
        """
        values = {name: parse(name, value) for name, value in values.items()}
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if values.get(one) is not None and other not in values:
                values[other] = None
        parts: dict[str, dict[str, Any]] = {"model": {}, "data": {}}
        for name, value in values.items():
            parts.setdefault(_home(name), {})[name] = value
        own = parts.pop("", {})
        data = replace(self.data, **parts.pop("data"))
        readout = parts["model"].get("readout", self.model.readout)
        parts["model"]["num_classes"] = self._num_classes(readout, data)
        new = {part: replace(getattr(self, part), **fields_) for part, fields_ in parts.items()}
        return replace(self, **own, data=data, **new)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON; infinity is the text `inf`."""
        return _plain(asdict(self))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "RunConfig":
        """Return the config that `as_dict` wrote."""
        parts: dict[str, Any] = {}
        for name, kind in _PARTS.items():
            parts[name] = kind(**{key: parse(key, value, part=name) for key, value in record[name].items()})
        return cls(**parts, seed=record["seed"])

    @property
    def hash(self) -> str:
        """Digits that differ between runs that differ in anything; the same on every machine.

        How often a run is saved does not count.
        """
        return digest(self._without(BESIDE))

    @property
    def shape(self) -> str:
        """Digits that runs have in common when they can be in one pack."""
        is_hierarchy = self.data.data == HIERARCHY
        record = self._without((*PER_RUN, *PER_RUN_OF_HIERARCHY) if is_hierarchy else PER_RUN)
        return digest(record | {"trained_length": self.trained_length})

    @property
    def trained_length(self) -> int:
        """Positions of a sequence in training: padding of `hierarchy` that the model cannot tell apart is merged."""
        data, model = self.data, self.model
        if data.data != HIERARCHY or model.positions != "none" or model.dropout > 0:
            return data.length
        return min(data.length, most_tokens(data.num_latents, data.num_children, data.num_tokens) + 1)

    def _without(self, names: Iterable[str]) -> dict[str, Any]:
        record = self.as_dict()
        for name in names:
            part = _home(name)
            (record[part] if part else record).pop(name)
        return record

    @staticmethod
    def _num_classes(readout: str, data: DataConfig) -> int:
        return data.num_classes if readout == "class" else 0


_PARTS: dict[str, Any] = {
    "model": DecoderConfig,
    "optimiser": OptimiserConfig,
    "data": DataConfig,
    "training": TrainingConfig,
}


@cache
def field_homes() -> Mapping[str, str]:
    """Return the part that has each flat name; '' is the run itself."""
    homes = {each.name: part for part, kind in _PARTS.items() for each in fields(kind)}
    return types.MappingProxyType({**homes, "seed": ""})


def parse(name: str, value: Any, *, part: str | None = None) -> Any:
    """Return a value of the type of the field with this flat name; numbers, lists and names may come as text.

    >>> parse("lr", "1e-4"), parse("num_latents", "10x20"), parse("clip", "inf"), parse("steps", "none")
    (0.0001, (10, 20), inf, None)
    """
    hint = _hint(name, part)
    try:
        return _as_type(hint, value)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be {_in_words(hint)}, got {value!r}. Pass such a value.") from None


def takes_several(name: str) -> bool:
    """Whether one value of the field with this flat name is several numbers, such as `num_latents`."""
    return get_origin(_hint(name)) is tuple


def digest(record: Any) -> str:
    """Return the first digits of a hash of plain types."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def _hint(name: str, part: str | None = None) -> Any:
    home = _home(name) if part is None else part
    return int if home == "" else get_type_hints(_PARTS[home])[name]


def _home(name: str) -> str:
    if name not in field_homes():
        raise UnknownNameError("setting", name, field_homes(), listing="`joma train --settings`")
    return field_homes()[name]


def _as_type(hint: Any, value: Any) -> Any:
    if get_origin(hint) in (types.UnionType, Union):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        [hint] = [each for each in get_args(hint) if each is not types.NoneType]
    if get_origin(hint) is tuple:
        parts = value.split("x") if isinstance(value, str) else [value] if isinstance(value, int) else value
        return tuple(_as_type(get_args(hint)[0], part) for part in parts)
    return _SCALARS[hint](value)


def _as_int(value: Any) -> int:
    if isinstance(value, bool) or (number := float(value)) != math.floor(number):
        raise ValueError
    return int(value) if isinstance(value, int) else int(number)


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or math.isnan(number := float(value)):
        raise ValueError
    return number + 0.0  # -0.0 is 0.0, so that equal configs have equal hashes


def _as_bool(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError


def _as_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


_SCALARS: dict[Any, Any] = {int: _as_int, float: _as_float, bool: _as_bool, str: _as_str}


def _in_words(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
    if get_origin(hint) in (types.UnionType, Union):
        return " or none".join([_in_words(get_args(hint)[0]), ""])
    if get_origin(hint) is tuple:
        return "whole numbers such as 10x20"
    return words[hint]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _known(kind: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UnknownNameError(kind, name, known)


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"`{name}` must be 0 or above and finite, got {value}. Pass such a number.")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"`{name}` must be at least 0 and below 1, got {value}. Pass such a number.")
