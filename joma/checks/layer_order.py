"""The note's induction over layers, as a flow in which upper layers learn from what lower ones have learned."""

import numpy as np
from scipy import special

from joma import theory
from joma.checks.check import check, rejects
from joma.checks.quadrature import solved
from joma.checks.reference import ENUMERATION, LINEAR_ALGEBRA, ODE
from joma.theory import LayerChain, uniform_fraction

ROUNDING = 1e-12
"""Difference of two fractions that is that of the integrator."""


def chains(rng):
    """Draw three to five layers with targets of their own, also of very different size, and a gain."""
    sizes = [rng.permutation(np.geomspace(0.4, 3.0, num)) for num in (3, 4, 5)]
    return [
        LayerChain(mu=rng.uniform(0.3, 1.0, (size.size, 4)) * size[:, None], gain=rng.uniform(0.4, 1.6))
        for size in sizes
    ]


def _field(chain, v):
    r = np.append(1.0, [(mu @ each) / (mu @ mu) for mu, each in zip(chain.mu, v, strict=True)])
    return np.array([(r[s] * mu - v[s]) * np.exp(chain.gain * v[s] ** 2 / 2) for s, mu in enumerate(chain.mu)])


@check("note-order", ODE, LayerChain.run, over=chains)
@rejects("lower layers as if learned", lambda chain, t: chain.run(t, lower=1.0))
@rejects("gain 1 % off", lambda chain, t: LayerChain(mu=chain.mu, gain=1.01 * chain.gain).run(t))
def layers_over_time(run, chain):
    """Weights of all layers, and the fractions learned, over time."""
    t = np.linspace(0.0, 3.0, 7)
    found = run(chain, t)
    [v] = solved(lambda v: (_field(chain, v),), (np.zeros_like(chain.mu),), t, method="LSODA", rtol=1e-13)
    fractions = np.einsum("tsl,sl->ts", v, chain.mu) / np.square(chain.mu).sum(axis=1)
    return found.v - v, found.fractions - fractions


@check("note-order", ENUMERATION, lambda run: run.fractions, unit="layers out of order", over=chains)
@rejects("the largest target first", lambda run: run.fractions[:, np.square(run.chain.mu).sum(axis=1).argsort()[::-1]])
def layers_out_of_order(order, chain):
    """Times and layers at which an upper layer is ahead of the one below it."""
    fractions = order(chain.run(np.linspace(0.0, 6.0, 601)))
    return float((np.diff(fractions, axis=1) > ROUNDING).sum())


@check("note-order", ODE, uniform_fraction, over=chains)
@rejects("one layer fewer", lambda t, layer: uniform_fraction(t, np.maximum(layer - 1, 1)))
def layers_without_attention(fraction, chain):
    """Fractions learned without attention."""
    t, mu = np.linspace(0.0, 4.0, 5), chain.mu
    [r] = solved(lambda r: (np.append(1.0, r[:-1]) - r,), (np.zeros(len(mu)),), t)
    run = LayerChain(mu=mu, gain=0.0).run(t)
    exact = fraction(t[:, None], np.arange(1, len(mu) + 1))
    return exact - r, run.fractions - exact


EARLY = 1e-6
"""A time at which attention has changed fractions by less than 1e-10 of themselves."""


@check(
    "note-order", ODE, lambda t, layer: t**layer / special.factorial(layer) * (1 - layer * t / (layer + 1)), over=chains
)
@rejects("each layer waits for the one below", lambda t, layer: np.where(layer == 1, t, 0.0))
def layers_at_first(fraction, chain):
    """Fractions at first, relative to themselves, by integration with full relative accuracy."""
    t = np.array([0.0, EARLY])
    [v] = solved(lambda v: (_field(chain, v),), (np.zeros_like(chain.mu),), t, atol=1e-60)
    return fraction(EARLY, np.arange(1, len(v[-1]) + 1)) / chain.fractions(v[-1]) - 1


@check("note-control", ODE, theory.ConvergenceFlow.solution, over=chains)
@rejects(
    "the target as if learned",
    lambda flow, t: theory.ConvergenceFlow(mu=flow.mu / 0.7, rate_ratio=flow.rate_ratio).solution(t),
)
def layers_on_frozen_ones(solution, chain):
    """Weights of upper layers over frozen lower ones: single layers with a smaller target."""
    t = np.linspace(0.0, 2.0, 5)
    run, flow = chain.run(t, lower=0.7), theory.ConvergenceFlow(mu=0.7 * chain.mu[1:], rate_ratio=chain.gain)
    return solution(flow, t) - run.v[:, 1:], chain.run(t, lower=0.0).v[:, 1:]


def trees(rng):
    """Draw a tree with an edge parameter each, and outputs of a node for both values of its latent."""
    for _ in range(4):
        rho, zero = np.append([1.0, 1.0], rng.uniform(-0.9, 0.9, 4)), rng.uniform(0.2, 0.8, (2, 1))
        tree = theory.LatentTree(
            parents=[-1, 0, 1, 2, 3, 2], rho=rho, class_probabilities=[0.4, 0.6], zero_given_class=zero
        )
        yield tree, 4, 1, rng.normal(size=2), rho[2:5]


@check("note-control", LINEAR_ALGEBRA, theory.chain_parameter, over=trees)
@rejects("the nearest edge alone", lambda rho: rho[-1])
def distance_above(parameter, tree, node, ancestor, output, rho):
    """How far a node's output differs between the values of a latent three edges above, over its own difference."""
    joint = tree.joint(ancestor, node)
    means = joint @ output / joint.sum(axis=1)
    return (means[1] - means[0]) - parameter(rho) * (output[1] - output[0])
