"""What a pack is trained and measured on: batches as a function of the runs' seeds and the step.

A text is the same for all runs, one window a step, in order, and again from the start with every epoch. Which of its
words are masked, where masked words are predicted, is drawn from (seed, step); in validation all runs have the same
masks. Sampled data
are each run's own, drawn from (seed, step, site). The hierarchy of Table 1 has one sequence a class, so its batch is
those sequences, weighted by how often each class was drawn: exactly the batch that would hold them row by row. Its
padding is merged where the model cannot distinguish its positions, exactly again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from joma.data.generated import GENERATED
from joma.data.hierarchy import Hierarchy
from joma.data.latent_trees import TreeSampler, class_patterns
from joma.data.text import Corpus, Windows, load_text, shuffled
from joma.data.tree_texts import tree_corpus
from joma.engine.config import HIERARCHY, TREE_TEXTS, TREES, DataConfig, RunConfig, digest
from joma.engine.precision import parameter_dtype
from joma.models.batch import Batch
from joma.randomness import random_bits, run_keys
from joma.theory.latent_tree import LatentTree, regular_tree

NUM_HASHED = 16
"""Samples by whose hash data are known again."""
NUM_VALIDATION_SAMPLES = 1280
"""Samples of a validation set that is drawn: as many as the paper takes for Table 1."""
MASKED = "masked_word"
"""Read-out of words that are hidden by a mask; site of the masks."""
VALIDATION = "validation"
"""Site of the validation samples, which are the same at every step."""
PAPER_WINDOW = 100
"""The paper's curves show the attention of the 101st validation window, of its first stream."""
TOKENS_AT_ONCE = 28_000
"""Tokens of a run that a validation batch holds at most, or one window: independent of how many runs there are, so that
sums are taken in the same order in every pack."""


class DataSize(NamedTuple):
    """How far a run goes."""

    vocabulary: int
    """Tokens that the data have, the mask included where words are masked; it is the last."""
    steps_per_epoch: int
    """Steps for a pass over a text; all of them for samples without end."""
    num_steps: int
    """Steps in all."""
    valid_tokens: int
    """Tokens that a measurement goes over."""
    data_bytes: int
    """Tokens that lie on the device."""


def with_vocabulary(config: RunConfig) -> RunConfig:
    """Return the config with the vocabulary of its data; raises when these cannot be had or cannot be embedded."""
    model = replace(config.model, vocabulary=data_size(config).vocabulary)
    model.check_embedding()
    return replace(config, model=model)


def data_size(config: RunConfig) -> DataSize:
    """Read or draw a run's data once, and say how far they go; refuses windows longer than the text.

    >>> from joma.engine.grid import recipe
    >>> data_size(recipe("table1").base).vocabulary
    100
    """
    data, steps = config.data, config.training.steps
    if data.is_text:
        corpus = corpus_of(data.data, data.vocabulary_cap, data.shuffle_seed)
        per_epoch = Windows(corpus.train, data.batch, data.window).num_windows
        there = Windows(corpus.valid, data.valid_batch, data.window).num_windows
        return DataSize(
            vocabulary=len(corpus.vocabulary) + (config.model.readout == MASKED),
            steps_per_epoch=per_epoch,
            num_steps=steps or per_epoch * (config.training.epochs or 0),
            valid_tokens=min(data.valid_windows or there, there) * data.valid_batch * data.window,
            data_bytes=corpus.train.nbytes + corpus.valid.nbytes,
        )
    assert steps is not None  # a RunConfig sees to it
    if data.data == HIERARCHY:
        vocabulary = hierarchy_of(data, config.seed).num_tokens
    else:
        class_patterns(data.num_classes, data.branching)  # refuses classes that cannot be distinguished
        vocabulary = 2 * data.length  # a token for every leaf that is on, and one for every leaf that is off
    return DataSize(
        vocabulary=vocabulary,
        steps_per_epoch=steps,
        num_steps=steps,
        valid_tokens=num_validated(data) * data.length,
        data_bytes=0,
    )


@lru_cache(maxsize=4)
def corpus_of(data: str, vocabulary_cap: int | None, shuffle_seed: int | None = None) -> Corpus:
    """Return a text, read or generated once, in its own order or shuffled."""
    if shuffle_seed is not None:
        in_order = corpus_of.__wrapped__(data, vocabulary_cap)  # past the cache, which would keep the text twice
        return shuffled(in_order, shuffle_seed)
    if data not in TREE_TEXTS:
        return load_text(data, vocabulary_cap=vocabulary_cap)
    num_words = len(GENERATED[data].vocabulary) if data in GENERATED else 0
    if vocabulary_cap is not None and vocabulary_cap < num_words:
        raise ValueError(
            f"{data.capitalize()} has {num_words} tokens, and none can be left out, got `vocabulary_cap` "
            f"{vocabulary_cap}. Set it to none."
        )
    return tree_corpus(data, vocabulary_cap)


def num_sequences(data: DataConfig) -> int:
    """Return the sequences of a run's batch: the hierarchy has one for each class, weighted, if that is fewer."""
    return min(data.batch, data.num_classes) if data.data == HIERARCHY else data.batch


def num_validated(data: DataConfig) -> int:
    """Return the sequences that a run is validated on at a time: of the hierarchy every class once."""
    if not data.is_text:
        return data.num_classes if data.data == HIERARCHY else NUM_VALIDATION_SAMPLES
    num_windows = max(1, TOKENS_AT_ONCE // (data.valid_batch * data.length))
    return data.valid_batch * min(num_windows, data.valid_windows or num_windows)


@lru_cache(maxsize=256)
def data_hash(data: DataConfig) -> str:
    """Return a hash of the tokens of a text, or of some samples of one seed: data that are others by now show."""
    if data.is_text:
        return corpus_of(data.data, data.vocabulary_cap, data.shuffle_seed).hash
    keys = run_keys([0])
    if data.data == HIERARCHY:
        hierarchy = hierarchy_of(data, 0)
        drawn = [hierarchy.sequences, hierarchy.classes(keys, 0, NUM_HASHED)]
    else:
        samples = TreeSampler.of(tree_of(data)).sample(keys, 0, NUM_HASHED)
        drawn = [samples.tokens, samples.label]
    return digest([each.tolist() for each in drawn])


def hierarchy_of(data: DataConfig, seed: int, device: torch.device | str = "cpu") -> Hierarchy:
    """Draw the sets of one run's `hierarchy`."""
    return Hierarchy.draw(
        seed,
        num_latents=data.num_latents,
        num_children=data.num_children,
        num_classes=data.num_classes,
        num_tokens=data.num_tokens,
        length=data.length,
        device=device,
    )


def tree_of(data: DataConfig) -> LatentTree:
    """Return the law of `trees`: equally likely classes, each of which switches on children of the root of its own."""
    return regular_tree(
        data.tree_depth,
        data.branching,
        data.rho,
        class_probabilities=[1 / data.num_classes] * data.num_classes,
        zero_given_class=class_patterns(data.num_classes, data.branching),
    )


class Source(ABC):
    """Batches for the runs of a pack."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device | str) -> None:
        """Prepare for these runs, which share their data and model, in this order."""
        self.data: DataConfig = configs[0].data
        self.num_runs = len(configs)
        self.seeds = tuple(config.seed for config in configs)
        self.dtype = parameter_dtype(configs[0].training.precision)
        self.device = torch.device(device)
        self.keys = run_keys(self.seeds, self.device)

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Return what the runs are trained on in the step after `step` steps."""

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """Yield the validation set, the same at every call."""

    def single_window(self) -> Batch | None:
        """Return the one validation window whose attention the paper shows; None for data without windows."""
        return None


class TextSource(Source):
    """A text, one window for all runs."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device | str) -> None:
        super().__init__(configs, device)
        data = self.data
        corpus = corpus_of(data.data, data.vocabulary_cap, data.shuffle_seed)
        self._train = Windows(corpus.train.to(self.device), data.batch, data.window)
        self._valid = Windows(corpus.valid.to(self.device), data.valid_batch, data.window)
        self._mask_token = len(corpus.vocabulary) if configs[0].model.readout == MASKED else None
        self._same_keys = run_keys([0] * self.num_runs, self.device)

    def batch(self, step: int) -> Batch:
        """Return the window of a step."""
        return self._batch(*self._train.window(step % self._train.num_windows), self.keys, step, MASKED)

    def validation(self) -> Iterator[Batch]:
        """Yield all validation windows, some at a time."""
        yield from self._validation

    @cached_property
    def _validation(self) -> tuple[Batch, ...]:
        num = min(self.data.valid_windows or self._valid.num_windows, self._valid.num_windows)
        at_once = even_share(num, TOKENS_AT_ONCE // (self._valid.num_streams * self._valid.length))
        groups = (range(first, min(first + at_once, num)) for first in range(0, num, at_once))
        windows = (zip(*map(self._valid.window, group), strict=True) for group in groups)
        joined = (map(torch.cat, each) for each in windows)
        return tuple(self._validated(inputs, targets, number) for number, (inputs, targets) in enumerate(joined))

    def single_window(self) -> Batch:
        """Return the paper's window, or the last one of a text that has fewer."""
        inputs, targets = self._valid.window(min(PAPER_WINDOW, self._valid.num_windows - 1))
        return self._validated(inputs[:1], targets[:1], PAPER_WINDOW)

    def _validated(self, inputs: Int[Tensor, "B L"], targets: Int[Tensor, "B L"], number: int) -> Batch:
        """Return some of the validation text; masks are the same for all runs."""
        return self._batch(inputs, targets, self._same_keys, number, VALIDATION)

    def _batch(
        self, words: Int[Tensor, "B L"], targets: Int[Tensor, "B L"], keys: Int[Tensor, "R 2"], step: int, site: str
    ) -> Batch:
        """Return words for all runs; where words are masked, a share of each run's is hidden, and is the targets."""
        every = words.expand(self.num_runs, -1, -1)
        if self._mask_token is None:
            return Batch(tokens=every, targets=targets.reshape(-1).expand(self.num_runs, -1))
        num_masked, every = masked_rows(words.numel(), self.data.mask_share), every.flatten(1)
        order = random_bits(keys, step, site, words.numel()).argsort(dim=1, stable=True)
        rows = order[:, :num_masked].sort(dim=1).values
        tokens = every.scatter(1, rows, self._mask_token).unflatten(1, words.shape)
        return Batch(tokens=tokens, targets=every.gather(1, rows), rows=rows)


def masked_rows(num_tokens: int, share: float) -> int:
    """Return how many of so many tokens are masked: one at least.

    >>> masked_rows(700, 0.15), masked_rows(2, 0.15)
    (105, 1)
    """
    return max(1, round(share * num_tokens))


def even_share(num: int, most: int) -> int:
    """Return how many of `num` to take at a time, up to `most` or one: all shares alike, if they need not be small.

    A GPU compiles for every shape that it meets.

    >>> even_share(612, 80), even_share(613, 80), even_share(3, 80), even_share(5, 0)
    (68, 80, 3, 1)
    """
    most = max(1, min(num, most))
    return next((share for share in range(most, most // 2, -1) if num % share == 0), most)


class TreeSource(Source):
    """Random latent trees; the class is the root, the tokens say for each leaf whether it is there."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device | str) -> None:
        super().__init__(configs, device)
        self._sampler = TreeSampler.of(tree_of(self.data), self.device)
        self._validation = self._sampled(0, VALIDATION, NUM_VALIDATION_SAMPLES)

    def batch(self, step: int) -> Batch:
        """Draw each run's samples of a step."""
        return self._sampled(step, self.data.data, self.data.batch)

    def validation(self) -> Iterator[Batch]:
        """Yield each run's validation samples."""
        yield self._validation

    def _sampled(self, step: int, site: str, num_samples: int) -> Batch:
        samples = self._sampler.sample(self.keys, step, num_samples, site=site)
        return Batch(tokens=samples.tokens, targets=samples.label)


class HierarchySource(Source):
    """The deterministic hierarchy of Table 1, each run with its own sets."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device | str) -> None:
        super().__init__(configs, device)
        self.hierarchies = tuple(hierarchy_of(config.data, config.seed, self.device) for config in configs)
        self._sequences = torch.stack([hierarchy.sequences for hierarchy in self.hierarchies])
        merged = [hierarchy.merged_padding(configs[0].trained_length) for hierarchy in self.hierarchies]
        self._merged, log_counts = (torch.stack(parts) for parts in zip(*merged, strict=True))
        is_shorter = self._merged.shape[-1] < self._sequences.shape[-1]
        self._key_bias = log_counts.to(self.dtype) if is_shorter else None
        self._classes = torch.arange(self.data.num_classes, device=self.device).expand(self.num_runs, -1)

    def batch(self, step: int) -> Batch:
        """Return the sequence of each class, weighted by its share of the batch; row by row if that is shorter."""
        first, size = self.hierarchies[0], self.data.batch
        if size < self.data.num_classes:
            label = first.classes(self.keys, step, size, site=HIERARCHY)
            runs = torch.arange(self.num_runs, device=self.device)[:, None]
            bias = None if self._key_bias is None else self._key_bias[runs, label]
            return Batch(tokens=self._merged[runs, label], targets=label, key_bias=bias)
        weights = first.class_counts(self.keys, step, size, site=HIERARCHY).to(self.dtype) / size
        return Batch(tokens=self._merged, targets=self._classes, weights=weights, key_bias=self._key_bias)

    def validation(self) -> Iterator[Batch]:
        """Yield every class once: the expectation over all samples, exactly."""
        yield Batch(tokens=self._sequences, targets=self._classes)


def source_of(configs: Sequence[RunConfig], device: torch.device | str = "cpu") -> Source:
    """Return the batches of runs that share their data and model; refuses a model that does not fit the data."""
    if not configs:
        raise ValueError("A source needs a run at least, got none. Pass the configs of a pack.")
    needed, given, data = data_size(configs[0]).vocabulary, configs[0].model.vocabulary, configs[0].data.data
    if given < needed:
        raise ValueError(
            f"The data {data!r} have {needed} different tokens, the model's `vocabulary` is {given}. Set it to "
            f"{needed}."
        )
    return {TREES: TreeSource, HIERARCHY: HierarchySource}.get(data, TextSource)(configs, device)
