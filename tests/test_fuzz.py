"""A short form of `make fuzz`: damaged files and odd options end in one line."""

import random
import subprocess
import sys

import fuzz
import pytest


@pytest.mark.parametrize("target", [target for target in fuzz.TARGETS if target != "report"])
def test_damaged_inputs_are_refused_in_one_line(target):
    """In a process of its own: the script forks, and threads that other tests left here would hang its children."""
    words = [sys.executable, fuzz.__file__, "--only", target, "--inputs", "25", "--seed", "11"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "25 inputs" in ended.stdout


def test_the_script_notices_a_traceback(monkeypatch):
    """A reader that raises what joma did not word fails."""

    def broken(folder, rng):
        return {}["no such key"]

    monkeypatch.setitem(fuzz.TARGETS, "work", (1, broken))
    [(target, number, reason)] = fuzz.fuzz(1, seed=1, only="work")
    assert (target, number) == ("work", 0)
    assert "KeyError" in reason


def test_no_input_serves_until_it_is_interrupted(monkeypatch, tmp_path):
    """The live view and the explorer would count as hung; all other options of `report` are tried."""
    tried = {"report": set(), "explore": set()}
    monkeypatch.setattr(fuzz.cli, "main", lambda: tried.get(sys.argv[1], set()).add(tuple(sys.argv[2:])))
    for number in range(150):
        fuzz.options(tmp_path, random.Random(number))
    options = {word for words in tried["report"] for word in words if word.startswith("--") and word != "--"}
    assert options == {"--out", "--single", "--json"}
    assert tried["explore"] and all(words[-1] == "no-such-thing" for words in tried["explore"])
