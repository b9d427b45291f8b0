r"""Figure 1b and Eqn 1: the analysed layer and its three attentions as a worked example.

Two sentences, one query, the same logits z and weights w under linear, exp and softmax attention:

$$h_k = \phi(w_k^\top f), \qquad f = U_C b + u_q, \qquad b = \sigma(z_q)\circ x/A.$$

The layer that the engine trains (`joma.models.layer`, torch) is compared with the one that the theory is written in
(`joma.theory.layer`, NumPy), forward and backward, here and on random layers. Controls: the layer without its residual
$u_q$, another attention in its place, and one constant A for both sentences.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from joma.charts import Chart, bars
from joma.claims import Number, claim
from joma.models.batch import Batch
from joma.models.layer import ATTENTIONS, CONTEXTUAL, QUERIES, AnalysedLayer, G, LayerConfig, W, X, Z
from joma.paper.experiment import Experiment, Measured
from joma.store.work import Workspace
from joma.theory.activations import activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Embeddings, Layer, Samples

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


def compute(config: Figure1Config, space: Workspace) -> Measured:
    """Work the example out, and compare the two implementations."""
    space.progress(0.0, "the worked example")
    scores, nodes = zip(*(_example(config, attention) for attention in ATTENTIONS), strict=True)
    space.progress(0.3, "random layers")
    checks = [_compared(config, attention, phi) for attention in ATTENTIONS for phi in ACTIVATIONS]
    tables = {"scores": scores, "nodes": nodes, "checks": checks}
    frames = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    return Measured(facts=_constant_normalisation(config), **frames)


def _attention(name: str, normalisation: float) -> Attention:
    constant = normalisation if name == "exp" else 1.0
    return Attention(kind=AttentionKind(name), normalisation=constant)


def _example(config: Figure1Config, attention: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of every token and values of every node, by the theory, with the distance of the engine's layer."""
    x = config.x
    layer_config = LayerConfig(
        num_contextual=len(config.tokens),
        hidden=config.num_nodes,
        width=config.width,
        num_samples=len(x),
        attention=attention,
        temperature=1.0,
        normalisation=_attention(attention, config.normalisation).normalisation,
        activation="relu",
        start_scale=1.0,
    )
    model = AnalysedLayer(layer_config, x=torch.as_tensor(x))
    own = model.initial(config.seed) | {Z: torch.tensor([config.logits], dtype=torch.float64)}
    parameters = {name: tensor[None] for name, tensor in own.items()}
    batch = _every_sample(len(x), 1, 1)
    layer, samples = _theory(own, layer_config, batch)
    w, z = own[W].numpy(), own[Z].numpy()
    b, h = layer.scores(z, samples), layer.hidden(w, z, samples)
    shared = {"attention": attention, "sentence": np.repeat(config.sentences, x.shape[1])}
    scores = pd.DataFrame(
        shared
        | {
            "token": np.tile(config.tokens, len(x)),
            "x": x.ravel(),
            "z": np.tile(config.logits, len(x)),
            "b": b.ravel(),
            "gap": np.abs(model.scores(parameters, batch)[0].numpy() - b).ravel(),
        }
    )
    nodes = pd.DataFrame(
        {
            "attention": attention,
            "sentence": np.repeat(config.sentences, config.num_nodes),
            "node": np.tile(np.arange(config.num_nodes), len(x)),
            "h": h.ravel(),
            "gap": np.abs(model.hidden(parameters, batch)[0].numpy() - h).ravel(),
        }
    )
    return scores, nodes


def _every_sample(num_samples: int, num_queries: int, num_runs: int) -> Batch:
    """All samples of the table, the queries in turn."""
    samples = torch.arange(num_samples)
    tokens = torch.stack([samples, samples % num_queries], dim=-1).expand(num_runs, -1, -1)
    return Batch(tokens=tokens, targets=torch.zeros(num_runs, num_samples, dtype=torch.int64))


def _theory(own: dict[str, torch.Tensor], config: LayerConfig, batch: Batch) -> tuple[Layer, Samples]:
    """The theory's layer with the parameters of one run of the engine's, and its samples."""
    embeddings = Embeddings(contextual=own[CONTEXTUAL].numpy().T, queries=own[QUERIES].numpy().T)
    layer = Layer(
        embeddings=embeddings,
        attention=_attention(config.attention, config.normalisation),
        activation=activation(config.activation),
    )
    return layer, Samples(x=own[X].numpy(), q=batch.tokens[0, :, 1].numpy())


def _drawn(shape: tuple[int, ...], seed: int, *, positive_part: bool) -> torch.Tensor:
    rng = np.random.default_rng([seed, int(positive_part)])
    return torch.as_tensor(rng.dirichlet(np.ones(shape[1]), shape[0]) if positive_part else rng.normal(size=shape))


def _compared(config: Figure1Config, attention: str, phi: str) -> pd.DataFrame:
    """Random layers: largest distance of the engine's two passes from the theory's, and the controls'."""
    layer_config = LayerConfig(
        **RANDOM_SIZES,
        attention=attention,
        temperature=1.0,
        normalisation=_attention(attention, config.normalisation).normalisation,
        activation=phi,
        objective="linear",
        start_scale=1.0,
    )
    num_samples, num_tokens = layer_config.num_samples, layer_config.num_contextual
    model = AnalysedLayer(
        layer_config,
        x=lambda seed: _drawn((num_samples, num_tokens), seed, positive_part=True),
        g=lambda seed: _drawn((num_samples, layer_config.hidden), seed, positive_part=False),
    )
    seeds = range(config.seed, config.seed + config.num_layers)
    runs = [model.initial(seed) for seed in seeds]
    parameters = {name: torch.stack([own[name] for own in runs]) for name in model.shapes}
    batch = _every_sample(num_samples, layer_config.num_queries, len(runs))
    gradients = {name: torch.zeros_like(parameters[name]) for name in (W, Z)}
    hidden = model.hidden(parameters, batch).numpy()
    model.value_and_gradient(parameters, gradients, batch, None)
    other = ATTENTIONS[(ATTENTIONS.index(attention) + 1) % len(ATTENTIONS)]
    distances = []
    for index, own in enumerate(runs):
        layer, samples = _theory(own, layer_config, batch)
        found = hidden[index], gradients[W][index].numpy(), gradients[Z][index].numpy()
        without = replace(layer, embeddings=replace(layer.embeddings, queries=np.zeros_like(layer.embeddings.queries)))
        swapped = replace(layer, attention=_attention(other, config.normalisation))
        forward, backward = _distances(layer, own, samples, found)
        no_residual, other_attention = (_distances(changed, own, samples, found) for changed in (without, swapped))
        distances.append((forward, backward, no_residual[0], other_attention[1]))
    largest = dict(zip(DISTANCES, np.max(distances, axis=0), strict=True))
    return pd.DataFrame([{"attention": attention, "activation": phi, "num_layers": len(runs), **largest}])


def _distances(
    layer: Layer, own: dict[str, torch.Tensor], samples: Samples, found: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[float, float]:
    """Largest distance of the hidden values, and of minus the gradients, from the theory's."""
    w, z, g = (own[name].numpy() for name in (W, Z, G))
    hidden, w_gradient, z_gradient = found
    field = layer.gradient(w, z, samples, g)
    forward = np.abs(layer.hidden(w, z, samples) - hidden).max()
    return float(forward), float(max(np.abs(field.w + w_gradient).max(), np.abs(field.z + z_gradient).max()))


def _constant_normalisation(config: Figure1Config) -> dict[str, float]:
    """Distance of exp attention from softmax: with the sum of each sentence for A, and with that of the first alone."""
    x, z = config.x, np.broadcast_to(np.array(config.logits), config.x.shape)
    softmax = Attention(kind=AttentionKind.SOFTMAX).scores(z, x)
    unnormalised = Attention(kind=AttentionKind.EXP).scores(z, x)
    own = unnormalised / unnormalised.sum(axis=1, keepdims=True)
    constant = unnormalised / unnormalised[0].sum()
    return {
        "own sum for A": float(np.abs(own - softmax).max()),
        "constant A": float(np.abs(constant - softmax).max()),
    }


@claim("eqn1-layer", "One layer, three attentions", source="Section 2, figure 1b, Eqns 1 and 2")
def layer_numbers(t: Measured) -> list[Number]:
    """h_k = φ(w_k·f), f = U_C b + u_q, b = σ(z_q)∘x/A, with linear, exp and softmax attention, trained by ẇ_k = E[g
    h' f] and ż_m = E[(∂b/∂z)ᵀ U_Cᵀ g_f]
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
def softmax_numbers(t: Measured) -> list[Number]:
    """softmax attention is exp attention with A := 1ᵀ(σ(z_q)∘x), which depends on the sample"""
    return [
        Number.exact(
            "exp attention divided by the sum of each sentence, distance from softmax",
            t.facts["own sum for A"],
            at_most=ROUNDING,
            unit="max abs error",
            control=t.facts["constant A"],
            control_name="one constant A for both sentences",
            key="own",
        )
    ]


CLAIMS = (layer_numbers, softmax_numbers)


def charts(t: Measured) -> list[Chart]:
    """Draw the scores of each sentence under the three attentions, and the hidden nodes."""
    names = {"b": "attention score b", "h": "hidden value h", "z": "logit z"}
    scores, nodes = (frame.assign(sentence="“" + frame["sentence"] + "”") for frame in (t.scores, t.nodes))
    return [
        bars(
            scores,
            "token",
            "b",
            color="attention",
            facet="sentence",
            id="figure1",
            labels=names,
            title="The same logits give different scores under the three attentions",
            caption="A token that is not in the sentence gets no score whatever its logit. Linear attention has "
            "negative scores; softmax scores sum to one in every sentence.",
        ),
        bars(
            scores.drop_duplicates("token"),
            "token",
            "z",
            id="figure1-logits",
            labels=names,
            title="The query's logits, shared by all three attentions",
            caption="One logit for each token.",
        ),
        bars(
            nodes.astype({"node": str}),
            "node",
            "h",
            color="attention",
            facet="sentence",
            id="figure1-nodes",
            labels=names,
            title="Hidden nodes under the three attentions",
            caption="The same weights, six hidden nodes.",
        ),
    ]


EXPERIMENTS = (
    Experiment(
        id="figure1",
        title="One layer, three attentions",
        source="Section 2, figure 1b",
        question="What does the analysed layer compute under linear, exp and softmax attention, and is the layer that "
        "is trained here the one of the theory?",
        presets={"quick": Figure1Config(), "full": Figure1Config(num_layers=200)},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        seconds={"quick": 1.0, "full": 2.0},
    ),
)
