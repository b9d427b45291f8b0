"""Compare the output of `joma reproduce --preset quick --out OUT` with the numbers that version 0.1 gave.

    OMP_NUM_THREADS=1 joma reproduce --preset quick --out OUT
    python tests/golden/compare_quick.py OUT

With one thread two runs gave the same bits (Python 3.11.7, torch 2.13.0, NumPy 2.4.6), so no number has a tolerance of
its own; a `tolerance` in `quick.json` would replace `RELATIVE`. Figures 6 to 8 and 10 read the documentation of the
running Python: another version of Python gives them other numbers. Changes on purpose are listed in `changes.toml`
under `quick` and `quick_table`.
"""

# ruff: noqa: T201
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.read import GOLDEN, kept_numbers, load, same, table_sums

RELATIVE = 1e-6
"""Of numbers that have no tolerance of their own in `quick.json`."""
ROUNDING = 1e-9
"""Numbers below this are rounding: a distance from a closed form, say."""
NUMERIC = ("filled cells", "sum", "absolute sum")
"""What a column of numbers is described by."""


def differences(out: Path, experiments: Collection[str] = ()) -> list[str]:
    """Return where the numbers and tables of some experiments, or all, are not those of version 0.1."""
    listed = tomllib.loads((GOLDEN / "changes.toml").read_text())
    changed = {tuple(entry["key"]) for kind in ("quick", "quick_table") for entry in listed.get(kind, ())}
    found = []
    for name, now in (("quick.json", kept_numbers(out)), ("quick_tables.json", table_sums(out))):
        for key, fields in load(name).items():
            if experiments and key[0] not in experiments:
                continue
            tolerance, new = fields.pop("tolerance", RELATIVE), now.get(key, {})
            different = [
                f"{key} {field}: {old} became {new.get(field, 'missing')}"
                for field, old in fields.items()
                if field not in new or not _agree(old, new[field], tolerance)
            ]
            if key not in changed:
                found += different
            elif not different:
                found.append(f"{key} is listed as changed, and is not")
    return found


def _agree(old: object, new: object, tolerance: float) -> bool:
    """Compare values, and the sums of columns relative to their absolute sums."""
    if isinstance(old, list):
        if not isinstance(new, list) or len(new) != len(old):
            return False
        slack = tolerance * old[-1] + ROUNDING * old[0] if len(old) == len(NUMERIC) else 0.0
        return old[0] == new[0] and all(same(a, b, tolerance, slack) for a, b in zip(old, new, strict=True))
    return same(old, new, tolerance, ROUNDING)


if __name__ == "__main__":
    different = differences(Path(sys.argv[1]))
    print("\n".join(different) or "All numbers of preset quick are those of version 0.1.")
    sys.exit(bool(different))
