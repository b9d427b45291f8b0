"""The adapters of loggers against the real packages, offline (`make loggers`); outside of `make test`."""

import json
import sqlite3
from contextlib import closing

import loops
import pytest
from loops import run

from joma.probe import loggers
from joma.probe.watching import watch

pytestmark = pytest.mark.filterwarnings("ignore")
NAME = "joma/entropy/blocks.0"


def watched(logger):
    """Watch two steps of a model, and return the entropy of its first layer by step."""
    model = loops.build("hand_written")
    with watch(model, every=1, loggers=[logger]) as seen:
        run(model, "hand_written", seen, range(2))
    assert seen.events().empty
    table = seen.frame().query("metric == 'entropy' and site == 'blocks.0'")
    return dict(zip(table["step"], table["value"], strict=True))


def test_tensorboard(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    expected = watched(loggers.TensorBoard(tmp_path))
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    assert {each.step: each.value for each in events.Scalars(NAME)} == pytest.approx(expected, rel=1e-6)


def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb.init(dir=str(tmp_path), project="joma") as started:
        expected = watched(loggers.WandB())
        started.log({}, commit=True)
        assert started.summary[NAME] == pytest.approx(expected[1])


def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    trackio.init(project="joma")
    expected = watched(loggers.Trackio())
    trackio.finish()
    with closing(sqlite3.connect(tmp_path / "joma.db")) as stored:
        rows = stored.execute("select step, metrics from metrics").fetchall()
    assert {step: json.loads(values)[NAME] for step, values in rows} == pytest.approx(expected)


def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more packages
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as started:
        expected = watched(loggers.MLflow())
    history = mlflow.MlflowClient().get_metric_history(started.info.run_id, NAME)
    assert {each.step: each.value for each in history} == pytest.approx(expected)
