"""Language models that train in a second, and a text for them."""

from dataclasses import replace

import numpy as np

from joma.engine.loop import train_pack
from joma.engine.plan import make_plan
from joma.experiments import assumption1, language_model_runs, pack_pieces, timetable
from joma.experiments.experiment import Workplace
from joma.experiments.language_model_config import CONTROLS, Config, DriftConfig

WORDS = "the cat sat on a mat and saw that dog who ran to her old red house by sea".split()


def write_text_folder(folder):
    """A folder of train, valid and test files with words at random."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for split, num in (("train", 160), ("valid", 160), ("test", 60)):
        lines = [" ".join(random.choice(WORDS, 10)) for _ in range(num // 10)]
        (folder / f"{split}.txt").write_text("\n".join(lines))
    return folder


def toy(*texts, **changes):
    settings = {
        "width": 8, "hidden": 8, "embedding_scale": 3.0, "batch": 2, "valid_batch": 2, "window": 8, "steps": 12,
        "measure_every": 1, "valid_windows": 2, "precision": "fp32",
    }  # fmt: skip
    config = Config(
        texts=tuple(map(str, texts)),
        settings=settings,
        depths=(1, 2),
        rate=1e-2,
        rates=(1e-3, 1e-2),
        rate_depth=2,
        seeds=(1, 2),
        controls=tuple(CONTROLS),
        control_depths=(1,),
        drift=DriftConfig(depth=2, steps=(0, 2, 6), num_windows=4, seeds=(1,)),
        needs_gpu=False,
        small=True,
    )
    return replace(config, **changes)


def twenty_seconds_a_pack(monkeypatch):
    """Let a pack take twenty seconds of a clock that stands otherwise; return the clock and the runs as they come."""
    now, trained = [0.0], []

    def slow(pack, *arguments, **options):
        now[0] += 20.0
        trained.extend(pack.names)
        return train_pack(pack, *arguments, **options)

    def plan(runs, **options):
        found = make_plan(runs, **options)
        return replace(found, packs=tuple(replace(each, seconds=10.0) for each in found.packs))

    monkeypatch.setattr(timetable, "monotonic", lambda: now[0])
    monkeypatch.setattr(language_model_runs, "train_pack", slow)
    monkeypatch.setattr(language_model_runs, "make_plan", plan)
    monkeypatch.setattr(pack_pieces, "_pace", lambda plan, device: 1.0)
    monkeypatch.setattr(assumption1, "_seconds", lambda *arguments, **options: 10.0)
    return now, trained


def place(folder, progress=lambda share, doing: None):
    return Workplace(folder=folder, device="cpu", progress=progress)
