"""`joma reproduce` as a user types it, with experiments that take no time."""

import io
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from experiments.fakes import fake, verdicts
from joma import cli, terminal_reproduce
from joma.experiments import registry
from joma.experiments.progress import Pace, Progress
from joma.verdicts import Evidence, Outcome


@pytest.fixture
def joma(tmp_path, monkeypatch):
    """A function that runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, ["reproduce", "--device", "cpu", *arguments])


def judged(**changes):
    return lambda result, config: tuple(replace(verdict, **changes) for verdict in verdicts(result, config))


def broken(*_):
    raise KeyError("no such column")


def test_a_row_for_every_claim_with_statistic_threshold_control_and_published_value(joma, install, tmp_path):
    install(fake("a"), fake("b", verdicts=judged(outcome=Outcome.REFUTED)))
    done = joma()
    assert done.exit_code == 0
    rows = [line.strip("│").split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    first, second = ([cell.strip() for cell in row] for row in rows)
    assert first[:3] == ["a", "The walk stays near", "holds"] and first[4:] == ["≤ 100", "200", "0.5"]
    assert float(first[3]) < 100 and second[2] == "refuted"
    assert "Experiments: 2 done" in done.stdout and (tmp_path / "joma-out/reproduction.json").exists()


def test_where_there_is_no_claim_yet_the_question_is_called_one(joma, install):
    install(fake("a", missing=lambda config, place: "Needs."), fake("b"))
    done = joma("a", "b")
    assert done.stdout.count("Question ") == 1 and done.stdout.count("│ Claim ") == 1


@pytest.mark.parametrize(("is_judged", "colours"), [(True, ["red", "red"]), (False, ["", ""])])
def test_red_is_for_what_decides(is_judged, colours):
    row = Evidence(name="n", against="ODE", unit="u", value=2.0, threshold=1.0, control=0.5, control_name="none")
    value, _, control, _ = terminal_reproduce._numbers(row, judged=is_judged)
    assert [value.style, control.style] == colours
    # What is piped or kept has no colours: the same in words.
    assert [value.plain, control.plain] == (["2 (fails)", "0.5 (passes)"] if is_judged else ["2", "0.5"])


def cells_of(output: str, name: str) -> list[list[str]]:
    """Cells of the rows of tables that begin with a name."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines()]
    return [row for row in rows if row and row[0] == name]


def test_numbers_that_fail_and_those_beside_are_marked_in_plain_text(joma, install, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    failing = Evidence(name="reach", against="ODE", unit="u", value=2.0, threshold=1.0)
    passing = replace(failing, name="care", value=0.5, control=0.7, control_name="none", decides=False)
    install(
        fake("a", verdicts=judged(outcome=Outcome.REFUTED, evidence=(failing, passing))),
        fake("b", verdicts=judged(outcome=Outcome.INCONCLUSIVE, evidence=(passing,))),
    )
    shown = joma("a", "b").stdout
    assert {tuple(row[:2]) for row in cells_of(shown, "reach")} == {("reach", "2 (fails)")}
    assert {tuple(row[1:4]) for row in cells_of(shown, "care (beside)")} == {("0.5", "≤ 1", "0.7 (passes)")}
    assert {tuple(row[2:4]) for row in cells_of(shown, "a")} == {("refuted", "2 (fails)")}
    assert {tuple(row[2:4]) for row in cells_of(shown, "b")} == {("inconclusive at this size", "0.5 (beside)")}


def test_ids_are_explained(joma, install):
    install(fake("a", verdicts=judged(explanation="Because it turns.", correction="Rather near.")), fake("b"))
    done = joma("a")
    for part in ("Claim", "Because it turns.", "Rather near.", "a straight walk", "farthest place"):
        assert part in done.stdout
    assert "Walk b" not in done.stdout


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"missing": lambda config, place: "Needs a moon."}, 0, "a not run: Needs a moon."),
        ({"verdicts": judged(outcome=Outcome.REFUTED)}, 0, "1 refuted"),
        ({"verdicts": judged(sound=False)}, 1, "OUR OWN CHECKS FAIL: near"),
        ({"compute": broken}, 1, "a failed: KeyError: 'no such column'"),
    ],
    ids=["not run", "refuted", "unsound", "raised"],
)
def test_exit_codes(joma, install, changes, code, words):
    install(fake("a", **changes), fake("b"))
    done = joma()
    assert done.exit_code == code and words in done.stdout


def test_json_is_the_summary_alone(joma, install, tmp_path):
    install(fake("a"), fake("b", missing=lambda config, place: "Needs a moon."))
    done = joma("--json", "--out", "here")
    assert json.loads(done.stdout) == json.loads((tmp_path / "here/reproduction.json").read_text())
    assert not done.stderr


def test_the_list_says_what_each_needs(joma, install, tmp_path):
    install(fake("a"), fake("b", missing=lambda config, place: "Needs a moon."))
    done = joma("--list")
    assert "Walk a" in done.stdout and "runs" in done.stdout and "Needs a moon." in done.stdout
    assert not list(tmp_path.iterdir())
    [record] = json.loads(joma("b", "--list", "--json").stdout)
    assert record["id"] == "b" and record["missing"]["full"] == "Needs a moon."


def test_the_list_says_how_long_each_takes(joma, install, monkeypatch):
    install(fake("a"), fake("b"))
    monkeypatch.setitem(registry.SECONDS["full"], "a", 200)
    monkeypatch.setitem(registry.CPU_SECONDS, "b", 20 * 86400)
    rows = {line.split("│")[1].strip(): line for line in joma("--list").stdout.splitlines() if line.startswith("│")}
    assert "runs, about 3 min 20 s" in rows["a"]
    assert "about 20 days on a CPU: take a GPU" in rows["b"] and "runs, about 1 s" in rows["b"]  # quick runs here
    joma("a")
    [record] = json.loads(joma("a", "--list", "--json").stdout)
    assert record["seconds"] == {"quick": 0.0, "full": 200.0}
    assert "done" in joma("a", "--list").stdout


def test_an_interrupt_is_told_in_a_line(joma, install):
    def interrupted(*_):
        raise KeyboardInterrupt

    install(fake("a"), fake("b", compute=interrupted))
    done = joma()
    assert done.exit_code == cli.INTERRUPTED
    assert "the same command goes on from here" in done.stderr


def test_a_log_gets_a_line_for_every_experiment(joma, install):
    install(fake("a"), fake("b"))
    lines = joma().stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["[1/2] a", "[2/2] b"]
    assert all("left in all" in line for line in lines)


def test_a_terminal_shows_both_bars_and_the_time_left(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "160")
    at = Progress(
        ids=("a", "b"), num_done=1, id="b", share=0.4, doing="[x] training", seconds_left=70.0,
        total_seconds_left=200.0, whole_share=0.5,
    )  # fmt: skip
    with terminal_reproduce.reproduction_progress() as show:
        show(at)
        show(replace(at, share=0.5))
    shown = screen.getvalue()
    for part in ("1/2 experiments", "about 3 min 20 s left", "50%", "about 1 min 10 s left", "[x] training"):
        assert part in shown


def test_time_left_follows_the_pace(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("joma.experiments.progress.time.monotonic", lambda: now[0])
    seen = []
    pace = Pace({"a": 10.0, "kept": 0.0, "b": 20.0}, seen.append)
    pace.begin()
    assert seen[-1].total_seconds_left == 30
    now[0] = 4.0
    pace.tell(0.5, "resumed half way")  # where it began says nothing of its pace
    assert seen[-1].seconds_left == 6
    now[0] = 8.0
    pace.tell(0.75, "")
    assert seen[-1].seconds_left == 4 and seen[-1].total_seconds_left == 24
    now[0] = 20.0
    pace.end()
    pace.begin()
    pace.end()
    pace.begin()
    assert 20 < seen[-1].total_seconds_left < 40  # the first took twice its time, which is not yet much to go by
    now[0] = 60.0
    pace.end()
    assert seen[-1].whole_share == 1 and seen[-1].total_seconds_left == 0
