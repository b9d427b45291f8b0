"""Table 1: claims on made scores, and a tiny training through the store."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from paper.cases import outcomes, with_config

from joma.claims import Outcome
from joma.engine.config import HIERARCHY, TREES
from joma.paper.experiment import Measured
from joma.paper.table1 import CLAIMS, EXPERIMENTS, PUBLISHED, TRAINED, UNTRAINED, charts, compute
from joma.store import Store

QUICK, FULL = (EXPERIMENTS[0].presets[name] for name in ("quick", "full"))


def made(added, shuffled_added=0.0, off=0.0):
    """Return scores near the published ones, to which training added something."""
    rng, rows = np.random.default_rng(0), []
    for (level, latents, classes, children), (value, _) in PUBLISHED.items():
        for data, rho in ((HIERARCHY, 1.0), (TREES, 0.8)):
            for seed in range(5):
                own = {"data": data, "num_classes": classes, "num_children": children, "num_latents": latents}
                own |= {"rho": rho}
                own |= {"hidden": 400, "lr": 1e-5, "seed": seed, "level": level, "matched": value, "loss": 0.0}
                noise = rng.normal(0, 0.001, size=2)
                start = {"ncorr": value + off + noise[0] - added, "shuffled": 0.3 - shuffled_added}
                end = {"ncorr": value + off + noise[1], "shuffled": 0.3}
                rows += [own | start | {"network": UNTRAINED}, own | end | {"network": TRAINED}]
    return with_config(Measured(runs=pd.DataFrame(rows)), FULL)


@pytest.mark.parametrize(("off", "outcome"), [(0.0, Outcome.HOLDS), (0.3, Outcome.REFUTED)])
def test_cells_are_compared_one_by_one(off, outcome):
    assert outcomes(CLAIMS, made(0.1, off=off))["table1-numbers"] is outcome


def test_training_counts_only_beyond_what_shuffled_latents_gain():
    assert outcomes(CLAIMS, made(0.1))["table1-training"] is Outcome.HOLDS
    assert outcomes(CLAIMS, made(0.1, shuffled_added=0.2))["table1-training"] is Outcome.REFUTED
    assert outcomes(CLAIMS, made(0.1))["table1-trees"] is Outcome.HOLDS


def test_a_small_size_is_not_compared_with_the_published_numbers():
    assert outcomes(CLAIMS, with_config(made(0.1), QUICK))["table1-numbers"] is Outcome.NOT_RUN


def test_a_tiny_training_scores_every_level_with_its_controls(tmp_path):
    config = replace(
        QUICK, steps=4, tree_steps=4, width=32, hiddens=(16,), tree_hiddens=(16,), num_samples=64, num_shuffles=2
    )
    tables = with_config(compute(config, Store(tmp_path)), config)
    runs = tables.runs
    assert set(runs["network"]) == {TRAINED, UNTRAINED}
    assert runs.groupby("data")["level"].nunique().to_dict() == {HIERARCHY: 2, TREES: 3}
    assert runs["ncorr"].between(0, 1).all()
    assert len(list(charts(tables))) == 2
