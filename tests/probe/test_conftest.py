"""A machine that has a GPU and little else can run the tests that need one."""

import os
import subprocess
import sys
from pathlib import Path

DEVELOPERS_ONLY = (
    "hypothesis",
    "beartype",
    "xdist",
    "lightning",
    "accelerate",
    "ray",
    "tensorboard",
    "duckdb",
)
"""What the `dev` extra brings beyond what joma and the extra `hf` need."""


def test_tests_of_a_watch_on_a_gpu_are_collected_without_what_developers_install(tmp_path):
    # `None` in place of a module makes its import fail as that of a missing one does.
    (tmp_path / "bare_machine.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({DEVELOPERS_ONLY}))\n")
    asked = ["-p", "bare_machine", "-o", "addopts=", "-q", "--collect-only", "-k", "gpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, str(Path(__file__).with_name("test_untouched.py"))],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "::test_on_a_gpu[" in done.stdout
