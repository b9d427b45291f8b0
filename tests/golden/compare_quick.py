"""Compare the tables of `joma reproduce --preset quick --out OUT` with those of version 0.1, by their sums.

    OMP_NUM_THREADS=1 joma reproduce --preset quick --out OUT
    python tests/golden/compare_quick.py OUT

With one thread two runs gave the same bits (Python 3.11.7, torch 2.13.0, NumPy 2.4.6). Figures 7 and 10 read the
documentation of the running Python: another version of Python gives them other numbers. Tables that changed on purpose
are listed in `changes.toml` under `quick_table`, single columns with `column`.
"""

# ruff: noqa: T201
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.read import GOLDEN, load, same, table_sums

RELATIVE = 1e-6
ROUNDING = 1e-9
"""Numbers below this are rounding: a distance from a closed form, say."""
NUMERIC = ("filled cells", "sum", "absolute sum")
"""What a column of numbers is described by."""


def differences(out: Path) -> list[str]:
    """Return where tables are not those of version 0.1."""
    changes = tomllib.loads((GOLDEN / "changes.toml").read_text()).get("quick_table", ())
    changed = {(entry["experiment"], entry["table"], entry.get("column", "*")) for entry in changes}
    now, found = table_sums(out), []
    for key, fields in load("quick_tables.json").items():
        new = now.get(key, {})
        found += [
            f"{key} {field}: {old} became {new.get(field, 'missing')}"
            for field, old in fields.items()
            if not {(*key, "*"), (*key, field)} & changed and (field not in new or not _agree(old, new[field]))
        ]
    return found


def _agree(old: object, new: object) -> bool:
    """Compare values, and the sums of columns relative to their absolute sums."""
    if isinstance(old, list):
        if not isinstance(new, list) or len(new) != len(old):
            return False
        slack = RELATIVE * old[-1] + ROUNDING * old[0] if len(old) == len(NUMERIC) else 0.0
        return old[0] == new[0] and all(same(a, b, RELATIVE, slack) for a, b in zip(old, new, strict=True))
    return same(old, new, RELATIVE, ROUNDING)


if __name__ == "__main__":
    different = differences(Path(sys.argv[1]))
    print(
        "\n".join(different) or "All tables of preset quick are those of version 0.1, but for those listed as changed."
    )
    sys.exit(bool(different))
