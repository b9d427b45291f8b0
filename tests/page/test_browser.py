"""The page in a real browser, without a network: it draws, sorts and switches, wide, narrow and dark, with no error."""

import pytest

from joma.checks import verify
from joma.page import reproduction as reproduction_page
from joma.page.report import report
from joma.page.verification import write as write_verdicts
from joma.store import open_run

from .chromium import CHROMIUM, chromium
from .made_reproduction import experiment, reproduced
from .made_runs import HOSTILE, scanned, simulated, watched

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's package chromium to run these")

TOOLS = """
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
async function until(condition, what) {
  for (let turn = 0; turn < 1000; turn += 1) { if (condition()) return; await pause(20); }
  throw new Error(`never: ${what}`);
}
const all = (selector, place = document) => [...place.querySelectorAll(selector)];
const isDrawn = (figure) => figure.querySelector(".cartesianlayer path, .cartesianlayer image") !== null;
async function drawEvery() {
  for (const figure of all(".figure").filter((each) => each.offsetParent && !isDrawn(each))) {
    figure.scrollIntoView();
    await until(() => isDrawn(figure), `drawn ${figure.getAttribute("aria-label")}`);
  }
  for (const chart of all(".joma-chart")) {
    chart.scrollIntoView();
    await until(() => chart.querySelector("canvas"), `drawn ${chart.id}`);
  }
}
"""
DRAW = """
for (const chip of all("[data-panel]")) { chip.click(); await drawEvery(); }
return {
  sections: all("main > section").map((section) => section.id),
  figures: all(".figure").length,
  drawn: all(".figure").filter(isDrawn).length,
  simulations: all(".joma-plot canvas").length,
};
"""
COMPARE = """
const side = document.getElementById("side-by-side");
side.querySelector("[data-panel]").click();
await drawEvery();
const select = side.querySelector(".panel:not([hidden]) [data-choice]");
const place = select.closest(".panel").querySelector(".figure");
const choices = all("option", select).map((option) => option.value);
select.value = "layer 1";
select.dispatchEvent(new Event("change"));
await until(() => place.data.filter((trace) => trace.visible === true).length === 3, "a layer chosen");
const shown = place.data.filter((trace) => trace.visible === true).map((trace) => trace.meta.choice);
const legend = all(".legendtext", place).map((text) => text.textContent);
for (const kind of ["mousedown", "mouseup"]) {
  all(".legendtoggle", place)[0].dispatchEvent(new MouseEvent(kind, { bubbles: true }));
}
await until(() => place.data.some((trace) => trace.visible === "legendonly"), "a line switched off by the legend");
const axes = [];
for (const kind of ["log", "linear"]) {
  document.querySelector(`[data-steps=${kind}]`).click();
  axes.push(place.layout.xaxis.type, document.querySelector(`[data-steps=${kind}]`).getAttribute("aria-pressed"));
}
return { choices, shown, legend, axes };
"""
STEADY = """
await drawEvery();
const place = document.querySelector("#side-by-side .figure");
const select = document.querySelector("#side-by-side [data-choice]");
const span = () => { const [low, high] = place._fullLayout.yaxis.range; return high - low; };
const spans = [span()];
for (const layer of ["layer 1", "layer 0"]) {
  select.value = layer;
  select.dispatchEvent(new Event("change"));
  await until(() => place.data.every((trace) => (trace.visible === true) === (trace.meta.choice === layer)), layer);
  await pause(100);
  spans.push(span());
}
return { spans, hover: place.data[0].hovertemplate };
"""
SORT = """
for (const header of all("table.sortable th")) for (const turn of [1, 2, 3]) header.click();
const table = document.querySelector("#runs table");
const sorted = {};
for (const name of ["run", "last step"]) {
  const header = all("th", table).find((each) => each.textContent === name);
  header.removeAttribute("aria-sort");
  header.click();
  const column = [...header.parentNode.children].indexOf(header);
  sorted[name] = [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
}
return sorted;
"""
EVERYTHING_ELSE = """
for (const chip of all("[data-filter]")) chip.click();
for (const details of all("details")) details.open = true;
for (const link of all("nav a")) link.click();
for (const button of all(".modebar-btn")) if (!button.dataset.title.startsWith("Download")) button.click();
await pause(300);
return all(".modebar-btn").map((button) => button.dataset.title);
"""
LOOK = """
await drawEvery();
const width = document.documentElement.clientWidth;
const outside = (each) => !each.closest(".scroll, .figure, pre") && each.getBoundingClientRect().right > width + 1;
return {
  width,
  tooWide: document.documentElement.scrollWidth - width,
  outside: all("body *").filter(outside).map((each) => each.outerHTML.slice(0, 80)),
  ink: getComputedStyle(document.querySelector(".figure .xtick text")).fill,
  paper: getComputedStyle(document.body).backgroundColor,
};
"""
SORT_EVERY = """
for (const details of all("details")) details.open = true;
const wrong = [];
for (const table of all("table")) {
  const rows = [...table.tBodies[0].rows];
  for (const [column, header] of all("th", table).entries()) {
    const keys = () => [...table.tBodies[0].rows].map((row) => key(row.cells[column]));
    const isSorted = (found, sign) => found.slice(1).every((each, at) => sign * compare(found[at], each) <= 0);
    header.click();
    if (header.getAttribute("aria-sort") !== "ascending" || !isSorted(keys(), 1)) wrong.push(header.textContent);
    header.click();
    if (header.getAttribute("aria-sort") !== "descending" || !isSorted(keys(), -1)) wrong.push(header.textContent);
  }
  if (new Set([...table.tBodies[0].rows, ...rows]).size !== rows.length) wrong.push("rows lost");
}
return { tables: all("table").length, wrong };
"""
FILTER = """
const shown = () => all("#summary tbody tr").filter((row) => row.offsetParent).map((row) => row.cells[2].textContent);
const chosen = {};
for (const outcome of ["refuted", "not run"]) {
  all("#summary [data-filter]").find((each) => each.dataset.filter === outcome).click();
  chosen[outcome] = shown();
}
all("#summary [data-filter]")[0].click();
return { ...chosen, all: shown().length };
"""
UNFOLD = """
const rows = () => all("#summary tbody tr").filter((row) => row.offsetParent).length;
const headings = () => all("#summary th").filter((each) => each.offsetParent).map((each) => each.textContent);
const box = document.querySelector("#summary .unfold input");
const label = box.closest("label");
const seen = () => ({ rows: rows(), published: headings().includes("published"), says: label.innerText });
const found = [seen()];
label.click();
found.push(seen());
label.click();
found.push(seen());
return found;
"""
CARDS = """
for (const details of all("details")) details.open = true;
const swiped = (place) => place.scrollWidth > place.clientWidth + 1;
const row = document.querySelector("#summary tbody tr[data-outcome=refuted]");
const shown = [...row.cells].filter((cell) => cell.offsetParent);
return {
  swiped: all(".summary .scroll, .claim .scroll").filter(swiped).length,
  isCard: getComputedStyle(row).display === "grid",
  headings: all("#summary th").filter((heading) => heading.offsetParent).length,
  names: shown.map((cell) => getComputedStyle(cell, "::before").content.replaceAll('"', "").trim()),
  lines: new Set(shown.map((cell) => cell.getBoundingClientRect().top)).size,
};
"""
DOWNLOAD = """
const link = document.querySelector("#figure6 a[download$='scores.csv']");
const text = new TextDecoder().decode(Uint8Array.from(atob(link.href.split(",")[1]), (c) => c.charCodeAt(0)));
return text.split("\\n")[0];
"""


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    """The report of a reproduction, quick and with hostile names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction_page, "experiment", experiment)
        return report(reproduced(tmp_path_factory.mktemp("rebuilt")))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of two seeds, a deep network, a scan, hostile names, a simulation and a statement."""
    root = tmp_path_factory.mktemp("browsed")
    for seed in range(2):
        watched(root / "small" / f"seed-{seed}", seed=seed, num_layers=3, num_steps=21)
    watched(root / "deep", num_layers=14, num_steps=12, config={"learning_rate": 3e-4}, heads=2, status="running")
    config = {"note": HOSTILE, HOSTILE: {"deep": [HOSTILE]}}
    watched(root / HOSTILE.replace("/", "_"), num_layers=2, num_steps=9, config=config, name=HOSTILE, metrics=[HOSTILE])
    scanned(root / "pythia")
    simulated(root / "flow")
    write_verdicts(verify("lemma5"), root)
    return report(root)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def opened(browser, page):
    with browser.tab(page) as tab:
        yield tab


@pytest.fixture
def tab(opened):
    """The page, which whatever is done to it has neither complained nor loaded anything."""
    yield opened
    assert opened.complaints() == [] and opened.requests() == []


def test_every_section_is_there_and_every_figure_is_drawn(tab):
    found = tab.run(TOOLS + DRAW)
    assert found["sections"] == [
        "runs",
        "side-by-side",
        "run-1",
        "run-2",
        "run-3",
        "run-4",
        "simulation-model",
        "statements",
    ]
    assert found["figures"] == found["drawn"] > 20 and found["simulations"] == 1


def test_layers_lines_and_axes_are_switched_and_names_are_shown_as_they_are(tab):
    found = tab.run(TOOLS + COMPARE)
    assert found["choices"][:3] == ["mean over layers", "layer 0", "layer 1"] and "layer 13" in found["choices"]
    assert found["shown"] == ["layer 1"] * 3 and found["axes"] == ["log", "true", "linear", "true"]
    assert any(name.endswith("&amp;%{y}") for name in found["legend"]) and "deep" in found["legend"]


def test_tables_sort_by_text_and_by_number(tab):
    found = tab.run(TOOLS + SORT)
    assert len(found["run"]) == 5 and found["run"][-2:] == ["small/seed-0", "small/seed-1"]
    assert found["last step"] == ["400", "550", "1000", "1000", "65536"]


def test_nothing_offers_to_send_data_anywhere(tab):
    titles = tab.run(TOOLS + EVERYTHING_ELSE)
    assert titles and not any("hare" in title or "loud" in title for title in titles)


@pytest.mark.parametrize("width", [390, 768], ids=["phone", "tablet"])
def test_narrow_screens_need_no_sideways_scrolling(browser, page, width):
    with browser.tab(page, width=width) as tab:
        found = tab.run(TOOLS + LOOK)
        assert found["width"] == width and found["tooWide"] <= 0 and found["outside"] == []
        assert tab.complaints() == []


def test_scales_of_flat_curves_stay_wide_whatever_layer_is_chosen(browser, tmp_path):
    for name, changes in (("a", (1e-5, 1.0)), ("b", (2e-5, 1.0))):
        with open_run(tmp_path / name, kind="watch", config={}) as run:
            for step in range(20):
                for layer, change in enumerate(changes):
                    value = 2 - change * step / 19
                    run.add(step, "entropy", value, site=f"h.{layer}", kind="attention", layer=layer)
    with browser.tab(report(tmp_path)) as tab:
        found = tab.run(TOOLS + STEADY)
        mean, moving, flat = found["spans"]
        assert 0.5 < mean < 1 < moving < 1.5 and 0.2 <= flat < 0.3 and "%{y:.7~g}" in found["hover"]
        assert tab.complaints() == []


def test_figures_follow_a_dark_page_and_back(browser, page):
    with browser.tab(page, scheme="dark") as tab:
        dark = tab.run(TOOLS + LOOK)
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        light = tab.run(TOOLS + "await pause(500);" + LOOK)
        assert (dark["paper"], dark["ink"]) == ("rgb(20, 24, 31)", "rgb(230, 233, 240)")
        assert (light["paper"], light["ink"]) == ("rgb(255, 255, 255)", "rgb(29, 36, 51)")
        assert tab.complaints() == []


def test_errors_and_loads_would_be_noticed(browser, page):
    """The control of the others: the same page, spoilt."""
    with browser.tab(page) as tab:
        tab.run("console.error('said'); setTimeout(() => { throw new Error('thrown'); })")
        tab.run(
            "new Image().src = 'https://example.org/picture.png'; await new Promise((done) => setTimeout(done, 300))"
        )
        told = str(tab.complaints())
        assert all(word in told for word in ("said", "thrown", "picture.png"))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")], ids=["laptop", "dark phone"])
def test_a_reproduction_is_drawn_sorted_filtered_and_fits(browser, rebuilt, width, scheme):
    with browser.tab(rebuilt, width=width, scheme=scheme) as tab:
        found = tab.run(TOOLS + "await drawEvery();" + DRAW)
        assert found["sections"] == ["summary", "figure6", "figure99", "figure7", "table1"]
        assert found["figures"] == found["drawn"] == 5
        look = tab.run(TOOLS + LOOK)
        assert look["width"] == width and look["tooWide"] <= 0 and look["outside"] == []
        assert look["ink"] == {"light": "rgb(29, 36, 51)", "dark": "rgb(230, 233, 240)"}[scheme]
        sorting = tab.run(TOOLS + SORT_EVERY)
        assert sorting["tables"] > 8 and sorting["wrong"] == []
        assert tab.run(TOOLS + FILTER) == {"refuted": ["refuted"], "not run": ["not run"] * 2, "all": 5}
        folded, opened, again = tab.run(TOOLS + UNFOLD)
        assert (
            folded
            == again
            == {
                "rows": 5,
                "published": False,
                "says": "Show 3 more: 1 inconclusive at this size, 2 not run",
            }
        )
        assert opened == {"rows": 8, "published": True, "says": "Show fewer"}
        assert tab.run(TOOLS + DOWNLOAD) == "setting,trained,untrained,published,note"
        assert tab.complaints() == [] and tab.requests() == []


def test_print_has_the_rows_that_are_folded_away(browser, rebuilt):
    with browser.tab(rebuilt) as tab:
        rows = 'return all("#summary tbody tr").filter((row) => row.offsetParent).length'
        assert tab.run(TOOLS + rows) == 5
        tab.call("Emulation.setEmulatedMedia", media="print")
        assert tab.run(TOOLS + rows) == 8
        assert tab.run(TOOLS + 'return all(".unfold").filter((each) => each.offsetParent).length') == 0


@pytest.mark.parametrize("width", [320, 390], ids=["small phone", "phone"])
def test_claims_are_cards_on_a_phone_that_need_no_swiping(browser, rebuilt, width):
    with browser.tab(rebuilt, width=width, height=844) as tab:
        found = tab.run(TOOLS + CARDS)
        assert found["isCard"] and found["swiped"] == 0 and found["headings"] == 7
        assert found["names"][-4:] == ["statistic", "measured", "threshold", "control"]  # nothing was published
        assert found["lines"] == 4  # where and verdict, the claim, its numbers, what they are
        assert tab.run("return document.documentElement.scrollWidth") == width


def test_claims_are_a_table_on_a_laptop(browser, rebuilt):
    with browser.tab(rebuilt, width=1280, height=800) as tab:
        found = tab.run(TOOLS + CARDS)
        assert not found["isCard"] and found["lines"] == 1 and found["swiped"] == 0


def test_bands_and_bars_follow_a_dark_page(browser, rebuilt):
    colors = """
    await drawEvery();
    const [lines, , , bars] = all(".figure");
    return [lines.data[0].fillcolor, lines.data[1].line.color, bars.data[0].marker.color, bars.data[0].error_y.color];
    """
    with browser.tab(rebuilt, scheme="dark") as tab:
        dark = tab.run(TOOLS + colors)
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        light = tab.run(TOOLS + "await pause(500);" + colors)
        assert dark[2:] == ["#6db3f2", "#e6e9f0"] and light[2:] == ["#0b62a8", "#1d2433"]
        assert all(first != second for first, second in zip(dark, light, strict=True))
        assert tab.complaints() == []
