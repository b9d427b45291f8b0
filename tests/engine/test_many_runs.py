"""Decoders trained together: as each alone, as a plain twin under torch's Adam, and with as many kernels as one."""

from dataclasses import replace

import pytest
import torch

from joma.engine.config import OptimiserConfig
from joma.engine.step import NOT_FAILED, Stepper
from joma.models.batch import Batch
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig, paper_language_model

NUM_STEPS = 50
CONFIG = paper_language_model(23, depth=2, width=8, hidden=10, heads=2)
OPTIMISERS = [
    OptimiserConfig(lr=lr, weight_decay=decay, clip=0.5, restart_every_epoch=True)
    for lr, decay in ((1e-3, 0.0), (1e-2, 0.1), (3e-3, 0.0))
]
SEEDS = [1, 2, 3]
TOGETHER = 1e-10
"""Between one batched product and several, after 50 steps in float64."""


def _batch(step: int, num_runs: int) -> Batch:
    """Windows of a text, the same for all runs."""
    words = torch.randint(23, (1, 3, 8), generator=torch.Generator().manual_seed(step)).expand(num_runs, -1, -1)
    return Batch(tokens=words[:, :, :-1].contiguous(), targets=words[:, :, 1:].flatten(1))


def _stepper(seeds, optimisers, config=CONFIG):
    options = {"num_steps": NUM_STEPS, "steps_per_epoch": 20, "precision": "float64"}
    return Stepper(Decoder(config), seeds, optimisers, **options)


def _trained(stepper: Stepper) -> dict[str, torch.Tensor]:
    for step in range(NUM_STEPS):
        stepper.advance(_batch(step, stepper.num_runs))
    return stepper.parameters


def test_together_as_alone_with_dropout_beside_a_run_that_diverges():
    wild = replace(OPTIMISERS[0], optimiser="adam", lr=1e200)
    beside = _stepper([*SEEDS, 4], [*OPTIMISERS, wild])
    together = _trained(beside)
    assert beside.state.failed_at[:3].tolist() == [NOT_FAILED] * 3 and int(beside.state.failed_at[3]) > 0
    for run, (seed, optimiser) in enumerate(zip(SEEDS, OPTIMISERS, strict=True)):
        alone = _trained(_stepper([seed], [optimiser]))
        for name in alone:
            assert torch.allclose(alone[name][0], together[name][run], rtol=0, atol=TOGETHER), (run, name)


class RoomyStepper(Stepper):
    """Works with whole tiles of the output matrix, as on a GPU."""

    def _working_views(self, buffer):
        return self.layout.views(buffer, with_room=True)


OUTPUTS = {
    "trained": {},
    "tied": {"tied": True},
    "frozen": {"only_block": 0},
    "of classes": {"readout": "class", "num_classes": 3},
}


@pytest.mark.parametrize("optimiser", ["adamw", "momentum"])
@pytest.mark.parametrize("changes", OUTPUTS.values(), ids=OUTPUTS)
def test_room_for_whole_tiles_stays_zero_and_changes_nothing(changes, optimiser):
    config = DecoderConfig(vocabulary=23, width=8, hidden=10, heads=2, depth=2, **changes)
    each = OptimiserConfig(optimiser=optimiser, lr=1e-2, weight_decay=0.1)
    plain, roomy = (
        kind(Decoder(config), SEEDS, [each] * 3, num_steps=9, steps_per_epoch=4, precision="float64")
        for kind in (Stepper, RoomyStepper)
    )
    for step in range(9):
        batch = _batch(step, 3)
        if config.readout == "class":
            batch = replace(batch, targets=batch.tokens[:, :, 0] % 3)
        plain.advance(batch)
        roomy.advance(batch)
    assert roomy.state.failed_at.tolist() == [NOT_FAILED] * 3
    for name, right in plain.parameters.items():
        assert torch.allclose(roomy.parameters[name], right, rtol=0, atol=TOGETHER), name
    plain.load_run_state(0, roomy.run_state(0))  # a snapshot holds no room: it fits on either device
    for name, tensor in roomy.run_state(0).items():
        assert torch.equal(plain.run_state(0)[name], tensor), name
    for buffer in (roomy.state.parameters, *roomy.state.moments):
        for name, view in roomy.layout.views(buffer, with_room=True).items():
            assert not view[:, roomy.parameters[name].shape[1] :].any(), name
