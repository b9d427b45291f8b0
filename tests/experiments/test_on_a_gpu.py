"""Experiments on a GPU, at toy size: they run to their verdicts, and their numbers are the CPU's.

`JOMA_TEST_DEVICE=cpu` and `-o addopts=` as in the engine's tests on a GPU, which this one shares shapes with.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from engine.test_on_a_gpu import CLASSES, SHAPE, needs_a_gpu, there, write_text

from experiments.neox_cases import tiny_neox, write_text_folder
from joma.experiments import figure5, figure7, figure10, language_models, table1
from joma.experiments.experiment import Workplace
from joma.experiments.figure5_measure import ATTENTION, NCORR
from joma.experiments.language_model_config import CONTROLS, UNTRAINED, Config, DriftConfig
from joma.experiments.neox_series import first_text, train_series

pytestmark = needs_a_gpu

SAME = 1e-5
"""Of losses of networks that start alike, relative, and of their attention."""
TRAINED = 1e-3
"""Of losses behind some steps, relative: rounding can send a neuron at the kink of its ReLU the other way. On the CPU,
trainings in fp32 end 1e-7 from those in float64, and one of nine 1e-4."""
SCORED = 1e-3
"""Of NCorr of networks that start alike: a neuron that is silent on one device may live by rounding on another."""
CURVES = 1e-2
"""Of what training makes of entropies and NCorr, and of stable ranks, relative."""
CASES = ["table1", "figure5", "figures6-8", "figure7", "figure10"]


def toys(text, sentences):
    """Return each experiment with a config of its own kind that takes seconds."""
    neox = tiny_neox(sentences)
    return {
        "table1": (
            table1.EXPERIMENT,
            replace(
                table1.quick(), width=CLASSES["width"], hiddens=(CLASSES["hidden"],), batch=CLASSES["batch"],
                steps=40, tree_steps=40, num_samples=320, num_shuffles=4,
            ),
        ),
        "figure5": (
            figure5.EXPERIMENT,
            replace(
                figure5.quick(), **CLASSES, steps=40, checkpoint_every=20, lr=1e-3, num_samples=320, num_shuffles=2,
                num_blocks=4, block_size=500,
            ),
        ),
        "figures6-8": (language_models.EXPERIMENT, language_models_on(text)),
        "figure7": (figure7.EXPERIMENT, figure7.Config(neox=neox, num_windows=2, small=True)),
        "figure10": (figure10.EXPERIMENT, figure10.Config(neox=neox, num_contexts=80, length=12, small=True)),
    }  # fmt: skip


def language_models_on(text):
    settings = {
        **SHAPE, "valid_batch": 2, "valid_windows": 4, "steps": 40, "measure_every": 4, "precision": "fp32",
    }  # fmt: skip
    return Config(
        texts=(str(text),), settings=settings, depths=(1, 2), rate=3e-3, rates=(1e-3, 3e-3), rate_depth=2, seeds=(1,),
        controls=tuple(CONTROLS), control_depths=(1,),
        drift=DriftConfig(depth=2, steps=(0, 10, 40), num_windows=4, seeds=(1,)), needs_gpu=False, small=True,
    )  # fmt: skip


def place(folder, name, device, tell=lambda share, doing: None):
    return Workplace(folder=folder / device / name / "work" / "key", device=device, progress=tell)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder of everything, with two texts in it."""
    folder = tmp_path_factory.mktemp("experiments")
    write_text(folder / "text")
    write_text_folder(folder / "sentences")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOMA_CACHE", str(folder / "cache"))
        patch.delenv("JOMA_DATA", raising=False)
        yield folder


@pytest.fixture(scope="module")
def computed(data):
    """A function that computes an experiment, once for each device."""
    known = {}

    def result(name, device):
        if (name, device) not in known:
            experiment, config = toys(data / "text", data / "sentences")[name]
            where = place(data / ("there" if device == there() else "cpu"), experiment.id, device)
            assert experiment.missing(config, where) == ""
            known[name, device] = experiment.compute(config, where)
        return known[name, device]

    return result


def tables(computed, name, table):
    """Return a table of an experiment on the device and on the CPU."""
    return tuple(computed(name, device).tables[table] for device in (there(), "cpu"))


def assert_near(found, right, by, columns, *, rtol=0.0, atol=0.0):
    """Rows are the same, and numbers near."""
    found, right = (table.set_index(by)[columns].sort_index() for table in (found, right))
    pd.testing.assert_index_equal(found.index, right.index)
    assert len(right) and right.notna().any(axis=None)
    np.testing.assert_allclose(found, right, rtol=rtol, atol=atol)


def assert_curves_near(found, right, by, columns, *, start, later):
    """Numbers are near at the start, where no rounding has grown yet, and later: in relation where they are above 1."""
    for is_start, allowed in ((True, start), (False, later)):
        own, other = (table[(table["step"] == 0) == is_start] for table in (found, right))
        assert_near(own, other, by, columns, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("name", CASES)
def test_it_comes_to_the_cpus_verdicts(computed, data, name):
    experiment, config = toys(data / "text", data / "sentences")[name]
    found, right = computed(name, there()), computed(name, "cpu")
    assert found.tables.keys() == right.tables.keys() and found.facts.keys() == right.facts.keys()
    ours, theirs = (experiment.verdicts(result, config) for result in (found, right))
    assert [(each.id, each.sound) for each in ours] == [(each.id, each.sound) for each in theirs]
    assert [chart.id for chart in experiment.draw(found)] == [chart.id for chart in experiment.draw(right)]


def test_table1_scores_the_same_trained_and_untrained(computed):
    found, right = tables(computed, "table1", "runs")
    by = ["data", "num_classes", "num_children", "num_latents", "rho", "hidden", "lr", "seed", "level"]
    assert set(right["data"]) == {"hierarchy", "trees"}
    for network, scored, lost in (("untrained", SCORED, SAME), ("trained", CURVES, TRAINED)):
        own, other = (table[table["network"] == network] for table in (found, right))
        assert_near(own, other, by, ["ncorr", "shuffled", "matched"], atol=scored)
        assert_near(own, other, by, ["loss"], rtol=lost)
    losses = right.groupby(["data", "network"])["loss"].mean().unstack()
    assert (losses["trained"] < losses["untrained"] - 0.05).all()  # there was something to disagree about


def test_figure5_has_the_same_curves(computed):
    found, right = tables(computed, "figure5", "curves")
    by = ["tree", "what", "layer", "height", "step"]
    for what, start in ((NCORR, SCORED), (ATTENTION, SAME)):
        own, other = (table[table["what"] == what] for table in (found, right))
        assert_curves_near(own, other, by, ["value", "control"], start=start, later=CURVES)
    facts = [computed("figure5", device).facts for device in (there(), "cpu")]
    for name in ("loss_deep", "loss_shallow"):
        assert facts[0][name] == pytest.approx(facts[1][name], rel=TRAINED)


def test_figures6_and_8_have_the_same_losses_and_curves(computed):
    found, right = tables(computed, "figures6-8", "runs")
    assert set(right["condition"]) >= {UNTRAINED, *CONTROLS} and (found["failed_at"] == -1).all()
    by = ["condition", "depth", "lr", "seed"]
    assert_near(found, right, by, ["first_loss"], rtol=SAME)
    assert_near(found, right, by, ["best_loss", "end_loss"], rtol=TRAINED)
    trained = right[right["condition"] != UNTRAINED]
    assert (trained["end_loss"] < trained["first_loss"] - 0.1).all()
    assert trained.loc[trained["depth"] == 1, "end_loss"].is_unique  # every control, the restart's too, does something
    found, right = tables(computed, "figures6-8", "curves")
    by = ["condition", "depth", "lr", "metric", "layer", "step"]
    assert_curves_near(found, right, by, ["mean", "low", "high"], start=SAME, later=CURVES)


def test_assumption1_drifts_the_same(computed):
    found, right = tables(computed, "figures6-8", "drift")
    by = ["mode", "layer", "seed", "step"]
    assert_near(found, right, by, ["cosine", "length_ratio", "between_halves"], atol=CURVES)
    assert_curves_near(found, right, by, ["loss"], start=SAME, later=TRAINED)
    assert right["cosine"].min() < 0.9


def test_figure7_has_the_same_losses_and_curves(computed):
    found, right = tables(computed, "figure7", "loss")
    assert_curves_near(found, right, ["step"], ["loss"], start=SAME, later=TRAINED)
    found, right = tables(computed, "figure7", "curves")
    assert_curves_near(found, right, ["series", "metric", "layer", "step"], ["value"], start=SAME, later=CURVES)


def test_figure10_reads_the_same_neurons_and_attention(data, computed):
    computed("figure10", "cpu")
    neox = toys(data / "text", data / "sentences")["figure10"][1].neox
    models = place(data / "cpu", "figure10", "cpu").folder.parents[2] / "models"
    series = train_series(neox, models, device="cpu", tell=lambda share, doing: None)
    contexts = first_text(neox).valid[:480].reshape(-1, 12)
    found, right = (figure10.readings_of(series.model(neox.num_steps, device), contexts) for device in (there(), "cpu"))
    assert found.keys() == right.keys() and right
    for layer, (activations, attended) in right.items():
        np.testing.assert_allclose(found[layer][0], activations, atol=SAME)
        np.testing.assert_allclose(found[layer][1].weights, attended.weights, atol=SAME)


class Stopped(RuntimeError):
    """What ends a training early."""


def test_a_series_that_was_interrupted_goes_on(data, computed):
    neox = toys(data / "text", data / "sentences")["figure7"][1].neox

    def stop(share, doing):
        if share >= 0.5:
            raise Stopped

    with pytest.raises(Stopped):
        train_series(neox, data / "interrupted", device=there(), tell=stop)
    told = []
    series = train_series(neox, data / "interrupted", device=there(), tell=lambda share, doing: told.append(share))
    assert told[0] > 0.5 and told[-1] == 1.0
    peace = computed("figure7", there()).tables["loss"].set_index("step")["loss"]
    assert series.losses() == pytest.approx(peace.to_dict(), rel=TRAINED)


def test_a_batch_of_thousands_of_tokens_is_trained_on_the_same(data):
    """From 3073 tokens on, the gradient of the embedding is summed by other kernels."""
    neox = tiny_neox(data / "sentences", batch=300, num_steps=8, every=4)
    losses = [
        train_series(neox, data / "large" / device, device=device, tell=lambda share, doing: None).losses()
        for device in (there(), "cpu")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=TRAINED)
    assert losses[1][8] < losses[1][0] - 0.1
