r"""Open question 2: do the tokens of a trained layer converge at the speeds of Eqn 6, or of the flow it really has?

The analysed layer: exp attention, ReLU, one hidden node for each class, trained by gradient flow on the cross-entropy
with the hidden values as logits of the class, on all contexts of a few tokens. Weights begin at zero, biases at one.
The decoder parts of this question need a GPU and are left for later.

All nodes see one attention, so a token's column $v_l$ moves as one component. Its target $\mu_l$ is its mean over the
last tenth of training, and the fraction learned is $r_l = v_l\cdot\mu_l/\|\mu_l\|^2$. The time at which it first
reaches 0.1, 0.2, …, 0.9 (in the first half of training) is compared with the time predicted from $\|\mu_l\|$ by

- `printed`: Eqn 6, $t = F(r, \|\mu_l\|)$ (`learning_time`);
- `model`: the flow that exp attention gives, $\dot v = a\,(\mu' - va)$, which ends at $v^* = \|\mu_l\|$.

One number a run: the slope of measured on predicted log time over tokens, with an intercept for each fraction and the
log frequency of the token as a covariate. Control: the same training with frozen attention, judged by its own targets.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

from joma.charts import Chart, points
from joma.claims import Number, claim
from joma.paper.experiment import Experiment, Measured, caption, catalogue, select
from joma.paper.width import contexts
from joma.store.work import Workspace
from joma.theory import Attention, AttentionFlow, AttentionKind, Embeddings, Layer, learning_time
from joma.theory.activations import relu

SOURCE = "Section 4, Eqn 6 and Theorem 4; open question 2"
TRAINED, FROZEN = "trained attention", "frozen attention"
RATES = {TRAINED: 1.0, FROZEN: 1e-12}
"""Learning rate of the logits over that of the weights: frozen logits stay below 1e-8."""
PRINTED, MODEL = "printed", "model"
FRACTIONS = np.arange(1, 10) / 10
TOLERANCE = 0.25
"""How far the slope may be from 1."""
ABOVE_FROZEN = 0.3
"""How far it must be above the slope with frozen attention."""
FIRST_TIME, NUM_TIMES = 0.01, 600
"""First of the times at which a run is read; they are evenly spaced in their logarithm."""
LAST_TENTH, FIRST_HALF = 0.9, 0.5
"""Of training: where targets are read from, and up to which times are measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedsConfig:
    """One layer on classes of contexts, with trained and with frozen attention."""

    num_tokens: int = 20
    num_classes: int = 5
    length: int = 2
    """Tokens in a context."""
    end: float = 1000.0
    """Time at which training ends."""
    seeds: tuple[int, ...] = tuple(range(21, 31))


def model_time(r: Float[np.ndarray, "F 1"], end: Float[np.ndarray, " M"]) -> Float[np.ndarray, "F M"]:
    r"""Return when the flow $\dot v = a\,(\mu' - va)$, $a = e^{v^2/2}$, from zero has covered r of its way to `end`."""
    flow = AttentionFlow(mu=end * np.exp(np.square(end) / 2))
    log_t = np.linspace(np.log(1e-3 / flow.local_rates().max()), np.log(100.0), 4000)
    log_y = flow.log_efolds(np.exp(log_t)[:, None])
    wanted = np.log(-np.log1p(-r[:, 0]))
    return np.exp([np.interp(wanted, of, log_t) for of in log_y.T]).T


def one_run(config: SpeedsConfig, kind: str, seed: int) -> pd.DataFrame:
    """Return measured and predicted times of one training: a row for each token and fraction that can be measured."""
    rng = np.random.default_rng([seed, 4])
    samples, posterior = contexts(config.num_tokens, config.num_classes, config.length, rng)
    unit = np.eye(config.num_tokens + 1)
    tokens = Embeddings(contextual=unit[:, :-1], queries=unit[:, -1:])
    layer = Layer(embeddings=tokens, attention=Attention(kind=AttentionKind.EXP), activation=relu)
    start = np.tile(unit[-1], (config.num_classes, 1))
    t = np.concatenate([[0.0], np.geomspace(FIRST_TIME, config.end, NUM_TIMES)])
    run = layer.flow(
        start,
        np.zeros((1, config.num_tokens)),
        samples,
        lambda time, hidden: posterior - special.softmax(hidden, axis=1),
        t,
        rate_ratio=RATES[kind],
        method="RK45",
        rtol=1e-5,
        atol=1e-7,
    )
    v = tokens.contextual_part(run["w"])
    late = t >= LAST_TENTH * config.end
    mu = np.trapezoid(v[late], t[late], axis=0) / (t[-1] - t[late][0])
    size = np.linalg.norm(mu, axis=0)
    learned = np.maximum.accumulate(np.einsum("tkm,km->tm", v, mu) / size**2, axis=0)
    measured = np.array([np.interp(FRACTIONS, of, t) for of in learned.T]).T
    columns = {
        "kind": kind,
        "seed": seed,
        "token": np.arange(config.num_tokens),
        "size": size,
        "log_frequency": np.log(samples.weights @ samples.x),
        "fraction": FRACTIONS[:, None],
        "measured": measured,
        PRINTED: learning_time(FRACTIONS[:, None], size),
        MODEL: model_time(FRACTIONS[:, None], size),
    }
    table = pd.DataFrame({name: np.broadcast_to(value, measured.shape).ravel() for name, value in columns.items()})
    return table[table["measured"] <= FIRST_HALF * config.end]


def compute(config: SpeedsConfig, space: Workspace) -> Measured:
    """Train all layers."""
    plan = [(kind, seed) for kind in RATES for seed in config.seeds]
    tables = []
    for done, (kind, seed) in enumerate(plan):
        space.progress(done / len(plan), f"{kind}, seed {seed}")
        tables.append(one_run(config, kind, seed))
    return Measured(times=pd.concat(tables, ignore_index=True))


def slopes(times: pd.DataFrame, kind: str, flow: str) -> pd.DataFrame:
    """Return, for each run, the slopes of measured log time on `predicted` log time and on log `frequency` over tokens.

    Means over the tokens of each fraction are taken out.
    """
    own = select(times, kind=kind)
    columns = pd.DataFrame({"measured": np.log(own["measured"]), "predicted": np.log(own[flow])})
    columns["frequency"] = own["log_frequency"]
    columns -= columns.groupby([own["seed"], own["fraction"]]).transform("mean")
    names = ["predicted", "frequency"]
    found = {
        seed: np.linalg.lstsq(of[names], of["measured"], rcond=None)[0] for seed, of in columns.groupby(own["seed"])
    }
    return pd.DataFrame.from_dict(found, orient="index", columns=names)


def numbers_of(t: Measured, flow: str) -> Iterator[Number]:
    """Return the slope and how far it is above the one with frozen attention."""
    trained, frozen = (slopes(t.times, kind, flow) for kind in RATES)
    about: dict[str, Any] = {"control_name": FROZEN, "paired": True}
    own, other = trained["predicted"], frozen["predicted"]
    limits: dict[str, Any] = {"at_least": 1 - TOLERANCE, "at_most": 1 + TOLERANCE, "key": "slope"}
    yield Number.mean("slope of measured on predicted log time", own, control=other, **about, **limits)
    yield Number.mean("slope above that with frozen attention", own - other, at_least=ABOVE_FROZEN, key="above")
    name = "slope of measured log time on log frequency (added after the result)"
    yield Number.mean(name, trained["frequency"], control=frozen["frequency"], **about, key="frequency")
    halves = select(t.times, kind=TRAINED, fraction=0.5)
    for key, column in (("spread", "measured"), ("predicted", flow)):
        ratio = halves.groupby("seed")[column].max() / halves.groupby("seed")[column].min()
        yield Number.mean(f"slowest over fastest token, time to one half, {column}", ratio, key=key)


@claim("speeds-printed", "Times to learn a token, predicted by Eqn 6", source=SOURCE)
def printed_numbers(t: Measured) -> Iterator[Number]:
    """The convergence speed towards salient components is much faster than towards non-salient ones (Eqn 6)."""
    yield from numbers_of(t, PRINTED)


@claim(
    "speeds-model",
    "Times to learn a token, predicted by the flow that exp attention gives",
    source="Section 4; open question 2",
    ours=True,
)
def model_numbers(t: Measured) -> Iterator[Number]:
    """The same with attention inside of the activation too, as the model of Eqn 1 has it."""
    yield from numbers_of(t, MODEL)


def charts(t: Measured) -> list[Chart]:
    """Draw measured over predicted times of all tokens, for half of the way."""
    half = select(t.times, fraction=0.5)
    half = half.melt(["kind", "seed", "token", "measured"], [PRINTED, MODEL], "flow", "predicted")
    by: dict[str, Any] = {"color": "kind", "order": tuple(RATES), "facet": "flow", "share_x": False}
    by |= {"x_log": True, "y_log": True}
    return [points(half, "predicted", "measured", **by, **caption("convergence-speeds"))]


EXPERIMENTS = (
    Experiment(
        **catalogue("convergence-speeds"),
        presets={"quick": SpeedsConfig(num_tokens=10, num_classes=3, seeds=(1, 2, 3)), "full": SpeedsConfig()},
        compute=compute,
        claims=(printed_numbers, model_numbers),
        charts=charts,
    ),
)
