"""The live view: who may ask for what, what it says of unfinished records, and a training that grows, dies, goes on."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest

from joma.page.live import MAX_CURVE, LiveFolder, LiveServer

from .chromium import CHROMIUM, SECONDS, chromium
from .made_runs import HOSTILE, large, watched

TRAINING = """
import json, sys
from joma.store import open_run

folder, name = json.loads(sys.argv[1])
with open_run(folder, kind="watch", config={}, flush_seconds=1e9) as run:
    for line in sys.stdin:
        for step in range(*json.loads(line)):
            run.add(step, "loss", 9 / (step + 1), kind="model")
            for layer in range(2):
                for head in range(-1, 2):
                    where = {"site": f"{name}.{layer}", "kind": "attention", "layer": layer, "head": head}
                    run.add(step, "entropy", 3 - layer - step / 100, **where)
            if step == 10:
                run.event(step, "alarm", f"{name} has collapsed", level="warning", site=f"{name}.1")
        run.flush()
        print("written", flush=True)
"""
WATCHING = """
import sys, torch, joma

layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
joma.watch(layer, out=sys.argv[1], every=1).live()
sys.stdin.read()
"""
SHOWN = """
const plots = [...document.querySelectorAll(".joma-plot")].filter((each) => each.querySelector("canvas"));
const text = (id) => document.getElementById(id).textContent;
return { status: text("status"), facts: text("facts"), plots: plots.length,
  alarms: [...document.querySelectorAll("#alarms td")].map((each) => each.textContent),
  points: JSON.parse(document.querySelector("#curves script").textContent || "{}").concat?.[0].data.columns.x.length };
"""
ZOOM_AND_COUNT_GAPS = """
window.gaps = 0;
const plot = document.querySelector("#curves .joma-plot");
document.getElementById("curves").view.view.signal("zoom_0_x", [1, 3]).run();
new MutationObserver(() => { window.gaps += !plot.querySelector(":scope > div:not(.joma-stage) canvas"); })
  .observe(plot, { childList: true, subtree: true });
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    watched(folder / "run", num_layers=2, num_steps=5, heads=2)
    with LiveServer(folder) as started:
        threading.Thread(target=started.serve_forever, daemon=True).start()
        yield started
        started.shutdown()


def ask(address, path="", *, method="GET", host=None):
    """Return the status and the body of an answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    below = path if path.startswith("/") else parts.path + path
    connection.request(method, below, headers={"Host": host or parts.netloc})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 200),
        ({"path": "assets/charts.js"}, 200),
        ({"path": "data"}, 200),
        ({"path": "data?run=../../etc&seen=1&run=2"}, 200),
        ({"host": "localhost:99"}, 200),
        ({"path": "other"}, 404),
        ({"path": "assets/../live.py"}, 404),
        ({"path": "run/run.json"}, 404),
        ({"path": "/guessed/data"}, 403),
        ({"path": "//data"}, 403),
        ({"path": "/"}, 403),
        ({"host": "rebound.example"}, 403),
        ({"host": "127.0.0.1.example:80"}, 403),
        *[({"method": method, "path": "data"}, 501) for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")],
    ],
)
def test_only_the_page_is_served_to_who_has_the_token(server, asked, status):
    assert ask(server.address, **asked)[0] == status
    assert server.server_address[0] == "127.0.0.1"


def test_charts_are_sent_once(server):
    first = json.loads(ask(server.address, "data")[1])
    assert set(first["charts"]) == {"curves", "heads"}
    again = server.live.state(run=first["name"], seen=first["version"])
    assert "charts" not in again
    assert again["status"] == "finished"


def test_a_folder_that_does_not_exist_and_a_half_written_record_are_waited_for(tmp_path):
    live = LiveFolder(tmp_path / "later")
    assert live.state()["status"] == "waiting"
    watched(tmp_path / "later", num_layers=1, num_steps=3)
    about = tmp_path / "later" / "run.json"
    complete = about.read_text()
    about.write_text(complete[:99])
    assert live.state()["message"]
    about.write_text(complete)
    rows = next((tmp_path / "later" / "metrics").iterdir())
    content = rows.read_bytes()
    rows.write_bytes(content[:99])
    assert live.state()["status"] == "waiting"
    rows.write_bytes(content)
    assert live.state()["charts"]["curves"]


def test_a_long_run_of_many_layers_stays_small(tmp_path):
    large(tmp_path, num_layers=48, num_steps=4000, metrics=["entropy"])
    state = LiveFolder(tmp_path).state()
    assert len(json.dumps(state)) < 4e6
    assert len(state["charts"]["curves"]["spec"]["data"]["columns"]["x"]) <= 48 * MAX_CURVE


def started(command, **options):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def until(tab, **wanted):
    """Wait until the page shows these values, and return all that it shows."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        shown = tab.run(SHOWN)
        if shown | wanted == shown:
            return shown
        time.sleep(0.1)
    raise AssertionError(f"never shown; the page says {shown}")


@pytest.mark.slow  # starts a browser, a server and two trainings, and waits for the page to ask again
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's package chromium to run these")
def test_a_training_that_grows_dies_and_goes_on_is_followed(tmp_path):
    folder = tmp_path / "runs" / "first"

    def train():
        return started([sys.executable, "-c", TRAINING, json.dumps([str(folder), HOSTILE])])

    def write(first, last):
        training.stdin.write(f"[{first}, {last}]\n")
        training.stdin.flush()
        assert training.stdout.readline()

    live = [sys.executable, "-m", "joma", "report", "--live", "--json", str(folder)]
    with started(live, stderr=subprocess.PIPE) as server, chromium(tmp_path / "profile") as browser:
        address = json.loads(server.stdout.readline())["address"]
        with browser.tab(address) as tab:
            assert until(tab, status="waiting")["plots"] == 0
            training = train()
            write(0, 5)
            assert "step 4" in until(tab, status="running", plots=2)["facts"]
            tab.run(ZOOM_AND_COUNT_GAPS)
            write(5, 20)
            until(tab, points=20, alarms=["10", f"{HOSTILE}.1", f"{HOSTILE} has collapsed"])
            training.kill()
            training.communicate()
            until(tab, status="died")
            training = train()
            write(20, 30)
            assert "step 29" in until(tab, status="running", points=30)["facts"]
            training.communicate()
            until(tab, status="finished")
            zoomed = 'return [window.gaps, document.getElementById("curves").view.view.scale("concat_0_x").domain()]'
            assert tab.run(zoomed) == [0, [1, 3]]
            assert tab.complaints() == []
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=60)
            assert server.returncode == 0
            assert len(said.splitlines()) == 1
            assert until(tab, status="not connected")["plots"] == 2


def test_the_view_of_a_watch_ends_with_its_process(tmp_path):
    with started([sys.executable, "-c", WATCHING, str(tmp_path / "run")]) as training:
        address = training.stdout.readline().split()[-1]
        assert json.loads(ask(address, "data")[1])["status"] == "running"
        training.kill()
    deadline = time.monotonic() + SECONDS
    with pytest.raises(ConnectionError):
        while time.monotonic() < deadline:
            ask(address)
            time.sleep(0.1)
