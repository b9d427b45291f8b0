"""Training many runs at once against one run at a time: `python benchmarks/train.py [goal depths kernels table1]`.

The rival is what the paper's public scripts do: torch.nn.TransformerEncoder, torch.optim.Adam and clipping, one run,
operation by operation. A run-step is one step of one run. Every ratio is measured in this call. On a GPU the setting is
that of figure 6 (28,782 words, width 200, 20 streams of 35 tokens) and every part stands beside its floor: the bytes
that it must move over the bandwidth of a copy, or its operations over the rate of a large product, whichever is more.
"""

import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rank import machine
from torch import Tensor, nn
from torch.autograd import DeviceType

from joma.engine.config import OptimiserConfig
from joma.engine.grid import grid, recipe
from joma.engine.memory import footprint
from joma.engine.plan import make_plan
from joma.engine.precision import in_one_order, working_in
from joma.engine.sources import source_of
from joma.engine.step import Stepper
from joma.formatting import binary_size
from joma.models import vocabulary_loss
from joma.models.batch import Batch, Noise
from joma.models.decoder import EMBEDDING, OUTPUT, OUTPUT_BIAS, Decoder
from joma.models.decoder_config import DecoderConfig, paper_language_model
from joma.models.embedding import add_row_gradients, clear

DROPOUT = 0.2
CLIP = 0.5
LR = 1e-4
GOAL_DEPTH = 5
GOAL_RUN_STEP = 0.34
"""Milliseconds a run-step at that depth on an H200."""
FIGURE_6_RUNS = {5: 21, 1: 3, 2: 3, 10: 3}
"""Runs of each depth in figures 6 and 8 together."""
GOAL_TABLE_1 = 5.0
"""Minutes for Table 1 at hidden width 400 on an H200."""
ROUNDS = 5
FLOAT_BYTES = 4
ADAM_TRANSFERS = 6
"""Parameter, mean and square are read and written; the gradient is read, for its norm too, in its own precision."""


class Rival(nn.Module):
    """The language model as the public scripts build it."""

    def __init__(self, config: DecoderConfig) -> None:
        """Build it from torch's modules."""
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        layer = nn.TransformerEncoderLayer(config.width, config.heads, config.hidden, DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.depth, enable_nested_tensor=False)
        self.output = nn.Linear(config.width, config.vocabulary)
        self.scale = math.sqrt(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next tokens."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = nn.functional.dropout(self.embedding(tokens) * self.scale, DROPOUT, self.training)
        return self.output(self.encoder(x, mask=mask, is_causal=True))


def rival_step(config: DecoderConfig, batch: Batch, device: torch.device) -> Callable[[], None]:
    """One step of one run of the rival."""
    model = Rival(config).to(device)
    adam = torch.optim.Adam(model.parameters(), LR)
    tokens, targets = batch.tokens[0], batch.targets[0]

    def step() -> None:
        adam.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        adam.step()

    return step


def text_batch(config: DecoderConfig, num_runs: int, num_streams: int, length: int, device: torch.device) -> Batch:
    """Words as frequent as in a text, by Zipf's law."""
    weights = 1 / torch.arange(1, config.vocabulary + 1, dtype=torch.float64)
    drawn = torch.multinomial(weights, num_streams * (length + 1), replacement=True)
    words = drawn.view(1, num_streams, length + 1).expand(num_runs, -1, -1).to(device)
    return Batch(tokens=words[:, :, :-1].contiguous(), targets=words[:, :, 1:].flatten(1))


def stepper_of(config: DecoderConfig, num_runs: int, precision: str, device: torch.device, **options: float) -> Stepper:
    """The engine on so many runs of a model."""
    settings = [OptimiserConfig(lr=LR, restart_every_epoch=True, **options)] * num_runs
    seeds = list(range(num_runs))
    return Stepper(
        Decoder(config), seeds, settings, num_steps=10**6, steps_per_epoch=2928, precision=precision, device=device
    )


def milliseconds(function: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median over rounds of the time of one call, with the device's own clock on a GPU."""
    for _ in range(2):
        function()
    times = []
    for _ in range(ROUNDS):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repeats):
                function()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / repeats)
        else:
            begun = time.perf_counter()
            for _ in range(repeats):
                function()
            times.append(1e3 * (time.perf_counter() - begun) / repeats)
    return statistics.median(times)


def captured(function: Callable[[], object]) -> Callable[[], None]:
    """The function as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """What the machine can do."""

    bandwidth: float
    """Bytes a second of a copy, reads and writes together."""
    rates: dict[str, float]
    """Operations a second of a large product."""


def ceilings(device: torch.device) -> Ceilings:
    """Measure a large copy and large products."""
    source = torch.rand(2**28, device=device)
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source), device, 10)
    rates = {}
    for precision, dtype in (("tf32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.randn(2, 8192, 8192, device=device).to(dtype)
        with working_in("tf32", device):
            rates[precision] = 2 * 8192**3 / (1e-3 * milliseconds(lambda a=a, b=b: a @ b, device, 5))
    return Ceilings(bandwidth=2 * source.numel() * FLOAT_BYTES / (1e-3 * copy), rates=rates)


def show_parts(stepper: Stepper, batch: Batch, precision: str, most: Ceilings) -> None:
    """Print each part of a step beside its floor, a run-step each."""
    device, model, num_runs = stepper.device, stepper.model, stepper.num_runs
    assert isinstance(model, Decoder)
    config = model.config
    num_rows, width = batch.targets.shape[1], config.width
    hidden = torch.randn(num_runs, num_rows, width, device=device)
    noise = Noise(keys=stepper._keys, step=stepper.state.step)

    is_rounded = precision == "bf16"

    def output() -> None:
        with in_one_order(device), working_in(precision, device):
            vocabulary_loss.loss_and_gradients(
                hidden,
                *model.readout(stepper.working_parameters),
                batch.targets,
                weight_gradient=stepper._gradients[OUTPUT],
                bias_gradient=stepper._gradients[OUTPUT_BIAS],
                working=torch.bfloat16 if is_rounded else None,
            )

    def both_and_blocks() -> None:
        with in_one_order(device), working_in(precision, device):
            model.value_and_gradient(stepper.working_parameters, stepper._gradients, batch, noise)

    def embedding() -> None:
        gradient = stepper._gradients[EMBEDDING]
        clear(gradient)
        add_row_gradients(gradient, batch.tokens, hidden.unflatten(1, batch.tokens.shape[1:]))

    def update() -> None:
        stepper._move(stepper.losses)

    size = 2 if is_rounded else FLOAT_BYTES
    sizes = {name: math.prod(shape) for name, shape in model.shapes.items()}
    in_blocks = sum(number for name, number in sizes.items() if name not in (EMBEDDING, OUTPUT, OUTPUT_BIAS))
    floors = {
        # three products; the matrix read and its gradient written, the logits written, and read and written once more
        # as their gradient, which both products of the backward read
        "output layer": (
            6 * num_rows * sizes[OUTPUT],
            2 * sizes[OUTPUT] * size + 5 * num_rows * config.vocabulary * size,
        ),
        # two operations for each weight and row, forward and twice backward; states in and out of a block, both ways
        "blocks": (
            6 * num_rows * in_blocks,
            2 * in_blocks * size + 4 * config.depth * num_rows * width * FLOAT_BYTES,
        ),
        "embedding's gradient": (0, sizes[EMBEDDING] * size + 2 * num_rows * width * FLOAT_BYTES),
        "norm and optimiser": (
            0,
            (ADAM_TRANSFERS * FLOAT_BYTES + (2 + is_rounded) * size) * stepper.layout.num_trained,
        ),
    }
    parts = dict(zip(floors, (output, both_and_blocks, embedding, update), strict=True))
    taken = {name: milliseconds(captured(part), device, 10) / num_runs for name, part in parts.items()}
    taken["blocks"] -= taken["output layer"] + taken["embedding's gradient"]
    for name, (operations, moved) in floors.items():
        by = {"operations": 1e3 * operations / most.rates[precision], "bytes": 1e3 * moved / most.bandwidth}
        bound = max(by, key=lambda which: by[which])
        print(
            f"  {name:<21} {taken[name]:7.4f} ms, floor {by[bound]:6.4f} by {bound}"
            f" ({operations / 1e9:5.1f} GFLOP, {moved / 1e6:6.1f} MB)"
        )


def kernels_of(stepper: Stepper, batch: Batch) -> Counter[str]:
    """Kernels of one step by name, from a profile; copies and clears of memory are none."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        stepper.advance(batch)
        torch.cuda.synchronize()
    found = {event.key: event.count for event in profile.key_averages() if event.device_type == DeviceType.CUDA}
    return Counter({name: count for name, count in found.items() if not name.startswith(("Memcpy", "Memset"))})


def show_text(device: torch.device, depths: tuple[int, ...]) -> bool:
    """Print the steps of figure 6; return whether the goal is met."""
    most = ceilings(device)
    rates = ", ".join(f"{rate / 1e12:.0f} TFLOP/s in {name}" for name, rate in most.rates.items())
    print(f"{torch.cuda.get_device_name()}: copy {most.bandwidth / 1e12:.2f} TB/s; products {rates}")
    best = math.inf
    for depth in depths:
        num_runs = FIGURE_6_RUNS[depth]
        config = paper_language_model(28_782, depth=depth)
        batch = text_batch(config, num_runs, 20, 35, device)
        rival = milliseconds(rival_step(config, batch, device), device, 20)
        for precision in ("bf16", "tf32") if depth == GOAL_DEPTH else ("bf16",):
            stepper = stepper_of(config, num_runs, precision, device, clip=CLIP)
            stepper.advance(batch)
            ours = milliseconds(partial(stepper.advance, batch), device, 20) / num_runs
            print(
                f"depth {depth}, {num_runs} runs, {precision}: {ours:.4f} ms a run-step, torch alone {rival:.2f} ms: "
                f"{rival / ours:.1f} times" + (f"; goal {GOAL_RUN_STEP}" if depth == GOAL_DEPTH else ""),
                flush=True,
            )
            if depth == GOAL_DEPTH:
                best = min(best, ours)
                show_memory(num_runs, precision, device)
                show_parts(stepper, batch, precision, most)
            del stepper
            torch.cuda.empty_cache()
    return best <= GOAL_RUN_STEP


def show_memory(num_runs: int, precision: str, device: torch.device) -> None:
    """Print the memory that was planned for such a pack beside what it took at most, capture included."""
    config = recipe("figure8").base.update({"precision": precision})
    planned = footprint(config, device).of(num_runs)
    taken = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    print(f"  memory: {binary_size(planned)} planned, {binary_size(taken)} taken")


def show_kernels(device: torch.device) -> None:
    """Print how many kernels a step has for one run and for many."""
    for num_runs in (1, 16):
        config = paper_language_model(28_782, depth=GOAL_DEPTH)
        batch = text_batch(config, num_runs, 20, 35, device)
        stepper = stepper_of(config, num_runs, "bf16", device, clip=CLIP)
        stepper.advance(batch)
        print(f"kernels a step, {num_runs} at once: {kernels_of(stepper, batch).total()}", flush=True)


def show_table_1(device: torch.device) -> None:
    """Print what the steps of Table 1 take, pack by pack."""
    recipe_1 = recipe("table1")
    base = recipe_1.base.update({"precision": "bf16"})
    plan = make_plan(grid(base, recipe_1.axes, tuple(recipe_1.axes)), device=device)
    total = 0.0
    for each in plan.packs:
        pack = each.pack
        source = source_of(pack.configs, device)
        settings = [config.optimiser for config in pack.configs]
        stepper = Stepper(
            Decoder(pack.config.model),
            [config.seed for config in pack.configs],
            settings,
            num_steps=each.num_steps,
            steps_per_epoch=each.num_steps,
            precision="bf16",
            device=device,
        )
        stepper.advance(source.batch(0))
        step = milliseconds(lambda stepper=stepper, source=source: stepper.advance(source.batch(1)), device, 10)
        total += step * each.num_steps / 60_000
        data = pack.config.data
        print(
            f"  {data.num_classes} classes, {data.num_children} children, {pack.num_runs} runs: "
            f"{step / pack.num_runs:.4f} ms a run-step",
            flush=True,
        )
        del stepper
        torch.cuda.empty_cache()
    print(f"Table 1 in bf16: the steps alone take {total:.1f} minutes; goal {GOAL_TABLE_1} in all", flush=True)


def on_a_cpu(device: torch.device) -> None:
    """Print the ratio on a CPU, for a small model."""
    config = DecoderConfig(
        vocabulary=2000, width=64, hidden=64, depth=2, norm_place="after", positions="none", dropout=DROPOUT
    )
    for num_runs in (1, 8):
        batch = text_batch(config, num_runs, 20, 35, device)
        rival = milliseconds(rival_step(config, batch, device), device, 5)
        stepper = stepper_of(config, num_runs, "fp32", device, clip=CLIP)
        ours = milliseconds(partial(stepper.advance, batch), device, 3) / num_runs
        print(f"width 64, depth 2, 2,000 words, {num_runs} runs: {rival / ours:.2f} times torch one run at a time")


def on_a_gpu(device: torch.device, sections: list[str]) -> bool:
    """Print the sections asked for: goal, depths, kernels, table1."""
    is_met = True
    if "goal" in sections:
        is_met = show_text(device, (GOAL_DEPTH,))
    if "depths" in sections:
        show_text(device, tuple(depth for depth in FIGURE_6_RUNS if depth != GOAL_DEPTH))
    if "kernels" in sections:
        show_kernels(device)
    if "table1" in sections:
        show_table_1(device)
    return is_met


if __name__ == "__main__":
    torch.manual_seed(0)
    if torch.cuda.is_available():
        sys.exit(0 if on_a_gpu(torch.device("cuda"), sys.argv[1:] or ["goal", "depths", "kernels", "table1"]) else 1)
    print(machine())
    on_a_cpu(torch.device("cpu"))
