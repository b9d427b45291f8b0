"""What README.md says of results is what the kept results say, and what documents link to is there."""

import re
import tomllib
from pathlib import Path

import pytest
import typer.main

from joma import cli
from joma.claims.text import heading, typed_numbers
from joma.paper.documents import kept

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS = 1500
"""Words of a page that one reads; the marks of its tables do not count."""
VERSIONS = {"2024", "3.11", "2.6", "4.50"}
"""Numbers of README that are no measurement."""


def test_findings_are_those_of_the_kept_results():
    answers = {answer.claim: answer for result in kept(ROOT) for answer in result.answers}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^- (.+) \(\[(.+)\]\(docs/found/[\w-]+\.md#(.+)\)\)$", readme, re.MULTILINE)
    assert len(found) >= 5
    for says, outcome, claim in found:
        assert (says, outcome) == (heading(answers[claim]), answers[claim].outcome.value)


def test_no_measured_number_of_the_readme_is_typed_by_hand():
    """Tutorial code and its output apart; a finding is the heading of a kept result."""
    prose = re.sub(
        r"```.*?```|^!\[.*$", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    assert set(typed_numbers(re.sub(r"[{}]", "", prose))) <= VERSIONS


def test_no_page_is_long_except_in_the_reference():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    [listed] = re.findall(r":caption: Reference\n\n(.*?)```", index, re.DOTALL)
    reference = {ROOT / "docs" / f"{name}.md" for name in listed.split()}
    for document in set(DOCUMENTS) - reference:
        words = document.read_text(encoding="utf-8").replace("|", " ").split()
        assert len(words) <= MOST_WORDS, document.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_documents_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#([^)\s]+))?\)", text):
        assert (document.parent / target).exists(), target
        if anchor:
            lines = (document.parent / target).read_text(encoding="utf-8")
            assert f'<a id="{anchor}">' in lines or re.search(rf"^#+ {re.escape(anchor)}$", lines, re.MULTILINE), anchor


def test_what_the_package_says_of_itself_renders_outside_of_the_repository():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / about["readme"]).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)", text)
    assert links and all(link.startswith("https://") for link in links)
    assert "<img" not in text
    assert about["classifiers"] and all(url.startswith("https://") for url in about["urls"].values())
    commands = typer.main.get_command(cli.app).commands
    assert {name for name, command in commands.items() if not command.hidden} == set(re.findall(r"`joma (\w+)", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_that_documents_name_exist(document):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    examples = ("joma/paper/size_rebound.py", "joma/claims/texts/size-rebound.md")
    for path in set(re.findall(r"`((?:joma|tests|docs|benchmarks|examples)/[\w/.-]+)`", text)) - set(examples):
        assert (ROOT / path).exists(), path
