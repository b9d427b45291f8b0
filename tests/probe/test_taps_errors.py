"""Errors under a tap: whose they are, what is restored, and what is refused."""

import copy
import threading

import models
import pytest
import torch
from tapping import snapshot

from joma.probe.taps import tap


def test_an_error_of_the_measurement_goes_to_its_handler():
    model, x = models.HandWritten(), torch.arange(14).reshape(2, 7)
    before, errors = snapshot(model), []

    def fail(call):
        raise ArithmeticError("no number")

    with torch.no_grad():
        wanted = model(x)
        with tap(model, fail, on_error=lambda call, error: errors.append((call.site, error))):
            found = model(x)
    assert [site for site, _ in errors] == ["blocks.0", "blocks.1"]
    assert all(isinstance(error, ArithmeticError) for _, error in errors)
    assert torch.equal(found, wanted) and snapshot(model) == before


def test_without_a_handler_it_comes_up_and_all_is_restored():
    model = models.HandWritten()
    before = snapshot(model)

    def fail(call):
        raise ArithmeticError("no number")

    with pytest.raises(ArithmeticError, match="no number"), tap(model, fail):
        model(torch.arange(14).reshape(2, 7))
    assert snapshot(model) == before
    sites = []
    with tap(model, lambda call: sites.append(call.site)):
        model(torch.arange(14).reshape(2, 7))
    assert sites == ["blocks.0", "blocks.1"]


def test_an_error_of_the_model_leaves_no_module_running():
    model, sites = models.HandWritten(), []
    with tap(model, lambda call: sites.append(call.site)):
        with pytest.raises(IndexError):
            model(torch.full((1, 3), 99))
        model(torch.arange(14).reshape(2, 7))
    assert sites == ["blocks.0", "blocks.1"]


def test_a_second_tap_in_the_same_thread_is_refused():
    model = models.HandWritten()
    with tap(model, lambda call: None), pytest.raises(RuntimeError, match="has a tap open already"):
        with tap(model, lambda call: None):
            pass


def test_running_the_model_from_on_call_is_refused():
    model, x = models.HandWritten(), torch.arange(14).reshape(2, 7)
    with pytest.raises(RuntimeError, match="ran the tapped model"), tap(model, lambda call: model(x)):
        model(x)


def test_another_thread_is_not_listened_to():
    model, x, sites = models.HandWritten(), torch.arange(14).reshape(2, 7), []
    with tap(model, lambda call: sites.append(call.site)):
        other = threading.Thread(target=model, args=(x,))
        other.start()
        other.join()
        assert sites == []
        model(x)
    assert sites == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize("way", ["wrapped", "in place"])
def test_compiled_models_are_refused_or_run_eagerly(way):
    model, x = models.HandWritten(), torch.arange(14).reshape(2, 7)
    plain = copy.deepcopy(model)
    if way == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model.blocks[1].compile(backend="eager")
    with pytest.raises(ValueError, match=r"cannot be seen, and .* is compiled"), tap(model, lambda call: None):
        pass
    layers = []
    with torch.no_grad(), tap(model, lambda call: layers.append(call.layer), eagerly=True):
        out = model(x)
    assert layers == [0, 1] and torch.equal(out, plain(x))
