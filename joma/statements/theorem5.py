"""Section 5: latent trees, Lemmas 8 and 9, Theorem 5."""

from joma.statements.registry import Statement

STATEMENTS: tuple[Statement, ...] = ()
