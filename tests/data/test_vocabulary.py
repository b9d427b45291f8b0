"""Vocabularies: order, cap, unknown words."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joma.data.text import UNKNOWN, build_vocabulary, look_up

words = st.sampled_from(["a", "b", "c", "d", "é", UNKNOWN])
texts = st.lists(st.lists(words, max_size=12), max_size=4)
caps = st.none() | st.integers(1, 8)


@given(texts, caps)
def test_words_are_ranked_by_count_then_by_alphabet_and_cut_at_the_cap(blocks, cap):
    counts = Counter(word for block in blocks for word in block if word != UNKNOWN)
    expected = [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))][:cap]
    assert list(build_vocabulary(blocks, cap)[1]) == expected


@given(texts, caps)
def test_numbers_give_the_text_back_but_for_unknown_words(blocks, cap):
    numbers, vocabulary = build_vocabulary(blocks, cap)
    text = [word for block in blocks for word in block]
    assert [vocabulary[number] for number in numbers] == [word if word in vocabulary else UNKNOWN for word in text]


@given(texts, caps)
def test_looking_up_the_training_text_gives_its_own_numbers(blocks, cap):
    numbers, vocabulary = build_vocabulary(blocks, cap)
    np.testing.assert_array_equal(look_up(blocks, vocabulary), numbers)


@given(texts, st.integers(0, 12))
def test_numbers_do_not_depend_on_how_the_text_is_cut_into_blocks(blocks, cut):
    text = [word for block in blocks for word in block]
    np.testing.assert_array_equal(build_vocabulary(blocks)[0], build_vocabulary([text[:cut], text[cut:]])[0])


def test_words_outside_the_vocabulary_are_unknown():
    assert look_up([["new", "a"], ["b", UNKNOWN]], (UNKNOWN, "a")).tolist() == [0, 1, 0, 0]
