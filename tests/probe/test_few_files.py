"""A newcomer who follows `joma.watch` meets few files before the first recorded value."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import joma

ROOT = Path(joma.__file__).parent
MOST_FILES = 20


def files_that_run(action):
    """Files of joma with a function that runs during an action; importing a module does not count."""
    ran = set()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            ran.add(code.co_filename)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(name).relative_to(ROOT)) for name in ran if Path(name).is_relative_to(ROOT))


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "on disk"])
def test_few_files_run_between_watch_and_the_first_value(in_memory, tmp_path, as_a_user_runs_it):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(10, 16), nn.TransformerEncoder(layer, 2))
    watch, seen = joma.watch, []

    def first_value():
        seen.append(watch(model, out=None if in_memory else tmp_path, every=1))
        model(torch.ones(2, 8, dtype=torch.long))
        seen[0].step(0)

    files = files_that_run(first_value)
    seen[0].close()
    assert {"entropy", "stable_rank"} <= set(seen[0].frame()["metric"])
    assert len(files) <= MOST_FILES, files
