"""Packs side by side: each as if it were alone, and all of them saved when they are asked to stop."""

import signal
from dataclasses import replace

import pytest
import torch

from engine.small_runs import config, pack
from joma.engine import snapshots
from joma.engine.grid import Run
from joma.engine.packs import Pack
from joma.engine.plan import PackPlan
from joma.engine.side_by_side import MOST_BESIDE, beside_each_other, train_packs
from joma.engine.training import train_pack
from joma.runs.record import info, is_open, read, read_events


def named(name, seeds=(1, 2), **settings):
    """A pack whose runs have names of their own."""
    own = pack(seeds=seeds, **settings)
    return Pack(runs=tuple(replace(run, name=f"{name}-{run.name}") for run in own.runs))


def test_beside_each_other_as_alone(tmp_path):
    packs = [named("short", steps=6), named("long", seeds=(3,), steps=11), named("other", steps=6)]
    ended = list(train_packs(packs, tmp_path / "beside"))
    assert [position for position, _ in ended] == [0, 2, 1]  # in the order in which they end
    for own in packs:
        alone = train_pack(own, tmp_path / "alone")
        assert all(run.status == "finished" for run in alone.runs)
        for name in own.names:
            for reader in (read, read_events):
                assert reader(tmp_path / "beside" / name).equals(reader(tmp_path / "alone" / name))


def test_progress_is_told_by_pack(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.engine.training.REPORT_SECONDS", 0.0)
    packs = [named("one", steps=3), named("two", steps=3)]
    heard = []
    list(train_packs(packs, tmp_path, told=lambda position, at: heard.append((position, at.step, at.names))))
    assert [(position, step) for position, step, _ in heard] == [(at, step) for step in (1, 2, 3) for at in (0, 1)]
    assert all(names == packs[position].names for position, _, names in heard)


def test_one_interruption_saves_all_packs_and_the_same_call_ends_them(tmp_path):
    packs = [named("one", steps=8), named("two", steps=8)]

    pressed = []

    def interrupt(position, at):
        if at.step == 2 and not pressed:  # both have begun
            pressed.append(at.step)
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("joma.engine.training.REPORT_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            list(train_packs(packs, tmp_path / "out", told=interrupt))
    for own in packs:
        for name in own.names:
            assert not is_open(tmp_path / "out" / name)
            assert info(tmp_path / "out" / name).status == "running"
            assert 0 < snapshots.steps_of(tmp_path / "out" / name)[-1] < 8
    list(train_packs(packs, tmp_path / "out"))
    list(train_packs(packs, tmp_path / "peace"))
    for own in packs:
        for name in own.names:
            assert read(tmp_path / "out" / name).equals(read(tmp_path / "peace" / name))


def test_a_second_interruption_does_not_wait_and_what_has_not_begun_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.engine.training.REPORT_SECONDS", 0.0)
    packs = [named(name, steps=8) for name in ("one", "two", "three")]

    def interrupt(position, at):
        if position == 0:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        list(train_packs(packs, tmp_path / "once", told=interrupt))
    assert {path.name for path in (tmp_path / "once").iterdir()} == set(packs[0].names)

    saved = []

    def save(folder, snapshot):
        saved.append(folder.name)
        if snapshot.step > 0:
            signal.raise_signal(signal.SIGINT)  # again, while the runs are being saved

    monkeypatch.setattr(snapshots, "save_snapshot", save)
    with pytest.raises(KeyboardInterrupt):
        list(train_packs(packs[:1], tmp_path / "twice", told=interrupt))
    assert saved == [*packs[0].names, packs[0].names[0]]


def test_a_second_interruption_waits_for_no_other_pack(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.engine.training.REPORT_SECONDS", 0.0)
    packs = [named(name, steps=8) for name in ("one", "two", "three")]
    saved = []

    def interrupt(position, at):
        if position == 0 and at.step == 2:  # all have begun
            signal.raise_signal(signal.SIGINT)

    def save(folder, snapshot):
        if snapshot.step > 0:
            saved.append(folder.name)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(snapshots, "save_snapshot", save)
    with pytest.raises(KeyboardInterrupt):
        list(train_packs(packs, tmp_path, told=interrupt))
    assert saved == [packs[1].names[0]]
    assert not any(is_open(tmp_path / name) for own in packs for name in own.names)


def test_an_error_in_one_pack_lets_go_of_the_others(tmp_path):
    packs = [named("one", steps=8), named("two", steps=3)]

    def take(name, parameters):
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        list(train_packs(packs, tmp_path, take=take))
    assert not any(is_open(tmp_path / name) for own in packs for name in own.names)
    assert {info(tmp_path / name).status for name in packs[0].names} == {"running"}


def test_packs_that_cannot_be_closed_do_not_hold_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.engine.training.REPORT_SECONDS", 0.0)
    packs = [named(name, steps=3) for name in ("one", "two", "three")]

    def fail(position, at):
        if position == 0 and at.step == 2:
            raise OSError("no room")

    def cannot_close(members):
        raise OSError("no room to close")

    monkeypatch.setattr("joma.engine.training._leave_open", cannot_close)
    with pytest.raises(OSError, match="no room"):
        list(train_packs(packs, tmp_path, told=fail))
    assert not any(is_open(tmp_path / name) for own in packs for name in own.names)


def planned(num_runs, num_bytes):
    runs = tuple(Run(name=f"{num_bytes}-{seed}", config=config(seed)) for seed in range(num_runs))
    return PackPlan(pack=Pack(runs=runs), num_steps=1, tokens_per_step=1, num_bytes=num_bytes, seconds=1.0)


def test_small_packs_that_fit_stand_beside_each_other_on_a_gpu_alone():
    plans = [planned(3, 10)] * (MOST_BESIDE + 1) + [planned(11, 10), planned(1, 10), planned(1, 95)]
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    groups = beside_each_other(plans, usable_bytes=100.0, device=cuda)
    first = list(range(MOST_BESIDE))
    assert groups == [first, [MOST_BESIDE], [MOST_BESIDE + 1, MOST_BESIDE + 2], [MOST_BESIDE + 3]]
    assert beside_each_other(plans, usable_bytes=100.0, device=cpu) == [[at] for at in range(len(plans))]
