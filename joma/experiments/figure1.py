r"""Figure 1b and Eqn 1: the analysed layer and its three attentions as a worked example.

Two sentences, one query, the same logits z and weights w under linear, exp and softmax attention:

$$h_k = \phi(w_k^\top f), \qquad f = U_C b + u_q, \qquad b = \sigma(z_q)\circ x/A.$$

The layer that the engine trains (`joma.models.layer`, torch) is held against the one that the theory is written in
(`joma.theory.layer`, NumPy), forward and backward, here and on random layers. Controls: the layer without its residual
$u_q$, another attention in its place, and one constant A for both sentences.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from joma.errors import positive, same_shape, whole, with_axes
from joma.experiments.experiment import Experiment, Result, Workplace, nothing_missing
from joma.figures.chart import Bars, Chart, Panel
from joma.models.batch import Batch
from joma.models.layer import ATTENTIONS, CONTEXTUAL, QUERIES, AnalysedLayer, G, LayerConfig, W, X, Z
from joma.theory.activations import activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Embeddings, Layer, Samples
from joma.verdicts import Evidence, Verdict, finding, ruling

ROUNDING = 1e-12
"""Largest difference of the two layers in float64, for numbers of order one."""
ACTIVATIONS = ("linear", "relu", "gelu")
"""Activations of the random layers."""
DISTANCES = ("forward", "backward", "forward_without_residual", "backward_other_attention")
"""What is measured of each random layer: the two passes, and each with the control in its place."""
RANDOM_SIZES = {"num_contextual": 5, "num_queries": 2, "hidden": 4, "width": 9, "num_samples": 6}
"""Sizes of the random layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
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

    def __post_init__(self) -> None:
        """Refuse an example that is not whole."""
        same_shape(tokens=np.empty(len(self.tokens)), logits=with_axes("logits", self.logits, "M"))
        positive("normalisation", self.normalisation)
        whole("num_layers", self.num_layers, low=1)
        unknown = {word for sentence in self.sentences for word in sentence.split()} - set(self.tokens)
        if unknown:
            raise ValueError(f"Sentences must be made of the tokens, got {sorted(unknown)}. Add them to `tokens`.")

    @property
    def x(self) -> Float[np.ndarray, "N M"]:
        """Token frequencies of each sentence."""
        words = [sentence.split() for sentence in self.sentences]
        return np.array([[own.count(token) / len(own) for token in self.tokens] for own in words])


def quick() -> Config:
    """Return the example."""
    return Config()


def full() -> Config:
    """Return the example, with more random layers."""
    return Config(num_layers=200)


def compute(config: Config, workplace: Workplace) -> Result:
    """Work the example out, and compare the two implementations."""
    workplace.progress(0.0, "the worked example")
    scores, nodes = zip(*(_example(config, attention) for attention in ATTENTIONS), strict=True)
    workplace.progress(0.3, "random layers")
    checks = [_compared(config, attention, phi) for attention in ATTENTIONS for phi in ACTIVATIONS]
    tables = {"scores": scores, "nodes": nodes, "checks": checks}
    return Result(
        tables={name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()},
        facts=_constant_normalisation(config),
    )


def _attention(name: str, normalisation: float) -> Attention:
    constant = normalisation if name == "exp" else 1.0
    return Attention(kind=AttentionKind(name), normalisation=constant)


def _example(config: Config, attention: str) -> tuple[pd.DataFrame, pd.DataFrame]:
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


def _compared(config: Config, attention: str, phi: str) -> pd.DataFrame:
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


def _constant_normalisation(config: Config) -> dict[str, float]:
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


def draw(result: Result) -> tuple[Chart, ...]:
    """The scores of each sentence under the three attentions, and the hidden nodes."""
    scores, nodes = result.tables["scores"], result.tables["nodes"]
    sentences = list(dict.fromkeys(scores["sentence"]))
    first = scores[(scores["attention"] == ATTENTIONS[0]) & (scores["sentence"] == sentences[0])]
    given = [
        Panel("the query's logits, shared", "token", "z", [Bars("", first["token"], first["z"])]),
        Panel(
            "how often a token occurs",
            "token",
            "x",
            [
                Bars(f"“{sentence}”", rows["token"], rows["x"])
                for sentence, rows in scores[scores["attention"] == ATTENTIONS[0]].groupby("sentence", sort=False)
            ],
        ),
    ]
    attended = [
        Panel(
            f"“{sentence}”",
            "token",
            "b",
            [
                Bars(str(name), rows["token"], rows["b"])
                for name, rows in scores[scores["sentence"] == sentence].groupby("attention", sort=False)
            ],
        )
        for sentence in sentences
    ]
    hidden = [
        Panel(
            f"hidden nodes, “{sentence}”",
            "node",
            "h",
            [
                Bars(str(name), rows["node"].astype(str), rows["h"])
                for name, rows in nodes[nodes["sentence"] == sentence].groupby("attention", sort=False)
            ],
        )
        for sentence in sentences
    ]
    return (
        Chart(
            "figure1",
            "One layer, three attentions: the same tokens, logits and weights",
            "Scores b of each token and values h of the hidden nodes. A token that is not in the sentence gets no "
            "score whatever its logit; linear attention has negative scores; softmax scores sum to one in every "
            "sentence, those of exp attention in none but by chance.",
            [*given, *attended, *hidden],
        ),
    )


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge whether the layer is Eqn 1, and what softmax is to exp attention."""
    return (_layer(result), _softmax(result))


def _layer(result: Result) -> Verdict:
    checks, scores, nodes = (result.tables[name] for name in ("checks", "scores", "nodes"))
    compared = partial(Evidence, unit="max abs error", against="the theory's layer", threshold=ROUNDING)
    evidence: list[Evidence] = []
    for name, rows in checks.groupby("attention", sort=False):
        num_layers = rows["num_layers"].sum()
        forward, backward, no_residual, other_attention = rows[list(DISTANCES)].to_numpy().max(axis=0)  # NaN stays
        gaps = [table.loc[table["attention"] == name, "gap"].to_numpy() for table in (scores, nodes)]
        evidence += [
            compared(
                name=f"forward pass, Eqn 1, {name} attention: the example and {num_layers} random layers",
                value=float(np.concatenate([*gaps, [forward]]).max()),
                control=float(no_residual),
                control_name="without the residual u_q",
            ),
            compared(
                name=f"backward pass, Eqn 2, {name} attention: {num_layers} random layers",
                value=float(backward),
                control=float(other_attention),
                control_name="another attention in its place",
            ),
        ]
    sound = all(e.holds for e in evidence)
    found = ruling([finding(*evidence)])
    worst = max(evidence, key=lambda row: row.value)
    return found.verdict(
        id="eqn1-layer",
        title="One layer, three attentions",
        source="Section 2, figure 1b, Eqns 1 and 2",
        claim="h_k = φ(w_k·f), f = U_C b + u_q, b = σ(z_q)∘x/A, with linear, exp and softmax attention, trained by "
        "ẇ_k = E[g h' f] and ż_m = E[(∂b/∂z)ᵀ U_Cᵀ g_f]",
        explanation="The layer that is trained here and the one that the theory is written in are two programs, held "
        f"against each other in every value and every gradient; their largest distance is {worst.value:.1g}.",
        correction=f"the two programs differ by {worst.value:.1g} at most, and a layer without one of its parts may do "
        "no worse",
        evidence=evidence,
        sound=sound,
    )


def _softmax(result: Result) -> Verdict:
    evidence = Evidence(
        name="exp attention with A[i] = 1ᵀ(σ(z)∘x[i]) of each sentence, against softmax",
        against="softmax attention",
        unit="max abs error",
        value=float(result.facts["own sum for A"]),
        threshold=ROUNDING,
        control=float(result.facts["constant A"]),
        control_name="one constant A, that of the first sentence",
    )
    found = ruling([finding(evidence)])
    return found.verdict(
        id="fig1-softmax",
        title="Softmax is exp attention with a normalisation of each sample",
        source="Section 2, figure 1b; remark to Theorem 2",
        claim="softmax attention is exp attention with A := 1ᵀ(σ(z_q)∘x), which depends on the sample",
        explanation="The same logits give the second sentence other scores if A is taken from the first: what holds "
        f"of exp attention with a constant A is off by {float(result.facts['constant A']):.2f} in a score.",
        correction="softmax is exp attention with A of each sentence, and here with a constant A just as well",
        evidence=(evidence,),
        sound=evidence.holds,
    )


EXPERIMENT = Experiment(
    id="figure1",
    title="The layer and its three attentions, a worked example",
    place="Section 2, figure 1b, Eqn 1",
    question="What does the analysed layer compute under linear, exp and softmax attention, and is the layer that is "
    "trained here the one of the theory?",
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
    schema=2,
)
