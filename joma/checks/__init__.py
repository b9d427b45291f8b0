"""Checks of the paper's statements against independent references."""

from joma.checks.check import Check, Mutation, as_printed, check, checks, over, rejects, scaled, verify
from joma.checks.reference import Reference

__all__ = ["Check", "Mutation", "Reference", "as_printed", "check", "checks", "over", "rejects", "scaled", "verify"]
