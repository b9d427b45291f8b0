"""What a watch writes down, also of a run that is resumed or fails, and when it cannot write."""

import loops
import models
import pandas
import pytest
from loops import run

from joma.probe.watch import watch
from joma.store import info, read

COLUMNS = ["step", "site", "kind", "layer", "head", "metric", "value", "flag"]
ATTENTION = {
    "entropy",
    "entropy_fraction",
    "effective_keys",
    "sink_mass",
    "mean_distance",
    "max_logit",
    "entropy_lowest_before_clamp",
}
RANKS = {"stable_rank", "spectral_norm", "frobenius_norm", "rank_residual"}


def test_the_record_of_a_run(tmp_path):
    model = loops.build("hand_written")
    with watch(model, out=tmp_path / "run", every=2, measures="full") as seen:
        run(model, "hand_written", seen, range(5))
        pandas.testing.assert_frame_equal(seen.frame(), read(tmp_path / "run"))
    table = read(tmp_path / "run")
    assert table.columns.tolist() == COLUMNS
    assert sorted(set(table["step"])) == [0, 2, 4]
    attention = table.query("kind == 'attention'")
    assert set(attention["site"]) == {"blocks.0", "blocks.1"}
    assert set(attention["metric"]) == ATTENTION | {"qk_spectral_norm"}
    assert set(table.query("kind == 'mlp'")["metric"]) == RANKS
    assert set(table.query("kind == 'mlp'")["site"]) == {"blocks.0.mlp.0", "blocks.1.mlp.0"}
    assert table.query("metric == 'loss'")["value"].between(1, 10).all()
    assert (table.query("kind == 'cost' and metric == 'seconds'")["value"] > 0).all()
    assert (table["head"] == -1).all()
    about = info(tmp_path / "run")
    assert (about.kind, about.status, about.about["model"]) == ("watch", "finished", "HandWritten")
    assert about.config["measures"] == ["attention", "ranks", "qk_norms"]
    assert about.config["batch"] == "training"


def test_seeds_and_what_else_there_is_to_say_are_recorded(tmp_path):
    for seed in range(2):
        model = loops.build("hand_written")
        settings = {"seed": seed, "about": {"learning_rate": 0.1}, "measures": "ranks"}
        with watch(model, out=tmp_path / f"run-{seed}", every=1, **settings) as seen:
            seen.step(0)
        about = info(tmp_path / f"run-{seed}").about
        assert about["seed"] == seed and about["learning_rate"] == 0.1 and about["model"] == "HandWritten"


def test_a_seed_that_is_no_number_is_refused(tmp_path, as_a_user_runs_it):
    with pytest.raises(TypeError, match="integer"):
        watch(loops.build("hand_written"), out=tmp_path / "bad", seed="three")
    assert not (tmp_path / "bad").exists()


def test_a_resumed_run_starts_anywhere(tmp_path):
    model = loops.build("hand_written")
    with watch(model, out=tmp_path, every=10) as seen:
        run(model, "hand_written", seen, range(3))
    with watch(model, out=tmp_path, every=10) as seen:
        with pytest.raises(ValueError, match="Pass `step`"):
            seen.step()
        run(model, "hand_written", seen, range(20, 23))
    assert sorted(set(read(tmp_path)["step"])) == [0, 20]
    assert len(info(tmp_path).resumed) == 1


def test_a_loop_that_raises_ends_the_run_as_failed(tmp_path):
    with pytest.raises(ZeroDivisionError), watch(models.HandWritten(), out=tmp_path):
        raise ZeroDivisionError
    assert info(tmp_path).status == "failed"


def test_a_record_that_cannot_be_written_does_not_stop_training(tmp_path, monkeypatch, caplog):
    model = loops.build("hand_written")
    seen = watch(model, out=tmp_path, every=1)

    def full(*args, **kwargs):
        raise OSError("The disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("joma.store.record.RunWriter.add", full)
        patch.setattr("joma.store.record.RunWriter.event", full)
        run(model, "hand_written", seen, range(2))
    run(model, "hand_written", seen, range(2, 3))
    seen.close()
    assert set(read(tmp_path)["step"]) == {2}
    assert caplog.text.count("The disk is full") == 1
    assert "The disk is full" in seen.report()


def test_a_watch_that_cannot_begin_leaves_nothing_behind(tmp_path, monkeypatch):
    model = models.HandWritten()
    watch(model, out=tmp_path).close()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("joma.probe.watch.read_events", lambda folder: 1 / 0)
        watch(model, out=tmp_path)
    assert info(tmp_path).status == "failed"
    watch(model, out=tmp_path).close()  # neither the model nor the folder is taken
