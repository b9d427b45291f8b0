"""Plant the errors of `errors.toml` in a copy of the tree, one by one: do the tests or `joma verify` catch them?

    python tests/planted/run.py                  # all errors, in the working tree; goes on where it stopped
    python tests/planted/run.py --only theory    # an area, or ids
    python tests/planted/run.py --commit 8d306a4 # the code and the tests of a commit

Outcomes go to `caught.json` by commit. The script exits with 1 where an error survives that the first commit caught.
"""

# ruff: noqa: T201
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CAUGHT = HERE / "caught.json"
LONGEST = 600
"""Seconds after which a planted error has hung the tests, which counts as caught."""
NO_TESTS = 5
"""Exit status of pytest where no test has the name."""
OPTIONS = "addopts=--doctest-modules --strict-markers"
"""Without the checks of shapes at run time, under which tests take several times as long."""
PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", OPTIONS]
VERIFY = ["-m", "joma", "verify", "--json"]


def main() -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description="See which planted errors are caught.")
    parser.add_argument("--only", nargs="*", default=[], help="areas or ids")
    parser.add_argument("--commit", help="plant in this commit instead of the working tree")
    parser.add_argument("--again", action="store_true", help="also run what has an outcome")
    asked = parser.parse_args()
    errors = tomllib.loads((HERE / "errors.toml").read_text())["error"]
    errors = [each for each in errors if not asked.only or {each["id"], each["area"]} & set(asked.only)]
    name = asked.commit or _state()
    with tempfile.TemporaryDirectory() as folder:
        tree = _copied(Path(folder) / "tree", asked.commit)
        for error in errors:
            if error["id"] not in _outcomes().get(name, {}) or asked.again:
                outcome = plant(tree, error, _known(error["id"]))
                _keep(name, error["id"], outcome)
                print(f"{error['id']}: {outcome['outcome']}, {outcome.get('seconds', 0)} s", flush=True)
    found = _outcomes()
    print(Counter(found[name][each["id"]]["outcome"] for each in errors))
    before = next(iter(found.values()))
    lost = [each["id"] for each in errors if is_caught(before, each["id"]) and not is_caught(found[name], each["id"])]
    print(f"caught by the first commit and not here: {', '.join(lost) or 'none'}")
    return bool(lost)


def is_caught(outcomes: dict, error: str) -> bool:
    """Whether tests or `verify` caught an error."""
    return outcomes.get(error, {}).get("outcome", "").startswith("caught")


def plant(tree: Path, error: dict, known: str = "") -> dict:
    """Plant one error, run what may catch it until something does, and take the error out again.

    First come the `known` tests, which caught it before, then all its tests, and for theory `joma verify`.
    """
    texts = {path: path.read_text() for path in (tree / "joma").rglob("*.py")}  # it may have moved to another file
    homes = [path for path, text in texts.items() if text.count(error["old"]) == 1]
    source = homes[0] if len(homes) == 1 else tree / error["file"]
    if source not in homes:
        return {"outcome": "cannot be planted any more: old text not found"}
    text = texts[source]
    tests = [path for path in error["tests"] if (tree / path).exists()] or [f"tests/{error['area']}"]
    checks = [("tests", [*PYTEST, "-k", known, *tests])] if known else []
    checks += [("tests", [*PYTEST, *tests, str(source.relative_to(tree))])]
    checks += [("verify", VERIFY)] if error["area"] == "theory" else []
    begun = time.monotonic()
    try:
        _write(source, text.replace(error["old"], error["new"]))
        found = ((name, command, _failure(tree, command)) for name, command in checks)
        by, command, failure = next((each for each in found if each[-1]), ("", [], ""))
    finally:
        _write(source, text)
    seconds = round(time.monotonic() - begun)
    if not by:
        return {"outcome": "survived", "seconds": seconds, "by": {}}
    fails_anyway = _failure(tree, [*PYTEST, failure] if "::" in failure else command)
    outcome = f"{by} fail without the error too" if fails_anyway else f"caught by {by}"
    return {"outcome": outcome, "seconds": seconds, "by": {by: failure}}


def _known(error: str) -> str:
    """Return the names of the tests that caught an error in any commit, as `-k` takes them."""
    failures = [found[error]["by"].get("tests", "") for found in _outcomes().values() if "by" in found.get(error, {})]
    return " or ".join(sorted({name for each in failures for name in re.findall(r"::(test_\w+)", each)}))


def _failure(tree: Path, command: list[str]) -> str:
    """Return what failed first, or nothing."""
    variables = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *command], check=False, cwd=tree, env=variables, timeout=LONGEST, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return f"nothing ended within {LONGEST} s"
    if done.returncode == 0 or (done.returncode == NO_TESTS and "-k" in command):
        return ""
    output, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if "verify" in command and output.startswith("["):
        return ", ".join(each["claim"] for each in json.loads(output) if not each.get("sound", True)) or "exit status"
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    return failed[0] if failed else (errors or output).strip().splitlines()[-1][:200]


def _copied(tree: Path, commit: str | None) -> Path:
    """Copy the working tree, or take a commit out of the history."""
    if commit:
        tree.mkdir()
        _git("archive", "-o", f"{tree}.tar", commit)
        shutil.unpack_archive(f"{tree}.tar", tree, filter="data")
        return tree
    for name in _git("ls-files", "-co", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    return tree


def _state() -> str:
    """Name the working tree by its commit, with a plus where joma or its tests have changed since."""
    changed = _git("status", "--porcelain", "--", "joma", "tests", ":!tests/planted")
    return _git("rev-parse", "--short=7", "HEAD").strip() + ("+" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _write(source: Path, text: str) -> None:
    source.write_text(text)
    for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"):
        compiled.unlink()  # its check by date may not see two changes within a second


def _outcomes() -> dict[str, dict]:
    return json.loads(CAUGHT.read_text()) if CAUGHT.exists() else {}


def _keep(name: str, error: str, outcome: dict) -> None:
    found = _outcomes()
    found.setdefault(name, {})[error] = outcome
    commits = []
    for commit, outcomes in found.items():  # a line for each error
        lines = [f'  "{each}": {json.dumps(outcomes[each], ensure_ascii=False)}' for each in outcomes]
        commits.append(f' "{commit}": {{\n' + ",\n".join(lines) + "\n }")
    CAUGHT.write_text("{\n" + ",\n".join(commits) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
