"""Text as numbers: the paper's counts, the vocabulary's cap, unknown words, and the cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from joma.data import text
from joma.data.text import Corpus, Windows, load_text

TRAIN = "The cat sat.\nThe dog sat , too !\n<unk> ran\n"
LOADING = "import sys; from joma.data.text import load_text; print(load_text(sys.argv[1], cache=sys.argv[2]).hash)"


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
    assert int(wikitext2.train.max()) == 28_781 and int(wikitext2.train.min()) == 0


def test_wikitext2_has_2928_steps_an_epoch(wikitext2):
    assert Windows(wikitext2.train, num_streams=20, length=35).num_windows == 2928


def test_wikitext2_is_ordered_by_frequency_then_alphabet(wikitext2):
    counts = torch.bincount(wikitext2.train)[1:].tolist()
    ranks = [(-count, word) for count, word in zip(counts, wikitext2.vocabulary[1:], strict=True)]
    assert ranks == sorted(ranks)


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
    assert corpus.hash != load_text(folder, cache=cache).hash


def test_a_cap_beyond_the_vocabulary_changes_nothing(folder, cache):
    assert load_text(folder, vocabulary_cap=999, cache=cache).hash == load_text(folder, cache=cache).hash


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


def test_other_content_has_another_hash_wherever_it_changed(folder, cache):
    hashes = {load_text(folder, cache=cache).hash}
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(f"only {split} and the cat")
        hashes.add(load_text(folder, cache=cache).hash)
    assert len(hashes) == 4


def test_a_damaged_cache_is_made_again(folder, cache):
    first = load_text(folder, cache=cache)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(RuntimeWarning, match="is damaged; it is made again"):
        assert load_text(folder, cache=cache).hash == first.hash
    assert path.read_bytes() == content


def test_the_default_cache_is_that_of_the_environment(folder, cache, monkeypatch):
    monkeypatch.setenv("JOMA_CACHE", str(cache))
    load_text(folder)
    assert [path.suffix for path in cache.iterdir()] == [".safetensors"]


def test_processes_at_the_same_time_leave_one_whole_file(folder, cache):
    command = [sys.executable, "-c", LOADING, str(folder), str(cache)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    hashes = {process.communicate()[0].strip() for process in started}
    assert hashes == {load_text(folder, cache=cache).hash}
    assert len(list(cache.iterdir())) == 1


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
    with pytest.raises(ValueError, match=f"The text book must have tokens in {split}, got none. Add text to it."):
        load_text(folder, cache=cache)
    assert not cache.exists()


@pytest.mark.parametrize("cap", [1, 0, -5])
def test_a_cap_that_leaves_no_word_is_refused(folder, cap):
    with pytest.raises(ValueError, match=f"`vocabulary_cap` must be a whole number of at least 2, got {cap}"):
        load_text(folder, vocabulary_cap=cap)
