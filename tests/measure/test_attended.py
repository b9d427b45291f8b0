"""Attended tokens and their overlap, against loops over tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.measure.superposition import Attended, Profiles


def some(seed: int, num_contexts: int = 6, length: int = 5, vocabulary: int = 8) -> Attended:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary, (num_contexts, length), generator=generator)
    weights = torch.rand(num_contexts, length, generator=generator, dtype=torch.float64)
    weights[:, 1:] *= torch.rand(num_contexts, length - 1, generator=generator) < 0.7
    return Attended(ids=ids, weights=weights + 1e-3)


def naive_profiles(attended: Attended) -> list[dict[int, float]]:
    shares = []
    for ids, weights in zip(attended.ids.tolist(), attended.weights.tolist(), strict=True):
        share: dict[int, float] = {}
        for token, weight in zip(ids, weights, strict=True):
            share[token] = share.get(token, 0.0) + weight / sum(weights)
        shares.append(share)
    mean = {token: sum(s.get(token, 0.0) for s in shares) / len(shares) for s in shares for token in s}
    profiles = []
    for share in shares:
        lift = {token: max(p - mean[token], 0.0) for token, p in share.items()}
        profiles.append({token: p / sum(lift.values()) for token, p in lift.items()})
    return profiles


@given(st.integers(0, 10**6))
def test_overlaps_are_those_of_a_loop(seed):
    attended = some(seed)
    profiles = naive_profiles(attended)
    expected = [[sum(math.sqrt(p[t] * q.get(t, 0.0)) for t in p) for q in profiles] for p in profiles]
    np.testing.assert_allclose(Profiles.of(attended).overlaps(np.arange(6)), expected, atol=1e-12)


@given(st.integers(0, 10**6))
def test_padding_scale_and_names_of_tokens_do_not_matter(seed):
    attended = some(seed)
    names = 1000 + torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    ids = torch.cat([names[attended.ids], torch.full((6, 3), 77)], dim=1)
    weights = torch.cat([5 * attended.weights, torch.zeros(6, 3)], dim=1)
    moved = Profiles.of(Attended(ids=ids, weights=weights)).overlaps(np.arange(6))
    np.testing.assert_allclose(moved, Profiles.of(attended).overlaps(np.arange(6)), atol=1e-12)


@given(st.integers(0, 10**6))
def test_a_sink_in_every_context_drops_out(seed):
    attended = some(seed)
    ids = torch.cat([attended.ids, torch.full((6, 1), 99)], dim=1)
    weights = torch.cat([attended.weights, 9 * attended.weights.sum(dim=1, keepdim=True)], dim=1)
    sunk = Profiles.of(Attended(ids=ids, weights=weights)).overlaps(np.arange(6))
    np.testing.assert_allclose(sunk, Profiles.of(attended).overlaps(np.arange(6)), atol=1e-9)


@given(st.integers(0, 10**6))
def test_matrices_are_read_as_padded_lists_are(seed):
    attended = some(seed)
    mass = torch.zeros(6, 8, dtype=torch.float64)
    mass.index_put_((torch.arange(6)[:, None].expand(6, 5), attended.ids), attended.weights, accumulate=True)
    expected = Profiles.of(attended).overlaps(np.arange(6))
    for form in (mass, mass.to_sparse_coo()):
        read = Attended.from_matrix(form)
        np.testing.assert_allclose(Profiles.of(read).overlaps(np.arange(6)), expected, atol=1e-12)
        assert dict(read.strongest(0, 8)) == pytest.approx(dict(attended.strongest(0, 8)))


def test_contexts_that_attend_alike_have_nothing_of_their_own():
    profiles = Profiles.of(Attended(ids=torch.tensor([[1, 2]] * 3), weights=torch.tensor([[0.5, 0.5]] * 3)))
    assert profiles.num_indistinct == 3
    assert not profiles.overlaps(np.arange(3)).any()


def test_rounding_is_not_taken_for_attention():
    weights = torch.tensor([[0.5, 0.5], [0.5 + 1e-7, 0.5 - 1e-7]], dtype=torch.float64)
    assert Profiles.of(Attended(ids=torch.tensor([[1, 2]] * 2), weights=weights)).num_indistinct == 2


def test_strongest_tokens_leave_padding_out():
    attended = Attended(ids=torch.tensor([[4, 5, 4, 0]]), weights=torch.tensor([[1.0, 3.0, 4.0, 0.0]]))
    assert attended.strongest(0, 9) == ((4, 0.625), (5, 0.375))
    assert attended.strongest(0, 1) == ((4, 0.625),)


BAD = {
    "shapes": ([[1, 2]], [[1.0]], r"must have one shape, got \(1, 2\) and \(1, 1\)"),
    "negative weight": ([[1, 2]], [[1.0, -0.5]], r"must not be negative, got 1 and -0.5"),
    "negative id": ([[-1, 2]], [[1.0, 0.5]], r"must not be negative, got -1 and 0.5"),
    "nan": ([[1, 2]], [[1.0, math.nan]], r"`weights` must be finite, got nan"),
    "no weight": ([[1], [2]], [[1.0], [0.0]], r"context 1 has no weight"),
    "no tokens": ([[]], [[]], r"context 0 has no weight"),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("ids", "weights", "message"), BAD.values(), ids=BAD)
def test_bad_attention_is_named(ids, weights, message):
    with pytest.raises(ValueError, match=message):
        Attended(ids=torch.tensor(ids, dtype=torch.long), weights=torch.tensor(weights))
