"""A pack is trained, measured and recorded; each run as if it were alone."""

import math

import pandas
import torch

from engine.small_runs import config, folders, pack
from joma.engine import loop, snapshots
from joma.engine.config import DataConfig, OptimiserConfig, RunConfig, TrainingConfig
from joma.engine.grid import Run
from joma.engine.loop import train_pack
from joma.engine.plan import Pack
from joma.engine.sources import data_hash, source_of
from joma.engine.step import Stepper
from joma.models.decoder_config import DecoderConfig
from joma.probe.scanning import scan
from joma.store import info, is_open, read, read_events


def test_the_record_of_a_run(tmp_path):
    result = train_pack(pack(seeds=(1, 2), steps=12), tmp_path)
    assert [(run.name, run.status, run.step, run.failed_at) for run in result] == [
        ("seed1", "finished", 12, None),
        ("seed2", "finished", 12, None),
    ]
    for run, own in zip(result, (config(1), config(2)), strict=True):
        about = info(run.folder)
        assert (about.kind, about.status) == ("train", "finished")
        assert RunConfig.from_dict(about.config) == own
        assert about.about == {"num_steps": 12, "steps_per_epoch": 12, "data_hash": data_hash(own.data)}
        table = read(run.folder)
        assert table["step"].unique().tolist() == [0, 4, 8, 12]
        last = table[table["step"] == 12]
        assert set(zip(last["site"], last["metric"], strict=True)) == {
            ("training", "loss"),
            ("validation", "loss"),
            *((f"blocks.{i}.attention", metric) for i in (0, 1) for metric in ("entropy", "entropy_fraction")),
            *((f"blocks.{i}.mlp.lower", "stable_rank") for i in (0, 1)),
        }
        described = read_events(run.folder)
        assert set(described["kind"]) == {"effects"}
        assert set(described["step"]) == {12}
        assert len(described) == 4


def test_numbers_are_those_of_plain_steps(tmp_path):
    own = config(5, steps=9, measure_every=3)
    train_pack(Pack(runs=(Run(name="it", config=own),)), tmp_path)
    table = read(tmp_path / "it").query("metric == 'loss'").set_index(["step", "site"])["value"]
    source, stepper = source_of([own]), Stepper.of([own], 9, 9)
    for step in range(9):
        if step % 3 == 0:
            # Where attention is measured, all positions are computed: that may add in another order.
            loss = stepper.model.losses(stepper.parameters, next(source.validation()), lambda reading: None)
            assert table[step, "validation"] == float(loss)
        stepper.advance(source.batch(step))
        if (step + 1) % 3 == 0:
            assert table[step + 1, "training"] == float(stepper.losses)
    kept = snapshots.load_snapshot(snapshots.path_of(tmp_path / "it", 9)).tensors
    for name, tensor in stepper.parameters.items():
        assert torch.equal(kept[f"parameters.{name}"], tensor[0])


def test_a_run_that_fails_is_told_and_no_longer_measured(tmp_path):
    both = pack(seeds=(1, 7), diverging=(7,), steps=12, measure_every=1)
    result = train_pack(both, tmp_path)
    failed = result[1]
    assert (failed.status, failed.failed_at, failed.step) == ("failed", 1, 1)
    assert info(failed.folder).status == "failed"
    events = read_events(failed.folder)
    assert events[["step", "level", "kind"]].values.tolist() == [[1, "error", "diverged"]]
    assert "no longer finite at step 1" in events["message"].item()
    assert read(failed.folder)["step"].unique().tolist() == [0, 1]
    assert read(result[0].folder)["step"].unique().tolist() == list(range(13))
    train_pack(pack(seeds=(1,), steps=12, measure_every=1), tmp_path / "alone")
    pandas.testing.assert_frame_equal(read(result[0].folder), read(tmp_path / "alone" / "seed1"), check_exact=True)


def test_a_pack_whose_runs_all_fail_ends_early(tmp_path):
    told = []
    result = train_pack(
        pack(seeds=(1, 2), diverging=(1, 2), steps=10**6, measure_every=2), tmp_path, progress=told.append
    )
    assert [run.status for run in result] == ["failed"] * 2
    assert not any(is_open(folder) for folder in folders(tmp_path, pack()))


def test_the_series_of_checkpoints_is_scanned(tmp_path):
    train_pack(pack(seeds=(1,), steps=10, measure_every=5, checkpoint_every=5), tmp_path)
    folder = tmp_path / "seed1"
    names = sorted(path.name for path in (folder / snapshots.CHECKPOINTS).iterdir())
    assert names == ["step-000000.safetensors", "step-000005.safetensors", "step-000010.safetensors"]
    result = scan(folder / snapshots.CHECKPOINTS, out=tmp_path / "scan")
    assert result.sound
    columns = ["step", "site", "value"]
    scanned, measured = (
        read(place).query("metric == 'stable_rank'")[columns].reset_index(drop=True)
        for place in (tmp_path / "scan", folder)
    )
    pandas.testing.assert_frame_equal(scanned, measured, rtol=1e-6)
    assert set(scanned["site"]) == {"blocks.0.mlp.lower", "blocks.1.mlp.lower"}


def test_progress_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    told = []
    train_pack(pack(seeds=(1, 7), diverging=(7,), steps=6, measure_every=3), tmp_path, progress=told.append)
    assert [each.step for each in told] == list(range(1, 7))
    assert all(each.num_steps == 6 and each.tokens_per_second > 0 for each in told)
    assert told[0].names == ("seed1", "seed7")
    assert (told[-1].names, told[-1].failed) == (("seed1",), ("seed7",))
    assert math.isfinite(told[-1].losses["seed1"])


def test_nothing_is_read_from_the_device_between_measurements(tmp_path, monkeypatch):
    """A GPU that is waited for at every step stands idle: what is read must be due."""
    read_at = []
    original = loop._Trainer._note_failures
    monkeypatch.setattr(
        loop._Trainer,
        "_note_failures",
        lambda trainer: (read_at.append(int(trainer._stepper.state.step)), original(trainer))[1],
    )
    monkeypatch.setattr(loop, "on_host", lambda values: [[0.0] * 2 for _ in values])
    monkeypatch.setattr(loop, "REPORT_SECONDS", math.inf)  # a busy machine would find it due in between
    told = []
    train_pack(pack(seeds=(1, 2), steps=20, measure_every=10), tmp_path, progress=told.append)
    assert set(read_at) == {0, 10, 20}
    assert [each.step for each in told] == [20]


def test_a_text_is_trained_over_epochs(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    words = ("the cat sat on the mat and " * 40).strip()
    for split in ("train", "valid", "test"):
        (text / f"{split}.txt").write_text(words)
    own = RunConfig(
        model=DecoderConfig(vocabulary=7, width=8, hidden=8, positions="none"),
        optimiser=OptimiserConfig(lr=0.02, restart_every_epoch=True),
        data=DataConfig(data=str(text), batch=4, window=10, valid_batch=2),
        training=TrainingConfig(epochs=3, measure_every=2, measure_spacing="log"),
    )
    result = train_pack(Pack(runs=(Run(name="text", config=own),)), tmp_path / "runs")
    steps_per_epoch = (280 // 4 - 1) // 10
    assert result[0].step == 3 * steps_per_epoch
    table = read(tmp_path / "runs" / "text")
    assert table["step"].unique().tolist() == [0, 1, 3, 10, 18]
    assert len(table.query("metric == 'entropy_window'")) == 5
    losses = table.query("site == 'validation'")["value"].tolist()
    assert losses[-1] < 0.8 * losses[0]
    assert info(tmp_path / "runs" / "text").about["data_hash"]
