"""One page for everything under a folder: runs, simulations, statements; it needs no network and no second copy."""

import json
import re
from pathlib import Path

import pytest

from joma.checks import verify
from joma.page import verification
from joma.page.report import report
from joma.store import open_run

from .made_runs import HOSTILE, large, scanned, simulated, watched

LOADS = re.compile(r"""<[^>]*\s(?:src|srcset|data|poster|href)\s*=\s*["']?\s*(?!data:|#)[^"'\s>]+""", re.IGNORECASE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def without_scripts(html: str) -> str:
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A folder with a run, a scan, two simulations and a verification."""
    root = tmp_path_factory.mktemp("everything")
    watched(root / "run", num_steps=21)
    scanned(root / "scan")
    for index in range(2):
        simulated(root / f"simulation-{index}")
    verification.write(verify("lemma8"), root / "statements")
    return root


@pytest.fixture(scope="module")
def page(everything):
    return report(everything)


def test_runs_simulations_and_statements_are_on_one_page(everything, page):
    assert page == everything / "index.html"
    html = text_of(page)
    for heading in ("2 runs", "Side by side", "run", "scan", "1 statement"):
        assert f"<h2>{heading}</h2>" in html
    assert 'id="simulation-model"' in html and 'id="simulation-model-2"' in html
    assert html.count('class="joma-chart"') == 2 and html.count('class="figure"') > 4


def test_plotly_is_on_the_page_once(page):
    assert text_of(page).count("plotly.js v") == text_of(page).count('<script type="module">') == 1


def test_nothing_is_loaded_from_anywhere(page):
    html = without_scripts(text_of(page))
    assert not LOADS.search(html) and "@import" not in html and "url(" not in html
    assert "default-src 'none'" in html  # and a browser would refuse


def test_simulations_alone_make_the_page_they_made_before(tmp_path):
    simulated(tmp_path)
    html = text_of(report(tmp_path))
    assert "the JoMA paper, checked" in html and html.count('<script type="module">') == 1
    assert "plotly.js v" not in html and 'class="figure"' not in html


def test_statements_alone_need_no_plotly(tmp_path):
    verification.write(verify("lemma8"), tmp_path)
    html = text_of(report(tmp_path))
    assert "plotly.js v" not in html and "1 statement" in html


def test_a_run_itself_can_be_reported_on_and_again(tmp_path):
    folder = watched(tmp_path / "mine", num_steps=5, num_layers=2)
    first = text_of(report(folder))
    assert "<h2>mine</h2>" in first and text_of(report(folder)) == first


def test_nothing_to_show_is_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"holds no record. Write one with `joma scan`") as refusal:
        report(tmp_path)
    assert "\n" not in str(refusal.value) and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="There is no folder"):
        report(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "KeyError, 'config'"),
        ("[]", "TypeError"),
        ("{", "JSONDecodeError"),
        ('{"config": null}', "TypeError"),
        ('{"config": {"flow": "printd"}}', "Did you mean 'printed'"),
        ('{"config": {"flaw": "printed"}}', "unexpected keyword argument 'flaw'"),
        ('{"config": {"targets": {"a": 1}}}', "`targets` must be numbers"),
        ('{"config": {"num_points": "many"}}', "num_points"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_file_that_is_no_simulation_is_named_in_one_line(tmp_path, text, reason):
    (tmp_path / "simulation.json").write_text(text)
    with pytest.raises(ValueError, match=r"simulation.json is not a record of `joma simulate --out`") as refusal:
        report(tmp_path)
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


def test_names_that_are_no_unicode_do_not_stop_the_page(tmp_path):
    name = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
    open_run(tmp_path / name, kind="watch", config={"half": "\ud800"}).close()
    assert "caf\ufffd \ufffd" in text_of(report(tmp_path))


def test_a_hostile_folder_stays_text_in_title_and_headings(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "_")
    watched(folder, num_steps=3, num_layers=1)
    html = without_scripts(text_of(report(folder)))
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;alert(1)" in html


def test_a_hundred_layers_a_thousand_steps_and_ten_metrics_stay_below_ten_megabytes(tmp_path):
    large(tmp_path / "run", num_layers=100, num_steps=1000, metrics=["entropy", *"abcdefghi"])
    page = report(tmp_path)
    assert page.stat().st_size < 10e6
    figures = re.findall(r'<script type="application/json">(.*?)</script>', text_of(page))
    assert len(figures) == 20 and all(json.loads(figure)["data"] for figure in figures)
