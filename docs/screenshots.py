"""Pictures of the explorer and of a report for the documents: `python docs/screenshots.py`, with Chromium installed."""

import subprocess
import tempfile
from pathlib import Path

import joma
from joma.explore import write_static

IMAGES = Path(__file__).parent / "images"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
WAIT = "--virtual-time-budget=9000"
"""Milliseconds of the page's own clock for charts to be drawn."""


def take(page: Path, name: str, width: int, height: int) -> None:
    """Write a picture of a page."""
    with tempfile.TemporaryDirectory() as profile:
        target = IMAGES / f"{name}.png"
        words = [
            *FLAGS,
            WAIT,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            f"--screenshot={target}",
        ]
        subprocess.run(["chromium", *words, page.resolve().as_uri()], check=True, capture_output=True)


def main() -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        take(write_static(Path(folder) / "explore.html"), "explorer", 1280, 1060)
        kept = Path(__file__).parents[1] / "results"
        take(Path(joma.report(kept, out=Path(folder) / "report")), "report", 1280, 1000)


if __name__ == "__main__":
    main()
