r"""Neurons that fire for several contexts whose attended tokens are unrelated (Eqn 60, figure 10).

A weight vector $w = U_C(v_1 + v_2) + \xi_1u_{m_1} + \xi_2u_{m_2}$ answers two patterns. From outside it is a neuron
that fires for two bundles of contexts, alike within a bundle in what the query attends to, unrelated between them:

1. A neuron *fires* for the contexts at or above a third of its peak (counted from its median; the peak is its 4th
   largest activation) that also stand four standard deviations of its bulk above the median. These are few. A neuron
   whose activations spread as a normal distribution does, as in an untrained network, has next to none.
2. These contexts are bundled by average linkage on the overlap of what they attend to (`overlaps`), as long as bundles
   overlap by more than `related` on average.
3. A bundle is a *pattern* if it has more contexts than the largest bundle in 99 % of random sets of as many contexts.
4. The score is the entropy of the firing mass (activation above the median) over the patterns, in bits and at most 1:
   0 for one pattern or none, 0.72 for two at 80 : 20, 1 for two alike, 1 for three.

How it does on networks made to have one or two patterns, and on untrained ones, is in docs/superposition.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import entr
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from joma.measure.tensors import finite_tensor, tensor_with_axes, varying

LEAST_LIFT = 1e-3  # a context whose attention is this close to the average context's attends to nothing of its own
LEAST_FIRING = 4  # fewer contexts do not differ from chance; also the rank of the activation that is called the peak
MOST_FIRING = 64  # more contexts are thinned out, evenly over their ranks
FIRING_LEVEL = 1 / 3  # where firing begins on the way from median to peak
BULK_DEVIATIONS = 4.0  # how far above the median it begins at least, in standard deviations of the bulk
UPPER_QUARTILE = 0.6744897501960817
"""Of the standard normal: turns the distance from median to upper quartile into a standard deviation."""
PATTERN_QUANTILE = 0.99  # a pattern has more contexts than the largest bundle in this share of random sets
SET_SIZES = (4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, MOST_FIRING)
"""Sizes of the random sets; a neuron is held against the next size up, which is the stricter."""
LEAST_CONTEXTS = 8 * LEAST_FIRING  # two patterns that a neuron fires for should leave three quarters of the contexts


@dataclass(frozen=True, kw_only=True, slots=True)
class Attended:
    """Tokens with the attention they get from the query position of each context, padded to one length.

    A token may stand at several positions; its weights add up. Weights need not sum to one.
    """

    ids: Int[Tensor, "C A"]  # token at each attended position
    weights: Float[Tensor, "C A"]  # attention weight on it, 0 for padding; several heads are added up

    def __post_init__(self) -> None:
        ids, weights = (tensor_with_axes(name, getattr(self, name), "C A") for name in ("ids", "weights"))
        if ids.shape != weights.shape:
            raise ValueError(
                f"`ids` and `weights` must have one shape, got {tuple(ids.shape)} and "
                f"{tuple(weights.shape)}. Pad both to the longest context, with weight 0."
            )
        weights = finite_tensor("weights", weights)
        if weights.numel() and (float(weights.min()) < 0 or int(ids.min()) < 0):
            raise ValueError(
                f"`ids` and `weights` must not be negative, got {int(ids.min())} and {float(weights.min())}. "
                "Pass attention after its softmax, and pad with any token at weight 0."
            )
        empty = ~(weights > 0).any(dim=1)
        if bool(empty.any()):
            raise ValueError(
                f"Every context must attend to a token, context {int(empty.nonzero()[0])} has no weight. Drop it."
            )

    @property
    def num_contexts(self) -> int:
        """Contexts."""
        return self.ids.shape[0]

    def shares(self) -> sparse.csr_array:
        """Return the share of each context's attention on each token, contexts by tokens that occur."""
        tokens, column = np.unique(self.ids.cpu().numpy(), return_inverse=True)
        row = np.repeat(np.arange(self.num_contexts), self.ids.shape[1])
        weights = self.weights.detach().cpu().to(torch.float64).numpy().ravel()
        mass = sparse.coo_array((weights, (row, column.ravel())), shape=(self.num_contexts, len(tokens))).tocsr()
        return _scale_rows(mass, 1 / mass.sum(axis=1))

    def strongest(self, context: int, num_tokens: int) -> tuple[tuple[int, float], ...]:
        """Return the tokens of a context with the largest shares of its attention, largest first.

        >>> Attended(ids=torch.tensor([[7, 8, 7]]), weights=torch.tensor([[0.25, 0.25, 0.5]])).strongest(0, 2)
        ((7, 0.75), (8, 0.25))
        """
        tokens, inverse = self.ids[context].unique(return_inverse=True)
        weights = self.weights[context].detach().to(torch.float64)
        share = torch.zeros(len(tokens), dtype=torch.float64, device=weights.device)
        share = share.index_add_(0, inverse, weights / weights.sum())
        order = share.argsort(descending=True, stable=True)[:num_tokens]
        return tuple((int(tokens[i]), float(share[i])) for i in order if share[i] > 0)


def profile_roots(attended: Attended) -> sparse.csr_array:
    r"""Return the square roots of what each context attends to more than contexts do on average: contexts by tokens.

    With shares $p_c$ and their mean $\bar p$, the profile of a context is $\max(p_c - \bar p, 0)$ scaled to sum 1: a
    first token that takes most of the attention everywhere, a comma that all contexts see, drop out. A context with
    nothing of its own has a row of zeros.
    """
    shares = attended.shares()
    mean = shares.mean(axis=0)
    shares.data = np.maximum(shares.data - mean[shares.indices], 0.0)
    lift = shares.sum(axis=1)
    return _scale_rows(shares, np.where(lift < LEAST_LIFT, 0.0, 1 / np.maximum(lift, LEAST_LIFT))).sqrt()


def overlaps(roots: sparse.csr_array, contexts: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
    r"""Return Bhattacharyya's overlap $\sum_t\sqrt{p_c(t)p_{c'}(t)}$ of the profiles of these contexts, from 0 to 1."""
    rows = roots[contexts]
    return np.clip((rows @ rows.T).toarray(), 0.0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Firing:
    """Contexts that fire one neuron, strongest first, at most `MOST_FIRING` of them."""

    context: Int[np.ndarray, " n"]
    activation: Float[np.ndarray, " n"]
    mass: Float[np.ndarray, " n"]  # activation above the median
    num_firing: int  # how many there were before thinning out

    @classmethod
    def of(cls, activation: Float[np.ndarray, " C"]) -> "Firing":
        """Find the contexts where a neuron stands out of its own distribution."""
        order = np.argsort(-activation, kind="stable")
        falling = activation[order]
        num_contexts = len(falling)
        peak, upper, median = falling[LEAST_FIRING - 1], falling[num_contexts // 4], falling[num_contexts // 2]
        level = median + FIRING_LEVEL * (peak - median)
        threshold = max(level, median + BULK_DEVIATIONS * (upper - median) / UPPER_QUARTILE)
        num_firing = int(np.sum((falling >= threshold) & (falling > median)))
        kept = np.unique(np.linspace(0, num_firing - 1, min(num_firing, MOST_FIRING)).round().astype(int))
        return cls(context=order[kept], activation=falling[kept], mass=falling[kept] - median, num_firing=num_firing)

    @property
    def silent(self) -> bool:
        """Whether too few contexts fire it to speak of patterns."""
        return len(self.context) < LEAST_FIRING

    def dealt(self, num_contexts: int, generator: torch.Generator) -> "Firing":
        """Return the same activations at random contexts."""
        return replace(self, context=torch.randperm(num_contexts, generator=generator)[: len(self.context)].numpy())


def pattern_score(mass: Float[np.ndarray, " P"]) -> float:
    r"""Entropy of the firing mass over the patterns, $-\sum_p m_p\log_2 m_p$, at most 1."""
    return float(min(1.0, entr(mass / mass.sum()).sum() / np.log(2)))


def bundles(roots: sparse.csr_array, contexts: Int[np.ndarray, " n"], related: float) -> Int[np.ndarray, " n"]:
    """Number the contexts by bundle: average linkage, until no two bundles overlap by more than `related`."""
    distance = 1.0 - overlaps(roots, contexts)
    np.fill_diagonal(distance, 0.0)
    return fcluster(linkage(squareform(distance, checks=False), method="average"), 1.0 - related, criterion="distance")


def chance_bundles(
    roots: sparse.csr_array, sizes: set[int], *, related: float, num_null: int, generator: torch.Generator
) -> dict[int, int]:
    """For sets as large as each of `sizes`, how many contexts their largest bundle has by chance at most."""
    num_contexts = roots.shape[0]
    by_chance = {}
    for size in sorted({_set_size(size) for size in sizes}):
        draws = [torch.randperm(num_contexts, generator=generator)[:size].numpy() for _ in range(num_null)]
        largest = [np.bincount(bundles(roots, draw, related)).max() for draw in draws]
        by_chance[size] = int(np.quantile(largest, PATTERN_QUANTILE, method="higher"))
    return by_chance


def find_patterns(
    firing: Firing, roots: sparse.csr_array, by_chance: dict[int, int], related: float
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " P"]]:
    """Return the bundles of a neuron's contexts that are larger than chance makes them.

    That is the pattern of each context, the heaviest being 0 and -1 none, and the firing mass of each pattern, falling.
    """
    if firing.silent:
        return np.full(len(firing.context), -1), np.zeros(0)
    bundle = bundles(roots, firing.context, related)
    is_pattern = np.bincount(bundle) > by_chance[_set_size(len(bundle))]
    mass = np.where(is_pattern, np.bincount(bundle, firing.mass), 0.0)
    order = np.argsort(-mass, kind="stable")[: np.count_nonzero(mass)]
    number = np.full(len(mass), -1)
    number[order] = np.arange(len(order))
    return number[bundle], mass[order]


class TopContext(NamedTuple):
    """A context that fires a neuron, with what its query attends to."""

    context: int  # row of the activations
    activation: float
    pattern: int  # number of the pattern, 0 for the one with most firing mass; -1 for none
    tokens: tuple[tuple[int, float], ...]  # attended tokens with their share of the attention, largest first


@dataclass(frozen=True, kw_only=True, slots=True)
class SuperpositionResult:
    """Patterns of every neuron that varies, and how superposed they are on the whole."""

    neuron: Int[Tensor, " J"]  # indices of the neurons that vary; the fields below keep this order
    score: Float[Tensor, " J"]  # from 0, one pattern or none, to 1, two alike or more
    num_patterns: Int[Tensor, " J"]  # patterns found
    num_firing: Int[Tensor, " J"]  # contexts that fire the neuron
    context: Int[Tensor, "J K"]  # those that were bundled, strongest first; -1 pads
    activation: Float[Tensor, "J K"]  # activation there; 0 pads
    pattern: Int[Tensor, "J K"]  # pattern each belongs to, 0 for the one with most firing mass; -1 for none
    average: float  # mean score over the neurons that vary
    null: float  # the same with each neuron's firing dealt to random contexts
    excess: float  # the average less the null
    error: float  # standard error of the excess over neurons; contexts are taken as they are
    num_dead_neurons: int  # neurons left out because all contexts give them one value
    num_silent_neurons: int  # neurons that fewer than four contexts fire; they count, with score 0
    attended: Attended  # as given

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
            TopContext(c, float(activation[slot]), int(pattern[slot]), self.attended.strongest(c, num_tokens))
            for slot, c in zip(slots, context[slots].tolist(), strict=True)
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
    if not isinstance(attended, Attended):
        raise TypeError(
            f"`attended` must be an Attended, got {type(attended).__name__}. Pass `Attended(ids=..., weights=...)`."
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
    values = finite_tensor("activations", activations).cpu()
    alive = varying(values)
    if len(alive) == 0:
        raise ValueError(
            f"`activations` must have a neuron that varies over the contexts, got {values.shape[1]} dead ones. "
            "Check which layer was tapped."
        )
    firings = [Firing.of(values[:, column].to(torch.float64).numpy()) for column in alive]
    sizes = {len(firing.context) for firing in firings if not firing.silent}
    roots = profile_roots(attended)
    by_chance = chance_bundles(roots, sizes, related=related, num_null=num_null, generator=generator)
    dealt = [firing.dealt(attended.num_contexts, generator) for firing in firings]
    (labels, masses), (_, null_masses) = (
        zip(*(find_patterns(firing, roots, by_chance, related) for firing in each), strict=True)
        for each in (firings, dealt)
    )
    score, null_score = (
        torch.tensor([pattern_score(mass) for mass in each], dtype=torch.float64) for each in (masses, null_masses)
    )
    return SuperpositionResult(
        neuron=alive,
        score=score,
        num_patterns=torch.tensor([len(mass) for mass in masses]),
        num_firing=torch.tensor([firing.num_firing for firing in firings]),
        context=_padded([firing.context for firing in firings], -1),
        activation=_padded([firing.activation for firing in firings], 0.0),
        pattern=_padded(labels, -1),
        average=float(score.mean()),
        null=float(null_score.mean()),
        excess=float((score - null_score).mean()),
        error=float((score - null_score).std(correction=min(1, len(score) - 1))) / math.sqrt(len(score)),
        num_dead_neurons=values.shape[1] - len(alive),
        num_silent_neurons=sum(firing.silent for firing in firings),
        attended=attended,
    )


def _padded(rows: Sequence[np.ndarray], padding: float | int) -> Tensor:
    return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True, padding_value=padding)


def _set_size(num_contexts: int) -> int:
    return min(size for size in SET_SIZES if size >= num_contexts)


def _scale_rows(matrix: sparse.csr_array, factors: np.ndarray) -> sparse.csr_array:
    return sparse.csr_array(sparse.diags_array(factors) @ matrix)
