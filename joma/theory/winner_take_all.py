r"""Theorem 2: linear activation with exp attention, where the most salient token takes all.

With the attention integrated out (Theorem 1, exp case) every token $l$ moves by itself, and $v_{\cdot l}$ along
$\Delta_{\cdot l}$ only. Let $u$ be its component along that direction; then $\operatorname{erfc}(u\sqrt{\kappa/2})$
with $\kappa = \eta_z/(\eta_wT^2)$ falls linearly in time and reaches zero at the blow-up.

The paper prints $\operatorname{erf}(v/2)$ (Eqns 4 and 22); $\operatorname{erf}(v/\sqrt2)$ is what solves the flow.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import finite, positive, shaped
from joma.types import Real, keep


@dataclass(frozen=True, kw_only=True)
class LinearFlow:
    r"""The flow of Theorem 2 for K hidden nodes and M contextual tokens.

    >>> flow = LinearFlow(delta=np.array([[1.0, 0.5]]))
    >>> round(flow.blow_up_time(), 6)
    1.253314
    >>> flow.solution(np.array([1.0])).round(4)
    array([[[1.2755, 0.5229]]])
    """

    delta: Float[np.ndarray, "K M"]
    r"""Saliency $\Delta_{kl} = E[g_k x_l]$, constant for a linear activation and layer-wise training."""
    v0: Float[np.ndarray, "K M"] = None  # type: ignore[assignment]
    """Start of v; zero when left out, as in the paper."""
    z0: Float[np.ndarray, " M"] = None  # type: ignore[assignment]
    """Start of the attention logits; zero when left out."""
    normalisation: float = 1.0
    """The constant A of exp attention."""
    temperature: float = 1.0
    """T in exp(z / T)."""
    rate_ratio: float = 1.0
    r"""$\eta_z / \eta_w$, the learning rate of the logits over that of the weights."""

    def __post_init__(self) -> None:
        delta, v0, z0 = shaped("K M, K M, M", delta=self.delta, v0=self.v0, z0=self.z0)
        v0, z0 = (np.zeros_like(like) if start is None else start for start, like in ((v0, delta), (z0, delta[0])))
        scales = ("normalisation", "temperature", "rate_ratio")
        keep(self, delta=delta, v0=v0, z0=z0, **{name: float(positive(name, getattr(self, name))) for name in scales})

    @property
    def gain(self) -> float:
        r"""$\kappa = \eta_z / (\eta_w T^2)$: the attention factor is $e^{\kappa v^2/2}$ times a constant."""
        return self.rate_ratio / self.temperature**2

    @property
    def strength(self) -> Float[np.ndarray, " M"]:
        r"""$\|\Delta_l\|$ over the hidden nodes, also where its square leaves the range of floats."""
        return np.hypot.reduce(self.delta, axis=0)

    def logits(self, v: Float[np.ndarray, "*T K M"]) -> Float[np.ndarray, "*T M"]:
        r"""Logits that Theorem 1 ties to v, $z = z(0) + \tfrac{\eta_z}{2\eta_w T}\sum_k (v_k^2 - v_k(0)^2)$."""
        growth = np.square(v).sum(axis=-2) - np.square(self.v0).sum(axis=-2)
        return self.z0 + self.rate_ratio / (2 * self.temperature) * growth

    def field(self, v: Float[np.ndarray, "*T K M"]) -> Float[np.ndarray, "*T K M"]:
        r"""$\dot v = \Delta \circ e^{z/T} / A$ (Eqns 3 and 20, with the 1/A that Eqn 3 leaves out)."""
        return self.delta * np.exp(self.logits(v) / self.temperature)[..., None, :] / self.normalisation

    def blow_up_times(self) -> Float[np.ndarray, " M"]:
        r"""Time at which each token alone would diverge, infinite where $\Delta_l = 0$.

        $t_l^* = \frac{A}{\|\Delta_l\|}\sqrt{\frac{\pi}{2\kappa}}\; e^{-z_l(0)/T}\,
        e^{\kappa u_0^2/2}\operatorname{erfc}(u_0\sqrt{\kappa/2})$; from zero, $A\sqrt{\pi/2}/|\Delta_l|$ at $\kappa=1$.
        """
        x0 = self._along_start() * np.sqrt(self.gain / 2)
        below = np.minimum(x0, 0.0)  # erfcx overflows far below zero, its logarithm does not
        log_erfcx = np.square(below) + np.log(np.where(x0 < 0, special.erfc(below), special.erfcx(np.abs(x0))))
        scale = self.normalisation * np.sqrt(np.pi / (2 * self.gain))
        with np.errstate(divide="ignore", over="ignore"):  # never, for a token without saliency or attention
            return scale * np.exp(log_erfcx - self.z0 / self.temperature) / self.strength

    def blow_up_time(self) -> float:
        """Time at which the winner diverges and the flow ends."""
        return float(self.blow_up_times().min())

    def winner(self) -> int:
        r"""Index of the token that diverges first; from zero, the one with the largest $\|\Delta_l\|_2$ over k."""
        return int(self.blow_up_times().argmin())

    def solution(self, t: Real) -> Float[np.ndarray, "... K M"]:
        r"""Exact v(t), by $\operatorname{erfc}(u\sqrt{\kappa/2}) = (1-t/t_l^*)\operatorname{erfc}(u_0\sqrt{\kappa/2})$.

        From zero with one node this is $v_l = \sqrt2\,\operatorname{erfinv}(\sqrt{2/\pi}\,\Delta_l t/A)$.
        """
        t = finite("t", t)
        end = self.blow_up_time()
        if t.size and (t.min() < 0 or t.max() >= end):
            raise ValueError(
                f"`t` must lie in [0, {end:.6g}), before the blow-up of token {self.winner()}; "
                f"got {t.min():.6g} to {t.max():.6g}. End before the blow-up, or shrink `delta`."
            )
        moved = self._moved(t[..., None] / self.blow_up_times())
        return self.v0 + self._direction() * moved[..., None, :]

    def limits(self) -> Float[np.ndarray, "K M"]:
        r"""Values at the blow-up time: infinite for the winner, finite for every loser.

        From zero with one node a loser ends at $\sqrt2\operatorname{erfinv}(\Delta_l/|\Delta|_{max})$.
        """
        times = self.blow_up_times()
        with np.errstate(invalid="ignore"):
            passed = np.where(np.isinf(times), 0.0, times.min() / times)  # tokens without saliency stay
        direction = self._direction()
        moved = np.where(direction == 0, 0.0, self._moved(passed))  # 0 · inf: no saliency of a node for the winner
        return self.v0 + direction * moved

    def invariant(self, v: Float[np.ndarray, "*T K M"]) -> Float[np.ndarray, "*T M"]:
        r"""Quantity that is equal for all tokens, and grows as $\sqrt{2\kappa/\pi}\,t/A$.

        $[\operatorname{erf}(u\sqrt{\kappa/2}) - \operatorname{erf}(u_0\sqrt{\kappa/2})] / (\|\Delta_l\| e^{c_l})$ with
        $c_l = z_l(0)/T - \kappa u_0^2/2$; tokens without saliency give NaN.
        """
        v, _ = shaped("*T K M, K M", v=v, delta=self.delta)
        root = np.sqrt(self.gain / 2)
        u0 = self._along_start()
        u = (self._direction() * v).sum(axis=-2)
        c = self.z0 / self.temperature - self.gain * u0**2 / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            return (special.erf(u * root) - special.erf(u0 * root)) / (self.strength * np.exp(c))

    def _moved(self, passed: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$u - u_0$ once a part of the time to the blow-up has passed; each side of zero by its own tail of erfc."""
        root = np.sqrt(self.gain / 2)
        u0 = self._along_start()
        above = (1 - passed) * special.erfc(u0 * root)
        below = special.erfc(-u0 * root) + passed * special.erfc(u0 * root)
        u = np.where(below < above, -special.erfcinv(below), special.erfcinv(above)) / root
        return np.where(passed == 0, 0.0, u - u0)

    def _direction(self) -> Float[np.ndarray, "K M"]:
        """Unit vector of delta over the hidden nodes, zero where delta is."""
        return np.divide(self.delta, self.strength, out=np.zeros_like(self.delta), where=self.strength > 0)

    def _along_start(self) -> Float[np.ndarray, " M"]:
        """Component of the start along delta."""
        return np.einsum("kl,kl->l", self._direction(), self.v0)
