"""Steps of many runs against torch's own optimisers, and what must not depend on the pack."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from joma.engine.config import OptimiserConfig
from joma.engine.optimiser import NUM_MOMENTS, rate_factor
from joma.engine.precision import working_in
from joma.engine.step import NOT_FAILED, Stepper
from joma.models import vocabulary_loss
from joma.models.batch import Batch, Noise, Parameters
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig, paper_language_model
from joma.randomness import run_keys


@dataclass(frozen=True)
class Quadratic:
    """L = ½ Σ a (w − token)² + ½ b², with a frozen scale; the first token of a run's batch is its target."""

    width: int = 3
    frozen: frozenset[str] = frozenset({"scale"})
    factors: frozenset[str] = frozenset()
    tiled: frozenset[str] = frozenset()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"w": (2, self.width), "scale": (self.width,), "b": (1,)}

    def initial(self, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).abs()
            for name, shape in self.shapes.items()
        }

    def value_and_gradient(
        self, parameters: Parameters, gradients: Parameters, batch: Batch, noise: Noise | None
    ) -> Tensor:
        apart = parameters["w"] - batch.tokens[:, :1, :1]
        gradients["w"].copy_(parameters["scale"][:, None] * apart)
        gradients["b"].copy_(parameters["b"])
        return self.losses(parameters, batch)

    def losses(self, parameters: Parameters, batch: Batch, tap: object = None, *, compiled_tap: bool = False) -> Tensor:
        apart = parameters["w"] - batch.tokens[:, :1, :1]
        squares = parameters["scale"][:, None] * apart.square()
        return squares.sum(dim=(1, 2)) / 2 + parameters["b"].square().sum(dim=1) / 2


def batch_of(targets: list[int]) -> Batch:
    """A batch that gives each run its target."""
    tokens = torch.tensor(targets).reshape(-1, 1, 1)
    return Batch(tokens=tokens, targets=tokens[:, :, 0])


NUM_STEPS = 12
EPOCH = 5
EXACT = 1e-12
"""Between two orders of the same few float64 operations on numbers of order 1."""

TORCH = {
    "adam": lambda w, c: torch.optim.Adam(w, c.lr, (c.beta1, c.beta2), c.epsilon, c.weight_decay),
    "adamw": lambda w, c: torch.optim.AdamW(w, c.lr, (c.beta1, c.beta2), c.epsilon, c.weight_decay),
    "sgd": lambda w, c: torch.optim.SGD(w, c.lr, weight_decay=c.weight_decay),
    "momentum": lambda w, c: torch.optim.SGD(w, c.lr, c.momentum, weight_decay=c.weight_decay),
}


def _stepper(seeds, optimisers, **options):
    settings = {"num_steps": NUM_STEPS, "steps_per_epoch": EPOCH, "precision": "float64"} | options
    return Stepper(Quadratic(), seeds, optimisers, **settings)


def _trained(stepper, targets, num_steps=NUM_STEPS):
    for _ in range(num_steps):
        stepper.advance(batch_of(targets))
    return {name: tensor.clone() for name, tensor in stepper.parameters.items()}


def _by_torch(seed: int, target: int, config: OptimiserConfig):
    start = Quadratic().initial(seed)
    w, b = start["w"].requires_grad_(), start["b"].requires_grad_()
    optimiser = TORCH[config.optimiser]([w, b], config)
    for step in range(NUM_STEPS):
        if config.restart_every_epoch and step % EPOCH == 0:
            optimiser = TORCH[config.optimiser]([w, b], config)
        factor = rate_factor(config, NUM_STEPS, torch.tensor(step))
        optimiser.param_groups[0]["lr"] = config.lr * float(factor)
        optimiser.zero_grad()
        loss = (start["scale"] * (w - target).square()).sum() / 2 + b.square().sum() / 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_([w, b], config.clip)
        optimiser.step()
    return w.detach(), b.detach()


CONFIGS = [
    OptimiserConfig(
        optimiser=name, lr=0.03, weight_decay=decay, clip=clip, schedule=schedule, restart_every_epoch=again
    )
    for name in TORCH
    for decay, clip, schedule, again in [(0.1, 0.5, "cosine", True), (0.1, math.inf, "linear", False)]
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.optimiser}-{c.schedule}-{c.weight_decay}-{c.clip}")
def test_every_optimiser_is_torchs(config):
    configs = [config, replace(config, lr=2 * config.lr), replace(config, weight_decay=0.3)]
    found = _trained(_stepper([3, 4, 5], configs), [2, -1, 1])
    for run, (seed, target, own) in enumerate(zip([3, 4, 5], [2, -1, 1], configs, strict=True)):
        w, b = _by_torch(seed, target, own)
        assert torch.allclose(found["w"][run], w, rtol=0, atol=EXACT)
        assert torch.allclose(found["b"][run], b, rtol=0, atol=EXACT)


def test_a_diverging_run_stops_and_its_neighbours_do_not_notice():
    wild = OptimiserConfig(optimiser="sgd", lr=1e200)
    calm = OptimiserConfig(optimiser="sgd", lr=0.1)
    healthy, beside = _stepper([1, 2, 3], [calm] * 3), _stepper([1, 2, 3], [calm, wild, calm])
    undisturbed, found = _trained(healthy, [1, 1, 1]), _trained(beside, [1, 1, 1])
    failed_at = int(beside.state.failed_at[1])
    assert 0 < failed_at < NUM_STEPS
    assert beside.state.failed_at.tolist() == [NOT_FAILED, failed_at, NOT_FAILED]
    assert beside.losses.isnan().tolist() == [False, True, False]
    assert all(torch.equal(found[name][run], undisturbed[name][run]) for name in found for run in (0, 2))
    until_then = _trained(_stepper([2], [wild]), [1], num_steps=failed_at)
    assert all(torch.equal(found[name][1], until_then[name][0]) for name in found)  # as it was before that step


@pytest.mark.parametrize("name", TORCH)
def test_a_run_goes_on_from_its_state_in_another_pack(name):
    config = OptimiserConfig(optimiser=name, lr=0.05)
    whole = _trained(_stepper([1, 2], [config] * 2), [3, 4])
    first = _stepper([1, 2], [config] * 2)
    _trained(first, [3, 4], num_steps=7)
    second = _stepper([9, 2, 8], [config] * 3)
    second.load_run_state(1, first.run_state(1))
    found = _trained(second, [0, 4, 0], num_steps=NUM_STEPS - 7)
    assert all(torch.equal(found[key][1], whole[key][1]) for key in whole)


def test_the_learning_rate_warms_up_and_goes_to_zero():
    config = OptimiserConfig(schedule="linear", warmup=2)
    factors = [float(rate_factor(config, 10, torch.tensor(step))) for step in range(11)]
    assert factors[:2] == [0.5, 1.0]
    assert factors[2:] == pytest.approx([1 - (step - 2) / 8 for step in range(2, 11)])


def _text_stepper(seeds, optimisers=None, **options):
    model = Decoder(paper_language_model(23, depth=2, width=8, hidden=12, heads=2, dropout=0.2))
    settings = {"num_steps": 5, "steps_per_epoch": 5, "precision": "bf16"} | options
    return Stepper(model, seeds, optimisers or [OptimiserConfig(lr=1e-2)] * len(seeds), **settings)


def _text_batch(num_runs, seed=1):
    """Windows of a text, the same for all runs."""
    words = torch.randint(23, (1, 3, 7), generator=torch.Generator().manual_seed(seed)).expand(num_runs, -1, -1)
    return Batch(tokens=words[:, :, :-1].contiguous(), targets=words[:, :, 1:].flatten(1))


def test_together_as_alone_with_dropout_beside_a_run_that_diverges():
    rates = ((1e-3, 0.0), (1e-2, 0.1), (3e-3, 0.0), (1e200, 0.0))
    each = [OptimiserConfig(lr=lr, weight_decay=decay, clip=0.5, restart_every_epoch=True) for lr, decay in rates]

    def trained(runs):
        own = [each[run] for run in runs]
        options = {"num_steps": 50, "steps_per_epoch": 20, "precision": "float64"}
        stepper = _text_stepper([run + 1 for run in runs], own, **options)
        for step in range(50):
            stepper.advance(_text_batch(len(runs), seed=step))
        return stepper

    together = trained(range(4))
    assert together.state.failed_at[:3].tolist() == [NOT_FAILED] * 3 and int(together.state.failed_at[3]) > 0
    for run in range(3):
        for name, tensor in trained([run]).parameters.items():  # one batched product and several
            assert torch.allclose(tensor[0], together.parameters[name][run], rtol=0, atol=1e-10), (run, name)


def test_rounded_factors_give_the_gradients_of_rounding_in_the_step():
    stepper, batch = _text_stepper([1, 2]), _text_batch(2)
    assert set(stepper.model.factors) == {
        name for name in stepper.parameters if stepper.working_parameters[name].dtype != torch.float32
    }
    noise = Noise(keys=run_keys([1, 2]), step=torch.tensor(3))
    found = []
    for parameters in (stepper.parameters, stepper.working_parameters):
        gradients = {name: torch.full_like(tensor, torch.nan) for name, tensor in stepper.parameters.items()}
        with working_in("bf16", torch.device("cpu")):
            losses = stepper.model.value_and_gradient(parameters, gradients, batch, noise)
        found.append({"losses": losses, **gradients})
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunk_bytes", [2**26, 100])
def test_gradients_in_bf16_are_those_in_fp32_rounded_once(monkeypatch, tied, chunk_bytes):
    """However many parts of the text they are summed over, and however often a word comes."""
    monkeypatch.setattr(vocabulary_loss, "CHUNK_BYTES", chunk_bytes)
    model = Decoder(replace(paper_language_model(23, depth=2, width=8, hidden=12, heads=2), tied=tied))
    stepper = Stepper(model, [1, 2], [OptimiserConfig()] * 2, num_steps=5, steps_per_epoch=5, precision="bf16")
    batch = _text_batch(2)
    batch = replace(batch, tokens=batch.tokens % 3)
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        gradients = {name: torch.full_like(each, torch.nan, dtype=dtype) for name, each in stepper.parameters.items()}
        noise = Noise(keys=run_keys([1, 2]), step=torch.tensor(3))
        with working_in("bf16", torch.device("cpu")):
            model.value_and_gradient(stepper.working_parameters, gradients, batch, noise)
        found[dtype] = gradients
    for name, right in found[torch.float32].items():
        rounded = found[torch.bfloat16][name]
        least = 2**-8 * right.abs().max()  # what cancels, after one rounding for the output's part of a tied matrix
        assert torch.allclose(rounded.float(), right, rtol=2**-8, atol=float(least) if tied else 1e-9), name
    assert stepper._gradient.dtype == torch.bfloat16 and stepper.state.moments[0].dtype == torch.float32


def test_rounded_factors_follow_the_parameters():
    first, batch = _text_stepper([1, 2]), _text_batch(2)
    for _ in range(3):
        first.advance(batch)
    second = _text_stepper([1, 2])
    second.load_run_state(0, first.run_state(0))
    second.load_run_state(1, first.run_state(1))
    for stepper in (first, second):
        assert torch.equal(stepper.state.rounded, stepper.state.parameters.bfloat16())
    first.advance(batch)
    second.advance(batch)
    assert torch.equal(first.state.parameters, second.state.parameters)
    assert _text_stepper([1], precision="fp32").state.rounded is None


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
        kind(Decoder(config), [1, 2, 3], [each] * 3, num_steps=9, steps_per_epoch=4, precision="float64")
        for kind in (Stepper, RoomyStepper)
    )
    for step in range(9):
        batch = _text_batch(3, seed=step)
        if config.readout == "class":
            batch = replace(batch, targets=batch.tokens[:, :, 0] % 3)
        plain.advance(batch)
        roomy.advance(batch)
    assert roomy.state.failed_at.tolist() == [NOT_FAILED] * 3
    for name, right in plain.parameters.items():
        assert torch.allclose(roomy.parameters[name], right, rtol=0, atol=EXACT), name
    plain.load_run_state(0, roomy.run_state(0))  # a snapshot holds no room: it fits on either device
    for name, tensor in roomy.run_state(0).items():
        assert torch.equal(plain.run_state(0)[name], tensor), name
    for buffer in (roomy.state.parameters, *roomy.state.moments):
        for name, view in roomy.layout.views(buffer, with_room=True).items():
            assert not view[:, roomy.parameters[name].shape[1] :].any(), name


def test_the_kernel_of_adam_is_the_rule_in_torch(answer_of):
    for case, distance in answer_of("interpreted_triton.py", "-W", "error").items():
        assert distance < 1e-5, case  # float32 of numbers of order 1, steps of 1e-2 over roots that may be small


def test_compiled_optimisers_are_those_in_torch(answer_of):
    distances = answer_of("compiled_optimisers.py", "-W", "error")
    assert distances.keys() == NUM_MOMENTS.keys()
    for name, distance in distances.items():
        assert distance < EXACT, name
