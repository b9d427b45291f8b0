"""Pages in a real browser, without a network: they draw, sort and filter, wide, narrow and dark, with no error."""

import base64
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from joma.page.report import report

from .chromium import CHROMIUM, SECONDS, chromium
from .made_runs import HOSTILE, scanned, simulated, watched

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's package chromium to run these")

MOST_PAGES = 12
"""Of paper that a page may take."""
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
if (!location.search) chip.click();
const rows = all("tr[data-outcome]").filter((row) => !row.hidden);
return [rows.map((row) => row.dataset.outcome), chip.getAttribute("aria-pressed"), location.search];
"""
ON_FIRST_SCREEN = """
await until(() => all(".headlines .joma-chart").every((each) => each.view), "drawn");
const bottom = (each) => each.getBoundingClientRect().bottom;
return [all(".headlines .joma-chart").filter((each) => bottom(each) <= innerHeight).length,
  all(".headlines tr[data-outcome]").filter((each) => bottom(each) <= innerHeight).length];
"""
NEXT_TO_IT = """
await until(() => all(".joma-chart").some((each) => each.view), "drawn");
return all("article.claim").map((claim) => {
  const chart = claim.closest(".finding").querySelector("figure");
  return [claim.id, chart.id, claim.getBoundingClientRect().left >= chart.getBoundingClientRect().right];
});
"""
SCROLLED = """
scrollTo(0, document.documentElement.scrollHeight);
await pause(100);
const [nav, top] = [document.querySelector("nav"), document.querySelector("nav .top")];
const seen = [scrollY, nav.getBoundingClientRect().top];
top.click();
await pause(100);
return [...seen, scrollY];
"""
SUBMIT = """
const form = document.querySelector("nav form");
form.q.value = "rank";
setTimeout(() => form.requestSubmit());
"""
DEAD_LINKS = """
const addresses = all("a[href]").map((each) => each.getAttribute("href")).filter((each) => !each.startsWith(".."));
return addresses.filter((each) => each !== "#" && !(each.startsWith("#") && document.getElementById(each.slice(1))));
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
return [visible("nav"), visible("button"), visible("input"), visible("main section") > 0,
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


def test_claims_are_filtered_by_outcome_and_the_address_keeps_it(browser, kept):
    for page in (kept / "claims.html", (kept / "claims.html").as_uri() + "?outcome=holds"):
        with browser.tab(page) as tab:
            shown, pressed, address = tab.run(TOOLS + FILTERED)
            assert set(shown) == {"holds"}
            assert (pressed, address) == ("true", "?outcome=holds")


def test_the_first_screen_has_charts_and_claims(browser, kept):
    with browser.tab(kept / "index.html", height=800) as tab:
        charts, claims = tab.run(TOOLS + ON_FIRST_SCREEN)
        assert charts >= 2
        assert claims >= 2


def test_claims_stand_next_to_their_charts(browser, kept):
    with browser.tab(kept / "figure6.html") as tab:
        found = tab.run(TOOLS + NEXT_TO_IT)
        assert {claim: chart for claim, chart, _ in found} == {
            "figure6-rebound": "figure6-entropy",
            "figure6-bottom": "figure6-entropy",
            "figure6-rank": "figure6-rank",
            "figure6-losses": "figure6-loss",
            "figure6-precision": "figure6-loss",
        }
        assert all(is_at_its_side for *_, is_at_its_side in found)


def test_navigation_stays_and_leads_back_to_the_top(browser, kept):
    with browser.tab(kept / "figure6.html", width=390) as tab:
        down, place, back = tab.run(TOOLS + SCROLLED)
        assert down > 900
        assert (place, back) == (0, 0)
        tab.run(TOOLS + SUBMIT)
        deadline = time.monotonic() + SECONDS
        while tab.run("return location.search") != "?q=rank" and time.monotonic() < deadline:
            time.sleep(0.2)
        found = "await until(() => all('tr[hidden]').length, 'rows without the word'); return location.pathname;"
        assert tab.run(TOOLS + found).endswith("/index.html")
        assert tab.complaints() == []


def test_one_file_is_searched_and_all_its_links_lead_somewhere(browser, tmp_path):
    watched(tmp_path / "run", num_layers=1, num_steps=5)
    page = report(Path(__file__).parents[2] / "results", tmp_path, out=tmp_path, single=True)
    with browser.tab(page) as tab:
        assert tab.run(TOOLS + DEAD_LINKS) == []
        found = tab.run(TOOLS + SEARCHED + "return type('figure6 holds');")
        assert found["rows"] and {"claims", "figure6"} <= set(found["sections"])
        assert tab.complaints() == []


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


@pytest.mark.parametrize("name", ["index", "figure6"])
def test_few_pages_of_paper_hold_every_chart_though_nobody_scrolled(browser, kept, name):
    with browser.tab(kept / f"{name}.html") as tab:
        tab.run(TOOLS + "await until(() => all('.joma-chart').every((each) => each.view), 'drawn');")
        paper = base64.b64decode(tab.call("Page.printToPDF")["data"])
        assert 1 < len(re.findall(rb"/Type\s*/Page\b", paper)) <= MOST_PAGES


def test_errors_would_be_noticed(browser, site):
    with browser.tab(site / "index.html") as tab:
        tab.run("setTimeout(() => { throw new Error('planted') }); await new Promise((done) => setTimeout(done, 100));")
        assert tab.complaints()
