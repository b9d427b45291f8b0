"""What the terminal shows."""

from joma import terminal
from joma.verdicts import Evidence, Outcome, Verdict


def verdict(*, sound: bool) -> Verdict:
    row = Evidence(
        name="n", against="ODE", unit="u", value=1e-12, threshold=1e-9, control=0.5, control_name="as printed"
    )
    return Verdict(id="x", title="t", source="s", claim="c", outcome=Outcome.REFUTED, evidence=(row,), sound=sound)


def test_a_failing_check_of_our_own_is_named():
    assert "OUR OWN CHECKS FAIL: x" in terminal.summary([verdict(sound=False)]).plain
    assert "FAIL" not in terminal.summary([verdict(sound=True)]).plain


def test_rows_stay_on_one_line_in_a_log(capsys):
    terminal.show_verdicts([verdict(sound=True)], explain=False)
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["x", "t", "refuted", "1e-12", "1e-09", "0.5", "ODE"]
