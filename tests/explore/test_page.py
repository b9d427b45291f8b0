"""The explorer's page: who may ask for what, and in a real browser sliders, keys, statements and a film."""

import json
import signal
import statistics
import subprocess
import sys

import pytest
from page.chromium import CHROMIUM, chromium
from page.made_runs import HOSTILE, watched
from page.test_live import ask

from joma.claims import statements
from joma.explore import ExploreServer, sliders, write_static
from joma.explore.page import TRY, render

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's package chromium to run these")
COMMAND = [sys.executable, "-m", "joma", "explore", "--json"]
MOST_MILLISECONDS = 3000
"""Median of a move on a machine that does other work as well; `benchmarks/explore.py` measures it on an idle one."""
TOOLS = """
const $ = (id) => document.getElementById(id);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
async function until(condition, what) {
  for (let turn = 0; turn < 1000; turn += 1) { if (condition()) return; await pause(20); }
  throw new Error(`never: ${what}`);
}
const shown = () => [...document.querySelectorAll("section:not([hidden]) .joma-chart:not([hidden])")];
async function drawAll() {
  for (const figure of shown()) {
    figure.scrollIntoView();
    await until(() => figure.view?.spec.usermeta?.version === figure.version, `drawn ${figure.id}`);
  }
}
const rows = (id, name) => $(id).view.view.data(name);
async function move(name, by) {
  const field = $("controls").elements[name];
  const drawn = new Promise((resolve) => document.addEventListener("explore-drawn", resolve, { once: true }));
  field.options ? field.value = by : field.value = Number(field.value) + by;
  const begun = performance.now();
  field.dispatchEvent(new Event("input", { bubbles: true }));
  await drawn;
  return performance.now() - begun;
}
await until(() => $("title").textContent, "an answer");
"""
DRAWN = "await drawAll(); return shown().map((each) => each.id);"
OVERFLOW = "await drawAll(); return document.documentElement.scrollWidth - document.documentElement.clientWidth;"
MOVED = """
await drawAll();
const state = () => ({ v: rows("weights", "paths").at(-1).v, tokens: rows("attention", "now").length,
  entropy: rows("entropy", "curve").at(-1).entropy, dip: rows("entropy", "dip").length });
const states = [state()];
const views = shown().map((each) => each.view);
for (const [name, by] of [["high", -4], ["tokens", -5], ["noise", 3]]) { await move(name, by); states.push(state()); }
return [shown().every((each, place) => each.view === views[place]), ...states];
"""
TIMES = """
await drawAll();
const times = [], moves = [["high", -1], ["low", -1], ["seed", 1], ["noise", 1]];
for (let turn = 0; turn < 10; turn += 1)  // no setting twice: answers are kept
  for (const [name, by] of [...moves, [turn % 2 ? "temperature" : "rate_ratio", 1]]) times.push(await move(name, by));
return times;
"""
REFUSED = """
await drawAll();
await move("flow", "model");
await move("attention", "softmax");
const said = [$("error").textContent, document.body.classList.contains("stale")];
await move("attention", "");
return [...said, $("error").hidden];
"""


def press(tab, key, code):
    """Press a key as a person does."""
    text = {"text": key} if len(key) == 1 else {}
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)


def run(tab, script):
    return tab.run(TOOLS + script)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    watched(path / "a", num_layers=2, num_steps=9, heads=3, name=HOSTILE)
    watched(path / "b", num_layers=4, num_steps=9)
    return path


@pytest.fixture(scope="module")
def address(folder):
    """Address of the command's page; it ends with one line and no error."""
    command = [*COMMAND, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        yield json.loads(started.stdout.readline())["address"]
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=60)
    assert (started.returncode, len(said.splitlines())) == (0, 1)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 200),
        ({"path": "assets/explore.js"}, 200),
        ({"path": "curves?flow=saliency&attention=linear"}, 200),
        ({"path": "film?run=../../etc"}, 200),
        ({"path": "data"}, 404),
        ({"path": "/guessed/curves"}, 403),
    ],
)
def test_only_the_page_is_served_to_who_has_the_token(address, asked, status):
    """What else the server refuses is tested with the live view, which has the same one."""
    assert ask(address, **asked)[0] == status


def test_every_server_has_a_token_of_its_own():
    with ExploreServer() as one, ExploreServer() as other:
        assert len(one.token) >= 32
        assert one.token != other.token
        assert one.answers()["film"]({"run": "a"}) == {"runs": []}


def test_refusals_come_back_as_one_line_of_json(address):
    for query in ("tokens=999999", "temperature=nan", "flow=%00", "x=" + "9" * 9999, "flow=model&attention=linear"):
        found = json.loads(ask(address, f"curves?{query}")[1])
        assert set(found) == {"error"}
        assert len(found["error"]) < 300
    assert json.loads(ask(address, "film?run=b")[1])["layers"] == [0, 1, 2, 3]


def test_every_statement_is_on_the_page_and_what_can_be_tried_exists():
    page = render(sliders.SLIDERS, None)
    for each in statements().values():
        assert f'id="theory/{each.id}"' in page
    assert TRY.keys() <= statements().keys()
    assert HOSTILE not in render(sliders.SLIDERS, HOSTILE)


@in_browser
@pytest.mark.slow  # starts a browser and moves sliders fifty times
def test_sliders_move_charts_at_once(address, browser):
    with browser.tab(address) as tab:
        assert set(run(tab, DRAWN)) == {"entropy", "attention", "weights", "phase", "conserved", "law"}
        is_kept, before, lower, fewer, noisy = run(tab, MOVED)
        assert is_kept, "a move compiles no chart anew"
        assert before["dip"] == 1
        assert lower["v"] != before["v"]
        assert (before["tokens"], fewer["tokens"]) == (10, 5)
        assert noisy["entropy"] != fewer["entropy"]
        assert statistics.median(run(tab, TIMES)) < MOST_MILLISECONDS
        message, is_stale, is_gone = run(tab, REFUSED)
        assert "softmax" in message
        assert is_stale
        assert is_gone
        assert tab.complaints() == []
        assert all(each.startswith(address) for each in tab.requests())


@in_browser
@pytest.mark.slow  # waits for a browser to draw
def test_keys_move_sliders_and_turn_pages(address, browser):
    with browser.tab(f"{address}#flows?flow=saliency&attention=linear") as tab:
        run(tab, "$('controls').elements.high.focus(); await drawAll();")
        largest = run(tab, "return rows('weights', 'paths')[0].target;")
        press(tab, "ArrowRight", 39)
        run(tab, "await until(() => $('controls').elements.high.getAttribute('aria-valuetext') === '4.25', 'moved');")
        run(tab, f"await until(() => rows('weights', 'paths')[0].target > {largest}, 'drawn');")
        run(tab, "$('time').focus();")
        press(tab, "Home", 36)
        assert run(tab, "return rows('weights', 'cursor')[0].t;") == 0
        run(tab, "$('time-play').focus();")
        press(tab, " ", 32)
        run(tab, "await until(() => rows('weights', 'cursor')[0].t > 0, 'moving');")
        run(tab, "document.querySelector('nav a[href=\"#theory\"]').focus();")
        press(tab, "\r", 13)
        run(tab, "await until(() => !$('theory').hidden); $('next').focus();")
        press(tab, "\r", 13)
        titles = [each.title for each in statements().values()]
        run(tab, "await until(() => location.hash.startsWith('#theory/'));")
        assert titles[1] in run(tab, "return document.querySelector('article:not([hidden]) h2').textContent;")
        assert tab.complaints() == []


@in_browser
@pytest.mark.slow  # waits for a browser to draw
def test_a_training_is_played_back_and_another_one_chosen(address, browser):
    with browser.tab(f"{address}#film") as tab:
        run(tab, "await until(() => !$('film-shown').hidden, 'film'); await drawAll();")
        run(tab, "await until(() => rows('heads', 'cells').length === 6, 'cells');")
        first = run(tab, "return rows('heads', 'cells')[0].value;")
        run(tab, "$('frame-play').click(); await until(() => Number($('frame').value) === 8, 'the last frame');")
        assert run(tab, "return [rows('heads', 'cells')[0].value, $('frame-value').textContent];") != [first, "0"]
        run(
            tab, "$('run').value = 'b'; $('run').dispatchEvent(new Event('change')); await pause(200); await drawAll();"
        )
        run(tab, "await until(() => rows('heads', 'cells').length === 4, 'the other run');")
        assert tab.complaints() == []


@in_browser
@pytest.mark.slow  # waits for a browser to draw
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["flows", "theory/thm1-learned-softmax", "film"])
def test_a_phone_shows_all_without_scrolling_sideways(address, browser, view, scheme):
    with browser.tab(f"{address}#{view}", width=390, scheme=scheme) as tab:
        assert run(tab, OVERFLOW) <= 0
        assert tab.complaints() == []


@in_browser
@pytest.mark.slow  # computes a grid and waits for a browser to draw
def test_the_page_without_a_server_needs_no_network(tmp_path, browser, folder, monkeypatch):
    few = {"flow": ("saliency", "printed"), "attention": ("linear", "softmax"), "high": (2.5, 4.0)}
    monkeypatch.setattr(sliders, "FEW", few)
    path = write_static(tmp_path / "explore.html", folder)
    with browser.tab(path) as tab:
        run(tab, "await move('flow', 'saliency'); await move('attention', 'linear'); await drawAll();")
        ends = [run(tab, f"await move('high', {by}); return rows('weights', 'paths').at(-1).v;") for by in (-1, 1)]
        assert ends[0] != ends[1]
        assert (
            run(tab, "return $('call').textContent;")
            == sliders.answer({"flow": "saliency", "attention": "linear", "tokens": str(sliders.FEW_TOKENS)})["call"]
        )
        run(tab, "location.hash = 'film'; await until(() => !$('film-shown').hidden, 'film'); await drawAll();")
        assert tab.complaints() == []
        assert tab.requests() == []


def test_the_command_refuses_a_missing_folder_in_one_line(tmp_path):
    done = subprocess.run([*COMMAND, str(tmp_path / "none")], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
