"""The experiment on the alarm: its models are the engine's, its claims fail when they should."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from paper import cases

from joma.models.batch import Batch
from joma.paper.alarm import CLAIMS, AlarmConfig, watched_run
from joma.paper.experiment import Measured
from joma.paper.small_models import ARCHITECTURES, LENGTH, VOCABULARY, EngineModel, build


def made(**changes) -> Measured:
    """Runs in which everything is as claimed, with columns of the driven ones changed."""
    healthy = {"drive": "healthy", "alarm": math.inf, "plain": math.inf, "event": math.inf}
    driven = {"drive": "large rate", "alarm": 40.0, "plain": math.inf, "event": 60.0} | changes
    runs = pd.DataFrame([each | {"seed": seed} for each in (healthy, driven) for seed in range(30)])
    runs = runs.assign(architecture="GPT2", cure="none", last_loss=3.0)
    made_at = 30.0 + 2 * np.arange(30)
    forecasts = pd.DataFrame({"made": made_at, "low": made_at + 5, "high": made_at + 15 + 20 * (np.arange(30) % 2)})
    forecasts["reached"] = forecasts["low"] + np.where(np.arange(30) % 2, 25.0, 5.0)
    found = Measured(runs=runs, forecasts=forecasts)
    found.config.steps, found.config.every = 150, 2
    return found


def outcomes(tables: Measured) -> dict[str, str]:
    return {claim: outcome.value for claim, outcome in cases.outcomes(CLAIMS, tables).items()}


def test_claims_hold_and_fail_with_their_tables():
    found = outcomes(made())
    assert found["alarm-warns"] == "holds" and found["alarm-forecast"] == "holds"
    assert found["alarm-quiet"] == "matches its control"  # the plain rule is as quiet
    assert outcomes(made(plain=30.0))["alarm-warns"] == "matches its control"
    assert outcomes(made(alarm=60.0))["alarm-warns"] == "refuted"  # a warning at the event is none
    noisy = made()
    noisy["runs"] = noisy.runs.assign(alarm=noisy.runs["alarm"].clip(upper=50.0))
    assert outcomes(noisy)["alarm-quiet"] == "refuted"
    late = made()
    late["forecasts"] = late.forecasts.assign(reached=late.forecasts["high"] + 10)
    assert outcomes(late)["alarm-forecast"] == "refuted"


def test_unreached_forecasts_count_once_their_interval_is_over():
    open_ones, over = made(), made()
    open_ones["forecasts"] = open_ones.forecasts.assign(high=200.0, reached=math.inf)
    over["forecasts"] = over.forecasts.assign(reached=math.inf)
    assert outcomes(open_ones)["alarm-forecast"] == "undecided"
    assert outcomes(over)["alarm-forecast"] == "refuted"


@pytest.mark.parametrize("cure", [{}, {"qk_norm": True}, {"softcap": 2.0}, {"norm_place": "after"}])
def test_the_watched_decoder_is_the_engines(cure):
    model = EngineModel(4, **cure).double()
    tokens = torch.randint(VOCABULARY, (3, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
    parameters = {name.removeprefix("ends."): tensor.detach()[None] for name, tensor in model.named_parameters()}
    expected = model.decoder.losses(parameters, Batch(tokens=inputs[None], targets=targets[None]))[0]
    torch.testing.assert_close(torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets), expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_predicts_the_next_token_from_what_came_before(architecture):
    model = build(architecture, 1).eval()
    tokens = torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    found = [model(each) for each in (tokens, tokens.index_fill(1, torch.tensor([LENGTH - 1]), 5))]
    one, other = (each if isinstance(each, torch.Tensor) else each.logits for each in found)
    assert one.shape == (2, LENGTH, VOCABULARY)
    torch.testing.assert_close(one[:, :-1], other[:, :-1])


def test_a_driven_run_is_warned_of_and_clipping_bounds_its_logits():
    config = AlarmConfig(steps=40)
    found = {cure: watched_run(config, "decoder", "no warm-up", cure, 2) for cure in ("none", "QK-clip")}
    rows = {cure: tables["runs"].iloc[0] for cure, tables in found.items()}
    assert rows["none"]["alarm"] < 40 and rows["none"]["largest_logit"] > 30
    assert len(found["none"]["forecasts"]) > 0
    # Logits are clipped on the batch of a step, and measured on the next.
    assert rows["QK-clip"]["alarm"] == math.inf and rows["QK-clip"]["largest_logit"] < 20
