"""A process whose children scan and die on the way; it is told what to do line by line, as JSON."""

import sys
from functools import partial
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from store.mortality import ended, obey_orders

from joma.probe.scanning import scan
from joma.store import tables


def obey(source: str, out: str, **death: float) -> int:
    """Scan in a child that may die; return how it ended."""
    return ended(partial(scan, source, out=out), **death)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tables._load_libraries()
    obey_orders(obey)
