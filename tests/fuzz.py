"""Feed damaged files and odd options to everything that reads: no traceback, no hang, no flood of memory.

    python tests/fuzz.py --inputs 20000 --seed 1         # all readers and options
    python tests/fuzz.py --only scan --seed 7 --first 31 # one input again, as a failure names it

An input fails where an exception comes out that joma did not word itself, where it takes more than 20 s, or where the
process grows by more than 1 GB. Input i of a seed is the same in every call.
"""

import argparse
import contextlib
import io
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import safetensors.torch
import torch
import typer.main

import joma
from joma import cli
from joma.engine.snapshots import Snapshot, load_snapshot, save_snapshot
from joma.explore.playback import film
from joma.page.live import LiveFolder
from joma.store import Store, Task, open_run, read_events

LONGEST = 20.0
"""Seconds of a processor for one input, and twice as many by the clock before it counts as hung."""
MOST_MEMORY = 1 << 30
"""Bytes by which a process may grow over one input."""
ODD_VALUES = (
    None, True, 0, -1, 2**63, 2**70, 1e400, float("nan"), "", "\x1b[31mred", "\u202e", "../../x", "x" * 10_000, [],
    [[]], {}, {"": None}, "NaN", "1e999", [None] * 3, "9007199254740993",
)  # fmt: skip
ODD_WORDS = (
    "", "-1", "0", "1e400", "inf", "nan", "1e-400", "9007199254740993", "1,,2", "a,b", "\x1b[31m", "ü\u202e", "../..",
    "/dev/null", "*", "1:2:3", "2147483648", "0.5", "true", "none", "x" * 3000, "[1,2]", "{}", "-", "--", "=", "1,2,3",
    "exp", "softmax",
)  # fmt: skip
SERVING = ("--live", "--until-eof")
"""Options of `report` that serve a page until somebody interrupts them."""


# Sound inputs


def make_inputs(folder: Path) -> None:
    """Write one sound example of everything that joma reads."""
    generator = torch.Generator().manual_seed(0)

    def weights(scale: float) -> dict[str, torch.Tensor]:
        shapes = {"attn.q_proj.weight": (8, 8), "attn.k_proj.weight": (8, 8), "attn.v_proj.weight": (8, 8)}
        shapes |= {"mlp.up.weight": (16, 8), "mlp.down.weight": (8, 16)}
        names = {f"layers.{i}.{name}": shape for i in range(2) for name, shape in shapes.items()}
        return {name: scale * torch.randn(shape, generator=generator) for name, shape in names.items()}

    for step in (0, 100):
        at = folder / "scan" / f"step{step}"
        at.mkdir(parents=True)
        safetensors.torch.save_file(weights(1 + step / 100), at / "model.safetensors")
        (at / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2}))
    torch.save({"model": weights(1.0), "step": 200}, folder / "scan" / "step200.pt")
    shards = {"weight_map": dict.fromkeys(weights(1.0), "model-00001-of-00001.safetensors")}
    at = folder / "scan" / "step300"
    at.mkdir()
    (at / "model.safetensors.index.json").write_text(json.dumps(shards))
    safetensors.torch.save_file(weights(2.0), at / "model-00001-of-00001.safetensors")
    for name in ("read", "follow", "report"):
        run = open_run(folder / name / "run", kind="watch", config={"seed": 1, "every": 10}, about={"model": "Tiny"})
        for step in range(0, 50, 10):
            run.add(step, "entropy", 2.0 - step / 50, site="layers.0.attn", kind="attention", layer=0)
            run.add(step, "loss", 3.0 - step / 100, kind="model")
        run.event(20, "alarm", "Attention has collapsed.")
        run.close()
    tensors = {name: tensor[None] for name, tensor in weights(1.0).items()}
    save_snapshot(folder / "snapshot", Snapshot(run="0" * 64, step=3, tensors=tensors))
    Store(folder / "work").get(_task())


def _task() -> Task:
    return Task("one", {"a": 1}, lambda space: {"rows": pd.DataFrame({"x": [1.0, 2.0]})}, 1.0, kind="fuzz")


# Damage


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to three faults."""
    made = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randrange(len(made) + 1), rng.choice((1, 4, 8, 64, 1024))
        match rng.randrange(7):
            case 0 if made:
                made[at % len(made)] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:]
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = rng.randbytes(length)
            case 4:
                made[at : at + length] = bytes(min(length, len(made) - at))
            case 5:
                made[at : at + 8] = rng.choice((b"\xff" * 8, (2**62).to_bytes(8, "little"), b"\x00" * 8))
            case _:
                made[at:at] = made[max(0, at - length) : at]
    return bytes(made)


def odd_json(content: bytes, rng: random.Random) -> bytes:
    """Return JSON with one value replaced, removed or nested too deeply; damaged bytes where it is none."""
    try:
        root = json.loads(content)
    except ValueError:
        return damaged(content, rng)
    holder, key, at = None, None, root
    while isinstance(at, dict | list) and at and (holder is None or rng.random() < 0.75):
        holder, key = at, rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        at = holder[key]
    if rng.random() < 0.03 or holder is None:
        return rng.choice((b"[" * 100_000, b"null", b"[]", b"{}", b'"x"', b"1", b"\xff\xfe"))
    if rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = rng.choice(ODD_VALUES)
    return json.dumps(root).encode()


def damage_folder(folder: Path, rng: random.Random) -> None:
    """Damage, remove or rename one file below a folder."""
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    match rng.randrange(10):
        case 0:
            path.unlink()
        case 1:
            with contextlib.suppress(OSError):
                path.rename(
                    path.with_name(rng.choice(("step1e9", "\x1b[31m.pt", "a-1-of-99999999999.safetensors", "x.json")))
                )
        case _:
            change = odd_json if path.suffix == ".json" and rng.random() < 0.8 else damaged
            path.write_bytes(change(path.read_bytes(), rng))


# Readers


def read_record(folder: Path, rng: random.Random) -> None:
    """Read values and events of a run."""
    damage_folder(folder, rng)
    joma.read(folder / "run")
    read_events(folder / "run")


def scan_series(folder: Path, rng: random.Random) -> None:
    """Scan a series of checkpoints."""
    for _ in range(rng.randint(1, 2)):
        damage_folder(folder, rng)
    joma.scan(folder, out=folder.parent / "scanned")


def follow_runs(folder: Path, rng: random.Random) -> None:
    """Show a run live, play it back, and set it next to itself."""
    damage_folder(folder, rng)
    LiveFolder(folder).state()
    film(folder)
    joma.compare([folder / "run", folder / "run"])


def report_runs(folder: Path, rng: random.Random) -> None:
    """Write the pages of a run."""
    damage_folder(folder, rng)
    joma.report(folder)


def load_state(folder: Path, rng: random.Random) -> None:
    """Load a snapshot of a training."""
    [path] = [path for path in folder.rglob("*") if path.is_file()]
    path.write_bytes(damaged(path.read_bytes(), rng))
    load_snapshot(path)


def find_work(folder: Path, rng: random.Random) -> None:
    """Look finished work up."""
    damage_folder(folder, rng)
    Store(folder).find(_task())


def options(folder: Path, rng: random.Random) -> None:
    """Call the command with odd options; nothing that trains, computes long or serves until it is interrupted."""
    command = typer.main.get_command(cli.app)
    name = rng.choice(sorted(command.commands))
    own = [option for each in command.commands[name].params for option in each.opts if option.startswith("--")]
    own = [option for option in own if option not in SERVING]
    words = [name]
    for _ in range(rng.randint(1, 3)):
        words += [rng.choice(own), rng.choice(ODD_WORDS)]
    words += {"train": ["--dry-run"], "reproduce": ["--list"], "simulate": ["--num-points", "5"]}.get(name, [])
    words += ["no-such-thing"] if name in ("verify", "scan", "report", "explore") else []
    with mock.patch.object(sys, "argv", ["joma", *words]), contextlib.chdir(folder):
        cli.main()


TARGETS: dict[str, tuple[int, Callable[[Path, random.Random], None]]] = {
    "read": (30, read_record),
    "scan": (20, scan_series),
    "follow": (5, follow_runs),
    "snapshot": (20, load_state),
    "work": (15, find_work),
    "options": (14, options),
    "report": (1, report_runs),
}
"""Everything that reads, with its share of the inputs."""


# One input and many


def try_input(target: str, seed: int, number: int, sound: Path) -> str:
    """Return what went wrong with one input; empty if nothing did."""
    rng = random.Random(f"{target} {seed} {number}")
    words = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "input"
        copy.mkdir()
        if (sound / target).exists():
            shutil.copytree(sound / target, copy, dirs_exist_ok=True)
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            with warnings.catch_warnings(), contextlib.redirect_stderr(words), contextlib.redirect_stdout(words):
                warnings.simplefilter("ignore")
                TARGETS[target][1](copy, rng)
        except SystemExit:
            if "not foreseen" in words.getvalue() or "Traceback" in words.getvalue():
                return words.getvalue()[-2000:]
        except (ValueError, ArithmeticError, OSError) as error:
            if not is_ours(error):
                return "".join(traceback.format_exception(error))[-3000:]
        except Exception as error:  # what joma never raises to a user
            return "".join(traceback.format_exception(error))[-3000:]
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        if grown > MOST_MEMORY:
            return f"grew by {grown >> 20} MiB"
        if time.process_time() - begun > LONGEST:
            return f"took {time.process_time() - begun:.0f} s"
    return ""


def is_ours(error: BaseException) -> bool:
    """Whether joma raised the error itself, or the system refused a file, which the command words."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return isinstance(error, OSError) or frames[-1][0].f_globals.get("__name__", "").startswith("joma")


def _work(target: str, seed: int, numbers: range, sound: Path, pipe: Any) -> None:
    for number in numbers:
        pipe.send((number, try_input(target, seed, number, sound)))


def fuzz(num_inputs: int, seed: int, only: str | None = None, first: int = 0) -> list[tuple[str, int, str]]:
    """Try inputs in a process that may die or hang; return what failed: target, number and reason."""
    failed: list[tuple[str, int, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder)
        make_inputs(sound)
        total = sum(share for share, _ in TARGETS.values())
        for target, (share, _) in TARGETS.items():
            if only not in (None, target):
                continue
            count = num_inputs if only else max(1, num_inputs * share // total)
            at, end = first, first + count
            while at < end:
                receiver, sender = get_context("fork").Pipe(duplex=False)
                worker = get_context("fork").Process(target=_work, args=(target, seed, range(at, end), sound, sender))
                worker.start()
                sender.close()
                while at < end:
                    try:
                        if not receiver.poll(2 * LONGEST):
                            failed.append((target, at, "hung"))
                            break
                        number, reason = receiver.recv()
                    except EOFError:
                        failed.append((target, at, "killed its process"))
                        break
                    at = number + 1
                    if reason:
                        failed.append((target, number, reason))
                else:
                    worker.join()
                    continue
                worker.kill()
                worker.join()
                at += 1
    return failed


def main() -> int:
    """Fuzz as asked, and print what failed."""
    parser = argparse.ArgumentParser(description="Damaged files and odd options for everything that reads.")
    parser.add_argument("--inputs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", choices=list(TARGETS))
    asked = parser.parse_args()
    begun = time.monotonic()
    failed = fuzz(asked.inputs, asked.seed, asked.only, asked.first)
    for target, number, reason in failed[:20]:
        sys.stdout.write(f"--- {target}, seed {asked.seed}, input {number}\n{reason}\n")
    counts = dict(Counter(target for target, _, _ in failed))
    sys.stdout.write(
        f"{asked.inputs} inputs in {time.monotonic() - begun:.0f} s, {len(failed)} failed {counts or ''}\n"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
