"""Slow, naive twins of the fast code: loops over samples, nodes and tokens, as the paper writes the sums."""

import math

import numpy as np

from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Layer, Samples


def scores(attention: Attention, z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Attention scores of one sample, token by token (Eqn 1 and the list below it)."""
    if attention.kind == AttentionKind.LINEAR:
        sigma = [z_l / attention.temperature for z_l in z]
    else:
        sigma = [math.exp(z_l / attention.temperature) for z_l in z]
    total = attention.normalisation
    if attention.kind == AttentionKind.SOFTMAX:
        total = sum(s_l * x_l for s_l, x_l in zip(sigma, x, strict=True))
    return np.array([s_l * x_l / total for s_l, x_l in zip(sigma, x, strict=True)])


def score_jacobian(attention: Attention, z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """L = ∂b/∂z of one sample as a full matrix (A.2)."""
    num_tokens = len(z)
    b = scores(attention, z, x)
    jacobian = np.zeros((num_tokens, num_tokens))
    for i in range(num_tokens):
        if attention.kind == AttentionKind.LINEAR:
            jacobian[i, i] = x[i] / attention.normalisation
        else:
            jacobian[i, i] = b[i]
        if attention.kind == AttentionKind.SOFTMAX:
            for j in range(num_tokens):
                jacobian[i, j] -= b[i] * b[j]
    return jacobian / attention.temperature


def hidden(layer: Layer, w: np.ndarray, z: np.ndarray, samples: Samples) -> np.ndarray:
    """Eqn 1, sample by sample and node by node, with the residual stream f spelled out."""
    rows = []
    for x, q in zip(samples.x, samples.q, strict=True):
        f = layer.embeddings.contextual @ scores(layer.attention, z[q], x) + layer.embeddings.queries[:, q]
        rows.append([float(layer.activation.value(np.asarray(w_k @ f))) for w_k in w])
    return np.array(rows)


def gradient(
    layer: Layer, w: np.ndarray, z: np.ndarray, samples: Samples, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Eqn 2, sample by sample and node by node, with the Jacobian of the scores as a matrix."""
    w_dot, z_dot = np.zeros_like(w), np.zeros_like(z)
    for x, q, weight, g_i in zip(samples.x, samples.q, samples.weights, g, strict=True):
        f = layer.embeddings.contextual @ scores(layer.attention, z[q], x) + layer.embeddings.queries[:, q]
        g_f = np.zeros_like(f)
        for k, w_k in enumerate(w):
            slope = g_i[k] * float(layer.activation.derivative(np.asarray(w_k @ f)))
            w_dot[k] += weight * slope * f
            g_f += slope * w_k
        z_dot[q] += weight * score_jacobian(layer.attention, z[q], x).T @ layer.embeddings.contextual.T @ g_f
    return w_dot, z_dot


def saliency(samples: Samples, g: np.ndarray, query: int) -> np.ndarray:
    """E[g_k x_l | q = m] as a ratio of two sums over the samples."""
    total, mass = np.zeros((g.shape[1], samples.x.shape[1])), 0.0
    for x, q, weight, g_i in zip(samples.x, samples.q, samples.weights, g, strict=True):
        if q == query:
            total += weight * np.outer(g_i, x)
            mass += weight
    return total / mass
