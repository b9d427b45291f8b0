"""Decoders trained together: as each alone, as a plain twin under torch's Adam, and with as many kernels as one."""

from dataclasses import replace

import pytest
import reference
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from joma.engine.config import OptimiserConfig
from joma.engine.step import NOT_FAILED, Stepper
from joma.models.batch import Batch
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig, paper_language_model
from joma.randomness import keep_mask, run_keys, streams

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


def test_a_diverging_neighbour_changes_no_bit():
    wild = replace(OPTIMISERS[1], lr=1e200)
    calm = _trained(_stepper(SEEDS, OPTIMISERS))
    beside = _trained(_stepper(SEEDS, [OPTIMISERS[0], wild, OPTIMISERS[2]]))
    for name in calm:
        assert torch.equal(calm[name][0], beside[name][0]) and torch.equal(calm[name][2], beside[name][2]), name


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


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd", "momentum"])
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


def test_one_run_is_a_plain_twin_under_torchs_adam():
    """Loss, gradients and steps, dropout included: the twin drops what the run's seed, step and site say."""
    stepper = _stepper([5], [OPTIMISERS[0]])
    start = {name: tensor[0].clone() for name, tensor in stepper.parameters.items()}
    twin = reference.PlainDecoder(CONFIG).double().load(start)
    adam = torch.optim.Adam(twin.parameters(), OPTIMISERS[0].lr)
    keys = run_keys([5])
    for step in range(30):
        if step % 20 == 0:
            adam = torch.optim.Adam(twin.parameters(), OPTIMISERS[0].lr)  # the restart of every epoch

        def drop(x, site, step=step):
            kept = keep_mask(streams(keys, step, [site])[0], x.shape, CONFIG.dropout)[0]
            return torch.where(kept, x / (1 - CONFIG.dropout), 0.0)

        batch = _batch(step, 1)
        adam.zero_grad()
        loss = twin.loss(batch.tokens[0], batch.targets[0], drop)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), OPTIMISERS[0].clip)
        adam.step()
        stepper.advance(batch)
        assert torch.allclose(stepper.losses[0], loss.detach(), rtol=0, atol=1e-9), step
    own = reference.PlainDecoder(CONFIG).double().load({n: t[0] for n, t in stepper.parameters.items()})
    for name, right in twin.state_dict().items():
        assert torch.allclose(own.state_dict()[name], right, rtol=0, atol=1e-8), name  # 30 steps of Adam


class _Counted(TorchDispatchMode):
    """Counts operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_step_of_sixteen_runs_has_the_operations_of_one():
    counted = {}
    for num_runs in (1, 16):
        stepper = _stepper(list(range(num_runs)), OPTIMISERS[:1] * num_runs)
        with _Counted() as mode:
            stepper.advance(_batch(0, num_runs))
        counted[num_runs] = mode.names
    assert counted[1] == counted[16]
