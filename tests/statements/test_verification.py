"""`verify`: unknown ids, soundness, and what counts as bearing a verdict out."""

import re

import numpy as np
import pytest

from joma.errors import UnknownNameError
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.statements.verification import find, judge, registry, verify
from joma.verdicts import Outcome, Verdict

MINIMUM_STATEMENTS = 45
NO_EXCEPTION = re.compile(r"\b(all|always|any|at most|each|every|never|whatever)\b|∀", re.IGNORECASE)


def statement(*, outcome: Outcome, formula: float, printed: float | None) -> Statement:
    """A statement about pi, measured by an independent sum."""
    check = Check(
        name="distance from pi",
        against=Reference.QUADRATURE,
        measure=lambda value: abs(value - np.pi),
        formula=formula,
        printed=printed,
        tolerance=1e-3,
        mutation=Mutation(description="1 % off", formula=1.01 * np.pi),
    )
    return Statement(
        id="pi",
        title="pi",
        place="nowhere",
        printed="",
        outcome=outcome,
        explanation="",
        checks=(check,),
    )


@pytest.mark.parametrize(
    ("outcome", "formula", "printed", "sound"),
    [
        (Outcome.HOLDS, np.pi, None, True),
        (Outcome.HOLDS, 3.0, None, False),
        (Outcome.HOLDS, np.nan, None, False),
        (Outcome.HOLDS, np.pi, 3.0, False),
        (Outcome.REFUTED, np.pi, 3.0, True),
        (Outcome.REFUTED, np.pi, np.nan, True),
        (Outcome.REFUTED, np.pi, None, False),
        (Outcome.REFUTED, np.pi, 3.1416, False),
        (Outcome.CONDITIONAL, 3.0, 3.0, False),
    ],
)
def test_a_verdict_is_sound_only_when_the_numbers_bear_it_out(outcome, formula, printed, sound):
    assert judge(statement(outcome=outcome, formula=formula, printed=printed)).sound is sound


def test_the_registry_covers_the_paper():
    ids = set(registry())
    assert len(ids) >= MINIMUM_STATEMENTS
    families = [f"thm{n}" for n in range(1, 6)] + [f"lemma{n}" for n in range(1, 10)] + ["fig2", "fig3", "fig4", "fig9"]
    missing = [family for family in families if not any(name.split("-")[0] == family for name in ids)]
    assert not missing
    assert any(name.startswith("note") for name in ids)


def test_every_correction_is_stated_where_the_printed_form_fails():
    for entry in registry().values():
        assert bool(entry.corrected) == (entry.outcome is not Outcome.HOLDS), entry.id


def test_no_claim_that_allows_no_exception_holds_under_conditions():
    """By the rule of `joma.verdicts` one case refutes it."""
    conditional = [entry for entry in registry().values() if entry.outcome is Outcome.CONDITIONAL]
    assert not [entry.id for entry in conditional if NO_EXCEPTION.search(entry.printed)]


def test_one_id_may_come_without_a_list():
    assert find("thm2") == find(["thm2"])


def test_unknown_ids_are_refused_with_the_nearest_match():
    with pytest.raises(UnknownNameError, match=r"named 'thm22'\. Did you mean 'thm2'\?"):
        find(["thm22"])
    for beginning in ("", "th", "eqn7"):  # of a word, or of another number
        with pytest.raises(UnknownNameError):
            find(beginning)
    with pytest.raises(UnknownNameError, match=r"named 'thm6'\. `joma verify --list` lists all \d+ of them\."):
        find(["thm6"])


def test_case_does_not_count():
    assert find("THM3") == find("thm3")


def test_a_family_is_named_by_what_its_ids_begin_with():
    family = [statement.id for statement in find("Thm1")]
    assert "thm1-linear" in family and len(family) > 5 and all(name.startswith("thm1-") for name in family)
    assert [statement.id for statement in find("thm2")] == ["thm2"]
    assert {statement.id for statement in find("lemma")} == {name for name in registry() if name.startswith("lemma")}
    assert find(["thm1-linear", "thm1"]) == find("thm1")  # each once


def test_progress_is_told_of_every_verdict_and_verdicts_survive_json():
    told = []
    verdicts = verify(["thm2", "thm2-limit"], progress=told.append)
    assert told == verdicts
    assert [Verdict.from_dict(v.as_dict()) for v in verdicts] == verdicts
