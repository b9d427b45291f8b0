"""The runner of experiments: it continues, keeps to its time, and one failure does not stop the others."""

import sys
from dataclasses import dataclass

import pandas as pd
import pytest

from joma.charts import points
from joma.claims import Number, Outcome, claim
from joma.paper import reproduce as runner
from joma.paper.experiment import MODULES, Experiment, experiment, find, gathered
from joma.paper.reproduce import Status, charts_of, read_reproduction, reproduce, tables_of
from joma.store import Task


@dataclass(frozen=True)
class Config:
    """How many tasks, and what goes wrong."""

    num: int = 2
    error: str = ""


CALLS: list[int] = []


def compute(config, store):
    """Gather one row a task."""

    def work(index):
        def done(space):
            CALLS.append(index)
            if config.error:
                raise RuntimeError(config.error)
            return {"rows": pd.DataFrame({"x": [float(index)]})}

        return done

    tasks = [Task(f"task {i}", {"index": i, "num": config.num}, work(i), 30.0, kind="test") for i in range(config.num)]
    return gathered(store, tasks)


@claim("a-claim", "t", says="s", source="p")
def rows(t):
    yield Number.exact("rows", len(t.rows), at_least=1.0)


def made(id="figure4", config=Config(), needs=""):  # noqa: B008 - frozen
    return Experiment(
        id=id, title="t", source="s", question="q", presets={"quick": config, "full": config}, compute=compute,
        claims=[rows], charts=lambda t: [points(t.rows, "x", "x", title="t")], needs=lambda config, device: needs,
        in_tasks=True,
    )  # fmt: skip


@pytest.fixture
def use(monkeypatch):
    """Replace experiments by made ones."""
    CALLS.clear()

    def replace(**experiments):
        monkeypatch.setattr(runner, "experiment", lambda name: experiments[name])

    return replace


def test_results_are_judged_written_and_read_back(use, tmp_path):
    use(figure4=made())
    done = reproduce("figure4", out=tmp_path)
    [result] = done.experiments
    assert result.status is Status.DONE
    assert result.answers[0].outcome is Outcome.HOLDS
    assert (result.done, result.tasks) == (2, 2)
    assert {"commit", "device", "precision", "seconds"} <= result.provenance[0].keys()
    again = read_reproduction(tmp_path)
    assert again.experiments == done.experiments
    assert tables_of(tmp_path, result).rows["x"].tolist() == [0.0, 1.0]


def test_the_same_call_computes_nothing_again(use, tmp_path):
    use(figure4=made())
    for _ in range(2):
        reproduce("figure4", out=tmp_path)
    assert CALLS == [0, 1]


def test_a_time_limit_leaves_the_rest_to_the_next_call(use, tmp_path):
    use(figure4=made())
    [first] = reproduce("figure4", out=tmp_path, minutes=0.01).experiments
    assert first.status is Status.UNFINISHED
    assert first.answers[0].outcome is Outcome.NOT_RUN and not first.charts
    assert CALLS == []
    [second] = reproduce("figure4", out=tmp_path).experiments
    assert second.status is Status.DONE


def test_a_failure_is_kept_and_the_others_go_on(use, tmp_path):
    use(figure1=made("figure1", Config(error="broken")), figure4=made())
    failed, done = reproduce(["figure1", "figure4"], out=tmp_path).experiments
    assert (failed.status, done.status) == (Status.FAILED, Status.DONE)
    assert "broken" in failed.reason
    assert "RuntimeError" in (tmp_path / "figure1" / "error.txt").read_text()
    assert not failed.sound


def test_what_is_missing_here_is_not_run_and_shown_as_far_as_it_is_done(use, tmp_path):
    use(figure4=made(needs="It needs a GPU."))
    [result] = reproduce("figure4", out=tmp_path).experiments
    assert (result.status, result.reason) == (Status.NOT_RUN, "It needs a GPU.")
    assert CALLS == [] and charts_of(tmp_path, result) == ()
    use(figure4=made())
    reproduce("figure4", out=tmp_path)
    use(figure4=made(needs="It needs a GPU."))
    [result] = reproduce("figure4", out=tmp_path).experiments
    assert result.status is Status.DONE


def test_an_experiment_without_the_preset_is_not_run_and_keeps_what_it_has(use, tmp_path):
    use(figure4=made())
    [done] = reproduce("figure4", preset="full", out=tmp_path).experiments
    [result] = reproduce("figure4", preset="small", out=tmp_path).experiments
    assert (result.status, result.answers) == (Status.NOT_RUN, ())
    assert "quick or full" in result.reason
    assert read_reproduction(tmp_path).experiments == (done,)
    assert runner.available(["figure4"], device="cpu")[0]["small"] == "–"


def test_the_summary_keeps_other_experiments(use, tmp_path):
    use(figure1=made("figure1"), figure4=made())
    reproduce("figure4", out=tmp_path)
    reproduce("figure1", out=tmp_path)
    assert [each.id for each in read_reproduction(tmp_path).experiments] == ["figure1", "figure4"]


@pytest.mark.parametrize("text", ["{", "[]", '{"preset": 1}'])
def test_a_damaged_summary_is_named_in_one_line(tmp_path, text):
    (tmp_path / "reproduction.json").write_text(text)
    with pytest.raises(ValueError, match="damaged") as error:
        read_reproduction(tmp_path)
    assert "\n" not in str(error.value)


def test_experiments_are_found_by_the_figures_they_hold():
    assert find(["FIGURE2", "figure3", "table1"]) == ["figures2-3", "table1"]
    with pytest.raises(ValueError, match="figure4"):
        find("figure44")
    assert [experiment(name).id for name in MODULES] == find()


def test_a_machine_without_charts_computes_and_judges(use, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    use(figure4=made())
    with pytest.warns(RuntimeWarning, match=r"No charts .*joma\[report\]"):
        [result] = reproduce("figure4", out=tmp_path).experiments
    assert result.status is Status.DONE
    assert result.answers[0].outcome is Outcome.HOLDS
