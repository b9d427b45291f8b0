r"""Attention entropy and stable rank along a flow: when they drop and come back, and how far (Section 4, figure 4).

Entropy. For $p = \mathrm{softmax}(s)$, $s = v^2/T$, $\partial H/\partial s_i = -p_i(\ln p_i + H)$. From a zero start
$H = \ln M$ is the maximum, so H first falls. Late in training only the slowest token $i^*$ still moves, and $s_{i^*}$
grows: H finally rises exactly if $\ln p_{i^*} + H < 0$ at the limit. The slowest of the tokens that move is the one
with the smallest $|\mu|$. Without zeros in $\mu$ it is also the least attended one, and then the condition always
holds, unless all $|\mu|$ are equal. With zeros it can fail.

Rank. Under exp attention all nodes see one attention, and from a zero start every column of the lower matrix keeps the
direction of its target: $V(t) = M\,\mathrm{diag}(r(t))$, with $r_l$ the larger the larger the column's norm. So the
stable rank starts and ends at that of M. In between it is lower if the columns of M are orthogonal (each token has
its own node, say), since the largest one leads; where a node wants many weak tokens it can first rise instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special
from scipy.optimize import elementwise

from joma.errors import finite, positive, shaped
from joma.theory.convergence import TiedFlow
from joma.types import Tabular, as_columns

LOGITS_OF_THM_1 = 2.0  # T for which softmax(v²/T) is Theorem 1's attention, z = v²/2; figure 4's caption has T = 1
SETTLED = 40.0  # e-folds after which a gap is below the spacing of floats
FIRST_MOVE = 1e-3  # e-folds of the first time on the grid that is searched for a dip
NUM_TIMES = 400  # times of that grid, evenly spaced in ln t
SPEEDS = (1e-280, 1e280)  # range to which rates are cut, so that times are floats
ROUNDING = 1e-12  # a change of entropy or rank below this counts as rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebound(Tabular):
    """A quantity that may drop and come back: where it starts, its lowest point, where it ends.

    Numbers for one curve, arrays for several.
    """

    start: Any
    lowest: Any
    time: Any
    """When the lowest point comes."""
    end: Any

    @property
    def drop(self) -> Any:
        """How far it falls."""
        return self.start - self.lowest

    @property
    def rise(self) -> Any:
        """How far it comes back."""
        return self.end - self.lowest

    @property
    def occurs(self) -> Any:
        """Whether it falls and comes back by more than rounding."""
        found = np.minimum(self.drop, self.rise) > ROUNDING
        return found if found.ndim else bool(found)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the four numbers, drop and rise, one row for each curve."""
        names = ("start", "lowest", "time", "end", "drop", "rise")
        return as_columns({name: np.ravel(getattr(self, name)) for name in names})


def attention_entropy(v: Float[np.ndarray, "*T M"], temperature: float = LOGITS_OF_THM_1) -> Float[np.ndarray, "*T"]:
    r"""Entropy of $\mathrm{softmax}(v^2/T)$ over the tokens, in nats.

    >>> attention_entropy(np.zeros(10)).round(4)
    np.float64(2.3026)
    """
    return entropy(np.square(finite("v", v)) / float(positive("temperature", temperature)))


def entropy(s: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T"]:
    r"""$H = -\sum_ip_i\ln p_i$ of $p = \mathrm{softmax}(s)$."""
    return np.asarray(special.entr(special.softmax(s, axis=-1)).sum(axis=-1))


def entropy_gradient(s: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
    r"""$\partial H/\partial s_i = -p_i(\ln p_i + H)$: raising a logit raises H where $p_i < e^{-H}$."""
    log_p = special.log_softmax(s, axis=-1)
    p = np.exp(log_p)
    return -p * (log_p - (p * log_p).sum(axis=-1, keepdims=True))


def entropy_finally_rises(mu: Float[np.ndarray, " M"], temperature: float = LOGITS_OF_THM_1) -> bool:
    r"""Whether the entropy of $\mathrm{softmax}(v^2/T)$ rises at the end: $\ln p_{i^*}(\mu) + H(p(\mu)) < 0$.

    `mu` is where the flow ends, from a zero start, and $i^*$ its smallest entry that is not zero: the slowest token
    under Eqn 6, under its normalised variant and under the flow that exp attention really has.

    >>> entropy_finally_rises(np.array([1.0, 2.0])), entropy_finally_rises(np.array([0.0, 2.0]))
    (True, False)
    """
    mu = shaped("M", mu=mu)
    moving = np.flatnonzero(mu)
    if moving.size == 0:
        return False
    slowest = moving[np.abs(mu[moving]).argmin()]
    return bool(entropy_gradient(np.square(mu) / float(positive("temperature", temperature)))[slowest] > 0)


def stable_rank(V: Float[np.ndarray, "*T K M"]) -> Float[np.ndarray, "*T"]:
    r"""$\|V\|_F^2/\|V\|_2^2$ of the lower matrix, whose rows are the hidden nodes.

    >>> stable_rank(np.diag([3.0, 4.0]))
    array(1.5625)
    """
    squares = np.square(np.linalg.svd(shaped("*T K M", V=V), compute_uv=False))
    if (squares[..., 0] == 0).any():
        raise ValueError("`V` must not be all zero: its stable rank is 0/0. Leave out the start of a flow from zero.")
    return np.asarray(squares.sum(axis=-1) / squares[..., 0])


def rebound(t: Float[np.ndarray, " T"], values: Float[np.ndarray, " T"]) -> Rebound:
    """Return the dip of a sampled quantity, taking first and last sample as its start and end.

    >>> rebound(np.arange(4.0), np.array([2.0, 1.0, 0.5, 1.5]))
    Rebound(start=2.0, lowest=0.5, time=2.0, end=1.5)
    """
    t, values = shaped("T, T", t=t, values=values)
    lowest = int(values.argmin())
    return Rebound(start=float(values[0]), lowest=float(values[lowest]), time=float(t[lowest]), end=float(values[-1]))


def entropy_rebound(flow: TiedFlow, temperature: float | None = None) -> Rebound:
    r"""Dip of the attention entropy along the exact solution, from its start to its limit.

    The attention is the flow's own, $\mathrm{softmax}(\ln a)$, with its temperature, rates and start. With a
    `temperature` T it is $\mathrm{softmax}(v^2/T)$ instead, as in figure 4's caption. Several flows give arrays.

    >>> from joma.theory.convergence import ConvergenceFlow
    >>> dip = entropy_rebound(ConvergenceFlow(mu=np.array([1.5, 2.0, 2.5])))
    >>> round(dip.time, 4), round(dip.drop, 4), round(dip.rise, 4)
    (0.945, 0.4713, 0.1867)
    >>> entropy_rebound(ConvergenceFlow(mu=np.array([1.5, 2.0, 2.5]), temperature=np.array([1.0, 2.0]))).rise.round(4)
    array([0.1867, 0.0006])
    """

    def quantity(flow: TiedFlow, v: np.ndarray) -> np.ndarray:
        return entropy(flow.log_attention(v)) if temperature is None else attention_entropy(v, temperature)

    return _dip(flow, quantity, quantity(flow, flow.v0))


def rank_rebound(flow: TiedFlow) -> Rebound:
    r"""Dip of the stable rank of a lower matrix with orthogonal columns, $\sum_lv_l^2/\max_lv_l^2$.

    `flow.mu` holds the norms of the columns of the target; with one node for each token they are its targets. From a
    zero start the rank begins at that of the direction in which the flow leaves.
    """
    if not flow.mu.any(axis=-1).all():
        raise ValueError("`mu` must not be all zero: the stable rank of nothing is 0/0. Pass a target other than 0.")

    def quantity(flow: TiedFlow, v: np.ndarray) -> np.ndarray:
        squares = np.square(v)
        return np.asarray(squares.sum(axis=-1) / squares.max(axis=-1))

    leaving = np.where(flow.v0.any(axis=-1, keepdims=True), flow.v0, flow.field(flow.v0))
    return _dip(flow, quantity, quantity(flow, leaving))


def _dip(flow: TiedFlow, quantity: Callable[[TiedFlow, np.ndarray], np.ndarray], start: np.ndarray) -> Rebound:
    """Search a grid of times for each flow, refine its lowest point, and compare with both ends."""
    batch = start.shape
    flow = flow[tuple(np.indices(batch).reshape(len(batch), -1)) if batch else None]  # one axis for all flows
    start, end = start.ravel(), quantity(flow, flow.critical_point())
    way = flow.critical_point() - flow.v0
    moving = way != 0
    with np.errstate(divide="ignore", invalid="ignore"):
        speeds = np.clip([flow.field(flow.v0) / way, flow.local_rates()], *SPEEDS)
    fastest = speeds.max(axis=(0, 2), where=moving, initial=SPEEDS[0])
    slowest = np.minimum(speeds.min(axis=(0, 2), where=moving, initial=SPEEDS[1]), fastest)
    log_t = np.linspace(np.log(FIRST_MOVE / fastest), np.log(SETTLED / slowest), NUM_TIMES)

    def value(log_t: np.ndarray, flow: TiedFlow) -> np.ndarray:
        with np.errstate(over="ignore"):
            covered = -np.expm1(-np.exp(flow.log_efolds(np.exp(log_t)[..., None])))
        return quantity(flow, flow.v0 + (flow.critical_point() - flow.v0) * covered)

    values = value(log_t, flow)
    row, which = values.argmin(axis=0), np.arange(start.size)
    lowest, time = values[row, which], np.exp(log_t[row, which])
    inner = which[(row > 0) & (row < NUM_TIMES - 1)]
    if inner.size:
        bracket = tuple(log_t[row[inner] + step, inner] for step in (-1, 0, 1))
        found = elementwise.find_minimum(lambda x, at: value(x, flow[at.astype(int)]), bracket, args=(inner,))
        # Between two times a strong token may jump, and the refinement miss what the grid has.
        better = found.success & (found.f_x <= lowest[inner])
        lowest[inner[better]], time[inner[better]] = found.f_x[better], np.exp(found.x[better])
    time[~moving.any(axis=1)] = 0.0
    numbers = {"start": start, "lowest": np.minimum(np.minimum(start, end), lowest), "time": time, "end": end}
    return Rebound(**{name: x.reshape(batch) if batch else float(x[0]) for name, x in numbers.items()})
