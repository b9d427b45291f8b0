"""Claims of the paper: what it says, the numbers that test it, and the one rule that gives the outcome."""

from joma.claims.claim import Answer, Claim, Outcome, answer, claim, judge, outcome_of
from joma.claims.number import Number
from joma.claims.statements import Statement, statements

__all__ = ["Answer", "Claim", "Number", "Outcome", "Statement", "answer", "claim", "judge", "outcome_of", "statements"]
