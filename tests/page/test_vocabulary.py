"""The terminal names numbers as the page does: the statistic is what is measured, the number is under `measured`."""

from joma.experiments.record import read
from joma.page.claims import COLUMNS, EVIDENCE_COLUMNS
from joma.terminal_reproduce import NUMBERS, show_reproduction

from .made_reproduction import reproduced


def test_terminal_and_page_share_one_vocabulary(tmp_path, capsys):

    show_reproduction(read(reproduced(tmp_path)), explain=True)
    lines = capsys.readouterr().out.splitlines()
    headers = [[name.strip() for name in line.split("┃")[1:-1]] for line in lines if line.startswith("┃")]
    evidence, claims = headers[0], headers[-1]
    assert tuple(evidence[:5]) == EVIDENCE_COLUMNS[:5] == ("statistic", *NUMBERS)
    assert tuple(claims[3:]) == COLUMNS[4:] == NUMBERS
    row = next(line for line in lines if "rebound over dip, layer 2" in line)
    assert [cell.strip() for cell in row.split("│")[1:4]] == ["rebound over dip, layer 2", "10.25", "≥ 0.5"]
