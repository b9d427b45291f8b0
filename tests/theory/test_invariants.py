"""Theorem 1 for embeddings of unequal norms; `joma verify thm1` has everything else."""

import numpy as np
import pytest

import joma.theory as jt


@pytest.mark.parametrize("kind", [jt.AttentionKind.LINEAR, jt.AttentionKind.EXP])
@pytest.mark.parametrize(("num_queries", "ratio", "phi"), [(1, 0.4, jt.tanh), (3, 2.5, jt.gelu)], ids=["one", "three"])
def test_orthogonal_embeddings_of_any_norms_conserve_the_invariant(kind, num_queries, ratio, phi):
    rng = np.random.default_rng(0)
    u = jt.orthonormal_embeddings(4, num_queries, dim=8, rng=rng)
    u = jt.Embeddings(contextual=u.contextual * [0.5, 2.0, 1.3, 0.8], queries=u.queries)
    layer = jt.Layer(embeddings=u, attention=jt.Attention(kind=kind, temperature=1.7), activation=phi)
    x, weights = rng.dirichlet(np.ones(4), size=6), rng.dirichlet(np.full(6, 3.0))
    samples, g = jt.Samples(x=x, q=np.arange(6) % num_queries, weights=weights), rng.uniform(-1, 1, (6, 3))
    w0, z0, t = rng.normal(0, 0.5, (3, 8)), rng.normal(0, 0.5, (num_queries, 4)), np.linspace(0, 0.8, 5)
    run = layer.flow(w0, z0, samples, lambda t, h: g * np.cos(3 * t) - 0.3 * h, t, rate_ratio=ratio)
    values = jt.layer_invariant(layer, rate_ratio=ratio).value(u.contextual_part(run["w"]), run["z"])
    assert np.abs(values - values[0]).max() <= 1e-9  # the bound asked of closed forms against the ODE
    assert np.abs(run["z"] - run["z"][0]).max() > 1e-3
