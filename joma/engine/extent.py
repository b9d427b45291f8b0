"""What a run's data settle: the size of the vocabulary, the steps of an epoch, and whether there are data at all."""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from joma.data.corpora import OWN_TEXT
from joma.data.hierarchy import Hierarchy
from joma.data.latent_trees import TreeSampler, class_patterns
from joma.data.text import Corpus, Windows, load_text
from joma.engine.config import HIERARCHY, SEQUENCES, TEXTS, TREES, DataConfig, RunConfig, digest
from joma.errors import UnknownNameError
from joma.randomness import run_keys
from joma.theory.latent_tree import LatentTree, regular_tree

NUM_HASHED = 16
"""Samples by whose hash data are known again."""
NUM_VALIDATION_SAMPLES = 1280
"""Samples of a validation set that is drawn: as many as the paper takes for Table 1."""

TOKENS_AT_ONCE = 28_000
"""Tokens of a run that a validation batch holds at most, or one window: independent of how many runs there are, so that
sums are taken in the same order in every pack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How far a run goes."""

    vocabulary: int
    """Tokens that the data have."""
    steps_per_epoch: int
    """Steps for a pass over a text; all of them for samples without end."""
    num_steps: int
    """Steps in all."""
    valid_tokens: int
    """Tokens that a measurement goes over."""
    data_bytes: int
    """Tokens that lie on the device."""


def completed(config: RunConfig) -> RunConfig:
    """Return the config with the vocabulary of its data; raises when these cannot be had or cannot be embedded."""
    model = replace(config.model, vocabulary=extent(config).vocabulary)
    model.demand_fitting_embedding()
    return replace(config, model=model)


def extent(config: RunConfig) -> Extent:
    """Read or draw a run's data once, and say how far they go; refuses windows longer than the text.

    >>> from joma.engine.recipes import recipe
    >>> extent(recipe("table1").base).vocabulary
    100
    """
    return _of_text(config) if config.data.is_text else _of_samples(config)


@lru_cache(maxsize=4)
def corpus_of(data: str, vocabulary_cap: int | None) -> Corpus:
    """Return a text, read once."""
    try:
        return load_text(data, vocabulary_cap=vocabulary_cap)
    except UnknownNameError:
        raise UnknownNameError("data", data, (*TEXTS, *SEQUENCES), remark=OWN_TEXT) from None


def num_sequences(data: DataConfig) -> int:
    """Return the sequences of a run's batch: the hierarchy has one for each class, weighted, if that is fewer."""
    return min(data.batch, data.num_classes) if data.data == HIERARCHY else data.batch


def num_validation_samples(data: DataConfig) -> int:
    """Return the sequences on which sampled data are validated: every class once, or as many as the paper takes."""
    return data.num_classes if data.data == HIERARCHY else NUM_VALIDATION_SAMPLES


def num_validated(data: DataConfig) -> int:
    """Return the sequences that a run is validated on at a time."""
    if not data.is_text:
        return num_validation_samples(data)
    num_windows = max(1, TOKENS_AT_ONCE // (data.valid_batch * data.length))
    return data.valid_batch * min(num_windows, data.valid_windows or num_windows)


def _of_text(config: RunConfig) -> Extent:
    data = config.data
    corpus = corpus_of(data.data, data.vocabulary_cap)
    windows = Windows(corpus.train, data.batch, data.window)
    valid = Windows(corpus.valid, data.valid_batch, data.window)
    steps = config.training.steps or windows.num_windows * (config.training.epochs or 0)
    return Extent(
        vocabulary=len(corpus.vocabulary),
        steps_per_epoch=windows.num_windows,
        num_steps=steps,
        valid_tokens=min(data.valid_windows or valid.num_windows, valid.num_windows) * data.valid_batch * data.window,
        data_bytes=corpus.train.nbytes + corpus.valid.nbytes,
    )


def _of_samples(config: RunConfig) -> Extent:
    steps = config.training.steps
    assert steps is not None  # a RunConfig sees to it
    return Extent(
        vocabulary=_vocabulary(config.data, config.seed),
        steps_per_epoch=steps,
        num_steps=steps,
        valid_tokens=num_validation_samples(config.data) * config.data.length,
        data_bytes=0,
    )


def data_hash(data: DataConfig) -> str:
    """Return a hash of the tokens of a text, or of some samples: data that are others by now show."""
    return corpus_of(data.data, data.vocabulary_cap).hash if data.is_text else _samples_hash(data)


@lru_cache(maxsize=256)
def _samples_hash(data: DataConfig) -> str:
    """Hash samples of one seed, always the same: what a run draws follows from the law and its own."""
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


def _vocabulary(data: DataConfig, seed: int) -> int:
    """Return the number of tokens of samples, once it is known that they can be drawn."""
    if data.data == HIERARCHY:
        return hierarchy_of(data, seed).num_tokens
    assert data.data == TREES  # a RunConfig refuses what is neither
    class_patterns(data.num_classes, data.branching)
    return 2 * data.length  # a token for every leaf that is on, and one for every leaf that is off
