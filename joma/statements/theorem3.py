"""Lemmas 2 and 4, Theorem 3: mixtures of isotropic clusters and their critical points."""

from joma.statements.registry import Statement

STATEMENTS: tuple[Statement, ...] = ()
