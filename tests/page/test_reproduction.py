"""A reproduction on the page: every claim in the summary, every experiment with figures, data, settings and needs."""

import base64
import io
import json
import re
from dataclasses import replace
from html import unescape

import pandas as pd
import pytest
from markupsafe import Markup

from joma.checks import verify
from joma.experiments.record import Record, Status, read, save
from joma.page import reproduction as reproduction_page
from joma.page.claims import claims, evidence_table, summary_table
from joma.page.findings import findings
from joma.page.report import report
from joma.page.verification import write as write_verdicts
from joma.verdicts import Outcome

from .made_reproduction import EXPERIMENT, SETTINGS, evidence, experiment, reproduced, verdicts
from .made_runs import HOSTILE, watched
from .test_report import text_of, without_scripts


@pytest.fixture(scope="module", autouse=True)
def known_experiments():
    """Stand in for the registry of experiments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction_page, "experiment", experiment)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reproduction with a verification and a run beside it."""
    root = reproduced(tmp_path_factory.mktemp("reproduced"))
    write_verdicts(verify("lemma5"), root)
    watched(root / "beside", num_layers=2, num_steps=4)
    return root


@pytest.fixture(scope="module")
def html(folder):
    return text_of(report(folder))


@pytest.fixture(scope="module")
def parts(html):
    """The sections of the page by their anchor, without scripts."""
    found = re.findall(r'<section id="([^"]+)">(.*?)</section>', without_scripts(html), flags=re.DOTALL)
    return dict(found)


def rows_of(table):
    return [re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL) for row in re.findall(r"<tr.*?</tr>", table, re.S)]


def test_summary_comes_first_then_each_experiment_then_the_rest(parts, html):
    assert list(parts) == ["summary", "figure6", "figure99", "figure7", "table1", "runs", "run-1", "statements"]
    assert "<h1>The JoMA paper, rebuilt</h1>" in html and html.count("plotly.js v") == 1
    assert html.count('id="plot-options"') == 1


def test_every_claim_is_in_the_summary_with_its_numbers(parts):
    rows = [row for row in rows_of(parts["summary"]) if row]
    assert len(rows) == 8  # five claims of figure 6, and one row for each of the other experiments
    refuted = next(row for row in rows if row[2] == Outcome.REFUTED)
    assert refuted[4:] == ["10.25", "≥ 0.5", "0.2", ""] and "control: linear activation" in refuted[3]
    inconclusive = next(row for row in rows if row[2] == Outcome.INCONCLUSIVE)
    assert inconclusive[7] == "0.9" and 'href="#figure6--claim-3"' in inconclusive[1]
    assert next(row for row in rows if row[2] == Outcome.HOLDS)[4] == "none"  # NaN is the number of what did not occur
    assert 'id="figure6--claim-3"' in parts["figure6"]


def test_the_most_interesting_claims_come_first_and_the_undecided_are_folded_away(parts):
    rows = re.findall(r"<tr([^>]*data-outcome[^>]*)>", parts["summary"])
    said = [re.search('data-outcome="([^"]+)"', row)[1] for row in rows]
    assert said == [
        *("failed", "refuted", "holds under conditions", "holds"),
        *("inconclusive at this size", "not run", "not run", "done"),
    ]
    assert ["folded" in row for row in rows] == [False] * 4 + [True] * 3 + [False]
    assert "Show 3 more: 1 inconclusive at this size, 2 not run" in parts["summary"]


def test_a_column_that_only_folded_rows_use_is_folded_with_them_and_an_empty_one_left_out(parts, tmp_path):
    assert re.search('<th class="[^"]*folded[^"]*">published<', parts["summary"])
    done = read(reproduced(tmp_path))
    save(replace(done, experiments=done.experiments[1:]))
    summary = without_scripts(text_of(report(tmp_path))).split("</section>")[0]
    assert ">control</th>" in summary and ">published</th>" not in summary


def test_nothing_is_folded_away_where_nothing_else_is_left(tmp_path):
    done = read(reproduced(tmp_path))
    save(replace(done, experiments=done.experiments[2:3]))
    summary = without_scripts(text_of(report(tmp_path))).split("</section>")[0]
    assert "The one claim of the paper on this page was not run." in summary
    assert 'data-outcome="not run"' in summary and "Show 1 more" not in summary and 'class="folded"' not in summary


def test_the_page_opens_with_what_came_out(parts):
    said = parts["summary"].split("<table")[0]
    assert "Of 8 claims of the paper, 1 failed, 1 is refuted, 1 holds under conditions, 1 holds, " in said
    assert 'Refuted: <a href="#figure6--claim-2">Training adds</a> (Figure 6).' in said
    assert "The one numbered statement of the paper on this page is wrong as printed." in said
    assert 'href="#statements"' in said


def test_claims_of_the_paper_are_counted_apart_from_ours():
    own = tuple(
        replace(verdict, source=source)
        for verdict, source in zip(
            verdicts(None, None),
            ("Figure 8", "Figure 8", "joma", "Our own check", "Figure 8, asked further"),
            strict=True,
        )
    )
    record = Record(
        **dict.fromkeys(("id", "title", "place", "question", "preset", "device"), "figure6"),
        seconds=1.0,
        status=Status.DONE,
        verdicts=own,
    )
    assert findings(claims([record]))[0] == Markup.escape(
        "Of 2 claims of the paper, 1 holds under conditions and 1 holds. The one claim that goes further than the "
        "paper's on this page was not run. Of 2 checks of our own, 1 is refuted and 1 is inconclusive at this size."
    )


def test_a_control_that_passes_too_is_marked_in_its_row(parts):
    rows = [row for row in rows_of(parts["summary"]) if row]
    marks = {row[2]: re.findall('class="mark">(.*?)<', row[3]) for row in rows if "mark" in row[3]}
    told = ["control passes too in 1 of 2 numbers"]
    assert marks == {Outcome.REFUTED: told, Outcome.CONDITIONAL: told}
    assert parts["figure6"].count('<span class="mark">control passes too</span>') == 2


@pytest.mark.parametrize(
    ("value", "control", "mark", "is_told"),
    [
        (0.9, 0.6, "control passes too", True),
        (0.9, 0.1, "", False),
        (0.4, 0.6, "only the control passes", False),
        (0.4, 0.1, "", False),
        (float("nan"), 0.6, "only the control passes", False),
        (0.9, None, "", False),
    ],
)
def test_marks_follow_the_numbers_that_are_shown(value, control, mark, is_told):
    number = replace(evidence(0), value=value, control=control)
    verdict = replace(verdicts(None, None)[0], evidence=(number,))
    record = Record(
        **dict.fromkeys(("id", "title", "place", "question", "preset", "device"), "figure6"),
        seconds=1.0,
        status=Status.DONE,
        verdicts=(verdict,),
    )
    found = claims([record])
    assert re.findall('class="mark">(.*?)<', summary_table(found)) == ([mark] if mark else [])
    assert any("Passes, but so does the control: <a" in sentence for sentence in findings(found)) == is_told


def test_numbers_that_do_not_decide_are_marked_and_muted_and_a_failing_one_stays_red():
    deciding, aside, failing = evidence(0), replace(evidence(0), decides=False), replace(evidence(3), decides=False)
    made = replace(verdicts(None, None)[0], evidence=(deciding, aside, failing))
    rows = re.findall("<tr>.*?</tr>", evidence_table(made), re.S)[1:]
    assert ['class="mark">beside<' in row for row in rows] == [False, True, True]
    assert ["beside" in row for row in rows] == [False, True, True]
    assert "bad" not in rows[1] and 'class="num bad beside"' in rows[2]


def test_many_numbers_beside_are_folded_away_and_never_all_of_a_claim():
    def table_of(num_deciding, num_beside):
        rows = (evidence(0),) * num_deciding + (replace(evidence(0), decides=False),) * num_beside
        return evidence_table(replace(verdicts(None, None)[0], evidence=rows))

    many, few, alone = table_of(1, 4), table_of(1, 3), table_of(0, 4)
    assert many.count('<tr class="folded">') == 4 and "Show 4 more: shown beside, they decide nothing" in many
    assert "folded" not in few and "folded" not in alone


def test_a_claim_is_told_without_quotation_marks(parts):
    assert "Section 4, figure 6: Attention entropy dips and comes back in every layer.</p>" in parts["figure6"]


def test_what_stands_in_backticks_is_code_and_links_say_what_they_need(tmp_path):
    done = read(reproduced(tmp_path))
    told = replace(done.experiments[2], reason="It is part of the preset `full`.")
    save(replace(done, experiments=(*done.experiments[:2], told)))
    text = without_scripts(text_of(report(tmp_path)))
    assert text.count("part of the preset <code>full</code>.") == 2 and "`" not in text.split("<details")[0]
    assert re.search(r'Beside this page: <a href="figure6/figures/entropy.png">PNG</a>', text)
    assert re.search(r">CSV, in this page</a> Beside this page: <a href=\"figure6/tables/", text)


def test_what_was_not_run_says_what_it_needs_and_what_failed_says_why(parts):
    for anchor in ("summary", "figure7"):
        assert "Needs the Hugging Face hub, which cannot be reached from here." in parts[anchor]
    assert 'class="needed"' in parts["figure7"] and ">Table 1</a> failed" in parts["summary"]
    assert "KeyError" in parts["table1"] and 'class="alarm"' in parts["table1"]


def test_what_is_unfinished_says_so_and_has_no_claims_yet(tmp_path):
    done = read(reproduced(tmp_path))
    first = replace(done.experiments[0], status=Status.UNFINISHED, reason="2 of 4 packs left.")
    save(replace(done, experiments=(first, *done.experiments[1:])))
    text = without_scripts(text_of(report(tmp_path)))
    assert 'data-filter="unfinished"' in text and "<b>Unfinished.</b> 2 of 4 packs left." in text
    assert "claim-3" not in text
    summary = text[text.index('id="summary"') : text.index("<table")]
    assert "goes on with it when it is run again" in summary  # what to do, where it is said that not all is there


def test_estimates_of_the_machine_that_wrote_it_are_not_told(tmp_path):
    done = read(reproduced(tmp_path))
    told = {
        "reason": "150 of 169 packs left.",
        "advice": "That takes about 11 d 12 h: run the same command again with --minutes 242 or more, since so.",
    }
    for part, said in (("120 of 270 runs", "Done are 120 of 270 runs; the others"), ("", "150 of 169 packs left.")):
        left = replace(done.experiments[0], status=Status.UNFINISHED, part=part, **told)
        save(replace(done, experiments=(left, *done.experiments[1:])))
        text = without_scripts(text_of(report(tmp_path)))
        assert f"<b>Unfinished.</b> {said}" in text and "11 d 12 h" not in text and "--minutes" not in text
        assert "<code>joma reproduce figure6 --preset quick --out .</code> goes on" in text
    assert "joma reproduce figure7" not in text  # which was not begun


def test_nothing_is_said_of_going_on_where_nothing_is_unfinished(parts):
    assert "when it is run again" not in parts["summary"]


def test_a_part_is_shown_with_its_label_everywhere(tmp_path):
    done = read(reproduced(tmp_path))
    part = replace(done.experiments[0], status=Status.UNFINISHED, reason="2 of 4 packs left.", part="120 of 270 runs")
    save(replace(done, experiments=(part, *done.experiments[1:])))
    found = re.findall(r'<section id="([^"]+)">(.*?)</section>', without_scripts(text_of(report(tmp_path))), re.S)
    summary, own = dict(found)["summary"], dict(found)["figure6"]
    notice = summary.index('Of <a href="#figure6">Figure 6</a> there are 120 of 270 runs')
    assert notice < summary.index("<table")
    rows = [row for row in rows_of(summary) if row][1:6]  # after the one that failed
    assert [row[2] for row in rows] == ["unfinished"] * 5 and rows[2][4] == "10.25"
    assert rows[2][3].startswith("so far 120 of 270 runs; ")
    assert own.index('<span class="badge">unfinished: 120 of 270 runs</span>') < own.index(EXPERIMENT.question)
    assert "<b>Unfinished.</b> 2 of 4 packs left." in own
    assert own.count('class="verdict unfinished">unfinished</span>') == 5 and "verdict refuted" not in own
    assert not re.search(r'class="[^"]*\bbad\b', own)  # red says that a claim fails, which a part does not say
    assert "Attention entropy over training (unfinished: 120 of 270 runs)</h3>" in own
    assert own.count('class="figure"') == 5 and 'download="figure6-scores.csv"' in own


def test_quick_results_are_labelled_as_small_and_full_ones_are_not(parts, tmp_path):
    assert "<b>Small size.</b>" in parts["summary"] and "small size" in parts["figure6"]
    full = without_scripts(text_of(report(reproduced(tmp_path, "full"))))
    assert "<b>Small size.</b>" not in full and 'class="badge"' not in full


def test_the_small_ones_are_named_where_others_are_not(tmp_path):
    done = read(reproduced(tmp_path, "full"))
    whole, gone, not_run, failed = done.experiments
    save(replace(done, experiments=(whole, replace(gone, preset="quick"), replace(not_run, preset="quick"), failed)))
    [banner] = re.findall(r'<p class="size"><b>Small size.</b>(.*?)</p>', text_of(report(tmp_path)))
    assert '<a href="#figure99">Figure 99</a> with the <code>quick</code> preset' in banner
    assert "joma reproduce figure99 --preset full" in banner
    assert "Figure 6" not in banner and "Figure 7" not in banner  # the one is not small, the other not there
    assert "Preset full for Figure 6 and Table 1, and quick for Figure 99 and Figure 7, started" in text_of(
        tmp_path / "index.html"
    )


def test_an_experiment_shows_question_place_seeds_time_notes_and_settings(parts):
    text = parts["figure6"]
    for told in (EXPERIMENT.question, EXPERIMENT.place, "1, 2, 3", "1 min 23 s", "Went on from an earlier call."):
        assert told in text
    assert "num_steps" in text and "version.torch" in text and "abc123" in text and "1.2345" in text


def test_figures_are_drawn_from_the_tables_with_their_files_beside_them(folder, html, parts):
    figures = [json.loads(text) for text in re.findall(r'class="figure".*?json">(.*?)</script>', html)]
    drawn = [figure for figure in figures if any(trace["type"] in ("bar", "heatmap") for trace in figure["data"])]
    assert parts["figure6"].count('class="figure"') == 5 and len(drawn) >= 2
    links = re.findall(r'href="(figure6/figures/[^"]+)"', parts["figure6"])
    assert len(links) == 9 and all((folder / link).is_file() for link in links)


def test_data_is_carried_by_the_page_and_linked(folder, parts):
    [carried] = re.findall(r'href="data:text/csv;base64,([^"]+)" download="figure6-scores.csv"', parts["figure6"])
    frame = pd.read_csv(io.BytesIO(base64.b64decode(unescape(carried))))
    assert list(frame["setting"]) == list(SETTINGS) and frame["note"][2] == HOSTILE
    links = re.findall(r'href="(figure6/tables/[^"]+)"', parts["figure6"])
    assert len(links) == 6 and all((folder / link).is_file() for link in links)
    assert "The first 100 rows; the file has all of them." in parts["figure6"]


def test_large_tables_are_linked_and_not_carried(folder, monkeypatch):
    monkeypatch.setattr(reproduction_page, "MAX_TABLE", 100)
    assert "data:text/csv" not in text_of(report(folder))


def test_an_experiment_that_is_not_known_any_more_shows_its_still_pictures(parts):
    assert "could not be drawn again (UnknownNameError" in parts["figure99"]
    assert '<img alt="attention" src="data:image/png;base64,' in parts["figure99"]


def test_training_runs_of_an_experiment_are_not_on_the_page_but_told_of(parts):
    assert "Rests on a training run, which a report of the folder figure6" in parts["figure6"]
    assert "figure6/work" not in parts["runs"]


def test_names_stay_text(html):
    shown = without_scripts(html)
    assert "<script" not in shown and "<img src=x" not in shown and "&lt;script&gt;alert(1)" in shown


def test_a_file_of_that_name_that_is_something_else_is_refused(tmp_path):
    (tmp_path / "reproduction.json").write_text("{}")
    with pytest.raises(ValueError, match="summary of `joma reproduce`"):
        report(tmp_path)
