"""A series that is trained once, goes on where it stopped, and is the same bit for bit either way."""

import json

import pytest
import torch
from safetensors.torch import load_file

from experiments.neox_cases import tiny_neox, write_text_folder
from joma.experiments import neox_series
from joma.experiments.neox_series import first_text, series_of, train_series, training_seconds
from joma.experiments.neox_step import NUM_WARM_UPS, Step
from joma.experiments.threads import one_thread


class StoppedError(Exception):
    """Someone pulled the plug."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text_folder(tmp_path_factory.mktemp("neox") / "text")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path / "cache"))
    with one_thread("cpu"):
        yield


def silent(share, doing):
    pass


def weights_of(series):
    return {step: load_file(series.checkpoint(step) / "model.safetensors") for step in series.config.steps}


def assert_same(one, other):
    for step, tensors in weights_of(one).items():
        for name, tensor in weights_of(other)[step].items():
            assert torch.equal(tensors[name], tensor), (step, name)
    assert one.losses() == other.losses()


def test_a_series_has_a_checkpoint_at_every_step_asked_for_and_it_learns(text, tmp_path):
    series = train_series(tiny_neox(text), tmp_path, device="cpu", tell=silent)
    assert sorted(path.name for path in series.checkpoints.iterdir()) == sorted(
        f"checkpoint-{step}" for step in range(11)
    )
    losses = series.losses()
    assert losses[10] < losses[0] - 0.2


def test_interrupted_training_goes_on_and_gives_the_same_weights(text, tmp_path):
    config = tiny_neox(text, every=2)
    whole = train_series(config, tmp_path / "whole", device="cpu", tell=silent)

    def stop(share, doing):
        if share > 0.5:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_series(config, tmp_path / "parts", device="cpu", tell=stop)
    assert not (tmp_path / "parts" / whole.folder.name / "checkpoints" / "checkpoint-10").exists()
    told = []
    resumed = train_series(config, tmp_path / "parts", device="cpu", tell=lambda share, doing: told.append(share))
    assert min(told) > 0.5  # what was trained is not trained again
    assert_same(whole, resumed)


def test_a_checkpoint_whose_optimiser_state_was_not_written_is_made_again_the_same(text, tmp_path):
    config = tiny_neox(text, every=5)
    whole = train_series(config, tmp_path / "whole", device="cpu", tell=silent)
    expected = weights_of(whole)
    (whole.folder / "optimiser.safetensors").unlink()
    for path in whole.checkpoint(10).iterdir():
        path.unlink()
    whole.checkpoint(10).rmdir()
    again = train_series(config, tmp_path / "whole", device="cpu", tell=silent)
    for name, tensor in weights_of(again)[10].items():
        assert torch.equal(tensor, expected[10][name])


def stopped_at(share_done):
    def tell(share, doing):
        if share >= share_done:
            raise StoppedError

    return tell


def test_a_state_that_was_not_due_is_written_when_the_training_is_stopped(text, tmp_path, monkeypatch):
    config = tiny_neox(text, every=2)
    whole = train_series(config, tmp_path / "whole", device="cpu", tell=silent)
    monkeypatch.setitem(neox_series.STATE_SECONDS, "cpu", 3600.0)
    with pytest.raises(StoppedError):
        train_series(config, tmp_path / "parts", device="cpu", tell=stopped_at(0.6))
    told = []
    resumed = train_series(config, tmp_path / "parts", device="cpu", tell=lambda share, doing: told.append(share))
    assert told == [0.8, 1.0]
    assert_same(whole, resumed)


def test_checkpoints_behind_the_state_are_written_anew(text, tmp_path):
    """On a GPU a second training is not the first one bit for bit, and a series must not hold two halves."""
    config = tiny_neox(text, every=2)
    with pytest.raises(StoppedError):
        train_series(config, tmp_path, device="cpu", tell=stopped_at(0.4))
    series = series_of(config, tmp_path)
    state = (series.folder / "optimiser.safetensors").read_bytes()
    with pytest.raises(StoppedError):
        train_series(config, tmp_path, device="cpu", tell=stopped_at(0.8))
    (series.folder / "optimiser.safetensors").write_bytes(state)  # as if that of step 8 had not been due

    def written():
        return {step: (series.checkpoint(step) / "model.safetensors").stat().st_mtime_ns for step in (0, 2, 4, 6, 8)}

    before = written()
    train_series(config, tmp_path, device="cpu", tell=silent)
    assert [step for step, time in written().items() if time != before[step]] == [6, 8]


def test_the_mask_that_a_gpu_is_given_is_the_one_that_the_model_makes(text):
    config = tiny_neox(text)
    model = neox_series._new_model(config, first_text(config))
    tokens = torch.randint(10, (4, 12), generator=torch.Generator().manual_seed(0))
    plain, masked = (Step(model, precision="fp32", device="cpu") for _ in range(2))
    masked._is_captured = True
    with torch.no_grad():
        torch.testing.assert_close(masked.loss(tokens, tokens), plain.loss(tokens, tokens))


@pytest.mark.parametrize("lost", ["checkpoint-5/*", "checkpoint-*/*", "*"])
def test_checkpoints_without_weights_are_made_again_the_same(text, tmp_path, lost):
    config = tiny_neox(text, every=5)
    series = train_series(config, tmp_path, device="cpu", tell=silent)
    expected = weights_of(series)
    assert series.is_trained and series.trained_on == "cpu"
    for path in series.folder.rglob(f"{lost}.safetensors"):
        path.unlink()
    assert not series_of(config, tmp_path).is_trained and series.losses()  # descriptions are there
    again = train_series(config, tmp_path, device="cpu", tell=silent)
    assert again.is_trained
    for step, tensors in weights_of(again).items():
        assert all(torch.equal(tensor, expected[step][name]) for name, tensor in tensors.items())


def test_the_time_of_a_training_is_tried_without_a_trace_until_it_is_done(text, tmp_path):
    short, long = (series_of(tiny_neox(text, num_steps=num), tmp_path) for num in (10, 10_000))
    assert training_seconds(long, "cpu") > 20 * training_seconds(short, "cpu") > 0  # a busy machine is not exact
    assert not short.folder.exists() and not long.folder.exists()
    train_series(short.config, tmp_path, device="cpu", tell=silent)
    assert training_seconds(short, "cpu") == 0


def test_a_series_that_is_there_is_not_touched(text, tmp_path):
    config = tiny_neox(text, every=5)
    first = train_series(config, tmp_path, device="cpu", tell=silent)
    times = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    told = []
    train_series(config, tmp_path, device="cpu", tell=lambda *said: told.append(said))
    assert not told
    assert times == {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}


def test_other_settings_and_other_seeds_are_other_series(text, tmp_path):
    one = train_series(tiny_neox(text, num_steps=1), tmp_path, device="cpu", tell=silent)
    other = train_series(tiny_neox(text, num_steps=1, seed=1), tmp_path, device="cpu", tell=silent)
    assert one.folder != other.folder
    assert one.losses()[0] != other.losses()[0]


def test_without_a_learning_rate_nothing_moves(text, tmp_path):
    series = train_series(tiny_neox(text, lr=0.0, num_steps=3), tmp_path, device="cpu", tell=silent)
    weights = weights_of(series)
    assert all(torch.equal(tensor, weights[3][name]) for name, tensor in weights[0].items())
    assert len(set(series.losses().values())) == 1


def test_the_first_text_that_is_there_is_taken(text, tmp_path):
    config = tiny_neox(text, texts=(str(tmp_path / "nowhere"), str(text)))
    assert first_text(config).name == text.name
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        first_text(tiny_neox(text, texts=(str(tmp_path / "nowhere"),)))


def test_training_leaves_the_global_random_numbers_alone(text, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_series(tiny_neox(text, num_steps=1), tmp_path, device="cpu", tell=silent)
    assert torch.equal(torch.rand(3), expected)


def test_sizes_that_do_not_fit_are_refused(text):
    with pytest.raises(ValueError, match="`num_steps` must be a multiple of `every`"):
        tiny_neox(text, every=3)
    with pytest.raises(ValueError, match="`depth` must"):
        tiny_neox(text, depth=0)


def test_losses_are_plain_json(text, tmp_path):
    series = train_series(tiny_neox(text, num_steps=1), tmp_path, device="cpu", tell=silent)
    assert json.loads((series.checkpoint(0) / "loss.json").read_text()) == {"loss": series.losses()[0]}


class ReplayedOnACpu(Step):
    """What a GPU does, without one: steps one by one at first, then replays that see the kept batch and rate alone."""

    def __init__(self, model):
        """Take the rate from where a graph would."""
        super().__init__(model, precision="fp32", device="cpu")
        self._is_captured = True
        self._rate = self.optimiser.param_groups[0]["lr"] = torch.zeros(())
        self.optimiser.param_groups[0]["fused"] = True
        self.num_replays = 0

    def _warm_up(self):
        self._move(*self._batch)
        self._num_warm += 1

    def _capture(self):
        return self

    def replay(self):
        self._move(*self._batch)
        self.num_replays += 1


def test_a_replayed_step_sees_each_batch_and_each_rate(text):
    config = tiny_neox(text)
    plain, replayed = (neox_series._new_model(config, first_text(config)) for _ in range(2))
    steps = Step(plain, precision="fp32", device="cpu"), ReplayedOnACpu(replayed)
    generator = torch.Generator().manual_seed(0)
    for number in range(6):
        tokens = torch.randint(10, (4, 12), generator=generator)
        for step in steps:
            step.advance(tokens, tokens.flip(0), rate=1e-3 * number)
    assert steps[1].num_replays == 6 - NUM_WARM_UPS
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(replayed.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)
    assert {float(value) for entry, value in steps[1].state().items() if entry.endswith("|step")} == {6.0}
