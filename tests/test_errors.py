"""Input checks say what is needed, what came and what to do."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import joma.page
from joma.charts import builders
from joma.charts.chart import bundle_files
from joma.errors import (
    MOST_LISTED,
    MissingExtraError,
    UnknownNameError,
    finite,
    import_extra,
    nearest,
    positive,
    same_shape,
    shaped,
    whole,
    within,
)
from joma.probe import callbacks_hf, callbacks_lightning, hub, text
from joma.tasks.run import check_place


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            lambda: finite("mu", [1.0, float("nan")]),
            r"`mu` must be finite, got nan at index \(1,\)\. Remove or replace",
        ),
        (lambda: finite("mu", float("inf")), r"`mu` must be finite, got inf\. "),
        (lambda: finite("mu", "three"), r"`mu` must be numbers, got 'three'"),
        (lambda: positive("temperature", 0.0), r"`temperature` must be positive, got 0\.0\. Pass a value above 0"),
        (lambda: within("rho", 1.5, -1, 1), r"`rho` must lie in \[-1, 1\], got 1\.5\. Rescale it"),
        (lambda: shaped("K M", v=[1.0, 2.0]), r"`v` must have the axes \(K, M\), got shape \(2,\)\. Reshape it"),
        (lambda: shaped("*T K M", v=1.0), r"`v` must have the axes \(\*T, K, M\), got shape \(\)"),
        (lambda: whole("H", [1, 1.5], low=0), r"`H` must be a whole number of at least 0, got 1\.5\. Pass one"),
        (lambda: whole("seed", -1, low=0), r"`seed` must be a whole number of at least 0, got -1"),
        (lambda: whole("q", [0, 3], low=0, high=2), r"`q` must be a whole number of at least 0 and at most 2, got 3"),
        (lambda: same_shape(a=np.zeros(2), b=np.zeros(3)), r"Shapes must agree, got `a` \(2,\), `b` \(3,\)"),
    ],
)
def test_messages(check, message):
    with pytest.raises(ValueError, match=message):
        check()


def test_an_unknown_name_far_from_all_lists_what_is_known():
    assert str(UnknownNameError("flow", "zzz", ["printed", "model"])).endswith("Known: model, printed.")


def test_many_names_are_not_listed_where_something_else_lists_them():
    many = [f"name{number}" for number in range(MOST_LISTED + 1)]
    assert str(UnknownNameError("flow", "zzz", many, listing="`all`")).endswith("`all` lists all 13 of them.")
    assert "Known: name0, name1," in str(UnknownNameError("flow", "zzz", [*many[1:], "name0"]))
    assert "Known:" in str(UnknownNameError("flow", "zzz", many[1:], listing="`all`"))


def test_what_else_is_taken_is_said_where_no_name_is_near():
    assert str(UnknownNameError("text", "zzz", ["docs"], remark="Or a folder.")).endswith("Known: docs. Or a folder.")
    assert str(UnknownNameError("text", "dosc", ["docs"], remark="Or a folder.")).endswith("Did you mean 'docs'?")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("figur4", "figure4"),
        ("FIGUR4", "figure4"),
        ("figure44", "figure4"),
        ("figure6", None),
        ("bf61", "bf16"),
        ("figure", None),
        ("extra", None),
        ("tabel1", "table1"),
    ],
)
def test_only_a_slip_is_taken_for_another_name(name, near):
    assert nearest(name, ["figure4", "figure9", "table1", "--beta2", "bf16"]) == near


@pytest.mark.parametrize(
    ("use", "package", "extra"),
    [
        (lambda: builders.alt.Chart, "altair", "report"),
        (bundle_files.__wrapped__, "vl_convert", "report"),
        (lambda: importlib.reload(joma.page), "jinja2", "report"),
        (lambda: check_place("ray"), "ray", "ray"),
        (lambda: importlib.reload(callbacks_hf), "transformers", "hf"),
        (lambda: importlib.reload(callbacks_lightning), "lightning", "lightning"),
        (lambda: hub.list_revisions("a/b", "step*"), "huggingface_hub", "hf"),
        (lambda: text.load_config(Path()), "transformers", "hf"),
    ],
    ids=["charts", "files of charts", "pages", "ray", "Trainer", "Lightning", "hub", "text"],
)
def test_a_missing_extra_is_named(use, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    with pytest.raises(MissingExtraError, match=rf"needs {package}.*joma\[{extra}\]"):
        use()


def test_a_fault_inside_an_extra_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import no_such_module_of_its_own\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_its_own"):
        import_extra("broken_extra", "report")


def test_core_needs_no_extra():
    """Theory, measuring, records and the command import without charts, pages, hub, Lightning and Ray."""
    program = """
import sys
for name in ("altair", "vl_convert", "jinja2", "transformers", "huggingface_hub", "lightning", "ray"):
    sys.modules[name] = None
import joma
joma.watch, joma.scan, joma.train, joma.verify, joma.simulate, joma.read, joma.reproduce
from joma.cli import main
sys.argv = ["joma", "report", "."]
main()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("\n") == 1
    assert "joma[report]" in found.stderr
