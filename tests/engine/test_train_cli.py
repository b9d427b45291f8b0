"""`joma train` as a user types it, and `joma.train` from Python."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import joma
from joma import cli, terminal
from joma.engine.config import all_settings
from joma.engine.grid import RECIPES, axes_of, grid, recipe
from joma.engine.loop import PackProgress
from joma.engine.plan import device_named, make_plan
from joma.engine.snapshots import path_of
from joma.engine.training import Progress
from joma.store import info, is_open, read

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

TINY = {"steps": 4, "width": 8, "hidden": 8, "depth": 1, "batch": 4, "measure_every": 2, "rho": 0.8}


HEEDING_CTRL_C = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from joma.cli import main; main()"
)
"""The command where Ctrl-C works also if the tests run in the background, where shells have it ignored."""


def options(**values) -> tuple[str, ...]:
    """Spell settings as the command takes them."""
    return tuple(part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value)))


TREES = ("train", "--recipe", "trees", "--device", "cpu", *options(**TINY))


def joma_says(capsys, *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code and what it printed."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["joma", *arguments])
        cli.main()
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


@pytest.fixture
def short_text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("the cat sat on the mat . " * 4)
    return folder


def test_a_grid_is_trained_told_and_extended(tmp_path, capsys):
    out = tmp_path / "runs"
    code, said, _ = joma_says(capsys, *TREES, "--lr", "1e-3,1e-2", "--seed", "1,2", "--out", str(out))
    assert code == 0 and "finished" in said and f"joma report {out}" in said
    names = {folder.name for folder in out.iterdir()}
    assert len(names) == 4 and all(info(out / name).status == "finished" for name in names)
    before = {name: (out / name / "run.json").read_bytes() for name in names}

    code, said, _ = joma_says(capsys, *TREES, "--lr", "1e-3,1e-2", "--seed", "1,2,3", "--out", str(out), "--json")
    record = json.loads(said)
    assert code == 0 and len(record["runs"]) == 6
    assert {run["name"] for run in record["runs"] if not run["is_new"]} == names  # old folders are still theirs
    assert before == {name: (out / name / "run.json").read_bytes() for name in names}
    assert all(run["final_loss"] >= run["best_loss"] > 0 for run in record["runs"])


def test_a_run_that_diverges_is_told_and_its_neighbour_is_not_touched(tmp_path, capsys):
    # A first step of 1e30 times the gradient makes the next loss overflow float32.
    wild = ("--optimiser", "sgd", "--lr", "1e-3,1e30", "--seed", "1")
    code, said, _ = joma_says(capsys, *TREES, *wild, "--out", str(tmp_path), "--json")
    tame, failed = json.loads(said)["runs"]
    assert code == 0 and tame["status"] == "finished"
    assert failed["status"] == "failed" and failed["failed_at"] < 4
    code, said, _ = joma_says(capsys, *TREES, *wild, "--out", str(tmp_path))
    assert f"failed at step {failed['failed_at']}" in said and "1 diverged" in said
    assert (
        joma_says(capsys, *TREES, "--optimiser", "sgd", "--lr", "1e30", "--seed", "1", "--out", str(tmp_path))[0] == 1
    )


def test_a_dry_run_counts_what_is_left_and_writes_nothing(tmp_path, capsys):
    first = ("--seed", "1", "--out", str(tmp_path))
    joma_says(capsys, *TREES, *first)
    before = sorted(tmp_path.rglob("*"))
    code, said, doing = joma_says(capsys, *TREES, "--dry-run", "--json", "--depth", "1,2", *first)
    plan = json.loads(said)
    assert code == 0 and not doing and plan["packs"][0]["num_bytes"] > 0
    assert [pack["num_steps_done"] for pack in plan["packs"]] == [4, 0]
    assert plan["packs"][0]["estimated_seconds"] == 0 < plan["packs"][1]["estimated_seconds"]
    longer = ("train", "--recipe", "trees", "--device", "cpu", *options(**TINY | {"steps": 8}), "--dry-run", *first)
    code, said, doing = joma_says(capsys, *longer)
    assert code == 0 and "4 of 8" in said and "estimate" in said and "pack 1 of 1" in doing
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_are_listed_with_type_choices_and_value(capsys):
    code, said, _ = joma_says(capsys, "train", "--recipe", "table1", "--settings", "--json", "--lr", "0.5,1")
    found = {row["option"]: row for row in json.loads(said)}
    assert code == 0 and len(found) == len(all_settings())
    assert found["--num-latents"]["value"] == "10x20,20x30" and found["--lr"]["value"] == "0.5,1.0"
    assert found["--optimiser"]["type"] == "adam|adamw|sgd|momentum" and found["--optimiser"]["what it is"]
    assert "--num-latents" in joma_says(capsys, "train", "--settings")[1]


def test_help_shows_every_setting(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, said, _ = joma_says(capsys, "train", "--help")
    assert code == 0
    for name, setting in all_settings().items():
        assert name == "vocabulary" or (f"--{name.replace('_', '-')} " in said and setting.kind[:20] in said), name
    assert "--threads" in said and list(cli.RecipeName) == list(RECIPES)


def test_values_are_completed_behind_a_comma():
    annotation = inspect.signature(cli.train).parameters["optimiser"].annotation
    [option] = annotation.__metadata__
    assert option.autocompletion("ad") == ["adam", "adamw"]
    assert option.autocompletion("sgd,mo") == ["sgd,momentum"]


def test_a_switch_may_stand_alone_and_integers_stay_exact(capsys):
    given = ("--gated", "--tied", "no,yes", "--causal", "--seed", "9007199254740993", "--seed", "3")
    found = json.loads(joma_says(capsys, "train", "--settings", "--json", *given)[1])
    values = {row["option"]: row["value"] for row in found}
    assert (values["--gated"], values["--tied"], values["--causal"]) == ("yes", "no,yes", "yes")
    assert values["--seed"] == "9007199254740993,3"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--data", "nowhere/text"),
        ("--data", "wikitxt2"),
        ("--heads", "3"),
        ("--device", "gpu"),
        ("--out", "/dev/null/x"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_names_and_paths_are_refused_before_heavy_imports(tmp_path, arguments):
    heavy = dict.fromkeys(("torch", "pandas", "scipy"))
    code = f"import sys; sys.modules.update({heavy}); from joma.cli import main; main()"
    given = ["train", "--out", str(tmp_path / "runs"), *arguments]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("joma: ") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("given", "variable", "expected"), [(None, None, 1), (None, "2", 2), (3, "2", 3)])
def test_one_thread_unless_told_otherwise(tmp_path, monkeypatch, given, variable, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    before, seen = torch.get_num_threads(), set()
    joma.train(
        {**TINY, "seed": 1},
        recipe="trees",
        out=tmp_path,
        device="cpu",
        threads=given,
        progress=lambda _: seen.add(torch.get_num_threads()),
    )
    assert seen == {expected} and torch.get_num_threads() == before


TEXT = ("--readout", "next_token")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--heads", "3"), "`width` must be a multiple of `heads`, got 8 and 3"),
        (("--seed", ","), "`seed` is empty"),
        (("--steps", "inf"), "`steps` must be a whole number, got 'inf'"),
        (("--data", "pythondocs", *TEXT), "Did you mean 'python-docs'?"),
        (
            ("--data", "zzz", *TEXT),
            "Known: arithmetic, hierarchy, json, python-docs, source-code, trees, wikitext103, wikitext2. A text of",
        ),
        (("--data", "nothere.txt", *TEXT), "A text of your own is a folder with train.txt"),
        (("--data", "class-tokens"), "Take trees"),
        (("--data", "python-docs"), "Take trees or hierarchy, or `readout` next_token."),
        (("--num-classes", "9"), "distinguish 3 classes, got 9"),
        (("--memory", "0.0001"), "may be used of"),
        (("--device", "gpu"), "'gpu'"),
        (("--embedding", "orthonormal"), "`vocabulary` ≤ `width`, got 16 and 8"),  # of the data, not of the recipe
    ],
    ids=lambda value: "-".join(value).replace("--", "") if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(tmp_path, capsys, arguments, words):
    out = tmp_path / "runs"
    code, said, complaint = joma_says(capsys, *TREES, *arguments, "--out", str(out))
    assert code == 2 and not said and not out.exists()
    assert words in complaint and len(complaint.strip().splitlines()) == 1


def test_no_folder_is_refused(capsys):
    code, _, complaint = joma_says(capsys, *TREES)
    assert code == 2 and "`--out` must name a folder" in complaint


@pytest.mark.parametrize(
    "arguments",
    [("--recipe", "figur6"), ("--dept", "1,2"), ("--on", "cloud"), ("extra",), ("--lr",), ("--threads", "0")],
)
def test_options_that_there_are_not_are_refused(tmp_path, capsys, arguments):
    code, said, complaint = joma_says(capsys, *TREES, "--out", str(tmp_path / "runs"), *arguments)
    assert code == 2 and not said and arguments[0].lstrip("-") in complaint
    assert not (tmp_path / "runs").exists()


def test_ray_that_is_not_installed_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, complaint = joma_says(capsys, *TREES, "--on", "ray", "--out", str(tmp_path / "runs"))
    assert code == 2 and "which is not installed" in complaint and not (tmp_path / "runs").exists()


def test_a_text_is_trained_on(tmp_path, capsys, short_text):
    long = ("train", "--data", str(short_text), "--batch", "2", "--window", "60", "--out", str(tmp_path / "runs"))
    code, _, complaint = joma_says(capsys, *long)
    assert code == 2 and "windows of 60 need at least" in complaint and not (tmp_path / "runs").exists()
    sizes = ("--batch", "2", "--valid-batch", "1", "--window", "4", "--width", "8", "--hidden", "8")
    command = ("train", "--data", str(short_text), *sizes, "--epochs", "1", "--seed", "1", "--device", "cpu")
    code, said, _ = joma_says(capsys, *command, "--out", str(tmp_path / "runs"), "--json")
    [run] = json.loads(said)["runs"]
    assert code == 0 and run["step"] == 3  # 28 words in 2 streams have 3 windows of 4, and a target for each
    assert info(run["folder"]).config["model"]["vocabulary"] == 7  # six words and <unk>


def test_a_folder_in_which_another_grid_is_trained_is_refused(tmp_path, capsys):
    """Though it has no run of the other one, which may come to one of its own later."""
    complaints = []

    def meanwhile(at):
        if not complaints:
            code, _, complaint = joma_says(capsys, *TREES, "--seed", "2", "--out", str(tmp_path))
            complaints.append((code, complaint))

    done = joma.train({**TINY, "seed": 1}, recipe="trees", out=tmp_path, device="cpu", progress=meanwhile)
    [(code, complaint)] = complaints
    assert code == 2 and f"{tmp_path}: " in complaint and "is writing to this folder" in complaint
    assert [run.status for run in done.runs] == ["finished"]
    assert not list(tmp_path.glob("*seed2")) and not list(tmp_path.glob("run.lock"))


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path, capsys):
    out = tmp_path / "runs"
    tiny = ("train", "--recipe", "trees", "--device", "cpu", "--seed", "1", "--out", str(out))
    long = [*tiny, *options(**{**TINY, "steps": 10**6, "measure_every": 10**6}), "--snapshot-every", "50"]
    process = subprocess.Popen([sys.executable, "-c", HEEDING_CTRL_C, *long], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(list(out.glob("*/snapshots/*.safetensors"))) > 1:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, complaint = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130 and "the same command goes on" in complaint and "Traceback" not in complaint
    [folder] = out.iterdir()
    assert info(folder).status == "running"
    reached = max(int(path.stem.split("-")[1]) for path in folder.glob("snapshots/*.safetensors"))
    more = options(**{**TINY, "steps": reached + 10, "measure_every": 10**6})
    code, said, _ = joma_says(capsys, *tiny, *more, "--json")
    [run] = json.loads(said)["runs"]
    assert code == 0 and run["step"] == reached + 10 and run["status"] == "finished"


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_packs_are_trained_in_order_and_ctrl_c_leaves_those_alone_that_have_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.engine.loop.REPORT_SECONDS", 0.0)
    given = {**TINY, "depth": [1, 2, 3], "seed": [1, 2]}
    heard: list[tuple[int, int]] = []

    def interrupt(at):
        for pack in at.packs:
            assert pack.names == at.plan.packs[at.num_packs_done].pack.names and len(at.packs) == 1
            heard.append((at.num_packs_done, pack.step))
        if heard[-1:] == [(1, 2)]:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        joma.train(given, recipe="trees", out=tmp_path / "out", device="cpu", progress=interrupt)
    assert heard == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]
    statuses = {folder.name: info(folder).status for folder in (tmp_path / "out").iterdir()}
    assert sorted(statuses.values()) == ["finished"] * 2 + ["running"] * 2
    assert not any(is_open(folder) for folder in (tmp_path / "out").iterdir())

    done = joma.train(given, recipe="trees", out=tmp_path / "out", device="cpu")
    assert [run.name for run in done.runs if not run.is_new] == [
        run.name for run in done.runs if statuses.get(run.name) == "finished"
    ]
    peace = joma.train(given, recipe="trees", out=tmp_path / "peace", device="cpu")
    assert len(done.runs) == 6 and all(
        len(run.entropy_names) == info(run.folder).config["model"]["depth"] for run in done.runs
    )
    for ours, theirs in zip(done.runs, peace.runs, strict=True):
        assert read(ours.folder).equals(read(theirs.folder))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([], [], "before anything was saved"),
        ([], [50], "stopped and saved"),
        ([50], [], "before anything new was saved"),
        ([50], [100], "stopped and saved"),
    ],
)
def test_ctrl_c_says_saved_only_where_something_was(tmp_path, capsys, monkeypatch, before, after, words):
    def save(steps):
        for step in steps:
            path = path_of(tmp_path / "seed1", step)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def interrupted(*_, **__):
        save(after)
        raise KeyboardInterrupt

    save(before)
    monkeypatch.setattr("joma.engine.training.make_plan", interrupted)
    code, _, complaint = joma_says(capsys, *TREES, "--out", str(tmp_path))
    assert code == cli.INTERRUPTED and words in complaint


@pytest.mark.parametrize("is_terminal", [False, True], ids=["log", "terminal"])
def test_progress_is_shown_with_the_time_left(monkeypatch, capsys, is_terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    runs = grid(recipe("trees").base, axes_of({**TINY, "seed": [1, 2]}))
    plan = make_plan(runs, device=device_named("cpu"), step_seconds=lambda config, num_runs: 1.0)
    now = [100.0]
    monkeypatch.setattr("joma.terminal.monotonic", lambda: now[0])

    def at(share):
        names = tuple(run.name for run in runs)
        pack = PackProgress(
            names=names,
            step=int(400 * share),
            num_steps=400,
            tokens_per_second=1e3,
            losses=dict.fromkeys(names, 1.5),
            failed=("lost",),
        )
        return Progress(plan=plan, num_packs_done=0, packs=(pack, pack), seconds_done=share * plan.seconds)

    with terminal.progress() as show:
        terminal.show_progress(show, at(0.5))  # resumed half way, which says nothing of the pace
        for now[0], share in ((101.0, 0.55), (110.0, 0.65), (120.0, 0.75), (121.0, 0.8)):
            terminal.show_progress(show, at(share))
    said = capsys.readouterr().err
    assert "2,000 tokens/s" in said and "2 diverged" in said and "left" in said
    if not is_terminal:
        first, second = said.splitlines()  # now and then
        assert "left" not in first and "400/800" in first and "20 s left" in second


def test_reproduce_limits_the_threads_of_torch_before_it_is_imported():
    code = """import os, sys; from joma import cli; assert "torch" not in sys.modules
del os.environ["OMP_NUM_THREADS"]; cli._set_threads(None); assert os.environ["OMP_NUM_THREADS"] == "1"
cli._set_threads(1); import torch; print(torch.get_num_threads())"""
    env = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "1"
