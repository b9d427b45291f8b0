"""The command as a user types it."""

import json
import os
import subprocess
import sys
import time
import warnings

import pytest
import typer
from typer.core import TyperOption

import joma as joma_package
from joma import cli
from joma.claims import statements
from joma.theory.simulation import DEFAULT_NUM_COMPONENTS, SimulationConfig

HELP_SECONDS = 0.5
SLACK = 6
"""Machines that run tests are shared; the goal itself is measured by benchmarks/theory.py."""
PROGRESS = ("Checking statements: ", "Solving the flow")
"""How lines of progress begin, which stand on standard error before an error does."""


def joma(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "joma", *arguments], os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_help_answers_quickly():
    begun = time.perf_counter()
    assert "verify" in joma("--help").stdout
    assert time.perf_counter() - begun < SLACK * HELP_SECONDS


def test_verify_explains_one_statement():
    done = joma("verify", "thm2")
    assert done.returncode == 0
    for part in ("erf(v_l/2)/Δ_l", "erf(v_l/√2)/Δ_l", "wrong as printed"):
        assert part in done.stdout


def test_verify_as_json_is_json_alone():
    [record] = json.loads(joma("verify", "lemma5", "--json").stdout)
    assert record["outcome"] == "wrong as printed" and record["sound"]
    number = record["numbers"][0]
    assert number["value"] <= number["at_most"] < number["control"]


def test_a_log_says_what_has_begun_and_json_stays_alone(tmp_path):
    simulate = ("simulate", "--targets", "1,2", "--num-points", "8", "--out", str(tmp_path))
    assert joma(*simulate).stderr.splitlines() == ["Solving the flow", "Drawing"]
    done = joma(*simulate, "--json")
    assert json.loads(done.stdout) and not done.stderr


def test_verify_writes_a_record(tmp_path):
    done = joma("verify", "lemma8", "--out", str(tmp_path / "new"))
    assert done.returncode == 0 and "verification.json" in done.stdout
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"verification.json"}


def test_the_version():
    assert joma("--version").stdout == f"joma {joma_package.__version__}\n"


def test_the_statements_are_listed_and_not_checked():
    done = joma("verify", "--list", "--json")
    listed = json.loads(done.stdout)
    assert done.returncode == 0 and len(listed) == len(statements()) and set(listed[0]) == {"id", "title", "source"}
    assert "thm1-exp" in joma("verify", "THM1", "--list").stdout


COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (command, option)
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option, TyperOption) and not option.required and (not option.is_flag or option.secondary_opts)
    ],
    ids=lambda each: each.name,
)
def test_the_help_of_an_option_says_its_default(command, option):
    """A flag that cannot be denied needs none: it is off."""
    _, words = option.get_help_record(typer.Context(command))
    assert "[default: " in words


def test_the_defaults_of_a_simulation_are_those_that_are_told():
    told = {option.name: option.show_default for option in COMMANDS["simulate"].params}
    config, flows = SimulationConfig(), ("saliency", "printed", "normalised", "model", "clusters")
    for name in ("flow", "targets", "seed", "normalisation", "rate_ratio", "num_points"):
        value = getattr(config, name)
        assert told[name] == (value if isinstance(value, str) else f"{value:g}")
    assert told["num_components"] == str(DEFAULT_NUM_COMPONENTS)
    built = {name: SimulationConfig(flow=name).build() for name in flows}
    clusters, normal = built["clusters"], built.pop("normalised")
    assert (told["bias"], told["negative_weight"]) == (f"{clusters.bias:g}", f"{clusters.negative_weight:g}")
    [kind] = {flow.attention.kind.value for flow in built.values()}
    [temperature] = {flow.attention.temperature for flow in built.values()}
    assert told["attention"] == f"{normal.attention.kind.value} for normalised, else {kind}"
    assert told["temperature"] == f"{normal.attention.temperature:g} for normalised, else {temperature:g}"
    assert told["activation"] == built["saliency"].activation.name


INTERRUPTED_IMPORT = """
import sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == "joma.terminal":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from joma.cli import main
main()
"""


@pytest.mark.parametrize(
    "arguments",
    [("verify",), ("simulate",), ("train", "--settings"), ("reproduce",), ("report", "."), ("scan", ".", "--out", "o")],
)
def test_ctrl_c_while_a_command_is_imported_ends_it_quietly(arguments):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (cli.INTERRUPTED, "", "")


def test_a_traceback_is_shown_where_it_is_asked_for():
    done = joma("verify", "thm22", **{cli.DEBUG: "1"})
    assert done.returncode == cli.BAD_INPUT and "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("joma: There is no statement")
    assert cli.DEBUG in joma("--help").stdout


@pytest.mark.parametrize(
    ("raising", "words"),
    [(lambda: json.loads("{"), "joma: JSONDecodeError: Expecting"), (lambda: 1 // 0, "joma: ZeroDivisionError: ")],
    ids=["a library's", "arithmetic"],
)
def test_an_error_that_was_not_foreseen_says_how_to_see_more(monkeypatch, capsys, raising, words):
    monkeypatch.setattr(cli, "app", raising)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert said.startswith(words) and f"{cli.DEBUG}=1" in said and len(said.splitlines()) == 1


@pytest.mark.filterwarnings("default")  # as outside of the tests, where a warning is no error
@pytest.mark.parametrize(
    ("category", "line"),
    [
        (RuntimeWarning, "joma: warning: x.bin is damaged; it is made again."),
        (FutureWarning, "joma: FutureWarning: x.bin is damaged; it is made again."),
    ],
)
def test_a_warning_is_one_line_and_shows_its_place_where_that_is_asked_for(monkeypatch, capsys, category, line):
    def warn():
        warnings.warn("x.bin is damaged;\n it is made again.", category, stacklevel=1)

    monkeypatch.setattr(cli, "app", warn)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    before = warnings.showwarning
    cli.main()
    assert capsys.readouterr().err == line + "\n"
    assert warnings.showwarning is before  # it is the command's way, not the library's
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.warns(category):
        cli.main()
    assert not capsys.readouterr().err.startswith("joma:")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("verify", "thm22"), "joma: There is no statement named 'thm22'. Did you mean 'thm2'?"),
        (("simulate", "--temperature", "0"), "joma: `temperature` must be positive, got 0.0. Pass a value above 0."),
        (("simulate", "--targets", "1,nan"), "`targets` must be finite, got nan at index (1,)"),
        (
            ("simulate", "--targets", "1,2", "--v0", "1,2,3"),
            "joma: `v0` must be one number or one for each of 2 targets, got 3.",
        ),
        (("simulate", "--num-points", "2147483648"), "`--num-points` must be at most 1,000,000, got 2,147,483,648"),
        (("verify", "thm6"), "joma: There is no statement named 'thm6'. `joma verify --list` lists all"),
        (("reproduce", "figure44"), "joma: There is no experiment named 'figure44'. Did you mean 'figure4'?"),
        (("explore", "--static", "."), "joma: . is a folder. Pass the file to write, such as explore.html."),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_bad_input_is_one_line_and_no_traceback(arguments, line):
    done = joma(*arguments)
    assert done.returncode == 2
    said = [each for each in done.stderr.splitlines() if not each.startswith(PROGRESS)]
    assert len(said) == 1 and line in said[0]


def test_an_unknown_choice_is_refused_with_the_known_ones():
    done = joma("reproduce", "--preset", "quickly")
    assert done.returncode == 2
    assert "quick" in done.stderr and "full" in done.stderr and "Traceback" not in done.stderr
