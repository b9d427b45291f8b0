r"""What a query attends to, context by context, and how far two contexts attend to the same tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor

from joma.measure.tensors import finite_tensor, tensor_with_axes

LEAST_LIFT = 1e-3
"""A context whose attention is this close to the average context's attends to nothing of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attended:
    """Tokens with the attention they get from the query position of each context, padded to one length.

    A token may stand at several positions; its weights add up. Weights need not sum to one.
    """

    ids: Int[Tensor, "C A"]
    """Token at each attended position."""
    weights: Float[Tensor, "C A"]
    """Attention weight on it, 0 for padding; several heads are added up."""

    def __post_init__(self) -> None:
        """Refuse negative or missing weights, negative ids and contexts without attention."""
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

    @classmethod
    def from_matrix(cls, mass: Float[Tensor, "C V"]) -> "Attended":
        """Read a matrix of contexts by vocabulary, dense or sparse.

        >>> Attended.from_matrix(torch.tensor([[0.0, 0.0, 1.0], [0.3, 0.7, 0.0]])).ids
        tensor([[2, 0],
                [0, 1]])
        """
        mass = tensor_with_axes("mass", mass, "C V")
        entries = (mass if mass.layout == torch.sparse_coo else mass.to_sparse_coo()).coalesce()
        (row, column), value = entries.indices(), entries.values()
        count = torch.bincount(row, minlength=mass.shape[0])
        slot = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        shape = (mass.shape[0], int(count.max()) if len(count) else 0)
        ids = torch.zeros(shape, dtype=torch.long, device=row.device)
        weights = torch.zeros(shape, dtype=value.dtype, device=row.device)
        ids[row, slot], weights[row, slot] = column, value
        return cls(ids=ids, weights=weights)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiles:
    r"""What each context attends to more than contexts do on average.

    With shares $p_c$ and their mean $\bar p$, the profile of a context is $\max(p_c - \bar p, 0)$ scaled to sum 1: a
    first token that takes most of the attention everywhere, a comma that all contexts see, drop out.
    """

    roots: sparse.csr_array
    """Square roots of the profiles: contexts by tokens. A context with nothing of its own has a row of zeros."""

    @classmethod
    def of(cls, attended: Attended) -> "Profiles":
        """Compare all contexts with their mean."""
        shares = attended.shares()
        mean = shares.mean(axis=0)
        shares.data = np.maximum(shares.data - mean[shares.indices], 0.0)
        lift = shares.sum(axis=1)
        profile = _scale_rows(shares, np.where(lift < LEAST_LIFT, 0.0, 1 / np.maximum(lift, LEAST_LIFT)))
        return cls(roots=profile.sqrt())

    @property
    def num_indistinct(self) -> int:
        """Contexts with nothing of their own."""
        return int((self.roots.sum(axis=1) == 0).sum())

    def overlaps(self, contexts: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
        r"""Return Bhattacharyya's overlap $\sum_t\sqrt{p_c(t)p_{c'}(t)}$ of these contexts, from 0 to 1."""
        rows = self.roots[contexts]
        return np.clip((rows @ rows.T).toarray(), 0.0, 1.0)


def _scale_rows(matrix: sparse.csr_array, factors: np.ndarray) -> sparse.csr_array:
    return sparse.csr_array(sparse.diags_array(factors) @ matrix)
