"""The pages on the kept results are what they give now, and every text has its numbers."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from joma.claims import Outcome, judge
from joma.claims.text import filled, heading, short_answer
from joma.paper.documents import PAGES, REFERENCE, keep, kept, pages
from joma.paper.experiment import MODULES, PRESETS, Measured, experiment
from joma.paper.reproduce import charts_of, publish, tables_of

ROOT = Path(__file__).parents[2]


def test_the_pages_are_current():
    made = pages(ROOT)
    found = {path: (ROOT / path).read_text(encoding="utf-8") for path in made}
    assert found == made, "run `make docs`"
    on_results = {path for path in made if path.parent.name == "found"}
    assert on_results | {PAGES / "index.md"} == {PAGES / path.name for path in (ROOT / PAGES).glob("*.md")}


@pytest.mark.parametrize("result", kept(ROOT), ids=lambda result: result.id)
def test_texts_have_their_numbers_and_claims_are_those_of_the_experiment(result):
    assert short_answer(result.id, result.answers), f"write joma/claims/texts/answers/{result.id}.md"
    claims = {claim.id: claim for claim in experiment(result.id).claims}
    assert [answer.claim for answer in result.answers] == list(claims)
    assert result.has_texts
    for answer in result.answers:
        assert filled(answer) is not None or answer.outcome is Outcome.NOT_RUN, answer.claim
        assert heading(answer)
        assert answer.says == claims[answer.claim].says


@pytest.mark.parametrize("result", kept(ROOT), ids=lambda result: result.id)
def test_the_kept_tables_give_the_kept_answers(result):
    found = judge(experiment(result.id).claims, tables_of(ROOT / "results", result), tested_by=result.id)
    for old, new in zip(result.answers, found, strict=True):
        assert (new.claim, new.outcome, new.settings) == (old.claim, old.outcome, old.settings)
        for kept_number, number in zip(old.numbers, new.numbers, strict=True):
            for field, value in kept_number.model_dump().items():
                expected = pytest.approx(value, rel=1e-6, abs=1e-12, nan_ok=True) if isinstance(value, float) else value
                assert getattr(number, field) == expected, field


@pytest.mark.parametrize("name", MODULES)
def test_every_experiment_has_presets_and_claims_with_ids_of_their_own(name):
    made = experiment(name)
    assert [preset for preset in PRESETS if preset in made.presets] == list(made.presets)
    assert next(iter(made.presets)) == "quick" and len(made.presets) > 1 and made.text_preset in made.presets
    assert len({claim.id for claim in made.claims}) == len(made.claims) > 0
    assert not made.draw(Measured()) and not made.draw(Measured(facts={}, curves=pd.DataFrame({"step": []})))


def test_every_caption_is_that_of_a_kept_chart_or_of_an_experiment_that_is_not_kept():
    captions = tomllib.loads((ROOT / "joma" / "paper" / "charts.toml").read_text(encoding="utf-8"))
    waiting = tuple(MODULES.keys() - {result.id for result in kept(ROOT)})
    drawn = {chart.id for result in kept(ROOT) for chart in result.charts}
    assert not {id for id in captions if id not in drawn and not id.startswith(waiting)}
    claims = {claim.id for name in MODULES for claim in experiment(name).claims}
    assert {id for row in captions.values() for id in row.get("claims", ())} <= claims


def test_a_small_result_is_kept_until_there_is_a_full_one_and_its_page_says_so(tmp_path):
    result = kept(ROOT)[0]
    tables = tables_of(ROOT / "results", result)
    for preset, expected in (("small", "small"), ("quick", "small"), ("full", "full"), ("small", "full")):
        publish(tmp_path / "out" / result.id, result.model_copy(update={"preset": preset}), tables, ())
        keep(tmp_path / "out", tmp_path)
        assert [each.preset for each in kept(tmp_path)] == [expected]
        made = pages(tmp_path)
        page, claims = made[PAGES / f"{result.id}.md"], made[REFERENCE / "claims.md"]
        assert f"Preset `{expected}`" in page
        assert {"The small form" in page, " (small) |" in claims} == {expected == "small"}


def test_keeping_copies_results_and_tables_and_writes_of_them(tmp_path):
    keep(ROOT / "results", tmp_path)
    assert [result.id for result in kept(tmp_path)] == [result.id for result in kept(ROOT)]
    assert (tmp_path / "docs" / "reference" / "claims.md").exists()
    first = kept(tmp_path)[0]
    assert (tmp_path / "docs" / "results" / f"{charts_of(tmp_path / 'results', first)[0].id}.svg").exists()
