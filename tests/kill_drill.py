"""Kill train, scan, watch and reproduce at random, start them again, and compare what they leave with calls in peace.

    python tests/kill_drill.py --kills 300 --seed 1
    python tests/kill_drill.py --kills 60 --only watch

Half of the kills hit a random operation on the disk, half a random moment. No row that a reader could see before a kill
may be missing after it, and no value may differ from the call in peace, bit for bit. At the end of a call, events and
tensors are compared too.
"""

# ruff: noqa: T201
import argparse
import hashlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas
import torch
import torch.fx.experimental.symbolic_shapes  # by the first gradient
from probe import models
from probe.states import walk
from safetensors.torch import save_file
from store.mortality import ended, obey_orders, orders

from joma.engine import memory, plan, training
from joma.paper import reproduce as reproduction
from joma.paper import table1
from joma.probe import scanning, watching
from joma.store import info, is_open, open_run, read, read_events, tables

GRID = {
    "num_latents": [[4, 5]], "num_children": 2, "num_tokens": 12, "num_classes": 4, "window": 8, "batch": 16,
    "width": 8, "hidden": 8, "heads": 2, "dropout": 0.1, "depth": [1, 2], "lr": [1e-2, 1e200, 3e-2], "seed": 1,
    "precision": "float64", "steps": 12, "snapshot_every": 3, "measure_every": 4, "checkpoint_every": 8,
}  # fmt: skip
"""Two depths, the deeper one in two packs; the runs with the rate 1e200 fail."""
TINY = {
    "num_latents": ((10, 20),), "steps": 4, "tree_steps": 4, "width": 16, "hiddens": (16,), "tree_hiddens": (16,),
    "num_samples": 32, "num_shuffles": 2,
}  # fmt: skip
WATCHED = ("attention", "ranks", "qk_norms")
"""What does not depend on the session: a W(0) of the start of training is lost with the process."""
SERVE = "--serve"


def train(out):
    runs = training.runs_of(GRID, "table1")
    largest = max(each.num_bytes for each in plan.make_plan(runs, device=plan.device_named("cpu")).packs)
    free = int((largest - 1) / memory.USABLE_SHARE)  # one byte less than the largest pack needs splits it
    training.train(GRID, recipe="table1", out=out, device="cpu", memory=free)


def scan(out):
    states, series = walk(5), out.with_name("series")
    series.mkdir(exist_ok=True)
    for step, state in enumerate([*states, states[-1]], start=1):  # two copies: there is a finding to write
        save_file(state, series / f"step{step}.safetensors")
    scanning.scan(series, out=out)


def watch(out):
    watching.open_run = partial(open_run, flush_seconds=0.02)
    tables.MAX_SMALL_PARTS = 4  # merge often, to be killed in the middle of it
    model = models.HandWritten()
    recorded = tables.load(out, tables.METRICS, {})["step"].to_pylist() if out.exists() else []
    with watching.watch(model, out=out, every=1, measures=WATCHED) as seen:
        for step in range(max(recorded, default=0), 12):
            torch.manual_seed(0)
            for parameter in model.parameters():  # a function of the step
                start, slope = torch.randn(2, *parameter.shape)
                parameter.data = 0.3 * (start + 0.01 * step * slope)
            model(torch.randint(1, models.VOCABULARY, (2, 8)))
            seen.step(step)


def reproduce(out):
    tiny = replace(table1.EXPERIMENTS[0], presets={"quick": replace(table1.QUICK, **TINY)}, charts=lambda tables: ())
    reproduction.experiment = lambda name: tiny
    assert reproduction.reproduce("table1", out=out, device="cpu").sound


COMMANDS = {command.__name__: command for command in (train, scan, watch, reproduce)}


def measured(folder):
    table = read(folder)
    assert not table.duplicated(["step", "site", "head", "metric"]).any()
    return table[table["kind"] != "cost"]


def rows_of(out):
    """Return every value that a reader finds, by its keys; hidden folders hold artefacts that are not finished."""
    rows = {}
    for path in [] if (out / "work").exists() else out.rglob("run.json"):
        run = str(path.parent.relative_to(out))
        for row in measured(path.parent).itertuples():
            rows[run, row.step, row.site, row.head, row.metric] = row.value.hex()
    for path in [*out.glob("work/[!.]*/*.parquet"), *out.glob("table1/tables/*.parquet")]:
        for number, row in enumerate(pandas.read_parquet(path).itertuples(index=False)):
            rows[path.parent.name, path.name, number] = repr(row)
    return rows


def ends_of(out):
    """Return status, events and flags of every record, and the tensors of every file."""
    found = {}
    for path in out.rglob("*"):
        if path.suffix == ".parquet" or path.name in ("run.lock", "writer.json"):
            continue  # parts are numbered by flushes, and a lock may be left, unlocked
        found[path.relative_to(out)] = None
        if path.suffix == ".safetensors":
            content = path.read_bytes()  # without its header, whose names come in any order
            tensors = content[8 + int.from_bytes(content[:8], "little") :]
            found[path.relative_to(out)] = hashlib.sha256(tensors).hexdigest()
        elif path.name == "run.json":
            flags = measured(path.parent)[["step", "site", "metric", "flag"]]
            status = info(path.parent).status, is_open(path.parent)
            found[path.relative_to(out)] = (*status, flags.to_csv(index=False), read_events(path.parent).to_csv())
    return found


def drill(order, command, folder, *, kills, seed):
    """Kill a command so many times, in as many folders as it finishes on the way; return what was counted."""
    rng, counts, kinds = random.Random(f"{command} {seed}"), Counter(), folder / "kinds.json"
    number, seconds = order({"command": command, "out": str(folder / "peace"), "kinds": str(kinds)})
    assert number == 0
    num_operations = len(json.loads(kinds.read_text()))
    peace, end = rows_of(folder / "peace"), ends_of(folder / "peace")
    while counts["kills"] < kills:
        out, known, number = folder / f"killed{counts['finished']}", set(), None
        while number != 0:
            death = rng.choice([{"at": rng.randint(1, num_operations)}, {"kill_after": rng.uniform(0, 0.8 * seconds)}])
            death = death if counts["kills"] < kills else {}
            number, _ = order({"command": command, "out": str(out), **death})
            assert number in (0, -signal.SIGKILL)
            found = rows_of(out)
            counts["kills"] += number != 0
            counts["at an operation"] += number != 0 and "at" in death
            counts["rows lost"] += len(known - found.keys())
            counts["rows changed"] += sum(peace.get(key) != value for key, value in found.items())
            known = set(found)
        counts["rows lost"] += len(peace.keys() - known)
        counts["ends changed"] += ends_of(out) != end
        counts["finished"] += 1
    return {"command": command, "rows": len(peace), **counts}


def obey(command, out, **death):
    """Run a command in a child that may die; return how it ended, and its seconds."""
    begun = time.monotonic()
    return ended(partial(COMMANDS[command], Path(out)), **death), time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description="Kill commands and compare what they leave.")
    parser.add_argument("--kills", type=int, default=300, help="of all commands together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(COMMANDS))
    parser.add_argument(SERVE, action="store_true", help=argparse.SUPPRESS)
    asked, done = parser.parse_args(), []
    if asked.serve:
        torch.set_num_threads(1)  # a pool of threads would not survive the fork
        tables._load_libraries()
        return obey_orders(obey)
    commands = [asked.only] if asked.only else list(COMMANDS)
    with orders(Path(__file__), SERVE) as order:
        for number, command in enumerate(commands):
            kills = (asked.kills + number) // len(commands)
            with tempfile.TemporaryDirectory() as folder:
                done.append(drill(order, command, Path(folder), kills=kills, seed=asked.seed))
            print(pandas.DataFrame(done).to_string(index=False), flush=True)
    return any(each[name] for each in done for name in ("rows lost", "rows changed", "ends changed"))


if __name__ == "__main__":
    sys.exit(main())
