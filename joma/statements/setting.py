"""Section 2 and Appendix A.1: the layer, its gradient, and what the setting assumes."""

from joma.statements.registry import Statement

STATEMENTS: tuple[Statement, ...] = ()
