"""Table 1: claims on made scores, and a tiny training through the store."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from joma.claims import Outcome, judge
from joma.engine.config import HIERARCHY, TREES
from joma.paper.experiment import Measured
from joma.paper.reproduce import plain, settings
from joma.paper.table1 import CLAIMS, EXPERIMENTS, PUBLISHED, TRAINED, UNTRAINED, charts, compute
from joma.store import Store

QUICK, FULL = (EXPERIMENTS[0].presets[name] for name in ("quick", "full"))


def made(added, shuffled_added=0.0, off=0.0):
    """Return scores near the published ones, to which training added something."""
    rng, rows = np.random.default_rng(0), []
    for (level, latents, classes, children), (value, _) in PUBLISHED.items():
        for data, rho in ((HIERARCHY, 1.0), (TREES, 0.8)):
            for seed in range(5):
                own = {
                    "data": data,
                    "num_classes": classes,
                    "num_children": children,
                    "num_latents": latents,
                    "rho": rho,
                }
                own |= {"hidden": 400, "lr": 1e-5, "seed": seed, "level": level, "matched": value, "loss": 0.0}
                noise = rng.normal(0, 0.001, size=2)
                start = {
                    "ncorr": value + off + noise[0] - added,
                    "shuffled": 0.3 - shuffled_added,
                    "network": UNTRAINED,
                }
                end = {"ncorr": value + off + noise[1], "shuffled": 0.3, "network": TRAINED}
                rows += [own | start, own | end]
    tables = Measured(runs=pd.DataFrame(rows))
    tables.config = settings(plain(FULL))
    return tables


def outcomes(tables):
    return {answer.claim: answer.outcome for answer in judge(CLAIMS, tables, tested_by="table1")}


@pytest.mark.parametrize(("off", "outcome"), [(0.0, Outcome.HOLDS), (0.3, Outcome.REFUTED)])
def test_cells_are_compared_one_by_one(off, outcome):
    assert outcomes(made(0.1, off=off))["table1-numbers"] is outcome


def test_training_counts_only_beyond_what_shuffled_latents_gain():
    assert outcomes(made(0.1))["table1-training"] is Outcome.HOLDS
    assert outcomes(made(0.1, shuffled_added=0.2))["table1-training"] is Outcome.REFUTED
    assert outcomes(made(0.1))["table1-trees"] is Outcome.HOLDS


def test_a_small_size_is_not_compared_with_the_published_numbers():
    tables = made(0.1)
    tables.config = settings(plain(QUICK))
    assert outcomes(tables)["table1-numbers"] is Outcome.NOT_RUN


def test_a_tiny_training_scores_every_level_with_its_controls(tmp_path):
    config = replace(
        QUICK, steps=4, tree_steps=4, width=32, hiddens=(16,), tree_hiddens=(16,), num_samples=64, num_shuffles=2
    )
    tables = compute(config, Store(tmp_path))
    tables.config = settings(plain(config))
    runs = tables.runs
    assert set(runs["network"]) == {TRAINED, UNTRAINED}
    assert runs.groupby("data")["level"].nunique().to_dict() == {HIERARCHY: 2, TREES: 3}
    assert runs["ncorr"].between(0, 1).all()
    assert len(list(charts(tables))) == 2
