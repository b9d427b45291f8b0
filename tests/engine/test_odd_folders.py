"""Folders of version 0.1 are gone on with; those with odd JSON are refused in one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.small_runs import pack
from joma.engine.config import RunConfig
from joma.engine.grid import Run
from joma.engine.loop import train_pack
from joma.engine.plan import Pack
from joma.store import info, read

OLD = Path(__file__).parents[1] / "store" / "folders-0.1" / "train"


def test_a_training_of_version_0_1_goes_on_as_if_it_had_never_stopped(tmp_path):
    config = RunConfig.from_dict(info(OLD).config).update({"steps": 16})
    wanted = Pack(runs=(Run(name="train", config=config),))
    shutil.copytree(OLD, tmp_path / "old" / "train")
    for folder in ("old", "new"):
        assert [run.status for run in train_pack(wanted, tmp_path / folder)] == ["finished"]
    old, new = read(tmp_path / "old" / "train"), read(tmp_path / "new" / "train")
    names = ["step", "site", "layer", "head", "metric"]
    assert old[names].equals(new[names])
    np.testing.assert_allclose(old["value"], new["value"], rtol=1e-9)  # another torch may round otherwise


@pytest.mark.parametrize(
    "odd",
    [
        {"config": {}},
        {"config": {"model": 3}},
        {"about": []},
        {"about": {"num_steps": "4"}},
        {"about": {"num_steps": None}},
        {"about": {"num_steps": 4, "data_hash": 3}},
        {"resumed": None},
    ],
    ids=str,
)
def test_odd_json_is_refused_in_one_line_and_left_as_it_is(tmp_path, odd):
    train_pack(pack(seeds=(1,), steps=4), tmp_path)
    path = tmp_path / "seed1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Restore it from a copy") as caught:
        train_pack(pack(seeds=(1, 2), steps=8), tmp_path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before and not (tmp_path / "seed2").exists()
