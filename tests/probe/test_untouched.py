"""Training does not notice that it is watched: everything it leaves is the same bit for bit."""

import copy
import io
import os
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import distributed
import loops
import models
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from joma.probe.model import ProbedModel, on_the_side
from joma.probe.watching import watch
from joma.store import find_runs, info, read, read_events

# The shape checker that the suite switches on draws from Python's random numbers, which are compared here.
pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


MODELS = ("gpt2", "llama", "bert", "t5", "bloom", "gemma2", "encoder", "hand_written", "with_buffers")


FULL = {"measures": "full", "schedule": [0, 2, 3], "heads": True}


def by_batch(name, kind):
    """Settings to measure the training batch, or a probe batch that is longer than any other."""
    return {} if kind == "training" else {"probe_batch": loops.batch(name, seed=99)}


def unnoticed(name, settings, build=loops.build, **how):
    """Train with and without a watch; return the watch where training leaves the same."""
    plain, _ = loops.train(build(name), name, **how)
    watched, seen = loops.train(build(name), name, settings=settings, **how)
    loops.assert_same(plain, watched)
    return seen


@pytest.mark.parametrize("kind", ["training", "probe"])
@pytest.mark.parametrize(
    ("name", "measures"), [*((name, "full") for name in MODELS), ("gpt2", "cheap"), ("with_buffers", "standard")]
)
def test_weights_are_identical_bit_for_bit(name, measures, kind):
    seen = unnoticed(name, FULL | by_batch(name, kind) | {"measures": measures})
    table = seen.frame()
    assert set(table["step"]) == {0, 2, 3}
    assert table.query("metric == 'entropy' and head == -1")["site"].nunique() == (6 if name == "t5" else models.LAYERS)
    assert seen.events().empty


def test_the_comparison_would_notice_one_bit_and_a_forward_pass_that_is_not_isolated():
    model, other = loops.build("with_buffers"), loops.build("with_buffers")
    plain, _ = loops.train(loops.build("with_buffers"), "with_buffers")
    with torch.no_grad():
        model(**loops.batch("with_buffers", 0))
    changed, _ = loops.train(model, "with_buffers")
    flipped, _ = loops.train(other, "with_buffers")
    next(iter(flipped["weights"].values())).view(-1).view(torch.uint8)[0] ^= 1
    for each in (changed, flipped):
        with pytest.raises(AssertionError, match="weights"):
            loops.assert_same(plain, each)


def test_what_a_tap_uses_is_put_back_and_between_measured_steps_there_is_no_hook():
    def waits():
        return len(module_hooks._global_forward_hooks) + len(module_hooks._global_forward_pre_hooks)

    def state():
        tools = functional.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()
        attributes = [{name: id(value) for name, value in vars(module).items()} for module in model.modules()]
        return tools, dict(AttentionInterface._global_mapping), attributes, torch._C._len_torch_function_stack()

    model = loops.build("gpt2")
    before = state()
    with watch(model, every=3) as seen:
        for step in range(7):
            assert waits() == (2 if step % 3 == 0 else 0)
            assert not any(map(sum, map(loops.hooks_of, model.modules())))
            loops.loss_of(model, loops.batch("gpt2", step))
            seen.step(step)
    assert waits() == 0 and state() == before


class Merging(models.HandWritten):
    """Merges an adapter into its weights in eval mode, as LoRA does, which rounding does not undo."""

    def train(self, mode: bool = True):
        with torch.no_grad():
            if self.training != mode:
                self.head.weight.add_(-0.1 if mode else 0.1)
        return super().train(mode)


def test_modes_are_set_without_calling_eval():
    model = Merging()
    before = model.head.weight.detach().clone()
    with on_the_side(model):
        assert not any(module.training for module in model.modules())
    assert torch.equal(model.head.weight, before)
    assert all(module.training for module in model.modules())


def test_modes_of_single_modules_and_random_states_are_kept():
    def draw():
        return random.random(), np.random.random(), torch.rand(3).tolist()

    def seed():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    model = models.HandWritten()
    model.blocks[1].eval()
    model.blocks[1].norm.train()
    before = [module.training for module in model.modules()]
    seed()
    expected = draw()
    seed()
    with pytest.raises(KeyError), on_the_side(model):
        draw()
        raise KeyError
    assert draw() == expected
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("kind", ["training", "probe"])
def test_inside_autocast(kind):
    """Weights cast without gradients must not reach the next step through autocast's cache."""
    with torch.autocast("cpu", torch.bfloat16):
        seen = unnoticed("hand_written", FULL | by_batch("hand_written", kind))
    assert seen.events().empty


def listed_calls(measure):
    seen = []
    measure("list", lambda call: seen.append(call.site) or {})
    return seen


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("name", ["gpt2", "hand_written"])
def test_recomputation_of_checkpoints_counts_once(measure, name, reentrant):
    """Of a model that checkpoints itself, and of blocks called one by one: the model's own forward never runs."""
    sites = listed_calls(measure)

    def by_blocks(model, inputs):
        x = model.embedding(inputs["tokens"])
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return functional.cross_entropy(model.head(x).flatten(0, 1), inputs["tokens"].flatten())

    def build(name):
        model = loops.build(name)
        if name == "gpt2":
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model

    loss_of = loops.loss_of if name == "gpt2" else by_blocks
    seen = unnoticed(name, {"measures": ("attention", "list"), "every": 1}, build, loss_of=loss_of)
    path = "transformer.h.{}.attn" if name == "gpt2" else "blocks.{}"
    assert sites == [path.format(i) for i in range(models.LAYERS)] * loops.NUM_STEPS
    assert seen.events().empty
    assert seen.frame().query("metric == 'entropy'")["layer"].unique().tolist() == [0, 1]


def test_of_accumulated_batches_the_first_is_measured():
    def loss_of(model, inputs):
        first, second = ({"tokens": part} for part in inputs["tokens"].split(1))
        return loops.loss_of(model, first) + loops.loss_of(model, second)

    def entropies(loss_of, batch_of):
        model = loops.build("hand_written")
        with watch(model, every=1, measures="attention") as seen:
            loss_of(model, batch_of)
            seen.step()
        return seen.frame().query("metric == 'entropy'")["value"].tolist()

    whole = loops.batch("hand_written", 0)
    assert entropies(loss_of, whole) == entropies(loops.loss_of, {"tokens": whole["tokens"][:1]})


def test_modes_that_end_between_steps_and_passes_that_raise_leave_no_tap_open():
    """`with torch.device(...)` is a mode on a stack: a tap that outlived it would be popped in its place."""
    model = loops.build("hand_written")
    with watch(model, every=1, measures="entropy") as seen:
        with pytest.raises(IndexError):
            model(torch.tensor([[models.VOCABULARY]]))
        for step in range(3):
            assert not torch._C._len_torch_function_stack()
            assert not any(map(sum, map(loops.hooks_of, model.modules())))
            with torch.device("cpu"):
                seen.step(step)
            loops.loss_of(model, loops.batch("hand_written", step)).backward()
        seen.step(3)
    assert set(seen.frame().query("metric == 'entropy'")["step"]) == {1, 2, 3}


def test_a_copy_or_a_pickle_of_a_waiting_model_has_no_part_in_it(measure):
    sites = listed_calls(measure)
    model = loops.build("hand_written")
    with watch(model, every=1, measures="list"):
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for other in (twin, loaded):
            loops.loss_of(other, loops.batch("hand_written", 0)).backward()
        assert not sites
        loops.loss_of(model, loops.batch("hand_written", 0)).backward()
        assert len(sites) == models.LAYERS


@pytest.mark.parametrize("on", ["attention", "matrix", "query_key", "model"])
@pytest.mark.parametrize("kind", ["training", "probe"])
def test_an_exception_inside_a_measurement_is_recorded_and_training_goes_on(measure, kind, on, caplog):
    def broken(thing):
        torch.rand(3), random.random(), np.random.random()
        raise ArithmeticError("no such number")

    measure("broken", broken, on=on)
    seen = unnoticed("llama", {"measures": ("full", "broken"), "every": 2} | by_batch("llama", kind))
    events = seen.events()
    assert set(events["kind"]) == {"exception"}
    assert set(events["step"]) == {0, 2, 4}
    assert events["message"].unique().tolist() == ["ArithmeticError: no such number"]
    assert events["evidence"].str.contains("in broken").all()
    assert caplog.text.count("no such number") == 1  # logged once, recorded every time
    assert not seen.frame().query("metric == 'entropy'").empty
    assert "no such number" in seen.summary()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("form", ["wrapper", "in place", "a part"])
def test_compiled_models(form):
    """Measured through the uncompiled module on a probe batch, not compiled anew, and identical."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def compiled():
        model = models.HandWritten(layers=2)
        if form == "wrapper":
            return torch.compile(model, backend=backend)
        if form == "in place":
            model.compile(backend=backend)
        else:
            model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
        return model

    def train(settings):
        torch._dynamo.reset()
        graphs.clear()
        torch.manual_seed(0)
        found, seen = loops.train(compiled(), "hand_written", settings=settings)
        return found, seen, len(graphs)

    torch.use_deterministic_algorithms(True)
    try:
        plain, _, num_graphs = train(None)
        watched, seen, num_graphs_watched = train(FULL | by_batch("hand_written", "probe"))
    finally:
        torch.use_deterministic_algorithms(False)
    loops.assert_same(plain, watched)
    assert num_graphs == num_graphs_watched > 0
    assert seen.events().empty
    assert set(seen.frame().query("metric == 'entropy'")["site"]) == {"blocks.0", "blocks.1"}
    assert set(seen.frame().query("kind == 'mlp'")["site"]) == {"blocks.0.mlp.0", "blocks.1.mlp.0"}
    with pytest.raises(ValueError, match=r"is compiled: .* Pass `probe_batch`"):
        watch(compiled())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_model_compiled_as_part_of_a_function_trains_on_and_is_reported_as_unseen():
    torch._dynamo.reset()
    compiled = torch.compile(loops.loss_of, backend="eager")
    seen = unnoticed("hand_written", {"every": 2}, lambda name: build(), loss_of=compiled)
    (event,) = seen.events().itertuples()
    assert event.kind == "unseen" and "not compiled as part of a function" in event.message


def test_two_models_that_train_in_turn():
    trained = {name: loops.build(name) for name in ("hand_written", "llama")}
    watches = {name: watch(model, every=1, measures="entropy") for name, model in trained.items()}
    for step in range(2):
        for name, model in trained.items():
            loops.loss_of(model, loops.batch(name, step)).backward()
        for seen in watches.values():
            seen.step()
    for (name, seen), site in zip(watches.items(), ("blocks.1", "model.layers.1.self_attn"), strict=True):
        seen.close()
        assert seen.events().empty
        assert seen.frame().query(f"site == '{site}' and metric == 'entropy'")["step"].tolist() == [0, 1], name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("measures", ["cheap", "full"])
@pytest.mark.parametrize("kind", ["training", "probe"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "hand_written"])
def test_on_a_gpu(name, kind, measures, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products that add in one order

    def train(settings):
        model = loops.build(name).cuda()
        found, seen = loops.train(model, name, settings=settings, loss_of=on_gpu)
        return found | {"cuda": torch.cuda.get_rng_state()}, seen

    def on_gpu(model, inputs):
        with torch.autocast("cuda", torch.bfloat16):
            return loops.loss_of(model, {key: value.cuda() for key, value in inputs.items()})

    torch.use_deterministic_algorithms(True)
    try:
        plain, _ = train(None)
        watched, seen = train(FULL | by_batch(name, kind) | {"measures": measures})
    finally:
        torch.use_deterministic_algorithms(False)
    loops.assert_same(plain, watched)
    assert seen.events().empty
    assert (seen.frame().query("metric == 'seconds'")["value"] > 0).all()


def test_wrappers_are_taken_off():
    model = models.HandWritten()
    wrapped = nn.DataParallel(torch.compile(model, backend="eager"))
    inside = ProbedModel.of(wrapped, mlp_pattern=None, attention_pattern=None)
    assert (inside.root, inside.compiled, inside.replicated) == (model, True, True)
    with pytest.raises(ValueError, match="replicas run in threads"):
        watch(nn.DataParallel(model))


@pytest.mark.slow
def test_two_processes_that_train_together(tmp_path):
    """Each writes its own folder, and none waits for another: a watch on one process alone goes through as well."""
    torch.multiprocessing.spawn(distributed.work, args=(str(tmp_path),), nprocs=distributed.NUM_PROCESSES)
    saved = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(distributed.NUM_PROCESSES)]
    for weights in saved:
        for way in weights.values():
            loops.assert_same(dict(saved[0]["unwatched"]), dict(way))
    runs = ["all/rank-0", "all/rank-1", "first/rank-0", "probe/rank-0"]
    assert sorted(path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)) == runs
    tables = [read(tmp_path / "all" / f"rank-{rank}").query("metric != 'seconds'") for rank in (0, 1)]
    assert [info(tmp_path / "all" / f"rank-{rank}").about["rank"] for rank in (0, 1)] == [0, 1]
    columns = ["step", "site", "kind", "metric"]
    assert tables[0][columns].equals(tables[1][columns])
    entropies, ranks = (
        [table.query(f"metric == '{metric}'")["value"].tolist() for table in tables]
        for metric in ("entropy", "frobenius_norm")
    )
    assert entropies[0] != entropies[1]  # each has seen its own data
    assert ranks[0] == ranks[1]


@pytest.mark.slow
def test_two_processes_that_share_the_weights(tmp_path):
    """FSDP2: matrices are gathered one at a time if all processes watch; one that watches alone stops nobody."""
    torch.multiprocessing.spawn(distributed.work_on_shards, args=(str(tmp_path),), nprocs=distributed.NUM_PROCESSES)
    saved = [torch.load(tmp_path / f"found-{rank}.pt") for rank in range(distributed.NUM_PROCESSES)]
    for found in saved:
        assert 1 <= found["most_at_once"] <= 2
        for way in found["weights"].values():
            loops.assert_same(dict(saved[0]["weights"]["unwatched"]), dict(way))
    folders = [tmp_path / name for name in ("all/rank-0", "all/rank-1", "probe/rank-0", "probe/rank-1", "first/rank-0")]
    assert all(info(folder).about["model"] == "HandWritten" for folder in folders)
    for folder in folders[:-1]:
        assert read_events(folder).empty
    model = models.HandWritten()
    model.load_state_dict(saved[0]["weights"]["unwatched"])
    with watch(model, measures=("ranks", "qk_norms"), every=1) as seen:
        seen.step(loops.NUM_STEPS - 1)
    columns = ["step", "site", "metric"]
    expected = seen.frame().query("kind != 'cost' and metric != 'rank_residual'").set_index(columns)["value"]
    for folder in folders[:-1]:
        table = read(folder).set_index(columns)["value"]
        assert table[expected.index].to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-4)
    (event,) = read_events(folders[-1]).itertuples()
    assert event.kind == "unseen" and "every process" in event.message
    assert "entropy" in set(read(folders[-1])["metric"]) and "stable_rank" not in set(read(folders[-1])["metric"])


SHORT = 3  # tokens of the validation batch: its entropy lies below that of the training batch


def build():
    """Build the same model again and again; without dropout a validation does not move the random numbers either."""
    torch.manual_seed(0)
    return models.HandWritten()


def whole(model, batch):
    return model(**batch)


def by_parts(model, batch):
    """Call the model's parts one by one, and never the model itself."""
    x = model.embedding(batch["tokens"])
    for block in model.blocks:
        x = block(x)
    return model.head(x)


def entropies(model, *, validate=lambda model: None, calls=whole, mode=None):
    """Entropy of every step and layer of a loop that validates before each training forward."""
    with watch(model, every=1, measures="entropy", alarm=False) as seen:
        for step in range(3):
            validate(model)
            if mode is not None:
                model.train(mode)
            calls(model, loops.batch("hand_written", step))
            seen.step(step)
    found = seen.frame().query("metric == 'entropy'")["value"].tolist()
    assert len(found) == 3 * models.LAYERS
    return found


def validation(*, mode=None, gradients=False, calls=whole):
    """Return a validation on a short batch, in its own mode if it has one, that ends in training mode."""

    def validate(model):
        if mode is not None:
            model.train(mode)
        with nullcontext() if gradients else torch.no_grad():
            calls(model, {"tokens": loops.batch("hand_written", 50)["tokens"][:, :SHORT]})
        if mode is not None:
            model.train()

    return validate


def raising(model):
    with torch.no_grad(), pytest.raises(IndexError):
        model(torch.tensor([[models.VOCABULARY]]))


def interrupted(model):
    def stop(*_):
        raise KeyboardInterrupt

    handle = model.blocks[-1].register_forward_pre_hook(stop)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        model(**loops.batch("hand_written", 50))
    handle.remove()


def once_training(model):
    """Validate in eval mode from the first forward in training mode on."""
    if model.training:
        validation(mode=False, gradients=True)(model)


VALIDATIONS = {
    "in eval mode": {"validate": validation(mode=False)},
    "in eval mode with gradients": {"validate": validation(mode=False, gradients=True)},
    "in training mode": {"validate": validation(mode=True)},
    "by parts": {"validate": validation(mode=False, calls=by_parts), "calls": by_parts},
    "by parts with gradients": {"validate": validation(mode=False, gradients=True, calls=by_parts), "calls": by_parts},
    "that raises": {"validate": raising},
    "that is interrupted": {"validate": interrupted},
    "of a model trained in eval mode": {"attached": False, "validate": validation()},
    "of a model trained in eval mode by parts": {"attached": False, "validate": validation(), "calls": by_parts},
    "of a model attached in eval mode": {"attached": False, "validate": once_training, "mode": True},
}


@pytest.mark.parametrize("way", VALIDATIONS)
def test_validation_leaves_the_values_alone(way):
    settings = dict(VALIDATIONS[way])
    model = build().train(settings.pop("attached", True))
    found, calls = entropies(model, **settings), settings.get("calls", whole)
    assert found == entropies(build(), calls=calls)
    # Layers that are measured together are one batch, whose sums may round otherwise than those of one layer.
    assert found == (entropies(build()) if calls is whole else pytest.approx(entropies(build()), rel=1e-7))


def test_a_model_put_into_eval_mode_after_attaching_is_reported():
    model = build()
    with watch(model, every=1, measures="entropy") as seen:
        loops.loss_of(model.eval(), loops.batch("hand_written", 0)).backward()
        seen.step()
    assert "in training mode" in seen.events()["message"].item()
    assert seen.frame().query("metric == 'entropy'").empty


DEVELOPERS_ONLY = ("hypothesis", "beartype", "xdist", "lightning", "accelerate", "ray", "tensorboard", "duckdb")
"""What the `dev` extra brings beyond what joma and the extra `hf` need."""


def test_tests_of_a_watch_on_a_gpu_are_collected_without_what_developers_install(tmp_path):
    # `None` in place of a module makes its import fail as that of a missing one does.
    (tmp_path / "bare_machine.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({DEVELOPERS_ONLY}))\n")
    asked = ["-p", "bare_machine", "-o", "addopts=", "-q", "--collect-only", "-k", "gpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, str(Path(__file__).with_name("test_untouched.py"))],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "::test_on_a_gpu[" in done.stdout


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_generation_with_a_cache_does_no_harm_and_can_be_measured(family):
    """Queries that come one by one, with their keys from a cache, are measured as those of one forward pass are."""
    model, prompt = models.build(family), models.inputs(family, padded=False)["input_ids"][:, :5]

    def generate(model):
        mask = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, pad_token_id=0)

    def entropies(**settings):
        with watch(model, every=1, measures="attention", **settings) as seen:
            tokens = generate(model)
            model.train()
            model(prompt)
            model.eval()
            assert torch.equal(generate(model), tokens)
            seen.step()
        assert seen.events().empty
        return tokens, seen.frame().query("metric == 'entropy'")["value"].to_numpy()

    tokens, by_training = entropies()
    _, by_generation = entropies(probe_batch=generate)
    _, by_prompt = entropies(probe_batch=prompt)
    _, by_all = entropies(probe_batch=tokens[:, :-1])
    assert torch.equal(tokens, generate(model))
    assert by_training == pytest.approx(by_prompt, rel=1e-6)
    assert by_generation == pytest.approx(by_all, rel=1e-5)
    assert by_all != pytest.approx(by_prompt, rel=1e-2)
