"""What a scan says at the command line: counts that add up, and options where the library names arguments."""

import inspect

import pytest
import torch
from safetensors.torch import save_file
from states import walk
from test_checkpoint import save_malicious

from joma import cli, terminal
from joma.errors import UnknownNameError
from joma.probe.scan import scan
from joma.terminal_scan import options_named


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    """Asking git for the commit is most of the time that opening takes."""
    monkeypatch.setattr("joma.store.record.git_commit", lambda: None)


def last_line(found, capsys):
    terminal.show_scan(found)
    return capsys.readouterr().out.splitlines()[-1]


def test_a_checkpoint_that_is_not_loaded_is_not_counted_as_measured(tmp_path, capsys):
    save_malicious(tmp_path / "step1.pt", tmp_path / "ran", "zip")
    for _ in range(2):  # the record of the first call changes nothing about it
        found = scan(tmp_path / "step1.pt", out=tmp_path / "out")
        assert found.is_empty and found.not_loaded == ("step1.pt",)
        assert last_line(found, capsys) == (
            f"1 checkpoint: 0 measured now, 0 known before, 1 not loaded; 1 finding. Record in {tmp_path / 'out'}."
        )
        assert found.as_dict()["not_loaded"] == ["step1.pt"]


def test_every_checkpoint_is_counted_once(tmp_path, capsys):
    for step, state in enumerate(walk(3), start=1):
        torch.save(state, tmp_path / f"step{step}.pt")
    save_malicious(tmp_path / "step4.pt", tmp_path / "ran", "zip")
    torch.save({"state": torch.ones(3)}, tmp_path / "step5.pt")
    torch.save(walk(1)[0] | {"odd.weight": torch.ones(4, 4).to_sparse()}, tmp_path / "step6.pt")
    first = scan(tmp_path, out=tmp_path / "out")
    assert not first.is_empty and (first.num_measured, first.num_known) == (3, 0)
    assert (first.not_loaded, first.without_values, list(first.failures)) == (
        ("step4.pt",),
        ("step5.pt",),
        ["step6.pt"],
    )
    again = scan(tmp_path, out=tmp_path / "out")
    assert (again.num_measured, again.num_known) == (0, 3)
    assert last_line(again, capsys).startswith(
        "6 checkpoints: 0 measured now, 3 known before, 1 not loaded, 1 with nothing to measure, 1 not reached; "
    )


OPTIONS = tuple(inspect.signature(scan).parameters)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mlp_pattern": "("}, "`--mlp-pattern` must be a regular expression"),
        ({"mlp_pattern": r"n\.\d"}, r"No matrix matches `--mlp-pattern=n\.\d`. Change the pattern."),
        ({"revisions": "step*"}, "`--revisions` is for repositories of the hub"),
        ({"per_head": True}, "`--tokenizer`, `--window` and `--per-head` are for the entropy on a text. Pass `--text`"),
    ],
    ids=["no pattern", "no match", "revisions", "no text"],
)
def test_errors_name_options(tmp_path, settings, words):
    save_file(walk(1)[0], tmp_path / "step1.safetensors")
    with pytest.raises(ValueError) as caught, options_named(OPTIONS):
        scan(tmp_path / "step1.safetensors", out=tmp_path / "out", **settings)
    assert words in str(caught.value)


def test_a_repository_without_revisions(tmp_path):
    with pytest.raises(FileNotFoundError, match="pass `--revisions` too"), options_named(OPTIONS):
        scan("org/model", out=tmp_path / "out")


def test_errors_keep_their_kind_and_what_the_system_says():
    with pytest.raises(UnknownNameError, match="There is no place named 'slurm'"), options_named(OPTIONS):
        raise UnknownNameError("place", "slurm", ["local"])
    with pytest.raises(NotADirectoryError) as caught, options_named(OPTIONS):
        raise NotADirectoryError(20, "`out` is no folder")
    assert caught.value.errno == 20 and "`out`" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [((), 1, "0 measured now"), (("--mlp-pattern", "("), 2, "`--mlp-pattern`")],
    ids=["nothing measured", "no pattern"],
)
def test_a_scan_without_numbers_ends_with_an_error(tmp_path, capsys, monkeypatch, options, code, words):
    save_malicious(tmp_path / "step1.pt", tmp_path / "ran", "zip")
    monkeypatch.setattr("sys.argv", ["joma", "scan", str(tmp_path), "--out", str(tmp_path / "out"), *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    said = capsys.readouterr()
    assert words in said.out + said.err


def test_what_the_audit_finds_is_said_and_leaves_the_exit_code(tmp_path, capsys, monkeypatch):
    for step, state in enumerate(walk(3), start=1):
        torch.save(state, tmp_path / f"step{step}.pt")
    save_malicious(tmp_path / "step4.pt", tmp_path / "ran", "zip")
    monkeypatch.setattr("sys.argv", ["joma", "scan", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert not ended.value.code
    assert "Not sound: unsafe. The exit code does not tell what the audit finds: `sound` of --json does." in said.out
    assert said.err.splitlines() == ["Scanning checkpoints: 0/4", "Scanning checkpoints: 4/4, step4.pt"]


def test_a_sound_series_is_not_said_to_be_anything_else(tmp_path, capsys):
    for step, state in enumerate(walk(3), start=1):
        torch.save(state, tmp_path / f"step{step}.pt")
    found = scan(tmp_path, out=tmp_path / "out")
    terminal.show_scan(found)
    assert found.sound and not found.grave and "Not sound" not in capsys.readouterr().out


def test_help_says_what_exit_codes_mean(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["joma", "scan", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    said = " ".join(capsys.readouterr().out.split())
    assert all(f"Exit code {code}: " in said for code in (0, cli.UNSOUND, cli.BAD_INPUT))
    assert "What the audit finds leaves the exit code as it is: --json has `sound`." in said


def test_values_of_an_earlier_file_are_not_counted_as_measured(tmp_path):
    torch.save(walk(1)[0], tmp_path / "step1.pt")
    assert scan(tmp_path, out=tmp_path / "out").num_measured == 1
    torch.save({"embedding.weight": torch.ones(5)}, tmp_path / "step1.pt")
    again = scan(tmp_path, out=tmp_path / "out")
    assert (again.num_measured, again.num_known, again.without_values) == (0, 0, ("step1.pt",)) and again.is_empty
