r"""The note's induction over layers as a flow: "once the lowest layer is learned, the same procedure repeats".

Layer $s$ combines what layer $s-1$ puts out. Its clusters lie as far apart as that layer puts them: if the output of a
node differs by m between the two values of its latent, it differs by $\rho m$ between those of the parent (Lemma 9), so
the target of the next layer is $\mu_s$ times the fraction m that is learned below. With Eqn 6 for every layer,

$$\dot v_s = (r_{s-1}\,\mu_s - v_s)\circ e^{\kappa v_s^2/2}, \qquad
  r_s = \frac{\mu_s^\top v_s}{\|\mu_s\|^2}, \qquad r_0 = 1.$$

That a target is proportional to m is the model's assumption. Then, for any targets and any gain:
layers are learned in order, $1 \ge r_1 \ge r_2 \ge \dots$ at all times; upper ones do not wait, for
$r_s \approx t^s/s!$ at first; and without attention ($\kappa = 0$) $r_s$ is the regularised incomplete gamma function
$P(s, t)$, so that each layer adds one unit of time.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, shaped, whole, within
from joma.theory.convergence import times
from joma.theory.integrate import STIFF, State, integrate
from joma.theory.rebound import entropy
from joma.types import Real, as_columns, keep


def uniform_fraction(t: Real, layer: Real) -> np.ndarray:
    r"""Return $r_s(t) = P(s, t) = 1 - e^{-t}\sum_{j<s}t^j/j!$, the fraction learned without attention.

    >>> uniform_fraction(2.0, np.array([1.0, 2.0, 3.0])).round(4)
    array([0.8647, 0.594 , 0.3233])
    """
    return np.asarray(special.gammainc(whole("layer", layer, low=1), times(t)))


@dataclass(frozen=True, kw_only=True)
class LayerChain:
    """Layers that learn together, each from what the one below has learned.

    >>> run = LayerChain(mu=np.array([[3.0, 2.0]] * 3)).run(np.linspace(0.0, 4.0, 401))
    >>> run.learned_at().round(2)
    array([0.49, 0.99, 1.47])
    """

    mu: Float[np.ndarray, "S M"]
    """Target of each layer where the layer below is learned, the lowest first."""
    gain: float = 1.0
    r"""$\kappa = \eta_z/(\eta_wT^2)$; zero is uniform attention that is not trained."""

    def __post_init__(self) -> None:
        mu = shaped("S M", mu=self.mu)
        if not mu.any(axis=1).all():
            raise AssumptionError("Every layer needs a target other than zero, or it learns nothing. Leave it out.")
        keep(self, mu=mu, gain=float(within("gain", self.gain, 0, np.inf)))

    def fractions(self, v: Float[np.ndarray, "*T S M"]) -> Float[np.ndarray, "*T S"]:
        r"""Return $r_s = \mu_s^\top v_s/\|\mu_s\|^2$."""
        return np.asarray((v * self.mu).sum(axis=-1) / np.square(self.mu).sum(axis=-1))

    def run(self, t: Float[np.ndarray, " T"], *, lower: float | None = None) -> "LayersRun":
        """Integrate from zero.

        Args:
            t: Times, the first of which is the start.
            lower: The control. Upper layers see the lower ones frozen with this fraction learned: 0 as they start, 1
                as they end. Each is then a layer by itself.
        """
        held = None if lower is None else np.full(len(self.mu) - 1, within("lower", lower, 0, 1))

        def field(_: float, state: State) -> State:
            below = np.append(1.0, self.fractions(state["v"])[:-1] if held is None else held)
            with np.errstate(over="ignore"):
                boost = np.exp(self.gain * np.square(state["v"]) / 2)
            return {"v": (below[:, None] * self.mu - state["v"]) * boost}

        run = integrate(field, {"v": np.zeros_like(self.mu)}, t, **STIFF)
        return LayersRun(chain=self, t=run.t, v=run["v"])


@dataclass(frozen=True, kw_only=True)
class LayersRun:
    """Weights, fraction learned and attention entropy of every layer over time."""

    chain: LayerChain
    t: Float[np.ndarray, " T"]
    v: Float[np.ndarray, "T S M"]

    @property
    def fractions(self) -> Float[np.ndarray, "T S"]:
        """Fraction learned of every layer."""
        return self.chain.fractions(self.v)

    @property
    def entropy(self) -> Float[np.ndarray, "T S"]:
        r"""Entropy of $\mathrm{softmax}(\kappa v_s^2/2)$ of every layer."""
        return np.asarray(entropy(self.chain.gain * np.square(self.v) / 2))

    def learned_at(self, fraction: float = 0.5) -> Float[np.ndarray, " S"]:
        """Return when each layer has learned a fraction, interpolated between the times; infinite if not by the end."""
        level = float(within("fraction", fraction, 0, 1))
        found = []
        for values in self.fractions.T:
            after = int((values >= level).argmax())
            reached = values[after] >= level
            found.append(np.interp(level, values[: after + 1], self.t[: after + 1]) if reached else np.inf)
        return np.array(found)

    def columns(self) -> dict[str, np.ndarray]:
        """Return times, fractions and entropies as columns, one of each for every layer."""
        return as_columns({"t": self.t, "fraction": self.fractions, "entropy": self.entropy})
