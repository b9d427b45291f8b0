"""A small GPT-NeoX, the architecture of Pythia, trained here with its checkpoints kept: a series like the public ones.

A plain loop over a text, seeded. What is there already is not trained again: an interrupted training goes on from the
last checkpoint whose optimiser state was written, and gives the same weights on the CPU bit for bit. On a GPU it does
not, so checkpoints behind that one are written anew. Checkpoints whose weights were lost, as when a folder is moved
without them, count as not there.
"""

import json
import math
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
from safetensors.torch import load_file, save

from joma.data.cache import digest
from joma.data.text import Corpus, Windows, load_text
from joma.errors import positive, whole
from joma.experiments.experiment import Workplace
from joma.experiments.measured_times import device_label
from joma.experiments.neox_step import Step
from joma.experiments.timetable import Tell
from joma.probe.text import quiet_transformers
from joma.store.files import beside, remove_leftovers, write_bytes, write_text

CHECKPOINTS = "checkpoints"
WEIGHTS = "model.safetensors"
LOSS = "loss.json"
"""File of each checkpoint with its loss on the validation text."""
TRAINED = "trained.json"
"""File of a series that tells what trained it."""
EXPANSION = 4
"""Hidden neurons of the MLP for each component of the stream, as in Pythia."""
LEAST_RATE = 0.1
"""Part of the learning rate that is left at the end of the cosine."""
NUM_VALIDATION = 8
"""Windows of the validation text, each as many sequences as a batch, that the loss is taken on."""
SETUP_SECONDS = 5.0
"""What comes before the first step, on a GPU too: nothing is compiled."""
NUM_TRIED = 3
"""Steps that are tried to see how long one takes."""
STATE_SECONDS = {"cpu": 0.0, "cuda": 20.0}
"""Least time between two writings of the optimiser's state, which is twice as large as a checkpoint: a GPU would wait
for it longer than it trains from one checkpoint to the next."""
SHARED = "models"
_ABOVE_WORK = 2
_KEY_LETTERS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class NeoxConfig:
    """A model, its text and its training."""

    texts: tuple[str, ...]
    """Texts in the order of preference: the first that is there is used."""
    vocabulary: int
    """Most words that are kept."""
    width: int
    depth: int
    heads: int
    window: int
    """Tokens of a sequence."""
    batch: int
    """Sequences of a step."""
    num_steps: int
    every: int
    """Steps between two checkpoints; the start is one too."""
    lr: float
    warmup: int
    """Steps until the learning rate is reached; then a cosine down to a tenth."""
    precision: str = "fp32"
    """Of the products of a training step, as of a grid: `tf32` rounds their factors on a GPU, and nowhere else."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that make no series."""
        whole("depth", self.depth, low=1)
        whole("num_steps", self.num_steps, low=1)
        positive("every", self.every)
        if self.num_steps % self.every or self.width % self.heads:
            raise ValueError(
                f"`num_steps` must be a multiple of `every` and `width` one of `heads`, got {self.num_steps} and "
                f"{self.every}, {self.width} and {self.heads}. Change one of each."
            )

    @property
    def steps(self) -> range:
        """Steps that have a checkpoint."""
        return range(0, self.num_steps + 1, self.every)


@dataclass(frozen=True, kw_only=True, slots=True)
class NeoxSeries:
    """A series that is trained to its end."""

    folder: Path
    corpus: Corpus
    config: NeoxConfig

    @property
    def key(self) -> str:
        """Digits that differ between series whose text or settings differ."""
        return self.folder.name

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints, each a folder of Hugging Face, `checkpoint-N`."""
        return self.folder / CHECKPOINTS

    def checkpoint(self, step: int) -> Path:
        """Folder of one checkpoint."""
        return self.checkpoints / f"checkpoint-{step}"

    def has_weights(self, step: int) -> bool:
        """Whether the weights of a checkpoint are there, and not its description alone."""
        return (self.checkpoint(step) / WEIGHTS).is_file()

    @property
    def is_trained(self) -> bool:
        """Whether the weights of all checkpoints are there."""
        return all(map(self.has_weights, self.config.steps))

    @property
    def trained_on(self) -> str:
        """What trained it to its end, as far as that is known."""
        path = self.folder / TRAINED
        return json.loads(path.read_text(encoding="utf-8"))["device"] if path.exists() else ""

    def losses(self) -> dict[int, float]:
        """Return the loss on the validation text, by step."""
        return {step: json.loads((self.checkpoint(step) / LOSS).read_text())["loss"] for step in self.config.steps}

    def model(self, step: int, device: str) -> Any:
        """Build the model of one checkpoint, ready to be read."""
        return _load(self.checkpoint(step)).to(device).eval()


def shared_folder(workplace: Workplace) -> Path:
    """Return the folder in which experiments of one reproduction share models: beside theirs, `id/work/key`."""
    return workplace.folder.parents[_ABOVE_WORK] / SHARED


def first_text(config: NeoxConfig) -> Corpus:
    """Load the first text that is there; raises what the last one raised where none is."""
    for name in config.texts[:-1]:
        try:
            return load_text(name, vocabulary_cap=config.vocabulary)
        except OSError:  # it is neither on this machine nor to be had
            continue
    return load_text(config.texts[-1], vocabulary_cap=config.vocabulary)


def series_of(config: NeoxConfig, shared: Path) -> NeoxSeries:
    """Return the series of a config and the first text that is there, however much of it is trained."""
    corpus = first_text(config)
    key = digest(json.dumps(asdict(config)), corpus.hash)[:_KEY_LETTERS]
    return NeoxSeries(folder=shared / f"neox-{key}", corpus=corpus, config=config)


def train_series(config: NeoxConfig, shared: Path, *, device: str, tell: Tell) -> NeoxSeries:
    """Train what is not there yet, and return the series; `tell` hears of the share done every few steps."""
    series = series_of(config, shared)
    if not series.is_trained:
        _Training(series, device).run(tell)
        write_text(series.folder / TRAINED, json.dumps({"device": device_label(device)}) + "\n")
    return series


def training_seconds(series: NeoxSeries, device: str) -> float:
    """Try a few steps, and return how long all that are left take; nothing is written."""
    if series.is_trained:
        return 0.0
    training = _Training(series, device)
    num_left = series.config.num_steps - training.step
    seconds = []
    for _ in range(1 + NUM_TRIED):
        begun = perf_counter()
        training.advance()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        seconds.append(perf_counter() - begun)
    return num_left * min(seconds[1:])  # the first one warms up


class _Training:
    """The plain loop."""

    def __init__(self, series: NeoxSeries, device: str) -> None:
        """Take up the last checkpoint that has an optimiser state, or start anew."""
        self.series, self.device = series, device
        self.config = config = series.config
        self.train = Windows(series.corpus.train.to(device), config.batch, config.window)
        self.valid = Windows(series.corpus.valid.to(device), config.batch, config.window)
        self.state = series.folder / "optimiser.safetensors"
        saved = load_file(self.state, device=device) if self.state.exists() else {}
        if saved and not all(series.has_weights(step) for step in config.steps if step <= int(saved["step"])):
            saved = {}  # weights were lost: they are made again from the start
        self.step = int(saved["step"]) if saved else 0
        self.model = (_load(series.checkpoint(self.step)) if saved else _new_model(config, series.corpus)).to(device)
        self._step = Step(self.model, precision=config.precision, device=device)
        self._step.load_state(saved)
        self._begun_at, self._state_step, self._state_written = self.step, self.step if saved else None, monotonic()

    def run(self, tell: Tell) -> None:
        """Train to the end, a checkpoint every so often."""
        self._keep()
        while self.step < self.config.num_steps:
            self.advance()
            if self.step % self.config.every == 0:
                self._keep()
                self._tell(tell)

    def advance(self) -> None:
        """Do a step."""
        tokens, targets = self.train.window(self.step % self.train.num_windows)
        self._step.advance(tokens, targets, _rate(self.config, self.step))
        self.step += 1

    def _tell(self, tell: Tell) -> None:
        try:
            tell(self.step / self.config.num_steps, f"training a small GPT-NeoX, step {self.step}")
        except BaseException:  # whoever hears of it may end the training here
            self._keep_state()
            raise

    @torch.no_grad()
    def _validation_loss(self) -> float:
        self.model.eval()
        count = min(NUM_VALIDATION, self.valid.num_windows)
        return sum(float(self._step.loss(*self.valid.window(i))) for i in range(count)) / count

    def _keep(self) -> None:
        """Write a checkpoint, whole or not at all, and then, if it is time, the state that goes with it."""
        place = self.series.checkpoint(self.step)
        if self.step > self._begun_at or not self.series.has_weights(self.step):
            part = beside(place)
            with quiet_transformers():
                self.model.save_pretrained(part)
            write_text(part / LOSS, json.dumps({"loss": self._validation_loss()}))
            shutil.rmtree(place, ignore_errors=True)  # of lost weights, or of those that an earlier call came to
            os.replace(part, place)
            remove_leftovers(place.parent, "checkpoint-*")
        if monotonic() - self._state_written >= STATE_SECONDS[torch.device(self.device).type]:
            self._keep_state()

    def _keep_state(self) -> None:
        """Write what the training goes on from at the checkpoint that was written last."""
        if self._state_step != self.step:
            write_bytes(self.state, save({"step": torch.tensor(self.step)} | self._step.state()))
            self._state_step, self._state_written = self.step, monotonic()


def _rate(config: NeoxConfig, step: int) -> float:
    """Rise linearly, then fall as a cosine to `LEAST_RATE`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(config.num_steps - config.warmup, 1)
    return config.lr * (LEAST_RATE + (1 - LEAST_RATE) * (1 + math.cos(math.pi * done)) / 2)


def _new_model(config: NeoxConfig, corpus: Corpus) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM  # noqa: PLC0415 (an extra)

    settings = GPTNeoXConfig(
        vocab_size=len(corpus.vocabulary),
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=EXPANSION * config.width,
        max_position_embeddings=config.window,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return GPTNeoXForCausalLM(settings)


def _load(folder: Path) -> Any:
    from transformers import GPTNeoXForCausalLM  # noqa: PLC0415 (an extra)

    with quiet_transformers():
        return GPTNeoXForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
