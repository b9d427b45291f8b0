"""The rules of tokenisation, by examples and against the substitutions that define them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.data.text import SEPARATE, tokenise

SUBSTITUTIONS = [
    (r"'", " ' "),
    (r'"', ""),
    (r"\.", " . "),
    (r"<br />", " "),
    (r",", " , "),
    (r"\(", " ( "),
    (r"\)", " ) "),
    (r"!", " ! "),
    (r"\?", " ? "),
    (r";", " "),
    (r":", " "),
    (r"\s+", " "),
]
"""The rules, one regular expression after the other."""
texts = st.text(alphabet=st.one_of(st.sampled_from("'\".,()!?;: \n\tabAB<br/>ΣİÉ0-@="), st.characters(codec="utf-8")))


def substituted(text: str) -> list[str]:
    for pattern, replacement in SUBSTITUTIONS:
        text = re.sub(pattern, replacement, text if pattern != "'" else text.lower())
    return text.split()


@given(texts)
def test_tokens_are_those_of_the_substitutions(text):
    assert tokenise(text) == substituted(text)


@given(texts.filter(lambda text: "<" not in text))
def test_tokenising_again_changes_nothing(text):
    # A line break spelled with two blanks is two tokens, which joined by one blank are a line break: hence no "<".
    tokens = tokenise(text)
    assert tokenise(" ".join(tokens)) == tokens


@given(texts)
def test_tokens_are_lower_case_without_blanks_or_dropped_characters(text):
    for token in tokenise(text):
        assert token
        assert token == token.lower()
        assert token.split() == [token]
        assert not set(token) & set('";:')
        assert token in SEPARATE or not set(token) & set(SEPARATE)


@given(st.lists(texts, max_size=5))
def test_lines_may_be_tokenised_one_by_one_or_together(lines):
    assert tokenise("\n".join(lines)) == [token for line in lines for token in tokenise(line)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        (" \n\t ", []),
        ("Don't!", ["don", "'", "t", "!"]),
        ('"quoted"', ["quoted"]),
        ("a;b:c", ["a", "b", "c"]),
        ("one<br />two<BR />three", ["one", "two", "three"]),
        ("U.S. (1,000)?", ["u", ".", "s", ".", "(", "1", ",", "000", ")", "?"]),
        ("role @-@ playing = <unk>", ["role", "@-@", "playing", "=", "<unk>"]),
    ],
    ids=["empty", "blanks", "apostrophe", "quotes", "blanked", "line breaks", "separated", "left alone"],
)
def test_examples(text, tokens):
    assert tokenise(text) == tokens
