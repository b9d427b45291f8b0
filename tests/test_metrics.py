"""The table of quantities: complete, consistent, open to new ones."""

from math import inf

import pytest

from joma.engine.measuring import ENTROPY, FRACTION, LOSS, RANK, WINDOW
from joma.metrics import METRICS, Reduction, metric, metric_named


def test_every_quantity_is_described():
    for name, each in METRICS.items():
        assert each.name == name
        assert each.symbol and each.label and each.description
        assert each.bounds[0] < each.bounds[1]


def test_what_watch_and_train_record_is_known():
    assert {ENTROPY, FRACTION, LOSS, RANK, WINDOW} <= set(METRICS)
    companions = ("effective_keys", "first_key_mass", "mean_distance", "max_logit")
    assert {"qk_spectral_norm", "spectral_norm", "frobenius_norm", *companions} <= set(METRICS)


def test_a_function_enters_its_own_quantity():
    @metric("made_up", symbol="m", unit="keys", bounds=(0, inf), label="made up", reduction="max")
    def made_up(call):
        """Some number.

        More about it.
        """
        return call

    try:
        found = metric_named("made_up")
        assert found.axis == "made up (keys)"
        assert found.description == "Some number."
        assert found.reduction is Reduction.MAX
        assert made_up(3) == 3
    finally:
        del METRICS["made_up"]


def test_joma_s_own_quantities_cannot_be_replaced():
    with pytest.raises(ValueError, match="entropy"):
        metric("entropy", symbol="H")


def test_small_changes_are_absolute_or_relative():
    assert METRICS["entropy"].change_from(5.0) == 0.1
    assert METRICS["stable_rank"].change_from(21.0) == pytest.approx(1.0)
    assert metric_named("unknown").change_from(-20.0) == pytest.approx(1.0)
