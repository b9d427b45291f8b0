"""Appendix A.3.1, Lemmas 1, 3 and 5: half-spaces of isotropic distributions."""

from joma.statements.registry import Statement

STATEMENTS: tuple[Statement, ...] = ()
