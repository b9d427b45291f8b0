"""Theorem 1's law as corrected and as printed, as quantities of a run, and what the statements on it share."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from joma.statements.joint_runs import Quantity, Run, Setup, largest_drift
from joma.statements.registry import Check, Mutation, Reference
from joma.theory.attention import AttentionKind
from joma.theory.invariants import Invariant

# DOP853 at rtol 1e-12 over quantities of order one.
ODE_TOLERANCE = 1e-9
SLIGHTLY = 1.01
BOTH = (AttentionKind.LINEAR, AttentionKind.EXP)


def for_both(setup: Setup) -> tuple[Setup, ...]:
    """Return the setup with linear and with exp attention."""
    return tuple(replace(setup, kind=kind) for kind in BOTH)


def law_of(run: Run) -> Invariant:
    """Return the invariant with the run's temperature, rates and norms of embeddings."""
    gram = run.setup.norm**2 * np.eye(run.v.shape[-1])
    return Invariant(attention=run.layer.attention, rate_ratio=run.setup.rate_ratio, gram=gram)


def corrected(run: Run) -> np.ndarray:
    """Theorem 1's quantity with its constants put right."""
    return law_of(run).value(run.v, run.z)


def printed(run: Run) -> np.ndarray:
    """Theorem 1 as printed, for each query by itself: z² − Σv² or z − ½Σv²."""
    squares = np.square(run.v).sum(axis=1)[:, None]
    return run.z**2 - squares if run.setup.kind is AttentionKind.LINEAR else run.z - squares / 2


def _weights_off(run: Run) -> np.ndarray:
    return law_of(run).value(np.sqrt(SLIGHTLY) * run.v, run.z)


WEIGHTS_OFF = Mutation(description="factor of Σ_k v_k² 1 % off", formula=_weights_off)


def conserved(setups: tuple[Setup, ...]) -> Callable[[Quantity], float]:
    """Return the measure of how far a quantity drifts along the flows of these setups."""
    return lambda quantity: largest_drift(quantity, setups)


def conservation(
    name: str,
    setups: tuple[Setup, ...],
    formula: Quantity = corrected,
    *,
    as_printed: Quantity | None = printed,
    mutation: Mutation = WEIGHTS_OFF,
) -> Check:
    """Return the check that a quantity is conserved along flows, and that the printed one is not."""
    return Check(
        name=name,
        against=Reference.ODE,
        measure=conserved(setups),
        formula=formula,
        printed=as_printed,
        tolerance=ODE_TOLERANCE,
        unit="max abs drift",
        mutation=mutation,
    )
