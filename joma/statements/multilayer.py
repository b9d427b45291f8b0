"""The multi-layer note at the end of the paper's text."""

from joma.statements.registry import Statement

STATEMENTS: tuple[Statement, ...] = ()
