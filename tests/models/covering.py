"""Rows of settings in which every pair of values meets at least once: far fewer than all combinations."""

from collections.abc import Iterable, Mapping
from itertools import combinations, product
from typing import Any

Setting = tuple[str, Any]
Pair = frozenset[Setting]
Factors = Mapping[str, tuple[Any, ...]]


def all_pairs(factors: Factors) -> set[Pair]:
    """Every value of a factor beside every value of another."""
    return {
        frozenset({(one, a), (other, b)})
        for one, other in combinations(factors, 2)
        for a, b in product(factors[one], factors[other])
    }


def pairs_of(row: Mapping[str, Any]) -> set[Pair]:
    """The pairs that meet in one row."""
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def covering_array(factors: Factors, forbidden: Iterable[Pair] = ()) -> list[dict[str, Any]]:
    """Cover greedily: start a row from a pair that is missing, then take the value that meets the most missing pairs.

    A factor's first value must be allowed beside everything, so that every row can be filled.
    """
    banned = set(forbidden)
    missing = sorted(all_pairs(factors) - banned, key=lambda pair: sorted(map(repr, pair)))
    rows = []
    while missing:
        row = dict(missing[0])
        for name in factors:
            if name not in row:
                row[name] = _best(name, factors[name], row, set(missing), banned)
        covered = pairs_of(row)
        missing = [pair for pair in missing if pair not in covered]
        rows.append({name: row[name] for name in factors})
    return rows


def _best(name: str, values: tuple[Any, ...], row: dict[str, Any], missing: set[Pair], banned: set[Pair]) -> Any:
    def gain(value: Any) -> int:
        met = {frozenset({(name, value), setting}) for setting in row.items()}
        return -1 if met & banned else len(met & missing)

    return max(values, key=gain)
