"""Time from a move of a slider to redrawn charts, in headless Chromium, for ten tokens."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from explore.test_page import COMMAND, TIMES, run
from page.chromium import CHROMIUM, chromium

GOAL = 250.0
"""Milliseconds, median over fifty moves."""
FLOWS = ("printed", "model", "saliency", "normalised")


def main() -> None:
    """Print a line for each flow."""
    if CHROMIUM is None:
        sys.exit("This needs Chromium: install Debian's package chromium.")
    with TemporaryDirectory() as profile, subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        with chromium(profile) as browser:
            for flow in FLOWS:
                with browser.tab(f"{address}#flows?flow={flow}") as tab:
                    times = run(tab, TIMES)
                median, slowest = statistics.median(times), max(times)
                print(f"explore, {flow}: median {median:.0f} ms (goal {GOAL:.0f}), slowest {slowest:.0f} ms")
        server.terminate()


if __name__ == "__main__":
    main()
