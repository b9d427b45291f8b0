"""Checks of the paper's statements against independent references."""

from joma.checks.check import Check, Mutation, Reference, check, checks, scaled, verify

__all__ = ["Check", "Mutation", "Reference", "check", "checks", "scaled", "verify"]
