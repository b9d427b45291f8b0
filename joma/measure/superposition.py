r"""Neurons that fire for several contexts whose attended tokens are unrelated (Eqn 60, figure 10).

A weight vector $w = U_C(v_1 + v_2) + \xi_1u_{m_1} + \xi_2u_{m_2}$ answers two patterns. From outside it is a neuron
that fires for two bundles of contexts, alike within a bundle in what the query attends to, unrelated between them:

1. A neuron *fires* for the contexts at or above a third of its peak (counted from its median; the peak is its 4th
   largest activation) that also stand four standard deviations of its bulk above the median. These are few. A neuron
   whose activations spread as a normal distribution does, as in an untrained network, has next to none.
2. These contexts are bundled by average linkage on the overlap of what they attend to (`Profiles`), as long as bundles
   overlap by more than `related` on average.
3. A bundle is a *pattern* if it has more contexts than the largest bundle in 99 % of random sets of as many contexts.
4. The score is the entropy of the firing mass (activation above the median) over the patterns, in bits and at most 1:
   0 for one pattern or none, 0.72 for two at 80 : 20, 1 for two alike, 1 for three.

How it does on networks made to have one or two patterns, and on untrained ones, is in docs/superposition.md.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.measure.attended import Attended, Profiles
from joma.measure.firing import LEAST_FIRING, Bundler, Firing, Patterns
from joma.measure.tensors import finite_tensor, tensor_with_axes, varying

LEAST_CONTEXTS = 8 * LEAST_FIRING
"""Two patterns that a neuron fires for should leave three quarters of the contexts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopContext:
    """A context that fires a neuron, with what its query attends to."""

    context: int
    """Row of the activations."""
    activation: float
    """Of the neuron."""
    pattern: int
    """Number of the pattern, 0 for the one with most firing mass; -1 for none."""
    tokens: tuple[tuple[int, float], ...]
    """Attended tokens with their share of the attention, largest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuperpositionResult:
    """Patterns of every neuron that varies, and how superposed they are on the whole."""

    neuron: Int[Tensor, " J"]
    """Indices of the neurons that vary; the fields below keep this order."""
    score: Float[Tensor, " J"]
    """From 0, one pattern or none, to 1, two alike or more."""
    num_patterns: Int[Tensor, " J"]
    """Patterns found."""
    num_firing: Int[Tensor, " J"]
    """Contexts that fire the neuron."""
    context: Int[Tensor, "J K"]
    """Those that were bundled, strongest first; -1 pads."""
    activation: Float[Tensor, "J K"]
    """Activation there; 0 pads."""
    pattern: Int[Tensor, "J K"]
    """Pattern each belongs to, 0 for the one with most firing mass; -1 for none."""
    average: float
    """Mean score over the neurons that vary."""
    null: float
    """The same with each neuron's firing dealt to random contexts."""
    excess: float
    """The average less the null."""
    error: float
    """Standard error of the excess over neurons; contexts are taken as they are."""
    num_dead_neurons: int
    """Neurons left out because all contexts give them one value."""
    num_silent_neurons: int
    """Neurons that fewer than four contexts fire; they count, with score 0."""
    num_indistinct_contexts: int
    """Contexts that attend just as the average context does; they bundle with none."""
    attended: Attended
    """As given."""

    def superposed(self) -> Int[Tensor, " found"]:
        """Return the neurons with two patterns or more, highest score first."""
        order = self.score.argsort(descending=True, stable=True)
        return self.neuron[order[self.num_patterns[order] > 1]]

    def top_contexts(self, neuron: int, *, per_pattern: int = 3, num_tokens: int = 5) -> tuple[TopContext, ...]:
        """Return the strongest contexts of each pattern of a neuron, then those of no pattern (figure 10)."""
        row = (self.neuron == neuron).nonzero()[:, 0]
        if len(row) == 0:
            raise ValueError(f"`neuron` must be one that varies, got {neuron}. The field `neuron` lists those.")
        context, activation, pattern = (values[row[0]] for values in (self.context, self.activation, self.pattern))
        numbers = [*range(int(self.num_patterns[row[0]])), -1]
        slots = torch.cat([((pattern == number) & (context >= 0)).nonzero()[:per_pattern, 0] for number in numbers])
        return tuple(
            TopContext(
                context=int(context[slot]),
                activation=float(activation[slot]),
                pattern=int(pattern[slot]),
                tokens=self.attended.strongest(int(context[slot]), num_tokens),
            )
            for slot in slots
        )


def superposed_neurons(
    activations: Float[Tensor, "C J"],
    attended: Attended,
    *,
    generator: torch.Generator,
    related: float = 0.2,
    num_null: int = 200,
) -> SuperpositionResult:
    r"""Find the patterns of each neuron and score whether it holds several, as the head of this module says.

    Contexts should be independent, one position of each text: neighbours attend to the same tokens and would make a
    pattern of any text. There should be hundreds, so that a pattern recurs and is still rare: a neuron that fires for a
    quarter of them or more has no bulk to stand out of and counts as silent. `related` is the overlap from which two
    bundles are one, `num_null` the number of random sets of each size. `generator` is one of the CPU; equal seeds give
    equal results.
    """
    _check(activations, attended, related, num_null)
    values = finite_tensor("activations", activations).cpu()
    alive = varying(values)
    if len(alive) == 0:
        raise ValueError(
            f"`activations` must have a neuron that varies over the contexts, got {values.shape[1]} dead ones. "
            "Check which layer was tapped."
        )
    firings = [Firing.of(values[:, column].to(torch.float64).numpy()) for column in alive]
    sizes = {len(firing.context) for firing in firings if not firing.silent}
    bundler = Bundler.of(Profiles.of(attended), sizes, related=related, num_null=num_null, generator=generator)
    found = [bundler.patterns(firing) for firing in firings]
    null = [bundler.patterns(firing.dealt(attended.num_contexts, generator)) for firing in firings]
    score, null_score = _scores(found), _scores(null)
    return SuperpositionResult(
        neuron=alive,
        score=score,
        num_patterns=torch.tensor([len(patterns.mass) for patterns in found]),
        num_firing=torch.tensor([firing.num_firing for firing in firings]),
        context=_padded([firing.context for firing in firings], -1),
        activation=_padded([firing.activation for firing in firings], 0.0),
        pattern=_padded([patterns.label for patterns in found], -1),
        average=float(score.mean()),
        null=float(null_score.mean()),
        excess=float((score - null_score).mean()),
        error=float((score - null_score).std(correction=min(1, len(score) - 1))) / math.sqrt(len(score)),
        num_dead_neurons=values.shape[1] - len(alive),
        num_silent_neurons=sum(firing.silent for firing in firings),
        num_indistinct_contexts=bundler.profiles.num_indistinct,
        attended=attended,
    )


def _check(activations: Tensor, attended: Attended, related: float, num_null: int) -> None:
    if not isinstance(attended, Attended):
        raise TypeError(
            f"`attended` must be an Attended, got {type(attended).__name__}. "
            "Pass `Attended(ids=..., weights=...)`, or `Attended.from_matrix` of contexts by vocabulary."
        )
    if len(tensor_with_axes("activations", activations, "C J")) != attended.num_contexts:
        raise ValueError(
            f"`activations` and `attended` must have one row for each context, got {len(activations)} and "
            f"{attended.num_contexts}. Collect both at the same positions."
        )
    if len(activations) < LEAST_CONTEXTS:
        raise ValueError(f"Patterns need at least {LEAST_CONTEXTS} contexts, got {len(activations)}. Collect hundreds.")
    if not 0 < related < 1:
        raise ValueError(f"`related` must lie between 0 and 1, got {related}. The default is 0.2.")
    if num_null < 1:
        raise ValueError(f"`num_null` must be at least 1, got {num_null}. The default is 200.")


def _scores(patterns: list[Patterns]) -> Float[Tensor, " J"]:
    return torch.tensor([found.score for found in patterns], dtype=torch.float64)


def _padded(rows: list[np.ndarray], padding: float | int) -> Tensor:
    width = max(len(row) for row in rows)
    filled = [np.pad(row, (0, width - len(row)), constant_values=padding) for row in rows]
    return torch.from_numpy(np.stack(filled))
