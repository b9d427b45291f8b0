"""What the terminal shows."""

import sys

from joma import terminal
from joma.claims import Answer, Number, Outcome


def test_rows_stay_on_one_line_in_a_log(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    number = Number.exact("n", 1e-12, at_most=1e-9, control=0.5, control_name="as printed", against="ODE", unit="u")
    answer = Answer(claim="x", title="t", source="s", says="c", outcome=Outcome.WRONG, numbers=(number,))
    terminal.show_answers([answer], explain=False)
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["x", "t", "wrong as printed", "1e-12", "≤ 1e-09", "0.5", "verify"]


def test_outcomes_are_counted(capsys):
    answers = [Answer(claim="x", title="t", source="s", says="c", outcome=Outcome.FAULTY)] * 2
    terminal.show_answers(answers, explain=False)
    assert "2 our check failed" in capsys.readouterr().out


def test_a_count_is_told_in_lines_where_no_bar_can_move(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("joma.terminal.monotonic", lambda: now[0])
    with terminal.progress() as show:
        for now[0], done in ((100.0, 0), (105.0, 1), (120.0, 2), (121.0, 3), (122.0, 4)):
            show("Scanning", done=done, total=4, latest=f"step{done}.pt" if done else "")
    assert capsys.readouterr().err.splitlines() == [
        "Scanning: 0/4",
        "Scanning: 2/4, step2.pt; about 20 s left",
        "Scanning: 4/4, step4.pt",
    ]


def test_a_count_is_not_told_if_quiet_or_of_nothing(capsys):
    for total, quiet in ((0, False), (3, True)):
        with terminal.progress(quiet=quiet) as show:
            show("Scanning", total=total)
    assert not capsys.readouterr().err


def test_a_terminal_shows_a_bar_for_a_count_and_a_mark_for_work_without_steps(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with terminal.progress() as show:
        show("Scanning", done=2, total=4, latest="step2.pt")
    said = capsys.readouterr().err
    assert "2/4" in said and "━" in said
    with terminal.busy("Writing [the page]"):
        pass
    said = capsys.readouterr()
    assert "Writing [the page]" in said.err and "0:00:00" in said.err and not said.out


def test_work_without_steps_is_told_in_one_line_where_no_mark_can_move(capsys):
    with terminal.busy("Writing [the page]"):
        begun = capsys.readouterr()
    assert begun.err == "Writing [the page]\n"  # before the work is done, not after it
    assert not begun.out
    assert capsys.readouterr() == ("", "")
