"""Section 4 with attention: Eqn 6, Lemmas 6 and 7, Theorem 4, figure 4."""

from joma.statements.registry import Statement

STATEMENTS: tuple[Statement, ...] = ()
