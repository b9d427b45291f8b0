"""Batches are functions of the runs' seeds and the step, and mean what they stand for."""

import gc
import tracemalloc
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.data import load_text
from joma.data.hierarchy import Hierarchy
from joma.engine import sources
from joma.engine.config import DataConfig, RunConfig, TrainingConfig
from joma.engine.sources import (
    NUM_VALIDATION_SAMPLES,
    PAPER_WINDOW,
    corpus_of,
    data_hash,
    data_size,
    masked_rows,
    source_of,
)
from joma.models.batch import Batch
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig
from joma.randomness import run_keys

WORDS = ["the", "tree", "has", "a", "leaf", "and", "one", "root"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of text, the tokens of which can be told apart by their order."""
    folder = tmp_path_factory.mktemp("text")
    generator = torch.Generator().manual_seed(0)
    for split, num_words in (("train", 2000), ("valid", 1400), ("test", 300)):
        chosen = torch.randint(len(WORDS), (num_words,), generator=generator)
        (folder / f"{split}.txt").write_text(" ".join(WORDS[i] for i in chosen))
    return str(folder)


def text_config(text, seed=1, **data):
    model = DecoderConfig(vocabulary=len(WORDS) + 1, width=8, hidden=8, positions="none")
    return RunConfig(model=model, data=DataConfig(data=text, batch=4, window=5, valid_batch=2, **data), seed=seed)


def class_config(seed=1, *, num_classes=3, depth=1, causal=False, **data):
    sizes = {"vocabulary": 20, "width": 12, "hidden": 16, "depth": depth, "num_classes": num_classes}
    return RunConfig(
        model=DecoderConfig(**sizes, positions="none", causal=causal, readout="class"),
        data=DataConfig(num_classes=num_classes, **data),
        training=TrainingConfig(steps=10, precision="float64"),
        seed=seed,
    )


def hierarchy_config(seed=1, *, batch=128, num_classes=6, **changes):
    sizes = {"num_latents": (5, 8), "num_children": 2, "num_tokens": 20, "window": 10} | changes
    return class_config(seed, data="hierarchy", batch=batch, num_classes=num_classes, **sizes)


def tree_config(seed=1, **changes):
    return class_config(seed, data="trees", tree_depth=2, branching=3, rho=0.7, batch=64, **changes)


def test_a_shuffled_text_is_the_same_for_all_runs_and_another_one_by_its_seed(text):
    plain, first, second = (
        source_of([text_config(text, seed, shuffle_seed=shuffle) for seed in (1, 2)]) for shuffle in (None, 0, 3)
    )
    taken = [source.batch(0).tokens for source in (plain, first, second)]
    assert all(torch.equal(tokens[0], tokens[1]) for tokens in taken)
    assert not any(torch.equal(one, other) for one, other in ((taken[0], taken[1]), (taken[1], taken[2])))
    assert torch.equal(corpus_of(text, None).train.bincount(), corpus_of(text, None, 3).train.bincount())
    hashes = {data_hash(text_config(text, shuffle_seed=shuffle).data) for shuffle in (None, 0, 3)}
    assert len(hashes) == 3


@pytest.mark.parametrize(("name", "num_words"), [("arithmetic", 18), ("json", 33)])
def test_a_generated_text_has_no_rare_words(name, num_words):
    config = text_config(name)
    assert data_size(config).vocabulary == num_words
    batch = source_of([replace(config, model=replace(config.model, vocabulary=num_words))]).batch(0)
    assert torch.equal(batch.tokens[0, :, 1:].flatten(), batch.targets[0].reshape(4, 5)[:, :-1].flatten())
    with pytest.raises(ValueError, match=f"{num_words} tokens"):
        data_size(text_config(name, vocabulary_cap=10))


def test_hashes_of_arithmetic_stay():
    """The text of the version in which nodes had no numbers."""
    assert data_hash(text_config("arithmetic").data) == "bc92ff8e094996e9476293d4fa4247b6"


def test_source_code_keeps_its_most_frequent_words(monkeypatch):
    asked = []
    monkeypatch.setattr(sources, "tree_corpus", lambda *given: asked.append(given))
    corpus_of.__wrapped__("source-code", 500)
    corpus_of.__wrapped__("source-code", None)
    assert asked == [("source-code", 500), ("source-code", None)]


def test_a_long_text_is_in_memory_once(tmp_path):
    """Bytes over those of the tokens: while it is read from the cache, when it was read, and when it was shuffled."""
    num_words = 400_000
    for split, num in (("train", num_words), ("valid", 100), ("test", 100)):
        (tmp_path / f"{split}.txt").write_text(" ".join(WORDS[place % 7] for place in range(num)))
    load_text(tmp_path)  # into the cache
    tracemalloc.start()
    corpora, used = [], []
    for shuffle in (None, 1):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        corpora.append(corpus_of(str(tmp_path), None, shuffle) if shuffle else load_text(tmp_path))
        gc.collect()
        used.append([(bytes - before) / (8 * num_words) for bytes in tracemalloc.get_traced_memory()])
    tracemalloc.stop()
    [(held, peak), (held_shuffled, _)] = used
    assert 1 <= held < 1.1 and peak < 1.7
    assert 1 <= held_shuffled < 1.1
    assert not torch.equal(corpora[0].train, corpora[1].train)


def masked_config(text, seed=1, **data):
    model = DecoderConfig(
        vocabulary=len(WORDS) + 2, width=8, hidden=8, positions="none", causal=False, readout="masked_word"
    )
    return replace(text_config(text, seed, **data), model=model)


def test_a_share_of_the_words_is_masked_by_run_and_step_and_the_others_stay(text):
    configs = [masked_config(text, seed, mask_share=0.3) for seed in (5, 8)]
    source, plain = source_of(configs), source_of([text_config(text)])
    assert data_size(configs[0]).vocabulary == len(WORDS) + 2  # `<unk>` and the mask
    seen = []
    for step in (0, 1, 1000):
        batch, words = source.batch(step), plain.batch(step).tokens[0].flatten()
        assert batch.rows.shape == batch.targets.shape == (2, 6)  # 0.3 of 4 sequences of 5
        for run, seed in enumerate((5, 8)):
            tokens = batch.tokens[run].flatten()
            is_masked = torch.zeros(20, dtype=torch.bool).index_fill(0, batch.rows[run], True)
            assert is_masked.sum() == 6 and torch.equal(tokens == len(WORDS) + 1, is_masked)
            assert torch.equal(tokens[~is_masked], words[~is_masked])
            assert torch.equal(batch.targets[run], words[batch.rows[run]])
            alone = source_of([masked_config(text, seed, mask_share=0.3)]).batch(step)
            assert torch.equal(alone.tokens[0], batch.tokens[run]) and torch.equal(alone.rows[0], batch.rows[run])
            seen.append(tuple(batch.rows[run].tolist()))
    assert len(set(seen)) == len(seen)


def test_every_position_is_masked_about_as_often_as_any_other(text):
    source = source_of([masked_config(text)])
    counts = torch.stack([source.batch(step).rows[0] for step in range(2000)]).flatten().bincount(minlength=20)
    # Of 2,000 batches 3 of 20 words each: 300 a position, with a standard deviation of 16.
    assert counts.sum() == 6000 and (counts - 300).abs().max() < 5 * 16


def test_validation_masks_are_the_same_for_all_runs_and_calls(text):
    both, other = (source_of([masked_config(text, seed) for seed in seeds]) for seeds in ((1, 2), (9,)))
    for first, again, elsewhere in zip(both.validation(), both.validation(), other.validation(), strict=True):
        assert torch.equal(first.tokens, again.tokens) and torch.equal(first.rows[0], first.rows[1])
        assert torch.equal(first.tokens[:1], elsewhere.tokens) and torch.equal(first.targets[:1], elsewhere.targets)
        assert first.rows.shape[1] == masked_rows(first.tokens[0].numel(), 0.15)
    assert both.single_window().rows.shape == (2, 1)


CASES = {"hierarchy": hierarchy_config, "trees": tree_config}


def assert_same(found, expected):
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.targets, expected.targets)
    for one, other in ((found.weights, expected.weights), (found.key_bias, expected.key_bias)):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def rows(batch, run):
    own = {each.name: getattr(batch, each.name) for each in fields(batch)}
    return type(batch)(**{name: None if values is None else values[run : run + 1] for name, values in own.items()})


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@settings(max_examples=8)
@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4), step=st.integers(0, 10**6))
def test_a_runs_samples_do_not_depend_on_its_neighbours(make, seeds, step):
    together = source_of([make(seed) for seed in seeds])
    for run, seed in enumerate(seeds):
        alone = source_of([make(seed)])
        assert_same(rows(together.batch(step), run), alone.batch(step))
        assert_same(rows(next(together.validation()), run), next(alone.validation()))


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_steps_and_seeds_give_other_samples_and_validation_stays(make):
    source = source_of([make(1), make(2)])
    first, second = source.batch(0), source.batch(1)
    kind = "tokens" if first.weights is None else "weights"
    assert not torch.equal(getattr(first, kind), getattr(second, kind))
    assert not torch.equal(getattr(first, kind)[0], getattr(first, kind)[1])
    assert_same(next(source.validation()), next(source.validation()))
    assert source.single_window() is None


def test_tree_samples_are_leaves_with_their_root():
    source = source_of([tree_config(1), tree_config(5)])
    batch = source.batch(3)
    assert batch.tokens.shape == (2, 64, 9)
    assert ((batch.tokens % 9) == torch.arange(9)).all()
    assert set(batch.targets.unique().tolist()) == {0, 1, 2}
    assert next(source.validation()).targets.shape == (2, NUM_VALIDATION_SAMPLES)


def gradients_of(config, batch):
    """Loss and gradients of the runs' first parameters on a batch."""
    model = Decoder(config.model)
    starts = [model.initial(run) for run in range(batch.tokens.shape[0])]
    parameters = {name: torch.stack([start[name] for start in starts]).double() for name in model.shapes}
    gradients = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    losses = model.value_and_gradient(parameters, gradients, batch, None)
    return losses, torch.cat([each.flatten(1) for each in gradients.values()], dim=1)


@pytest.mark.parametrize(("step", "depth", "causal"), [(0, 1, False), (7, 3, True)])
def test_weighted_classes_with_merged_padding_are_exactly_the_batch_of_128_rows(step, depth, causal):
    configs = [hierarchy_config(seed, window=30, depth=depth, causal=causal) for seed in (1, 2, 3)]
    source = source_of(configs)
    weighted, label = source.batch(step), source.hierarchies[0].classes(source.keys, step, 128, site="hierarchy")
    tokens = [hierarchy.sequences[own] for hierarchy, own in zip(source.hierarchies, label, strict=True)]
    drawn = Batch(tokens=torch.stack(tokens), targets=label)
    assert weighted.tokens.shape == (3, 6, configs[0].trained_length) == (3, 6, 9)
    assert drawn.tokens.shape == (3, 128, 30)
    for run, seed in enumerate((1, 2, 3)):
        expected = Hierarchy.draw(seed, num_latents=(5, 8), num_classes=6, num_tokens=20, length=30)
        assert torch.equal(drawn.tokens[run], expected.sequences[drawn.targets[run]])
        assert torch.equal(weighted.weights[run] * 128, torch.bincount(drawn.targets[run], minlength=6).double())
    found, expected = gradients_of(configs[0], weighted), gradients_of(configs[0], drawn)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-13, atol=0)  # only the order of sums differs
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-13)
    assert float(expected[1].abs().max()) > 1e-3
    unmerged = gradients_of(configs[0], replace(weighted, key_bias=None))  # padding that counts too little
    assert float((unmerged[1] - expected[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("changes", [{"positions": "learned"}, {"dropout": 0.1}])
def test_padding_that_the_model_can_tell_apart_is_not_merged(changes):
    config = hierarchy_config(window=30).update(changes)
    batch = source_of([config]).batch(0)
    assert batch.tokens.shape[-1] == config.trained_length == 30
    assert batch.key_bias is None


def test_a_batch_shorter_than_the_classes_stays_row_by_row():
    batch = source_of([hierarchy_config(batch=4)]).batch(0)
    assert batch.tokens.shape == batch.key_bias.shape == (1, 4, 9)
    assert batch.weights is None


def test_windows_of_a_text_are_shared_and_begin_again(text):
    source = source_of([text_config(text, seed) for seed in (1, 2, 3)])
    corpus = corpus_of(text, None)
    streams = corpus.train[: 4 * 500].view(4, 500)
    num_windows = 499 // 5
    for step in (0, 1, num_windows - 1, num_windows, 3 * num_windows + 2):
        batch = source.batch(step)
        at = step % num_windows * 5
        assert torch.equal(batch.tokens, streams[:, at : at + 5].expand(3, -1, -1))
        assert torch.equal(batch.targets.view(3, 4, 5), streams[:, at + 1 : at + 6].expand(3, -1, -1))
    assert data_hash(source.data) == corpus.hash


@pytest.mark.parametrize("limit", [None, 7, 10_000])
def test_the_validation_set_is_every_window_once(text, limit, monkeypatch):
    monkeypatch.setattr("joma.engine.sources.TOKENS_AT_ONCE", 40)
    source = source_of([text_config(text, valid_windows=limit)])
    streams = corpus_of(text, None).valid[:1400].view(2, 700)
    num_windows = min(limit or 10_000, 699 // 5)
    batches = list(source.validation())
    tokens = torch.cat([batch.tokens[0].view(-1, 2, 5) for batch in batches])
    targets = torch.cat([batch.targets[0].view(-1, 2, 5) for batch in batches])
    assert torch.equal(tokens.movedim(1, 0).reshape(2, -1), streams[:, : 5 * num_windows])
    assert torch.equal(targets.movedim(1, 0).reshape(2, -1), streams[:, 1 : 5 * num_windows + 1])
    assert max(batch.tokens.shape[1] for batch in batches) == 8


def test_the_single_window_is_the_papers_or_the_last(text):
    streams = corpus_of(text, None).valid[:1400].view(2, 700)
    window = source_of([text_config(text)]).single_window()
    assert torch.equal(window.tokens[0], streams[:1, 5 * PAPER_WINDOW : 5 * PAPER_WINDOW + 5])
    few = text_config(text).update({"window": 300})
    assert torch.equal(source_of([few]).single_window().tokens[0], streams[:1, 300:600])


def test_a_model_that_does_not_fit_the_data(text):
    with pytest.raises(ValueError, match="have 9 different tokens, the model's `vocabulary` is 3"):
        source_of([text_config(text).update({"vocabulary": 3})])
    with pytest.raises(ValueError, match="got none"):
        source_of([])


def test_samples_are_known_again_by_their_hash():
    trees = DataConfig(data="trees", num_classes=2)
    hashes = [
        data_hash(each)
        for each in (trees, replace(trees, rho=0.5), replace(trees, tree_depth=4), DataConfig(data="hierarchy"))
    ]
    assert len({*hashes}) == len(hashes) and data_hash(replace(trees)) == hashes[0]


def test_a_sampler_that_draws_otherwise_has_another_hash(monkeypatch):
    trees = DataConfig(data="trees", num_classes=2, rho=0.31)
    before = data_hash(trees)
    data_hash.cache_clear()
    monkeypatch.setattr(sources, "run_keys", lambda seeds: run_keys([seed + 1 for seed in seeds]))
    assert data_hash(trees) != before
