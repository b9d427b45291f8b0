"""Pages in a real browser, without a network: they draw, sort and filter, wide, narrow and dark, with no error."""

from urllib.parse import quote

import pytest

from joma.page.report import report

from .chromium import CHROMIUM, chromium
from .made_runs import HOSTILE, scanned, simulated, watched

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's package chromium to run these")

TOOLS = """
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
async function until(condition, what) {
  for (let turn = 0; turn < 1000; turn += 1) { if (condition()) return; await pause(20); }
  throw new Error(`never: ${what}`);
}
const all = (selector, place = document) => [...place.querySelectorAll(selector)];
async function drawEvery() {
  for (const chart of all(".joma-chart")) {
    chart.scrollIntoView();
    await until(() => chart.querySelector("canvas"), `drawn ${chart.id}`);
  }
}
"""
DRAWN = "await drawEvery(); return [all('.joma-chart').length, all('.joma-chart canvas').length];"
OVERFLOW = "await drawEvery(); return document.documentElement.scrollWidth - document.documentElement.clientWidth;"
CUT = "return all('.scroll').map((each) => each.scrollWidth - each.clientWidth);"
CHOSEN = """
const chart = document.getElementById("compare-entropy");
chart.scrollIntoView();
await until(() => chart.view, "drawn");
const picture = () => chart.querySelector("canvas").toDataURL();
const seen = () => ({ where: chart.view.view.signal("choose_compare_entropy"), picture: picture() });
const before = seen();
const menu = chart.querySelector("select");
menu.value = "layer 2";
for (const kind of ["input", "change"]) menu.dispatchEvent(new Event(kind, { bubbles: true }));
await until(() => seen().where === "layer 2" && seen().picture !== before.picture, "another layer");
return [before, seen()];
"""
SORTED = """
const table = document.querySelector("table.sortable");
const header = all("th", table).find((each) => each.textContent === "run");
header.focus();
header.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
return [...table.tBodies[0].rows].map((row) => row.cells[0].textContent.trim());
"""
FILTERED = """
const chip = all("[data-filter]").find((each) => each.dataset.filter === "holds");
chip.click();
const rows = all("tr[data-outcome]");
return [rows.filter((row) => !row.hidden).map((row) => row.dataset.outcome), chip.getAttribute("aria-pressed")];
"""

SEARCHED = """
const box = document.getElementById("search");
const seen = () => ({
  rows: all("tr[data-outcome]").filter((row) => !row.hidden).map((row) => row.textContent.toLowerCase()),
  sections: all("main section").filter((each) => !each.hidden).map((each) => each.id),
  query: new URL(location.href).searchParams.get("q"), value: box.value,
});
const type = (text) => { box.value = text; box.dispatchEvent(new Event("input", { bubbles: true })); return seen(); };
const press = (key) => {
  box.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  return seen();
};
"""
LABELS = """
return all("table.cards tbody td").filter((cell) => cell.textContent && cell.checkVisibility()).map((cell) => {
  const name = cell.closest("table").tHead.rows[0].cells[cell.cellIndex].textContent;
  return [name.trim(), getComputedStyle(cell, "::before").content.replaceAll('"', "").trim()];
});
"""
HIDDEN_ON_PAPER = """
const visible = (selector) => all(selector).filter((each) => each.checkVisibility()).length;
return [visible("nav"), visible("button"), visible(".search"), visible("main section") > 0,
  all(".joma-chart").every((each) => getComputedStyle(each).breakInside === "avoid"),
  getComputedStyle(document.body).backgroundColor];
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Runs, a scan and a simulation, with names that would break a page that trusts them."""
    folder = tmp_path_factory.mktemp("site")
    watched(folder / "b", heads=2, num_layers=3, config={"note": HOSTILE}, name=HOSTILE)
    watched(folder / "a", seed=5, num_layers=3, config={"learning_rate": 0.5})
    scanned(folder / "c")
    simulated(folder / "flow")
    report(folder)
    return folder


@pytest.mark.parametrize("name", ["index", "run-1", "simulation-1"])
def test_every_chart_is_drawn_without_a_complaint(browser, site, name):
    with browser.tab(site / f"{name}.html") as tab:
        charts, drawn = tab.run(TOOLS + DRAWN)
        assert charts == drawn > 0
        assert tab.complaints() == []


@pytest.mark.parametrize("name", ["figure6", "figure4", "figure5", "table1"])
def test_pages_of_experiments_are_drawn_without_a_complaint(browser, kept, name):
    with browser.tab(kept / f"{name}.html", scheme="dark") as tab:
        charts, drawn = tab.run(TOOLS + DRAWN)
        assert charts == drawn > 0
        assert tab.complaints() == []


def test_no_page_needs_sideways_scrolling_on_a_phone(browser, kept, site):
    for page in (
        kept / "index.html",
        kept / "claims.html",
        kept / "figure6.html",
        site / "runs.html",
        site / "run-1.html",
    ):
        with browser.tab(page, width=390) as tab:
            assert tab.run(TOOLS + OVERFLOW) <= 1, page.name


@pytest.mark.parametrize("width", [1280, 390])
def test_no_table_is_cut(browser, kept, site, width):
    for page in (kept / "claims.html", site / "runs.html", site / "run-1.html"):
        with browser.tab(page, width=width) as tab:
            assert max(tab.run(TOOLS + CUT)) <= 1, page.name


def test_a_chosen_layer_is_drawn(browser, site):
    with browser.tab(site / "runs.html") as tab:
        before, after = tab.run(TOOLS + CHOSEN)
        assert before["where"] == "mean over layers" and after["where"] == "layer 2"
        assert before["picture"] != after["picture"]


def test_tables_sort_by_keyboard(browser, site):
    with browser.tab(site / "runs.html") as tab:
        assert tab.run(TOOLS + SORTED) == ["a", "b", "c"]


def test_claims_are_filtered_by_outcome(browser, kept):
    with browser.tab(kept / "claims.html") as tab:
        shown, pressed = tab.run(TOOLS + FILTERED)
        assert set(shown) == {"holds"}
        assert pressed == "true"


def test_the_index_is_searched_and_the_address_keeps_the_words(browser, kept):
    with browser.tab(kept / "index.html") as tab:
        script = "return [seen(), type('Figure6 HOLDS'), press('Escape'), type('nowhere-at-all')];"
        before, found, cleared, nothing = tab.run(TOOLS + SEARCHED + script)
        assert 0 < len(found["rows"]) < len(before["rows"])
        assert all("figure6" in row and "holds" in row for row in found["rows"])
        assert {"claims", "figure6"} <= set(found["sections"]) < set(before["sections"])
        assert found["query"] == "Figure6 HOLDS"
        assert (cleared["rows"], cleared["sections"], cleared["query"]) == (before["rows"], before["sections"], None)
        assert nothing["rows"] == nothing["sections"] == []
        assert tab.complaints() == []
    with browser.tab((kept / "index.html").as_uri() + "?q=Figure6+HOLDS") as tab:
        assert tab.run(TOOLS + SEARCHED + "return seen();") == {**found, "value": "Figure6 HOLDS"}


def test_search_and_chips_narrow_together(browser, kept):
    with browser.tab(kept / "index.html") as tab:
        script = "document.querySelector('[data-filter=refuted]').click(); return type('figure6');"
        rows = tab.run(TOOLS + SEARCHED + script)["rows"]
        assert rows and all("figure6" in row and "refuted" in row for row in rows)


def test_a_hostile_query_stays_text(browser, site):
    with browser.tab((site / "index.html").as_uri() + "?q=" + quote(HOSTILE)) as tab:
        seen = tab.run(TOOLS + SEARCHED + "return seen();")
        assert seen["value"].startswith("<script>alert(1)") and seen["sections"] == ["runs"]  # the run of that name
        assert tab.complaints() == []


def test_every_value_on_a_card_has_its_name(browser, kept, site):
    for page in (kept / "claims.html", site / "runs.html", site / "run-1.html"):
        with browser.tab(page, width=390) as tab:
            labels = tab.run(TOOLS + LABELS)
            assert labels and all(name == shown for name, shown in labels), page.name


def test_paper_has_no_controls_whole_charts_and_light_colours(browser, kept):
    with browser.tab(kept / "index.html", scheme="dark") as tab:
        tab.call(
            "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
        )
        assert tab.run(TOOLS + HIDDEN_ON_PAPER) == [0, 0, 0, True, True, "rgb(255, 255, 255)"]


def test_errors_would_be_noticed(browser, site):
    with browser.tab(site / "index.html") as tab:
        tab.run("setTimeout(() => { throw new Error('planted') }); await new Promise((done) => setTimeout(done, 100));")
        assert tab.complaints()
