"""Text as numbers: the paper's counts and rules of tokenisation, the vocabulary, windows and the cache."""

import os
import re
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.data import shuffled, text
from joma.data.text import UNKNOWN, Corpus, Windows, build_vocabulary, load_text, look_up, tokenise

TRAIN = "The cat sat.\nThe dog sat , too !\n<unk> ran\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A small text."""
    folder = tmp_path / "book"
    folder.mkdir()
    for split, content in {"train": TRAIN, "valid": "the bird sat", "test": "Cat"}.items():
        (folder / f"{split}.txt").write_text(content)
    return folder


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache of its own."""
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def wikitext2(tmp_path_factory) -> Corpus:
    """WikiText-2, where it is on this machine."""
    data = os.environ.get("JOMA_DATA")
    if data is None or not any((Path(data) / name).is_dir() for name in ("wikitext-2", "wikitext2")):
        pytest.skip("needs WikiText-2 in $JOMA_DATA/wikitext-2")
    return load_text("wikitext2", cache=tmp_path_factory.mktemp("cache"))


def words(corpus: Corpus, split: str) -> list[str]:
    return [corpus.vocabulary[number] for number in getattr(corpus, split).tolist()]


def forbid(*_):
    raise AssertionError("tokenised again")


def test_wikitext2_has_the_papers_counts(wikitext2):
    assert len(wikitext2.train) == 2_049_990
    assert len(wikitext2.vocabulary) == 28_782
    assert (len(wikitext2.valid), len(wikitext2.test)) == (214_417, 241_859)
    assert wikitext2.vocabulary[:4] == ("<unk>", "the", ",", ".")
    assert Windows(wikitext2.train, num_streams=20, length=35).num_windows == 2928


def test_a_folder_becomes_numbers(folder, cache):
    corpus = load_text(folder, cache=cache)
    assert corpus.name == "book"
    assert corpus.vocabulary == ("<unk>", "sat", "the", "!", ",", ".", "cat", "dog", "ran", "too")
    assert words(corpus, "train") == "the cat sat . the dog sat , too ! <unk> ran".split()
    assert words(corpus, "valid") == ["the", "<unk>", "sat"]
    assert words(corpus, "test") == ["cat"]
    assert corpus.train.dtype == torch.int64


def test_a_cap_keeps_the_most_frequent(folder, cache):
    corpus = load_text(str(folder), vocabulary_cap=4, cache=cache)
    assert corpus.vocabulary == ("<unk>", "sat", "the", "!")
    assert words(corpus, "valid") == ["the", "<unk>", "sat"]
    assert words(corpus, "test") == ["<unk>"]
    whole = load_text(folder, cache=cache)
    assert corpus.hash != whole.hash == load_text(folder, vocabulary_cap=999, cache=cache).hash
    with pytest.raises(ValueError, match="`vocabulary_cap`"):
        load_text(folder, vocabulary_cap=1)


def test_the_cache_gives_the_same_without_tokenising(folder, cache, monkeypatch):
    first = load_text(folder, cache=cache)
    monkeypatch.setattr(text, "tokenise", forbid)
    second = load_text(folder, cache=cache)
    assert (second.hash, second.vocabulary) == (first.hash, first.vocabulary)
    assert all(torch.equal(getattr(first, split), getattr(second, split)) for split in ("train", "valid", "test"))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder, patch: (folder / "train.txt").write_text(TRAIN + "more"),
        lambda folder, patch: (folder / "test.txt").write_text("dog"),
        lambda folder, patch: patch.setattr(text, "RULES", "other rules"),
    ],
    ids=["training text", "test text", "rules"],
)
def test_other_content_or_rules_are_not_taken_from_the_cache(folder, cache, monkeypatch, change):
    load_text(folder, cache=cache)
    change(folder, monkeypatch)
    monkeypatch.setattr(text, "tokenise", forbid)
    with pytest.raises(AssertionError, match="tokenised again"):
        load_text(folder, cache=cache)


def test_a_damaged_cache_is_made_again(folder, cache):
    first = load_text(folder, cache=cache)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(RuntimeWarning, match="is damaged; it is made again"):
        assert load_text(folder, cache=cache).hash == first.hash
    assert path.read_bytes() == content


def test_python_docs_train_a_language_model_anywhere(cache):
    corpus = load_text("python-docs", vocabulary_cap=5000, cache=cache)
    assert corpus.name == "python-docs"
    total = len(corpus.train) + len(corpus.valid) + len(corpus.test)
    assert 500_000 < total < 1_100_000  # 782,000 of 644,000 words with Python 3.11; other versions have less or more
    assert all(0.04 < len(part) / total < 0.16 for part in (corpus.valid, corpus.test))
    assert len(corpus.vocabulary) == 5000
    unknown = (corpus.valid == 0).float().mean()
    assert 0 < unknown < 0.2  # most words of the held-out documents are known from the others
    assert Windows(corpus.train, num_streams=20, length=35).num_windows > 500


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_part_without_tokens_is_told(folder, cache, split):
    (folder / f"{split}.txt").write_text(' \n "" ;\n')
    with pytest.raises(ValueError, match=f"tokens in {split}"):
        load_text(folder, cache=cache)
    assert not cache.exists()


SUBSTITUTIONS = [
    (r"'", " ' "), (r'"', ""), (r"\.", " . "), (r"<br />", " "), (r",", " , "), (r"\(", " ( "), (r"\)", " ) "),
    (r"!", " ! "), (r"\?", " ? "), (r";", " "), (r":", " "), (r"\s+", " "),
]  # fmt: skip
"""The rules, one regular expression after the other."""
written = st.text(alphabet=st.one_of(st.sampled_from("'\".,()!?;: \n\tabAB<br/>ΣİÉ0-@="), st.characters(codec="utf-8")))


def substituted(text: str) -> list[str]:
    for pattern, replacement in SUBSTITUTIONS:
        text = re.sub(pattern, replacement, text if pattern != "'" else text.lower())
    return text.split()


@given(written)
def test_tokens_are_those_of_the_substitutions(text):
    assert tokenise(text) == substituted(text)


word_lists = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", "é", UNKNOWN]), max_size=12), max_size=4)


@given(word_lists, st.none() | st.integers(1, 8), st.integers(0, 12))
def test_words_are_numbered_by_count_then_by_alphabet_up_to_the_cap(blocks, cap, cut):
    numbers, vocabulary = build_vocabulary(blocks, cap)
    written = [word for block in blocks for word in block]
    counts = Counter(word for word in written if word != UNKNOWN)
    assert list(vocabulary) == [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))][:cap]
    assert [vocabulary[number] for number in numbers] == [word if word in vocabulary else UNKNOWN for word in written]
    assert look_up([[*written, "new"]], vocabulary).tolist() == [*numbers.tolist(), 0]
    assert build_vocabulary([written[:cut], written[cut:]], cap)[0].tolist() == numbers.tolist()


def test_words_are_numbered_in_little_memory():
    """Bytes at the worst moment over those of the numbers, of a text that comes in many blocks."""
    chosen, num = [f"word{number}" for number in range(50)], 3_000_000
    tracemalloc.start()
    numbers, _ = build_vocabulary(chosen * 1000 for _ in range(num // 50_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert numbers.nbytes == 4 * num and peak < 2.5 * numbers.nbytes


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 60))
def test_windows_one_after_the_other_are_the_streams_with_targets_one_ahead(num_streams, length, more):
    num_tokens = num_streams * (length + 1) + more
    tokens = torch.arange(num_tokens)
    windows = Windows(tokens, num_streams, length)
    per_stream = num_tokens // num_streams
    assert windows.num_windows >= 1 and 1 <= per_stream - windows.num_windows * length <= length
    for i in range(windows.num_windows):
        inputs, targets = windows.window(i)
        starts = torch.arange(num_streams)[:, None] * per_stream + i * length
        assert torch.equal(inputs, starts + torch.arange(length)) and torch.equal(targets, inputs + 1)
        assert inputs.untyped_storage().data_ptr() == tokens.untyped_storage().data_ptr()  # a view
    for outside in (-1, windows.num_windows):
        with pytest.raises(IndexError, match=f"got {outside}"):
            windows.window(outside)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("tokens", "num_streams", "length", "words"),
    [
        (torch.arange(719), 20, 35, "at least 720 tokens, the text has 719"),
        (torch.arange(0), 1, 1, "at least 2 tokens, the text has 0"),
        (torch.arange(50), 0, 5, "`num_streams`"),
        (torch.arange(50), 2, 0, "`length`"),
        (torch.zeros(4, 5, dtype=torch.int64), 1, 1, r"one axis, got shape \(4, 5\)"),
    ],
    ids=["short", "empty", "no streams", "no length", "two axes"],
)
def test_what_gives_no_window_is_refused(tokens, num_streams, length, words):
    with pytest.raises(ValueError, match=words):
        Windows(tokens, num_streams, length)


def test_shuffled_words_are_as_frequent_as_before_and_have_lost_their_order():
    parts = {"train": torch.arange(3000) % 7, "valid": torch.arange(500) % 7, "test": torch.arange(500) % 7}
    corpus = Corpus(name="cycle", **parts, vocabulary=tuple("abcdefg"), hash="1")
    mixed, again, other = shuffled(corpus, 4), shuffled(corpus, 4), shuffled(corpus, 5)
    for split, tokens in parts.items():
        assert torch.equal(getattr(mixed, split).bincount(), tokens.bincount())
        assert torch.equal(getattr(mixed, split), getattr(again, split))
        assert not torch.equal(getattr(mixed, split), getattr(other, split))
    assert not torch.equal(mixed.valid, mixed.test)
    follows = ((mixed.train[1:] - mixed.train[:-1]) % 7 == 1).double().mean()
    assert abs(float(follows) - 1 / 7) < 0.03  # before, every word followed the one below it
    assert len({corpus.hash, mixed.hash, other.hash}) == 3 and mixed.hash == again.hash
