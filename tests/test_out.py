"""Every verb that writes: a folder that cannot be written is refused before anything is computed, in one line.

Tests may run as root, for whom rights do not bind: the system's refusals are made up, at `os.open` for the question
before and at the opening of a file for a write that fails later. Not covered are disks that are mounted to be read
alone, and those of other machines.
"""

import errno
import os
import sys
from pathlib import Path

import pytest
import torch
import typer
from torch import nn

from joma import cli
from joma.claims import Answer, Number, Outcome
from joma.page.paper import write_verification
from joma.probe.watching import watch
from joma.store import files
from joma.store.files import UnwritableError, demand_writable, explained

TINY = ("--steps", "2", "--width", "8", "--hidden", "8", "--depth", "1", "--batch", "4", "--rho", "0.8", "--seed", "1")
VERBS = {
    "verify": ("verify", "lemma8"),
    "simulate": ("simulate", "--targets", "1,2", "--num-points", "8"),
    "scan": ("scan", "checkpoints", "--mlp-pattern", "fc1"),
    "train": ("train", "--recipe", "trees", "--device", "cpu", *TINY),
    "reproduce": ("reproduce", "figure4", "--device", "cpu"),
    "report": ("report",),
}
"""Each with what it needs beside the folder."""
COMPUTING = {
    "verify": "joma.checks.verify",
    "simulate": "joma.theory.simulation.simulate",
    "scan": "joma.probe.scanning.scan",
    "train": "joma.engine.training.train",
    "reproduce": "joma.paper.reproduce.reproduce",
    "report": "joma.page.report.read_reproduction",
}
"""What does the work of each."""
ALL_VERBS = pytest.mark.parametrize("verb", VERBS)
FIRST = "verify"
"""The verb that meets every kind of refusal; all ask the same function."""
REFUSALS = {
    errno.EACCES: "permission denied",
    errno.EROFS: "read-only file system",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
}

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty working folder but for checkpoints to scan, and `old`, which holds something to report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("joma.store.record.git_commit", lambda: None)
    Path("checkpoints").mkdir()
    torch.save({"layers.0.mlp.fc1.weight": torch.eye(8)}, "checkpoints/step1.pt")
    write_verification([answer("an older one")], Path("old"))
    return tmp_path


def answer(title: str) -> Answer:
    number = Number.exact("n", 0.1, at_most=1.0, control=2.0, control_name="as printed", against="a", unit="u")
    return Answer(claim="thm2", title=title, source="s", says="c", outcome=Outcome.WRONG, numbers=(number,))


def command(verb: str, out: str) -> tuple[str, ...]:
    """The arguments that have a verb write into a folder."""
    return (*VERBS[verb], out) if verb == "report" else (*VERBS[verb], "--out", out)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command has to say which cannot do its job."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["joma", *arguments])
        cli.main()
    assert ended.value.code == cli.BAD_INPUT
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("joma: ")]
    return line.removeprefix("joma: ")


def contents(folder: Path) -> dict[str, bytes]:
    """What the files hold, but for locks, which stay behind empty."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Have the system refuse every file that is to be written, as `tempfile` opens them."""
    opened = os.open

    def refusing(path, flags, *mode, **options):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, os.strerror(code), path)
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refusing)


def fail_later(monkeypatch: pytest.MonkeyPatch, code: int, at: int) -> None:
    """Have the system refuse the results' files from number `at` on, counted from 0, as rights or room are lost."""
    numbers = iter(range(10**6))

    def failing(path, mode):
        if next(numbers) >= at:
            raise OSError(code, os.strerror(code), str(path))
        return open(path, mode)

    monkeypatch.setattr(files, "open", failing, raising=False)


def test_no_verb_that_takes_out_is_left_out():
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    taking = {name for name, each in commands.items() if "out" in [parameter.name for parameter in each.params]}
    assert taking == VERBS.keys() == COMPUTING.keys()


@pytest.mark.parametrize(
    ("verb", "code"), [(verb, errno.EACCES) for verb in VERBS] + [(FIRST, code) for code in REFUSALS]
)
def test_what_the_system_refuses_is_refused_before_computing(folder, monkeypatch, capsys, verb, code):
    before = contents(folder)
    monkeypatch.setattr(COMPUTING[verb], lambda *_, **__: pytest.fail("it computes"))
    refuse(monkeypatch, code)
    assert complaint(capsys, *command(verb, "old")) == f"old cannot be written: {REFUSALS[code]}. Give another --out."
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("verb", "out", "reason"),
    [(verb, "file", "it is not a folder") for verb in VERBS if verb not in ("report", FIRST)]
    + [
        (FIRST, "file/runs/first", "file is not a folder"),
        (FIRST, "link", "it is not a folder"),
        (FIRST, "a" * 300, "file name too long"),
    ],
)
def test_what_cannot_be_a_folder_is_refused_before_computing(folder, monkeypatch, capsys, verb, out, reason):
    Path("file").write_bytes(b"kept")
    Path("link").symlink_to("nowhere")
    before = contents(folder)
    monkeypatch.setattr(COMPUTING[verb], lambda *_, **__: pytest.fail("it computes"))
    assert complaint(capsys, *command(verb, out)) == f"{out} cannot be written: {reason}. Give another --out."
    assert contents(folder) == before


def test_a_report_of_a_file_is_refused(capsys):
    assert complaint(capsys, "report", "old/verification.json").startswith("There is no folder old/verification.json.")


@ALL_VERBS
@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_write_that_fails_later_names_the_file_that_was_asked_for(folder, monkeypatch, capsys, verb, code):
    before = contents(folder)
    fail_later(monkeypatch, code, at=0)
    line = complaint(capsys, *command(verb, "old"))
    name, said, rest = line.partition(f" cannot be written: {REFUSALS[code]}. Files written before are whole; ")
    assert said and rest in ("mend that and try again.", "free some space and try again.")
    assert folder / "old" in (folder / name).parents
    assert not any(part.startswith(".") for part in (folder / name).relative_to(folder).parts)
    assert contents(folder) == before


def test_a_watched_run_is_refused_too(folder, monkeypatch):
    model = nn.TransformerEncoderLayer(8, 2, 16)
    Path("file").write_bytes(b"kept")
    with pytest.raises(
        UnwritableError, match=r"^file/run cannot be written: file is not a folder\. Pass another `out`"
    ):
        watch(model, out="file/run", measures="ranks")
    refuse(monkeypatch, errno.EACCES)
    with pytest.raises(UnwritableError, match=r"^run cannot be written: permission denied in \.\. Pass another `out`"):
        watch(model, out="run", measures="ranks")
    assert not Path("run").exists()


def test_asking_makes_nothing(folder):
    before = set(folder.rglob("*"))
    for place in ("new/runs", "old", folder / "new", "."):
        demand_writable(place)
    assert set(folder.rglob("*")) == before


def test_names_of_unfinished_folders_are_not_told_either():
    error = OSError(errno.EACCES, "Permission denied", "out/.kept.0123abcd.part/.table.parquet.89abcdef.part")
    assert explained(error).startswith("out/kept/table.parquet cannot be written: permission denied. ")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), "a.txt: no such file or directory."),
        (OSError("Worded by joma."), "Worded by joma."),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), f"[Errno {errno.EPIPE}] Broken pipe"),
    ],
    ids=["read", "our own", "no file"],
)
def test_other_errors_of_the_system_are_not_said_to_be_of_writing(error, line):
    assert explained(error) == line
