"""Experiments on a GPU, at toy size: their tables are the CPU's.

`JOMA_TEST_DEVICE=cpu` and `-o addopts=` as in the engine's tests on a GPU, which these share shapes with.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from engine.test_on_a_gpu import CLASSES, SHAPE, needs_a_gpu, there, write_text
from paper.cases import tiny_neox, write_text_folder

from joma.paper import assumption1, figure5, figure7, figure10, figures6_8, table1
from joma.store import Store

pytestmark = needs_a_gpu

SAME = 1e-5
"""Of losses and attention of networks that start alike, relative where they are above 1, as all that follows."""
TRAINED = 1e-3
"""Of losses after some steps: rounding can send a neuron at the kink of its ReLU the other way. On the CPU, trainings
in fp32 end 1e-7 from those in float64, and one of nine 1e-4."""
SCORED = 1e-3
"""Of NCorr of networks that start alike: a neuron that is silent on one device may live by rounding on another."""
CURVES = 1e-2
"""Of what training makes of entropies, stable ranks and NCorr."""
KEYS = {
    "condition", "data", "depth", "height", "hidden", "layer", "level", "lr", "metric", "mode", "network",
    "num_children", "num_classes", "num_latents", "rho", "seed", "step", "tree", "what",
}  # fmt: skip
"""Columns that identify a row."""
CASES = [
    ("table1", "runs", ["ncorr", "shuffled", "matched"], SCORED, CURVES),
    ("table1", "runs", ["loss"], SAME, TRAINED),
    ("figure5", "curves", ["value", "control"], SCORED, CURVES),
    ("figure6", "runs", ["first_loss"], SAME, SAME),
    ("figure6", "runs", ["best_loss", "end_loss"], TRAINED, TRAINED),
    ("figure6", "curves", ["value"], SAME, CURVES),
    ("ablations", "runs", ["best_loss", "end_loss"], TRAINED, TRAINED),
    ("ablations", "curves", ["value"], SAME, CURVES),
    ("assumption1", "drift", ["cosine", "length_ratio", "between_halves"], CURVES, CURVES),
    ("assumption1", "drift", ["loss"], SAME, TRAINED),
    ("figure7", "loss", ["loss"], SAME, TRAINED),
    ("figure7", "curves", ["value"], SAME, CURVES),
]
"""Experiment, table, columns, and how far they may be off: untrained or at step 0, and later."""


def toys(text, sentences):
    """Return how each experiment is computed, with a config that takes seconds."""
    settings = {**SHAPE, "valid_batch": 2, "valid_windows": 4, "steps": 40, "measure_every": 4, "precision": "fp32"}
    on_text = {"text": str(text), "settings": settings}
    models = replace(figures6_8.QUICK, **on_text, depths=(1, 2), rates=(1e-3, 3e-3), seeds=(1,))
    networks = {"width": CLASSES["width"], "batch": CLASSES["batch"], "num_samples": 320}
    neurons = {"hiddens": (CLASSES["hidden"],), "tree_hiddens": (CLASSES["hidden"],)}
    curves = {"hidden": CLASSES["hidden"], "steps": 40, "checkpoint_every": 20, "lr": 1e-3, "num_shuffles": 2}
    neox = tiny_neox(sentences)
    return {
        "table1": (
            table1.compute,
            replace(table1.QUICK, **networks, **neurons, steps=40, tree_steps=40, num_shuffles=4),
        ),
        "figure5": (figure5.compute, replace(figure5.QUICK, **networks, **curves)),
        "figure6": (figures6_8.compute_figure6, models),
        "ablations": (figures6_8.compute_ablations, replace(models, controls=tuple(figures6_8.CONTROLS))),
        "assumption1": (assumption1.compute, replace(assumption1.SMALL, **on_text, steps=(0, 10, 40), num_windows=4)),
        "figure7": (figure7.compute, figure7.Figure7Config(model=neox, num_windows=2)),
        "figure10": (figure10.compute, figure10.Figure10Config(model=neox, num_contexts=80, length=12)),
    }


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A function that computes an experiment on the device and on the CPU, once."""
    folder, known = tmp_path_factory.mktemp("experiments"), {}
    made = toys(write_text(folder / "text"), write_text_folder(folder / "sentences"))

    def tables(name):
        if name not in known:
            compute, config = made[name]
            stores = (Store(folder / name / which, device=on) for which, on in (("there", there()), ("cpu", "cpu")))
            known[name] = tuple(compute(config, store) for store in stores)
        return known[name]

    return tables


@pytest.mark.parametrize(("name", "table", "columns", "start", "later"), CASES)
def test_tables_are_the_cpus(computed, name, table, columns, start, later):
    found, right = (measured[table] for measured in computed(name))
    keys = [column for column in right if column in KEYS]
    pd.testing.assert_frame_equal(found[keys], right[keys])
    is_start = right["step"] == 0 if "step" in right else right.get("network") == table1.UNTRAINED
    for chosen, allowed in ((is_start, start), (~np.asarray(is_start), later)):
        own, other = (each.loc[np.broadcast_to(chosen, len(right)), columns] for each in (found, right))
        assert other.notna().any(axis=None) or other.empty
        np.testing.assert_allclose(own, other, rtol=allowed, atol=allowed)


def test_networks_have_learned_something_to_disagree_about(computed):
    runs = computed("figure6")[1].runs.query("condition != @figures6_8.UNTRAINED")
    assert len(runs) and (runs["end_loss"] < runs["first_loss"] - 0.1).all()
    losses = computed("table1")[1].runs.groupby(["data", "network"])["loss"].mean().unstack()
    assert (losses[table1.TRAINED] < losses[table1.UNTRAINED] - 0.05).all()


def test_neurons_are_looked_at(computed):
    found, right = computed("figure10")
    assert found.keys() == right.keys() and all(len(found[name]) for name in right if len(right[name]))
