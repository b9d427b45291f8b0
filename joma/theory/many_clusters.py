r"""Critical points of a node on any number of clusters, with the bias frozen: Theorem 3 beyond two clusters.

With the bias held at $\xi$ the weights rest where

$$\sum_j a_j\theta_1(s_j)\,\bar x_j + \Big(\sum_j a_j\theta_2(s_j)\Big)\frac{v}{\|v\|} = 0,$$

so $v$ lies in the span of the centers unless both sums vanish. Around such a point $\dot v = -C(v - \mu)$ up to second
order with

$$C = -\frac{1}{\|\mu\|}\sum_j a_j\left[(c_+ - c_-)\,p_j(s_j)\,q_jq_j^\top + \theta_2(s_j)\,\Pi\right], \qquad
  q_j = \bar x_j - s_j\frac{\mu}{\|\mu\|},$$

$\Pi$ the projection across $\mu$. Two clusters, one at the origin, give $C = \beta_1I + \beta_2\mu\mu^\top$; more
clusters give a general symmetric matrix, so the directions across $\mu$ have rates of their own.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import optimize

from joma.errors import AssumptionError, finite
from joma.theory.critical_points import TAIL
from joma.theory.mixture import Mixture, spanned, spread_directions
from joma.types import as_columns

__all__ = ["RestPoint", "rest_points"]

NUM_STARTS = 128  # directions of (v, ξ) from which roots are looked for
RESIDUAL = 1e-10  # largest entry of v̇ at a root, over the sizes of its parts
SAME = 1e-6  # relative distance below which two roots are one
FARTHEST = 1e4  # norm of μ over |ξ| beyond which a root is a direction in which the field only fades


@dataclass(frozen=True, kw_only=True, slots=True)
class RestPoint:
    """A point at which the weights of a node rest while its bias is held."""

    mixture: Mixture
    xi: float
    """The bias."""
    mu: Float[np.ndarray, " n"]
    """The weights."""

    @property
    def matrix(self) -> Float[np.ndarray, "n n"]:
        r"""$C$ of the linear flow $\dot v = C(\mu - v)$ around the point."""
        return -self.mixture.jacobian(self.mu, self.xi)[:-1, :-1]

    @property
    def eigenvalues(self) -> Float[np.ndarray, " n"]:
        """Rates at which offsets shrink, ascending; a negative one grows."""
        return np.linalg.eigvalsh(self.matrix)

    @property
    def stable(self) -> bool:
        """Whether every offset shrinks."""
        return bool((self.eigenvalues > 0).all())

    def columns(self) -> dict[str, np.ndarray]:
        """Return one row: the weights, the bias and the rates."""
        return as_columns({"mu": self.mu[None], "xi": self.xi, "rate": self.eigenvalues[None]})


def rest_points(mixture: Mixture, xi: float) -> tuple[RestPoint, ...]:
    r"""Critical points of $v$ in the span of the centers with the bias frozen at `xi`, by ascending $\|\mu\|$.

    Newton's method from directions spread over the sphere of $(v, \xi)$. For two clusters, one at the origin, these are
    the points of `critical_points`, which brackets every root; with more clusters a root that no start reaches is
    missed. Hypotheses: a homogeneous activation with a kink, and $\xi \ne 0$.

    Args:
        mixture: Any number of clusters.
        xi: Where the bias is held.

    >>> from joma.theory.isotropic import Gaussian
    >>> centers = np.array([[1.0, 0.2], [0.3, 1.1], [0.0, 0.0]])
    >>> mixture = Mixture(centers=centers, weights=np.array([1.0, 0.8, -6.0]), noise=Gaussian(dim=2))
    >>> [point] = rest_points(mixture, xi=-1.0)
    >>> point.mu.round(4), point.stable
    (array([0.7693, 0.7013]), True)
    """
    xi = float(finite("xi", xi))
    if xi == 0 or mixture.kink == 0:
        raise AssumptionError(
            f"Isolated critical points need ξ ≠ 0 and an activation with a kink, got ξ = {xi:g} and "
            f"{mixture.activation.name!r}. At ξ = 0 the field depends on the direction of v alone."
        )
    basis = spanned(mixture.centers)
    starts = spread_directions(basis.shape[1] + 1)
    starts = starts[starts[:, -1] * xi > 0][:NUM_STARTS]
    sizes = np.linalg.norm(mixture.centers, axis=1)

    def imbalance(x: np.ndarray) -> np.ndarray:
        """What remains of v̇, over the sum of its parts: it does not fade where the node is hardly active."""
        pull, push = mixture.parts(basis @ x, xi)
        parts = np.abs(pull) @ sizes + np.abs(push).sum()
        if parts < TAIL:
            return np.ones_like(x)
        return (pull @ mixture.centers @ basis + push.sum() * x / np.linalg.norm(x)) / parts

    found: list[np.ndarray] = []
    for start in abs(xi) * starts[:, :-1] / np.abs(starts[:, -1:]):
        root = optimize.root(imbalance, start, tol=1e-13)
        size = float(np.linalg.norm(root.x))
        is_root = 0 < size < FARTHEST * abs(xi) and np.abs(imbalance(root.x)).max() < RESIDUAL
        if is_root and all(np.linalg.norm(root.x - each) > SAME * size for each in found):
            found.append(root.x)
    points = [RestPoint(mixture=mixture, xi=xi, mu=basis @ x) for x in found]
    return tuple(sorted(points, key=lambda point: float(np.linalg.norm(point.mu))))
