r"""Figure 1b and Eqn 1: the analysed layer and its three attentions as a worked example.

Two sentences, one query, the same logits z and weights w under linear, exp and softmax attention:

$$h_k = \phi(w_k^\top f), \qquad f = U_C b + u_q, \qquad b = \sigma(z_q)\circ x/A.$$

The layer that the engine trains (`joma.models.layer`, torch) is compared with the one that the theory is written in
(`joma.theory.layer`, NumPy), forward and backward, here and on random layers. Controls: the layer without its residual
$u_q$, another attention in its place, and one constant A for both sentences.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from joma.charts import Chart, bars
from joma.claims import Number, claim
from joma.models.batch import Batch
from joma.models.layer import ATTENTIONS, CONTEXTUAL, QUERIES, AnalysedLayer, G, LayerConfig, W, X, Z
from joma.paper.experiment import Experiment, Measured, caption, catalogue, crossed, joined
from joma.store.work import Workspace
from joma.theory import Attention, AttentionKind, Embeddings, Layer, Samples, activation

ROUNDING = 1e-12
"""Largest difference of the two layers in float64, for numbers of order one."""
ACTIVATIONS = ("linear", "relu", "gelu")
"""Activations of the random layers."""
DISTANCES = ("forward", "backward", "forward_without_residual", "backward_other_attention")
"""What is measured of each random layer: the two passes, and each with the control in its place."""
RANDOM_SIZES = {"num_contextual": 5, "num_queries": 2, "hidden": 4, "width": 9, "num_samples": 6}
"""Sizes of the random layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure1Config:
    """The worked example, and how many random layers are compared."""

    tokens: tuple[str, ...] = ("the", "cat", "dog", "sat", "on", "mat")
    sentences: tuple[str, ...] = ("the cat sat on the mat", "the dog sat")
    logits: tuple[float, ...] = (-1.0, 2.0, 0.0, 0.5, -0.5, 1.0)
    """z, one for each token, of the one query."""
    normalisation: float = 2.0
    """The constant A of exp attention."""
    num_nodes: int = 6
    width: int = 8
    """d, dimensions of the embedding."""
    seed: int = 0
    """Of weights and embeddings."""
    num_layers: int = 20
    """Random layers for each attention and activation."""

    @property
    def x(self) -> Float[np.ndarray, "N M"]:
        """Token frequencies of each sentence."""
        words = [sentence.split() for sentence in self.sentences]
        return np.array([[own.count(token) / len(own) for token in self.tokens] for own in words])

    def attention(self, name: str) -> Attention:
        """Return an attention of the theory; exp has the constant A."""
        return Attention(kind=AttentionKind(name), normalisation=self.normalisation if name == "exp" else 1.0)

    def layer(self, attention: str, **settings: Any) -> LayerConfig:
        """Return the settings of a layer of the engine with this attention."""
        settings |= {"temperature": 1.0, "normalisation": self.attention(attention).normalisation, "start_scale": 1.0}
        return LayerConfig(**settings | {"attention": attention})


def compute(config: Figure1Config, space: Workspace) -> Measured:
    """Work the example out, and compare the two implementations."""
    space.progress(0.0, "the worked example")
    examples = joined(_example(config, attention) for attention in ATTENTIONS)
    space.progress(0.3, "random layers")
    checks = pd.DataFrame(_compared(config, *each) for each in product(ATTENTIONS, ACTIVATIONS))
    return Measured(facts=_constant_normalisation(config), **examples, checks=checks)


def _example(config: Figure1Config, attention: str) -> dict[str, pd.DataFrame]:
    """Scores of every token and values of every node, by the theory, with the distance of the engine's layer."""
    x = config.x
    sizes = {"num_contextual": len(config.tokens), "hidden": config.num_nodes, "width": config.width}
    settings = config.layer(attention, activation="relu", num_samples=len(x), **sizes)
    model = AnalysedLayer(settings, x=torch.as_tensor(x))
    own = model.initial(config.seed) | {Z: torch.tensor([config.logits], dtype=torch.float64)}
    parameters, batch = {name: tensor[None] for name, tensor in own.items()}, _every_sample(len(x), 1, 1)
    layer, samples = _theory(config, own, settings, batch)
    w, z = own[W].numpy(), own[Z].numpy()

    def table(name: str, values: Any, **columns: np.ndarray) -> pd.DataFrame:
        frame = crossed(attention=[attention], sentence=config.sentences, **{name: values})
        return frame.assign(**{column: each.ravel() for column, each in columns.items()})

    b, h = layer.scores(z, samples), layer.hidden(w, z, samples)
    off_b, off_h = (
        np.abs(of(parameters, batch)[0].numpy() - own) for of, own in ((model.scores, b), (model.hidden, h))
    )
    logits = np.tile(config.logits, (len(x), 1))
    return {
        "scores": table("token", config.tokens, x=x, z=logits, b=b, gap=off_b),
        "nodes": table("node", range(config.num_nodes), h=h, gap=off_h),
    }


def _every_sample(num_samples: int, num_queries: int, num_runs: int) -> Batch:
    """All samples of the table, the queries in turn."""
    samples = torch.arange(num_samples)
    tokens = torch.stack([samples, samples % num_queries], dim=-1).expand(num_runs, -1, -1)
    return Batch(tokens=tokens, targets=torch.zeros(num_runs, num_samples, dtype=torch.int64))


def _theory(
    config: Figure1Config, own: dict[str, torch.Tensor], settings: LayerConfig, batch: Batch
) -> tuple[Layer, Samples]:
    """The theory's layer with the parameters of one run of the engine's, and its samples."""
    embeddings = Embeddings(contextual=own[CONTEXTUAL].numpy().T, queries=own[QUERIES].numpy().T)
    attention, phi = config.attention(settings.attention), activation(settings.activation)
    layer = Layer(embeddings=embeddings, attention=attention, activation=phi)
    return layer, Samples(x=own[X].numpy(), q=batch.tokens[0, :, 1].numpy())


def _compared(config: Figure1Config, attention: str, phi: str) -> dict[str, Any]:
    """Random layers: largest distance of the engine's two passes from the theory's, and the controls'."""
    settings = config.layer(attention, activation=phi, objective="linear", **RANDOM_SIZES)
    num_samples, tokens = settings.num_samples, np.ones(settings.num_contextual)
    model = AnalysedLayer(
        settings,
        x=lambda seed: torch.as_tensor(np.random.default_rng([seed, 1]).dirichlet(tokens, num_samples)),
        g=lambda seed: torch.as_tensor(np.random.default_rng([seed, 0]).normal(size=(num_samples, settings.hidden))),
    )
    runs = [model.initial(seed) for seed in range(config.seed, config.seed + config.num_layers)]
    parameters = {name: torch.stack([own[name] for own in runs]) for name in model.shapes}
    batch = _every_sample(num_samples, settings.num_queries, len(runs))
    gradients = {name: torch.zeros_like(parameters[name]) for name in (W, Z)}
    hidden = model.hidden(parameters, batch).numpy()
    model.value_and_gradient(parameters, gradients, batch, None)
    other = ATTENTIONS[(ATTENTIONS.index(attention) + 1) % len(ATTENTIONS)]
    distances = []
    for index, own in enumerate(runs):
        layer, samples = _theory(config, own, settings, batch)
        w, z, g = (own[name].numpy() for name in (W, Z, G))
        without = replace(layer, embeddings=replace(layer.embeddings, queries=np.zeros_like(layer.embeddings.queries)))
        swapped = replace(layer, attention=config.attention(other))
        forward = [np.abs(each.hidden(w, z, samples) - hidden[index]).max() for each in (layer, without)]
        fields = [each.gradient(w, z, samples, g) for each in (layer, swapped)]  # minus the engine's gradients
        off = [(field.w + gradients[W][index].numpy(), field.z + gradients[Z][index].numpy()) for field in fields]
        backward = [max(np.abs(part).max() for part in parts) for parts in off]
        distances.append((forward[0], backward[0], forward[1], backward[1]))
    largest = dict(zip(DISTANCES, np.max(distances, axis=0), strict=True))
    return {"attention": attention, "activation": phi, "num_layers": len(runs), **largest}


def _constant_normalisation(config: Figure1Config) -> dict[str, float]:
    """Distance of exp attention from softmax: with the sum of each sentence for A, and with that of the first alone."""
    x, z = config.x, np.broadcast_to(np.array(config.logits), config.x.shape)
    softmax, exp = (Attention(kind=kind).scores(z, x) for kind in (AttentionKind.SOFTMAX, AttentionKind.EXP))
    sums = {"own sum for A": exp.sum(axis=1, keepdims=True), "constant A": exp[0].sum()}
    return {name: float(np.abs(exp / total - softmax).max()) for name, total in sums.items()}


@claim("eqn1-layer", "One layer, three attentions", source="Section 2, figure 1b, Eqns 1 and 2")
def layer_numbers(t: Measured) -> list[Number]:
    """h_k = φ(w_k·f), f = U_C b + u_q, b = σ(z_q)∘x/A, with linear, exp and softmax attention, trained by ẇ_k = E[g h'
    f] and ż_m = E[(∂b/∂z)ᵀ U_Cᵀ g_f]
    """
    numbers = []
    for name, rows in t.checks.groupby("attention", sort=False):
        forward, backward, no_residual, other_attention = rows[list(DISTANCES)].to_numpy().max(axis=0)  # NaN stays
        gaps = [table.loc[table["attention"] == name, "gap"].to_numpy() for table in (t.scores, t.nodes)]
        common = {"at_most": ROUNDING, "unit": "max abs error", "setting": f"{name} attention"}
        worst, layers = np.concatenate([*gaps, [forward]]).max(), f"{rows['num_layers'].sum()} random layers"
        numbers += [
            Number.exact(what, value, control=float(control), control_name=control_name, **common)
            for what, value, control, control_name in (
                (f"forward pass, Eqn 1: the example and {layers}", worst, no_residual, "without the residual u_q"),
                (f"backward pass, Eqn 2: {layers}", backward, other_attention, "another attention in its place"),
            )
        ]
    largest = max(number.value for number in numbers)
    return [*numbers, Number.exact("largest distance of all", largest, key="worst")]


@claim(
    "fig1-softmax",
    "Softmax is exp attention with a normalisation of each sample",
    source="Section 2, figure 1b; remark to Theorem 2",
)
def softmax_numbers(t: Measured) -> Iterator[Number]:
    """softmax attention is exp attention with A := 1ᵀ(σ(z_q)∘x), which depends on the sample"""
    name, own = "exp attention divided by the sum of each sentence, distance from softmax", t.facts["own sum for A"]
    control = {"control": t.facts["constant A"], "control_name": "one constant A for both sentences"}
    yield Number.exact(name, own, at_most=ROUNDING, unit="max abs error", key="own", **control)


CLAIMS = (layer_numbers, softmax_numbers)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the scores of each sentence under the three attentions, and the hidden nodes."""
    scores, nodes = (frame.assign(sentence="“" + frame["sentence"] + "”") for frame in (t.scores, t.nodes))
    by: dict[str, Any] = {"color": "attention", "facet": "sentence"}
    yield bars(scores, "token", "b", **by, **caption("figure1"))
    yield bars(scores.drop_duplicates("token"), "token", "z", **caption("figure1-logits"))
    yield bars(nodes.astype({"node": str}), "node", "h", **by, **caption("figure1-nodes"))


EXPERIMENTS = (
    Experiment(
        **catalogue("figure1"),
        presets={"quick": Figure1Config(), "full": Figure1Config(num_layers=200)},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
    ),
)
