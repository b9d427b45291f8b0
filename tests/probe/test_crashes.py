"""A watched loop or a scan that is killed at any moment leaves a record that the next one finishes."""

import random
import signal
import time
from pathlib import Path

import pandas
import pytest
from safetensors.torch import save_file
from states import SITES, walk
from store.mortality import orders

from joma.probe.findings import Fault
from joma.probe.scanning import scan
from joma.store import info, read, read_events

NUM_KILLS = 20


@pytest.fixture
def mortal():
    """A function that runs watched loops in children of another process, and returns how they ended."""
    with orders(Path(__file__).with_name("mortal_watch.py")) as order:
        yield lambda folder, num_steps, **death: order({"folder": str(folder), "num_steps": num_steps, **death})


@pytest.mark.slow
def test_a_watch_killed_at_random_moments(tmp_path, mortal):
    rng = random.Random(2)
    folder, known, hit_while_open, num_steps = tmp_path / "killed", 0, 0, 10**6
    for _ in range(NUM_KILLS):
        assert mortal(folder, num_steps, kill_after=rng.uniform(0.0, 0.5)) == -signal.SIGKILL
        hit_while_open += (folder / "writer.json").exists()
        if (folder / "run.json").exists():
            steps = read(folder)["step"].unique().tolist()
            assert steps == list(range(len(steps)))
            assert len(steps) >= known
            known = len(steps)
            read_events(folder)
    assert hit_while_open > NUM_KILLS // 2
    assert known > NUM_KILLS // 4
    assert_finishes_as_one_in_peace(mortal, folder, tmp_path / "whole", known + 3)


def assert_finishes_as_one_in_peace(mortal, folder, whole, num_steps):
    """The next loop ends the record, and finds what a loop that never died does."""
    assert mortal(folder, num_steps) == 0
    if not whole.exists():
        assert mortal(whole, num_steps) == 0
    assert info(folder).status == "finished"
    killed, peaceful = (read(each).query("kind != 'cost'").reset_index(drop=True) for each in (folder, whole))
    columns = ["step", "site", "kind", "layer", "head", "metric"]
    pandas.testing.assert_frame_equal(killed[columns], peaceful[columns])
    of_attention = killed["kind"] == "attention"
    assert killed[of_attention].equals(peaceful[of_attention])
    # A tracker that was started anew finds the same norm up to the residual it allows itself.
    followed = killed["metric"].isin(["stable_rank", "spectral_norm", "frobenius_norm"]) & (killed["flag"] == "")
    found, expected = (table.loc[followed, "value"].to_numpy() for table in (killed, peaceful))
    assert found == pytest.approx(expected, rel=0.04)


@pytest.mark.slow
def test_a_watch_dying_at_every_operation_in_turn(tmp_path, mortal):
    num_steps, at, ended = 2, 0, None
    while ended != 0:
        at += 1
        folder = tmp_path / str(at)
        ended = mortal(folder, num_steps, at=at, flush_seconds=1e9)
        assert ended in (9, 0)
        if (folder / "run.json").exists():
            assert set(read(folder)["step"]) <= set(range(num_steps))
        assert_finishes_as_one_in_peace(mortal, folder, tmp_path / "whole", num_steps)
    assert at > 20  # opening, a part of each table, the end


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    """Asking git for the commit is most of the time that opening takes."""
    monkeypatch.setattr("joma.store.record.git_commit", lambda: None)


@pytest.fixture(scope="module")
def scan_mortally():
    """A function that has a child of another process scan and die, and returns how it ended."""
    with orders(Path(__file__).with_name("mortal_scan.py")) as order:
        yield lambda source, out, **death: order({"source": str(source), "out": str(out), **death})


def write_series(folder, num_checkpoints):
    """A series of which the last two are copies, so that there are findings and flags to write."""
    folder.mkdir()
    states = walk(num_checkpoints - 1)
    for step, state in enumerate([*states, states[-1]], start=1):
        save_file(state, folder / f"step{step}.safetensors")
    return folder


def content(folder):
    table = read(folder)
    return table[table["kind"] != "cost"].reset_index(drop=True), read_events(folder)


def assert_readable(out, num_checkpoints):
    """Whatever is there is whole: of each checkpoint all rows or none, each once."""
    if not (out / "run.json").exists():
        return 0
    table, _ = content(out)
    assert not table.duplicated(["step", "site", "metric"]).any()
    counts = table.groupby("step").size()
    assert (counts == 3 * len(SITES)).all()
    assert set(counts.index) <= set(range(1, num_checkpoints + 1))
    return len(counts)


def assert_finished(out, reference):
    for found, expected in zip(content(out), content(reference), strict=True):
        pandas.testing.assert_frame_equal(found, expected)
    assert info(out).status == "finished"
    names = {path.relative_to(out).parts[0] for path in out.rglob("*") if path.is_file()}
    assert names == {"events", "fingerprints", "metrics", "run.json"}
    assert not list(out.rglob("*.part"))


@pytest.mark.slow
def test_a_scan_dying_at_every_operation_in_turn(tmp_path, scan_mortally):
    source = write_series(tmp_path / "series", 2)
    assert [finding.kind for finding in scan(source, out=tmp_path / "whole").findings] == [Fault.IDENTICAL_CHECKPOINT]
    at, ended, seen = 0, None, set()
    while ended != 0:
        at += 1
        out = tmp_path / str(at)
        ended = scan_mortally(source, out, at=at)
        assert ended in (9, 0)
        seen.add(assert_readable(out, 2))
        again = scan(source, out=out)
        assert again.num_checkpoints == again.num_known + again.num_measured == 2
        assert_finished(out, tmp_path / "whole")
    assert at > 50  # opening, two parts and fingerprints, findings and flags, merging
    assert seen == {0, 1, 2}


def test_a_scan_killed_at_random_moments(tmp_path, scan_mortally):
    source = write_series(tmp_path / "series", 6)
    scan(source, out=tmp_path / "whole")
    begun = time.monotonic()
    assert scan_mortally(source, tmp_path / "timed") == 0
    seconds = time.monotonic() - begun
    rng = random.Random(1)
    out, num_rounds, num_hit = tmp_path / "out", 0, 0
    while num_hit < NUM_KILLS:
        before = assert_readable(out, 6)
        ended = scan_mortally(source, out, kill_after=rng.uniform(0.0, 0.7 * seconds))
        assert ended in (-signal.SIGKILL, 0), num_hit
        num_hit += ended == -signal.SIGKILL
        assert assert_readable(out, 6) >= before  # nothing that was there is lost
        if ended == 0 or info_status(out) == "finished":  # killed between the end of the record and of the process
            scan(source, out=out)
            assert_finished(out, tmp_path / "whole")
            num_rounds += 1
            out = tmp_path / f"out{num_rounds}"
    scan(source, out=out)
    assert_finished(out, tmp_path / "whole")


def info_status(out):
    return info(out).status if (out / "run.json").exists() else ""
