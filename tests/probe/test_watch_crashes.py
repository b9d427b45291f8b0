"""A watched loop that is killed leaves a record that the next one finishes."""

import random
import signal
from pathlib import Path

import pandas
import pytest
from store.mortality import orders

from joma.store import info, read, read_events

NUM_KILLS = 20


@pytest.fixture
def mortal():
    """A function that runs watched loops in children of another process, and returns how they ended."""
    with orders(Path(__file__).with_name("mortal_watch.py")) as order:
        yield lambda folder, num_steps, **death: order({"folder": str(folder), "num_steps": num_steps, **death})


@pytest.mark.slow
def test_kill_9_at_random_moments_leaves_a_record_that_the_next_loop_finishes(tmp_path, mortal):
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
def test_dying_at_every_operation_in_turn(tmp_path, mortal):
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
