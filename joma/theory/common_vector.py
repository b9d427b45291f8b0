r"""A vector that all tokens share: it makes all queries learn one attention, and that attention fast.

Not in the paper, which takes orthonormal embeddings and one query. The mean of the positions, or a bias, adds one
vector c to every token, $x_i = e_i + c$ with orthonormal $e_i \perp c$ and $s = \|c\|^2$. Logits
$z_{ml} = x_m^\top Ax_l$ come from one matrix A, and gradient flow on A moves them by

$$\dot z = (I + s\mathbf 1\mathbf 1^\top)\,G\,(I + s\mathbf 1\mathbf 1^\top), \qquad G = -\partial L/\partial z.$$

Under softmax $G\mathbf 1 = 0$, so c on the keys drops out. On the queries it adds $s\sum_{m'}G_{m'}$ to every row: the
mean over Q queries learns $1 + sQ$ times as fast, their differences as fast as before. Exp attention then obeys
Theorem 1 with that factor, and for large s every query by itself. The flow of a single query follows, with the gain
$\kappa = \frac{\eta_z}{\eta_wT^2}(\frac1Q + s)$ where it was $\frac{\eta_z}{\eta_wT^2Q}$. `docs/common_vector.md` has
the proofs.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, positive, shaped, within
from joma.theory.attention import Attention, AttentionKind
from joma.theory.attention_flow import AttentionFlow
from joma.theory.integrate import STIFF, State, integrate
from joma.theory.invariants import Invariant
from joma.theory.rebound import Rebound, entropy, rebound
from joma.types import Real, as_columns, keep

Queries = Float[np.ndarray, "*T Q M"]
"""A number for each query and token."""


def shared_gain(common: Real, num_queries: Real) -> np.ndarray:
    r"""Return $1 + sQ$: how much faster the mean logit over queries learns than without the common vector.

    >>> shared_gain(0.5, np.array([1.0, 100.0]))
    array([ 1.5, 51. ])
    """
    return np.asarray(1 + within("common", common, 0, np.inf) * positive("num_queries", num_queries))


def common_velocity(pull: Queries, common: Real, *, common_keys: Real = 0.0) -> Queries:
    r"""Return $\dot z = (I + s\mathbf 1\mathbf 1^\top)\,G\,(I + s'\mathbf 1\mathbf 1^\top)$ from `pull`, $G$.

    Args:
        pull: Minus the gradient of the loss in the logits.
        common: s, the squared norm of the queries' common vector.
        common_keys: s′, that of the keys; it does not matter where the rows of G sum to zero, as under softmax.

    >>> common_velocity(np.array([[1.0, -1.0], [0.0, 0.0]]), 0.5)
    array([[ 1.5, -1.5],
           [ 0.5, -0.5]])
    """
    pull = shaped("*T Q M", pull=pull)
    s, s_keys = (within(name, s, 0, np.inf) for name, s in (("common", common), ("common_keys", common_keys)))
    rows = pull + s[..., None, None] * pull.sum(axis=-2, keepdims=True)
    return np.asarray(rows + s_keys[..., None, None] * rows.sum(axis=-1, keepdims=True))


def common_invariant(
    v: Float[np.ndarray, "*T K M"], z: Queries, attention: Attention, common: float, *, rate_ratio: float = 1.0
) -> Float[np.ndarray, "*T M"]:
    r"""Return what exp attention conserves, $\sum_mz_m - (1 + sQ)\frac{\eta_z}{2\eta_wT}\sum_kv_k^2$.

    Theorem 1 for Q queries of one layer, with the queries' common vector. Linear attention keeps
    $\sum_mz_m\circ\dot z_m$ and has no such law for $s > 0$; softmax has none for a single token.

    >>> exp = Attention(kind=AttentionKind.EXP, temperature=0.5)
    >>> common_invariant(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]), exp, 0.5)
    array([ 2., -2.])
    """
    if attention.kind is not AttentionKind.EXP and common:
        raise AssumptionError(f"The law with a common vector needs exp attention, got {attention.kind}. Use exp.")
    z = shaped("*T Q M", z=z)
    gain = float(shared_gain(common, z.shape[-2]))
    return Invariant(attention=attention, rate_ratio=gain * float(positive("rate_ratio", rate_ratio))).value(v, z)


def dip_window(
    mu: Float[np.ndarray, "... M"], gain: Real, *, normalisation: Real = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the times $A\sqrt{\pi/2\kappa}\,/\,|\mu_{1,2}|$ between which entropy is lowest for large $\kappa$.

    From zero, token l runs away at $A\sqrt{\pi/2\kappa}/|\mu_l|$ as in Theorem 2 until it meets its target. After the
    first alone, attention is on one token; after the second it is shared. Times are in units of $1/\eta_w$, so time ×
    learning rate is constant, and they fall as $\kappa^{-1/2}$, the inverse root of $\frac1Q + s$.

    Args:
        mu: Targets, of which the two largest count.
        gain: $\kappa = \eta_z(1/Q + s)/(\eta_wT^2)$.
        normalisation: The constant A of exp attention.

    >>> first, second = dip_window(np.array([1.0, 2.0, 4.0]), 1e4)
    >>> round(float(first), 6), round(float(second), 6)
    (0.003133, 0.006267)
    """
    size = np.sort(np.abs(shaped("*T M", mu=mu)), axis=-1)
    if size.shape[-1] < 2 or (size[..., -1] == size[..., -2]).any():  # noqa: PLR2004
        raise AssumptionError("`mu` must have one largest size and a second: with ties no token leads. Change them.")
    scale = np.sqrt(np.pi / (2 * positive("gain", gain))) * positive("normalisation", normalisation)
    with np.errstate(divide="ignore"):  # a second target of zero is never learned
        return np.asarray(scale / size[..., -1]), np.asarray(scale / size[..., -2])


EXP = Attention(kind=AttentionKind.EXP)


@dataclass(frozen=True, kw_only=True)
class QueriesFlow:
    r"""One node, Q queries with targets of their own, and a vector that all queries share.

    Gradient flow on $\frac12\sum_mp_m\|\mu_m - v\circ a_m\|^2$ with the scores $a_m$ of query m, $e^{z_m/T}/A$ for exp
    attention. With $q_m = \mu_m - v\circ a_m$ and $G_m = p_m(\partial a_m/\partial z_m)^\top(v\circ q_m)$,

    $$\dot v = \sum_mp_m\,a_m\circ q_m, \qquad \dot z_m = \frac{\eta_z}{\eta_w}\Big(G_m + s\sum_{m'}G_{m'}\Big).$$

    >>> from dataclasses import replace
    >>> flow = QueriesFlow(mu=np.array([[4.0, 1.0, 1.0], [3.0, 1.0, 2.0]]), common=50.0)
    >>> run = flow.run(np.linspace(0.0, 2.0, 201))
    >>> run.shared.rise > 10 * replace(flow, common=0.0).run(run.t).shared.rise
    True
    """

    mu: Float[np.ndarray, "Q M"]
    """Target of every query, one row each."""
    common: float = 0.0
    """s, the squared norm of the queries' common vector over that of an embedding; zero is the control."""
    shares: Float[np.ndarray, " Q"] | None = None
    r"""$p_m$, how often a query comes; equally often when None."""
    rate_ratio: float = 1.0
    r"""$\eta_z / \eta_w$, the learning rate of the logits' matrix A over that of the weights."""
    attention: Attention = EXP
    """Exp or softmax, with its temperature and normalisation. Under linear attention nothing leaves zero."""

    def __post_init__(self) -> None:
        mu, shares = shaped("Q M, Q", mu=self.mu, shares=self.shares)
        shares = np.full(len(mu), 1 / len(mu)) if shares is None else positive("shares", shares)
        if self.attention.kind is AttentionKind.LINEAR:
            raise AssumptionError("From zero logits linear attention does not move. Use exp or softmax.")
        keep(self, mu=mu, shares=shares / shares.sum(), common=float(within("common", self.common, 0, np.inf)))
        keep(self, rate_ratio=float(positive("rate_ratio", self.rate_ratio)))

    def field(self, t: float, state: State) -> State:
        r"""$\dot v$ and $\dot z$ from "v" and "z", as `integrate` takes it."""
        v, z, every = state["v"], state["z"], np.ones_like(self.mu)
        a = self.attention.scores(z, every, checked=False)
        error = np.asarray(self.shares)[:, None] * (self.mu - v * a)
        pull = self.attention.pull_back(z, every, v * error, checked=False)
        return {"v": (a * error).sum(axis=0), "z": self.rate_ratio * (pull + self.common * pull.sum(axis=0))}

    def run(self, t: Float[np.ndarray, " T"]) -> "QueriesRun":
        """Integrate from zero and report at the times `t`, the first of which is the start."""
        start = {"v": np.zeros(self.mu.shape[1]), "z": np.zeros(self.mu.shape)}
        run = integrate(self.field, start, t, **STIFF)
        return QueriesRun(flow=self, t=run.t, v=run["v"], z=run["z"])

    def limit(self) -> AttentionFlow:
        r"""Return the flow of a single query, target $\sum_mp_m\mu_m$ and ratio $\frac{\eta_z}{\eta_w}(\frac1Q + s)$.

        It is exact where all queries have one target and are equally frequent, and for any queries as $s\to\infty$.
        Known for exp attention.
        """
        if self.attention.kind is not AttentionKind.EXP:
            raise AssumptionError(f"A single query's flow needs exp attention, got {self.attention.kind}. Use exp.")
        ratio = self.rate_ratio * float(shared_gain(self.common, len(self.mu))) / len(self.mu)
        T, A = self.attention.temperature, self.attention.normalisation
        return AttentionFlow(mu=self.shares @ self.mu, rate_ratio=ratio, temperature=T, normalisation=A)


@dataclass(frozen=True, kw_only=True)
class QueriesRun:
    """Weights, logits and attention entropy of several queries over time."""

    flow: QueriesFlow
    t: Float[np.ndarray, " T"]
    v: Float[np.ndarray, "T M"]
    z: Float[np.ndarray, "T Q M"]

    @property
    def entropies(self) -> Float[np.ndarray, "T Q"]:
        """Attention entropy of every query, in nats."""
        return np.asarray(entropy(self.z / self.flow.attention.temperature))

    @property
    def entropy(self) -> Float[np.ndarray, " T"]:
        r"""Mean over queries, $\sum_mp_mH_m$: what a measurement over positions sees."""
        return np.asarray(self.entropies @ self.flow.shares)

    @property
    def shared_entropy(self) -> Float[np.ndarray, " T"]:
        """Entropy of the softmax of the mean logit over queries."""
        return np.asarray(entropy(self.z.mean(axis=1) / self.flow.attention.temperature))

    @property
    def dip(self) -> Rebound:
        """Fall and rise of the mean entropy."""
        return rebound(self.t, self.entropy)

    @property
    def shared(self) -> Rebound:
        """Fall and rise of the shared mode's entropy."""
        return rebound(self.t, self.shared_entropy)

    def columns(self) -> dict[str, np.ndarray]:
        """Return times, both entropies, the entropy of every query and the weights as columns."""
        entropies = {"entropy": self.entropy, "shared_entropy": self.shared_entropy, "query": self.entropies}
        return as_columns({"t": self.t, **entropies, "v": self.v})
