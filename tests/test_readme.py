"""What README.md says of results is what the kept results say, and what documents link to is there."""

import re
from pathlib import Path

import pytest

from joma.claims.text import heading
from joma.paper.documents import kept

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_findings_are_those_of_the_kept_results():
    answers = {answer.claim: answer for result in kept(ROOT) for answer in result.answers}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^- (.+) \(\[(.+)\]\(docs/results\.md#(.+)\)\)$", readme, re.MULTILINE)
    assert len(found) >= 5
    for says, outcome, claim in found:
        assert (says, outcome) == (heading(answers[claim]), answers[claim].outcome.value)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_documents_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_that_documents_name_exist(document):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    examples = ("joma/paper/size_rebound.py", "joma/claims/texts/size-rebound.md")
    for path in set(re.findall(r"`((?:joma|tests|docs|benchmarks|examples)/[\w/.-]+)`", text)) - set(examples):
        assert (ROOT / path).exists(), path
