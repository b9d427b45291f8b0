"""Windows and macOS, as far as they can be tried elsewhere: without modules, calls and files that only Linux has."""

import json
import os
import subprocess
import sys

import pytest

from joma.engine.grid import runs_of
from joma.store import demand_writable, files

AS_ELSEWHERE = """
import os, signal, sys
import altair, filelock, pandas, pyarrow.parquet, pydantic, rich.console, safetensors.torch, scipy.stats, torch, typer
from pathlib import Path
import torch._dynamo, vl_convert

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in "fork geteuid getuid getloadavg kill killpg sched_getaffinity statvfs sysconf uname".split():
    delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    delattr(signal, name)

def without_proc(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

sys.addaudithook(without_proc)

import joma
from joma.page.report import report
from joma.store import find_runs

folder = Path(sys.argv[1])
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
model = torch.nn.Sequential(torch.nn.Embedding(10, 16), torch.nn.TransformerEncoder(layer, 2))
with joma.watch(model, out=folder / "日本", every=1, measures="full") as seen:
    for step in range(2):
        model(torch.ones(2, 8, dtype=torch.long)).square().mean().backward()
        seen.step(step)
(folder / "series").mkdir()
for step in range(2):
    weights = {name: (1 + step) * weight for name, weight in model.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "series" / f"step{step}.safetensors")
joma.scan(folder / "series", out=folder / "scanned")
tiny = {"steps": 2, "width": 8, "hidden": 8, "depth": 1, "batch": 4, "measure_every": 2, "rho": 0.8, "seed": 1}
joma.train(tiny, recipe="trees", out=folder / "trained", device="cpu")
report(folder)
runs = find_runs(folder)
assert len(runs) == 3 and all(len(joma.read(run)) for run in runs), runs
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder that a process wrote into which missed what Windows has not, and noted files opened without encoding."""
    folder = tmp_path_factory.mktemp("Läufe 日本")
    flags = ["-X", "warn_default_encoding", "-W", "ignore", "-W", "always::EncodingWarning"]
    command = [sys.executable, *flags, "-c", AS_ELSEWHERE, str(folder)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


@pytest.mark.slow  # another Python, which imports everything
def test_everything_runs_without_what_other_systems_lack(recorded):
    folder, complaints = recorded
    assert (folder / "index.html").exists()
    ours = [line for line in complaints.splitlines() if f"{os.sep}joma{os.sep}" in line and "EncodingWarning" in line]
    assert not ours


@pytest.mark.slow  # as above
def test_commands_print_on_a_code_page_of_windows(recorded):
    folder, _ = recorded
    environment = os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}

    def output(*arguments):
        command = [sys.executable, "-m", "joma", "compare", str(folder / "日本"), str(folder / "日本")]
        done = subprocess.run([*command, *arguments], capture_output=True, env=environment, check=True)
        return done.stdout.decode("cp1252")

    assert "entropy" in output()
    assert "日本" in json.dumps(json.loads(output("--json")), ensure_ascii=False)


@pytest.mark.parametrize("name", ["con", "runs/NUL.txt", "a:b", "ends.", "ends ", "wh?t"])
def test_names_that_windows_does_not_take_are_refused_there(name, tmp_path, monkeypatch):
    demand_writable(tmp_path / name)
    monkeypatch.setattr(files, "_WINDOWS", True)
    with pytest.raises(OSError, match="Windows"):
        demand_writable(tmp_path / name)
    for near in ("../runs", "console", "läufe 日本.d", ".hidden", "lpt"):
        demand_writable(tmp_path / near)


@pytest.mark.parametrize("name", ["a:b", "con", "ends.", "C:\\texts\\mine", "ü 日本"])
def test_names_of_runs_can_be_folders_anywhere(name, monkeypatch, tmp_path):
    (run,) = runs_of({"data": name, "lr": 1e-3, "depth": 1, "seed": 1})
    monkeypatch.setattr(files, "_WINDOWS", True)
    demand_writable(tmp_path / run.name)
