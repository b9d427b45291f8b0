"""The alarm of a watch: it rings once, tells everyone, and can be switched off."""

import json
import logging

import pytest
from sharp_attention import Scaled, collapse

from joma.probe.alarm import Alarm, AlertKind
from joma.probe.watch import watch
from joma.store import read_events


@pytest.mark.parametrize(
    ("sharpness", "kind"), [(1e4, AlertKind.COLLAPSE), (0.0, AlertKind.UNIFORM)], ids=["collapse", "uniform"]
)
def test_the_alarm_rings_once_is_logged_recorded_and_told(tmp_path, caplog, sharpness, kind):
    model, told = Scaled(), []
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(10), first_sharp=4, sharpness=sharpness)
    (alert,) = told
    assert told == seen.alerts
    assert (alert.kind, alert.since, alert.step, alert.site, alert.layer) == (kind, 4, 6, "block.blocks.0", 0)
    (event,) = read_events(tmp_path).query("kind == 'alarm'").itertuples()
    assert (event.step, event.site, event.level) == (6, "block.blocks.0", "warning")
    assert json.loads(event.evidence)["fraction"] == pytest.approx(alert.fraction)
    (record,) = [record for record in caplog.records if record.name == "joma"]
    assert (record.levelno, record.message) == (logging.WARNING, alert.message)
    assert alert.message in seen.report()


def test_the_alarm_of_a_resumed_run_does_not_ring_again(tmp_path):
    model, told = Scaled(), []
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(6), first_sharp=4)
    assert not told
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(6, 9), first_sharp=0)
    assert [alert.step for alert in told] == [6]  # two measurements before the break, one behind it
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen:
        collapse(seen, model, range(9, 12), first_sharp=0)
    assert len(told) == 1
    assert len(read_events(tmp_path).query("kind == 'alarm'")) == 1


def test_a_hook_may_stop_training_and_the_alarm_can_be_switched_off():
    def stop(alert):
        raise KeyboardInterrupt(alert.message)

    model = Scaled()
    with (
        pytest.raises(KeyboardInterrupt, match="collapsed at step 4"),
        watch(model, every=1, on_alarm=stop, alarm=Alarm(patience=1)) as seen,
    ):
        collapse(seen, model, range(10), first_sharp=4)
    assert len(seen.events().query("kind == 'alarm'")) == 1
    with watch(model, every=1, on_alarm=stop, alarm=False) as seen:
        collapse(seen, model, range(6), first_sharp=0)


def test_a_full_disk_does_not_silence_the_alarm(tmp_path, monkeypatch):
    model, told = Scaled(), []
    with watch(model, out=tmp_path, every=1, on_alarm=told.append) as seen, monkeypatch.context() as patch:
        patch.setattr("joma.store.record.RunWriter.add", lambda *args, **settings: 1 / 0)
        collapse(seen, model, range(5), first_sharp=0)
    assert [alert.step for alert in told] == [2]
