"""Texts on claims have a number for every placeholder, and no number that was typed by hand."""

import re
from importlib import resources

import pytest

from joma.claims import Answer, Number, Outcome
from joma.claims.table import markdown, number_rows, rows
from joma.claims.text import filled, text_of, typed_numbers, values

FOLDER = resources.files("joma.claims").joinpath("texts")
ANSWERS = sorted(FOLDER.joinpath("answers").iterdir(), key=lambda path: path.name)
TEXTS = sorted(path.name.removesuffix(".md") for path in FOLDER.iterdir() if path.name.endswith(".md"))


@pytest.mark.parametrize("claim", TEXTS)
def test_no_number_is_typed_by_hand(claim):
    text = text_of(claim)
    assert text.startswith("# ")
    assert typed_numbers(text) == []


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.name)
def test_an_answer_is_two_sentences_without_a_typed_number(path):
    text = path.read_text(encoding="utf-8").strip()
    assert typed_numbers(text) == []
    assert len(re.findall(r"[.?!](?:\s|$)", text)) == 2


def test_placeholders_take_value_interval_and_control():
    number = Number.mean("rise", [1.0, 2.0, 3.0], control=[0.0, 0.1, 0.2], key="rise", published=0.4)
    found = values([number])
    assert "{rise:.1f} {rise_control:.1f} {rise_n} {rise_published}".format_map(found) == "2.0 0.1 3 0.4"
    assert found["rise_high"] - found["rise_low"] == pytest.approx(2 * found["rise_ci"])


def test_an_answer_without_text_has_none():
    answer = Answer(claim="no-such-claim", title="Title", says="", source="", outcome=Outcome.REPORTED)
    assert filled(answer) is None
    assert rows([answer])[0]["what we found"] == "Title"


def test_tables_leave_out_empty_columns_and_escape_bars():
    number = Number.exact("a|b", 0.5, at_least=0.1)
    answer = Answer(claim="c", title="t", says="", source="", outcome=Outcome.HOLDS, numbers=(number,))
    text = markdown(number_rows(answer))
    assert "a\\|b" in text
    assert "interval" not in text
