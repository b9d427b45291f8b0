r"""The layer that the theory analyses (Eqn 1), as a model that the engine trains: attention, residual, lower MLP half.

$$h_k = \phi(w_k^\top f), \qquad f = U_C b + u_q, \qquad b = \sigma(z_q/T)\circ x/A,$$

with free attention logits z, one row for each query. What it is trained on belongs to a run as its weights do: the
embeddings, a table of samples x and the backpropagated gradients g are parameters too, frozen. A batch names samples of
that table. Gradient descent on the loss is the gradient ascent of Eqn 2: its gradient is minus the field of
`joma.theory.layer`.

Axes: R runs, N samples of a batch, S of the table, M contextual tokens, Q queries, K hidden nodes, d dimensions.
"""

from collections.abc import Callable
from typing import Annotated, Literal, get_args

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from joma.errors import UnknownNameError
from joma.models.batch import Batch, Noise, Parameters, Tap
from joma.models.functional import ACTIVATIONS
from joma.models.initialisation import named_generator, orthonormal_rows
from joma.settings import Count, Finite, Number, settings

Source = Tensor | Callable[[int], Tensor]
"""A tensor that all runs share, or a function of a run's seed."""

_Attention = Literal["linear", "exp", "softmax"]
ATTENTIONS = get_args(_Attention)
_PositiveFinite = Annotated[Finite, Field(gt=0)]
W, Z, CONTEXTUAL, QUERIES, X, G = "w", "z", "embedding.contextual", "embedding.queries", "samples.x", "samples.g"


@settings
class LayerConfig:
    """Sizes and functions of the analysed layer; the defaults are those of figures 2 and 3."""

    num_contextual: Count = 20
    """M, contextual tokens."""
    num_queries: Count = 1
    """Q; each has its own logits, all share w."""
    hidden: Count = 20
    """K hidden nodes; the classes, for cross_entropy."""
    width: Count = 30
    """d, dimensions of the embedding."""
    num_samples: Count = 20
    """S, rows of the table of samples."""
    attention: _Attention = "softmax"
    """linear, exp or softmax."""
    temperature: _PositiveFinite = 0.5
    """T in σ(z / T)."""
    normalisation: _PositiveFinite = 1.0
    """The constant A of linear and exp attention; softmax computes its own."""
    activation: str = "linear"
    """φ of the hidden nodes, by name; `AnalysedLayer` takes others."""
    objective: Literal["linear", "cross_entropy"] = "cross_entropy"
    """linear: −E[Σ_k g_k h_k] with g given (Eqn 9); cross_entropy: with h as the logits of K classes."""
    start_scale: Number = 0.01
    """Standard deviation of w and z at the start."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise UnknownNameError("activation", self.activation, ACTIVATIONS)
        if self.attention == "softmax" and self.normalisation != 1:
            raise ValueError(
                f"Softmax attention computes its own normalisation, got `normalisation` {self.normalisation:g}. "
                "Leave it at 1, or use exp attention."
            )


class AnalysedLayer:
    r"""Eqn 1 for every run at once, with the gradient of Eqn 2.

    In a batch `tokens` (R, N, 2) holds the number of each sample in the table and its query; `targets` are classes, and
    only cross_entropy reads them; `weights` are the samples' probabilities, uniform when None.

    >>> layer = AnalysedLayer(LayerConfig(num_contextual=2, width=3, hidden=4, num_samples=1), x=torch.ones(1, 2) / 2)
    >>> {name: tuple(tensor.shape) for name, tensor in layer.initial(seed=0).items() if name not in layer.frozen}
    {'w': (4, 3), 'z': (1, 2)}
    """

    def __init__(
        self,
        config: LayerConfig,
        *,
        x: Source,
        g: Source | None = None,
        embeddings: Source | None = None,
        phi: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Take the table of samples `x` (S, M), for the linear objective `g` (S, K), and `embeddings` (M + Q, d).

        Embeddings are orthonormal and drawn from the run's seed when left out; `phi` is any elementwise function that
        torch differentiates, in place of the activation that the config names.
        """
        if (g is None) == (config.objective == "linear"):
            raise ValueError(
                f"The linear objective needs `g`, and only it, got {'none' if g is None else 'one'} for "
                f"{config.objective}. Pass both or neither."
            )
        num_tokens = config.num_contextual + config.num_queries
        if embeddings is None and num_tokens > config.width:
            raise ValueError(
                f"Orthonormal embeddings of {num_tokens} tokens need as many dimensions, got `width` {config.width}. "
                "Enlarge `width`, or pass `embeddings`."
            )
        self.config = config

        def drawn(seed: int) -> Tensor:
            return orthonormal_rows((num_tokens, config.width), config.width, named_generator(seed, "embedding"))

        given: dict[str, Source | None] = {CONTEXTUAL: drawn if embeddings is None else embeddings, X: x, G: g}
        self._sources = {name: source for name, source in given.items() if source is not None}
        self._phi = ACTIVATIONS[config.activation] if phi is None else phi
        self.shapes: dict[str, tuple[int, ...]] = {
            W: (config.hidden, config.width),
            Z: (config.num_queries, config.num_contextual),
            CONTEXTUAL: (config.num_contextual, config.width),
            QUERIES: (config.num_queries, config.width),
            X: (config.num_samples, config.num_contextual),
        }
        if g is not None:
            self.shapes[G] = (config.num_samples, config.hidden)
        self.frozen = frozenset(self.shapes) - {W, Z}
        # None: products of this layer are so small that their precision costs nothing.
        self.factors = self.tiled = frozenset[str]()

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Draw one run's w, z and embeddings from its seed, and add its data; float64."""
        shapes, scale = self.shapes, self.config.start_scale
        drawn = {
            name: torch.randn(shapes[name], generator=named_generator(seed, name)).double() * scale for name in (W, Z)
        }
        sources = {name: each if isinstance(each, Tensor) else each(seed) for name, each in self._sources.items()}
        embeddings = sources.pop(CONTEXTUAL)
        contextual, queries = embeddings.split([self.config.num_contextual, self.config.num_queries])
        start = drawn | {CONTEXTUAL: contextual, QUERIES: queries} | sources
        for name, shape in shapes.items():
            if start[name].shape != shape:
                raise ValueError(f"`{name}` must have shape {shape}, got {tuple(start[name].shape)}. Pass such a one.")
        return start

    def scores(self, parameters: Parameters, batch: Batch) -> Float[Tensor, "R N M"]:
        r"""Return the attention scores $b = \sigma(z_q/T)\circ x/A$ of every sample."""
        config = self.config
        x = _rows(parameters[X], batch.tokens[..., 0])
        logits = _rows(parameters[Z], batch.tokens[..., 1]) / config.temperature
        match config.attention:
            case "linear":
                return logits * x / config.normalisation
            case "exp":
                return logits.exp() * x / config.normalisation
            case _:
                return torch.softmax(logits + x.log(), dim=-1)  # the logarithm of an absent token is -inf, its score 0

    def hidden(self, parameters: Parameters, batch: Batch) -> Float[Tensor, "R N K"]:
        r"""Return $h_k = \phi(w_k^\top(U_C b + u_q))$ of every sample."""
        u_q = _rows(parameters[QUERIES], batch.tokens[..., 1])
        f = torch.baddbmm(u_q, self.scores(parameters, batch), parameters[CONTEXTUAL])
        return self._phi(torch.bmm(f, parameters[W].mT))

    def losses(
        self, parameters: Parameters, batch: Batch, tap: Tap | None = None, *, compiled_tap: bool = False
    ) -> Float[Tensor, " R"]:
        """Loss of each run; the layer is no block of a decoder, and `tap` is never called."""
        hidden = self.hidden(parameters, batch)
        if self.config.objective == "linear":
            rows = -(_rows(parameters[G], batch.tokens[..., 0]) * hidden).sum(dim=-1)
        else:
            rows = functional.cross_entropy(hidden.mT, batch.targets, reduction="none")
        return rows.mean(dim=1) if batch.weights is None else (rows * batch.weights).sum(dim=1)

    def value_and_gradient(
        self, parameters: Parameters, gradients: Parameters, batch: Batch, noise: Noise | None
    ) -> Float[Tensor, " R"]:
        """Loss of each run; the gradients of w and z overwrite `gradients`. There is no dropout."""
        leaves = {name: parameters[name].detach().requires_grad_() for name in gradients}
        with torch.enable_grad():
            losses = self.losses({**parameters, **leaves}, batch)
            found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        for name, gradient in zip(leaves, found, strict=True):
            gradients[name].copy_(gradient)
        return losses.detach()


def _rows(table: Float[Tensor, "R S C"], index: Int[Tensor, "R N"]) -> Float[Tensor, "R N C"]:
    return table[torch.arange(table.shape[0], device=table.device)[:, None], index]
