"""The live view: a page that follows a training while it runs, served on this machine alone.

The server, which the explorer uses too, answers GET for three kinds of address, all below a random token: the page, its
assets and JSON, here `data`, the state of the run. It only reads. Other names of this machine in the header `Host` are
refused: a foreign page whose name was made to point here (DNS rebinding) gets nothing.
"""

import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs

from joma.charts import bundle_files
from joma.formatting import duration
from joma.page.runs import ALL_HEADS, Group, leading, leading_charts, load, run_name, status_of
from joma.page.site import render
from joma.store import find_runs, info
from joma.store.record import FILE_NAME

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Names by which a browser may ask; the port is any, since ssh may forward another one."""
POLL_SECONDS, SHARE = 2.0, 5
"""The page asks every two seconds, and less often where drawing would take more than a fifth of a core."""
MAX_POINTS, MAX_CURVE, FEWEST_POINTS = 40_000, 1000, 50
"""Points of all curves together, the most of one, and what each may have in any case."""
MAX_RUNS, MAX_LISTED, MAX_LETTERS = 50, 100, 300
"""Runs of a folder that can be chosen, the newest; alarms that are listed, the last; letters of a name or message."""
TIMEOUT_SECONDS = 10.0
"""For a browser to send its request."""
STATES = {"being written": "running", "interrupted": "died"}
"""What the page calls the states of a run; others keep their name."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveFolder:
    """The newest run at or below a folder, or one that is chosen, as the page shows it."""

    def __init__(self, folder: Path) -> None:
        """Follow a folder, which need not exist yet."""
        self.folder = folder
        self._mutex = threading.Lock()
        self._version = ""
        self._drawn: dict[str, Any] = {}
        self._seconds = 0.0
        """Of a core, that drawing took the last time."""

    def state(self, *, run: str = "", seen: str = "") -> dict[str, Any]:
        """Return status, numbers and alarms of a run, and its charts unless the page shows them already.

        Args:
            run: name of a run of the folder; the newest when it is empty or unknown.
            seen: version of the charts that the page shows.
        """
        with self._mutex:
            written = {path: _time_written(path) for path in find_runs(self.folder)} if self.folder.is_dir() else {}
            newest = sorted(written, key=lambda path: written[path], reverse=True)[:MAX_RUNS]
            named = {run_name(path, self.folder): path for path in newest}
            common: dict[str, Any] = {"wait": max(POLL_SECONDS, SHARE * self._seconds), "runs": sorted(named)}
            if not named:
                return common | {"status": "waiting", "message": "Nothing is recorded here yet. The page waits."}
            name = run if run in named else next(iter(named))
            folder, version = named[name], f"{written[named[name]]} {name}"
            common["name"] = name
            try:
                about = info(folder)
                status = status_of(about)
                if version != self._version:
                    begun = time.thread_time()
                    self._drawn = _drawn(folder, self.folder)
                    self._version, self._seconds = version, time.thread_time() - begun
            except (ValueError, OSError) as error:  # it is being copied, damaged or removed
                reason = " ".join(str(error).split())
                return common | {"status": "waiting", "message": f"This run cannot be read now. {reason}"}
        common |= {"status": STATES.get(status, status), "version": version}
        end = time.time() if common["status"] == "running" else written[folder] / 1e9
        if about.ended is not None:
            end = datetime.fromisoformat(about.ended).timestamp()
        elapsed = max(0.0, end - datetime.fromisoformat(about.started).timestamp())
        return common | {"elapsed": duration(elapsed)} | ({} if version == seen else self._drawn)


def _time_written(folder: Path) -> int:
    try:
        return (folder / FILE_NAME).stat().st_mtime_ns
    except OSError:  # removed just now
        return 0


def _drawn(folder: Path, root: Path) -> dict[str, Any]:
    """Read a run and return its charts, the alarms and how far it is."""
    runs, unreadable = load([folder], root)
    if unreadable:
        raise ValueError(unreadable[0]["reason"])
    (run,), group = runs, Group(name=runs[0].name, runs=tuple(runs))
    rows = run.values
    over_heads = rows[rows["metric"].isin(leading(group)) & (rows["head"] == ALL_HEADS)]
    num_curves = max(1, len(over_heads[["metric", "site"]].drop_duplicates()))
    charts = leading_charts(group, "live", max_points=max(FEWEST_POINTS, min(MAX_CURVE, MAX_POINTS // num_curves)))
    alarms = group.events("alarm")
    return {
        "step": int(rows["step"].max()) if len(rows) else None,
        "measurements": int(rows["step"].nunique()),
        "alarms": len(alarms),
        "listed": [
            {"step": f"{row.step:,}", "where": row.site[:MAX_LETTERS], "what": row.message[:MAX_LETTERS]}
            for row in alarms.tail(MAX_LISTED).itertuples()
        ],
        "charts": {
            "heads" if chart.id.endswith("heads") else "curves": {
                "title": chart.title,
                "caption": chart.caption,
                "spec": chart.spec,
            }
            for chart in charts
        },
    }


class LocalServer(ThreadingTCPServer):
    """A page with its scripts and JSON, on a free port of the loopback interface; `address` has its token."""

    daemon_threads = True
    assets: tuple[tuple[str, str], ...] = (("joma.page", "page.css"),)
    """Styles and scripts next to those of the charts: package and name of each."""

    def __init__(self) -> None:
        """Listen; `serve_forever` answers."""
        super().__init__((LOOPBACK, 0), LocalRequest)
        self.token = secrets.token_urlsafe(24)
        self.address = f"http://{LOOPBACK}:{self.server_address[1]}/{self.token}/"

    def run(self, ready: Callable[[str], object]) -> None:
        """Call `ready` with the address, and answer until Ctrl-C."""
        ready(self.address)
        self.serve_forever()

    def page(self) -> str:
        """Return the HTML of the page."""
        raise NotImplementedError

    def answers(self) -> dict[str, Callable[[dict[str, str]], dict[str, Any]]]:
        """Return what gives JSON, by what follows the token: a function of the values in the address."""
        raise NotImplementedError

    @cached_property
    def files(self) -> dict[str, tuple[str, str]]:
        """The page, styles and scripts with their types, by what follows the token; made at the first request."""
        own = {name: (files(package) / name).read_text(encoding="utf-8") for package, name in self.assets}
        shared = {f"assets/{name}": (text, TYPES[Path(name).suffix]) for name, text in (bundle_files() | own).items()}
        return {"": (self.page(), TYPES[".html"]), **shared}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that go away; show other errors as usual."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class LiveServer(LocalServer):
    """The page of a folder."""

    assets = (*LocalServer.assets, ("joma.page", "live.js"))

    def __init__(self, folder: Path) -> None:
        """Listen for a folder, which need not exist yet."""
        super().__init__()
        self.live = LiveFolder(folder)

    def page(self) -> str:
        """Return the page, which asks for its data."""
        folder = os.fsencode(self.live.folder).decode("utf-8", "replace")
        return render("live", folder=folder)

    def answers(self) -> dict[str, Callable[[dict[str, str]], dict[str, Any]]]:
        """Return the state of a run."""
        return {"data": lambda asked: self.live.state(run=asked.get("run", ""), seen=asked.get("seen", ""))}


class LocalRequest(BaseHTTPRequestHandler):
    """One request; methods other than GET are refused by the base class."""

    server: LocalServer
    timeout = TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer with the page, an asset or JSON."""
        path, _, query = self.path.partition("?")
        token, slash, below = path.removeprefix("/").partition("/")
        host = re.sub(r":\d+$", "", self.headers.get("Host") or "")
        if host not in HOSTS or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif slash and below in (answers := self.server.answers()):
            asked = {name: values[0] for name, values in parse_qs(query).items()}
            self._answer(json.dumps(answers[below](asked), allow_nan=False), TYPES[".json"])
        elif slash and below in self.server.files:
            self._answer(*self.server.files[below])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, text: str, kind: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(HTTPStatus.OK)
        for name, value in (HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def serve(folder: Path | str, ready: Callable[[str], object], *, until_eof: bool = False) -> None:
    """Serve the live view of a folder until Ctrl-C.

    Args:
        folder: record of a run, or a folder of several; it may not exist yet.
        ready: called with the address once the server listens.
        until_eof: end also when standard input is closed, as it is when the process that started this one ends.
    """
    with LiveServer(Path(folder)) as server:
        if until_eof:

            def wait_for_end() -> None:
                sys.stdin.buffer.read()
                server.shutdown()

            threading.Thread(target=wait_for_end, daemon=True).start()
        server.run(ready)
