"""What tests of experiments share: computing and judging, and a GPT-NeoX that trains in a second, with its text."""

from pathlib import Path

from joma.claims import judge
from joma.paper.neox import NeoxConfig
from joma.paper.reproduce import plain, settings
from joma.store.work import Workspace


def with_config(tables, config):
    """Return tables with the settings that they were computed with, as they are kept."""
    tables.config = settings(plain(config))
    return tables


def computed(compute, config):
    """Return the tables of an experiment that is one task."""
    return with_config(compute(config, Workspace(Path(), "cpu", lambda share, doing: None)), config)


def answers(claims, tables):
    """Return the answer to each claim by its id."""
    return {answer.claim: answer for answer in judge(claims, tables, tested_by="test")}


def outcomes(claims, tables):
    """Return the outcome of each claim by its id."""
    return {claim: answer.outcome for claim, answer in answers(claims, tables).items()}


def write_text_folder(folder):
    """Write train, valid and test files with sentences that repeat with changing words."""
    folder.mkdir(parents=True)
    animals, verbs = ("cat", "dog", "bird", "fish", "horse"), ("sees", "eats", "likes", "finds")
    lines = [f"the {a} {v} the {b} and the {b} {v} it ." for a in animals for v in verbs for b in animals]
    for name, count in (("train", 20), ("valid", 10), ("test", 10)):
        (folder / f"{name}.txt").write_text("\n".join(lines * count))
    return folder


def tiny_neox(text, **changes):
    settings = {
        "texts": (str(text),), "vocabulary": 50, "width": 16, "depth": 2, "heads": 2, "window": 12, "batch": 4,
        "num_steps": 10, "every": 1, "lr": 1e-2, "warmup": 2,
    }  # fmt: skip
    return NeoxConfig(**{**settings, **changes})
