"""Section 3, Theorem 1: what training conserves."""

from joma.statements.registry import Statement

STATEMENTS: tuple[Statement, ...] = ()
