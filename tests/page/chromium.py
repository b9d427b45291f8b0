"""A headless Chromium that is steered through a pipe, by its DevTools protocol; nothing else is needed."""

import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)
ENDS, ABOVE = (3, 4), 10
"""Where the browser looks for its pipes, and descriptors that are out of the way."""
SECONDS = 90.0
"""Until the browser is given up; shared machines are slow at times."""


@contextmanager
def chromium(profile):
    """Start a browser with a new profile and no network; end it at the end."""
    to_browser, from_here = os.pipe()
    from_browser, to_here = os.pipe()
    process = _started(to_browser, to_here, profile)
    os.close(to_browser)
    os.close(to_here)
    try:
        yield Browser(from_here, from_browser)
    finally:
        os.close(from_here)  # the browser ends when its pipe does
        os.close(from_browser)
        _wait_for(process)


def _started(reading, writing, profile):
    """Start the browser, which reads commands from descriptor 3 and answers on 4; return its process."""
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, ABOVE) for end in (reading, writing)]
    actions = [(os.POSIX_SPAWN_DUP2, end, place) for end, place in zip(high, ENDS, strict=True)]
    silent = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    try:
        return os.posix_spawn(CHROMIUM, command, os.environ, file_actions=[silent, *actions])
    finally:
        for end in high:
            os.close(end)


def _wait_for(process):
    deadline = time.monotonic() + SECONDS
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(0.05)


class Browser:
    """Commands and events of a browser, in order."""

    def __init__(self, writer, reader):
        """Talk through two descriptors."""
        self._writer, self._reader = writer, reader
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events = []

    def call(self, method, session=None, **parameters):
        """Send a command and wait for its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda received: received.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    @contextmanager
    def tab(self, page, *, width=1280, height=900, scheme="light"):
        """Open a file, or an address of this machine, in a tab of this size and colour scheme; close it at the end."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        is_file = not isinstance(page, str)
        tab.call(
            "Network.emulateNetworkConditions", offline=is_file, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        tab.call("Page.navigate", url=page.as_uri() if is_file else page)
        self._until(lambda event: event.get("method") == "Page.loadEventFired" and event.get("sessionId") == session)
        try:
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)

    def _until(self, is_wanted):
        deadline = time.monotonic() + SECONDS
        while True:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(text)
                if "method" in message:
                    self.events.append(message)
                if is_wanted(message):
                    return message
            if not select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"The browser did not answer within {SECONDS:.0f} s.")
            received = os.read(self._reader, 1 << 20)
            if not received:
                raise EOFError("The browser has ended.")
            self._buffer += received


class Tab:
    """One page of a browser."""

    def __init__(self, browser, session):
        """Belong to a session of the browser."""
        self._browser, self._session = browser, session

    def call(self, method, **parameters):
        """Send a command to this page."""
        return self._browser.call(method, self._session, **parameters)

    def run(self, script):
        """Run the body of an async function in the page and return what it returns."""
        result = self.call(
            "Runtime.evaluate", expression=f"(async () => {{{script}}})()", awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]["exception"].get("description")))
        return result["result"].get("value")

    def complaints(self):
        """Return what the page has raised, or said to the console as a warning or an error."""
        said = {
            "Runtime.exceptionThrown": lambda event: event["exceptionDetails"],
            "Runtime.consoleAPICalled": lambda event: (
                event if event["type"] in ("error", "warning", "assert") else None
            ),
            "Log.entryAdded": lambda event: event["entry"] if event["entry"]["level"] in ("error", "warning") else None,
            "Page.javascriptDialogOpening": lambda event: event["message"],
        }
        found = [said[event["method"]](event["params"]) for event in self._own() if event["method"] in said]
        return [each for each in found if each is not None]

    def requests(self):
        """Return the addresses that the page has asked for, itself and what is inside of it left out."""
        sent = [event["params"] for event in self._own() if event["method"] == "Network.requestWillBeSent"]
        addresses = [each["request"]["url"] for each in sent if each.get("type") != "Document"]
        return [address for address in addresses if not address.startswith("data:")]

    def _own(self):
        return [event for event in self._browser.events if event.get("sessionId") == self._session]
