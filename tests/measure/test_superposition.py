"""Superposition: attended tokens, firing, patterns, and networks made to have one, two or no patterns."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_networks import VOCABULARY, Made, made_network, untrained_network

from joma.measure.superposition import (
    MOST_FIRING,
    Attended,
    Firing,
    overlaps,
    pattern_score,
    profile_roots,
    superposed_neurons,
)

seeds = st.integers(0, 10**6)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# What contexts attend to.


def some(seed: int, num_contexts: int = 6, length: int = 5, vocabulary: int = 8) -> Attended:
    generator = seeded(seed)
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


@given(seeds)
def test_overlaps_are_those_of_a_loop(seed):
    attended = some(seed)
    profiles = naive_profiles(attended)
    expected = [[sum(math.sqrt(p[t] * q.get(t, 0.0)) for t in p) for q in profiles] for p in profiles]
    np.testing.assert_allclose(overlaps(profile_roots(attended), np.arange(6)), expected, atol=1e-12)


@given(seeds)
def test_padding_scale_names_of_tokens_and_a_sink_do_not_matter(seed):
    attended = some(seed)
    names = 1000 + torch.randperm(8, generator=seeded(seed))
    sink = 9 * attended.weights.sum(dim=1, keepdim=True)
    expected = overlaps(profile_roots(attended), np.arange(6))
    for token, weights, atol in ((77, torch.zeros(6, 3), 1e-12), (99, sink, 1e-9)):
        ids = torch.cat([names[attended.ids], torch.full(weights.shape, token)], dim=1)
        moved = Attended(ids=ids, weights=5 * torch.cat([attended.weights, weights], dim=1))
        np.testing.assert_allclose(overlaps(profile_roots(moved), np.arange(6)), expected, atol=atol)


@pytest.mark.parametrize("rounding", [0.0, 1e-7])
def test_contexts_that_attend_alike_have_nothing_of_their_own(rounding):
    weights = torch.tensor([[0.5, 0.5], [0.5 + rounding, 0.5 - rounding]], dtype=torch.float64)
    roots = profile_roots(Attended(ids=torch.tensor([[1, 2]] * 2), weights=weights))
    assert not overlaps(roots, np.arange(2)).any()


def test_strongest_tokens_leave_padding_out():
    attended = Attended(ids=torch.tensor([[4, 5, 4, 0]]), weights=torch.tensor([[1.0, 3.0, 4.0, 0.0]]))
    assert attended.strongest(0, 9) == ((4, 0.625), (5, 0.375))
    assert attended.strongest(0, 1) == ((4, 0.625),)


# Firing and patterns.


def spikes(num_firing: int, num_contexts: int = 400, bulk: float = 0.02, seed: int = 0) -> np.ndarray:
    """A rectified normal bulk, with the first contexts at 1."""
    values = np.maximum(0.0, bulk * np.random.default_rng(seed).normal(size=num_contexts))
    values[:num_firing] = 1.0
    return values


@given(st.integers(4, MOST_FIRING), seeds, st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_spikes_fire_relative_to_the_neuron_and_the_bulk_does_not(num_firing, seed, scale, offset):
    values = spikes(num_firing, seed=seed)
    firing, moved = Firing.of(values), Firing.of(scale * values + offset)
    assert sorted(firing.context) == sorted(moved.context) == list(range(num_firing))
    assert firing.num_firing == num_firing
    np.testing.assert_allclose(moved.mass, scale * firing.mass, rtol=1e-6)


@pytest.mark.parametrize("shape", [lambda x: x, lambda x: np.maximum(x, 0.0)], ids=["normal", "rectified"])
def test_a_normal_neuron_is_silent(shape):
    values = np.random.default_rng(0).normal(size=(200, 1000))
    assert np.mean([Firing.of(shape(row)).silent for row in values]) > 0.95


def test_too_few_or_too_many_contexts_are_no_firing():
    two = Firing.of(np.r_[np.ones(2), np.zeros(98)])
    assert two.silent and two.num_firing == 2
    assert Firing.of(spikes(200)).silent  # half of all contexts: there is no bulk


def test_thinning_keeps_weak_firing_in():
    values = spikes(0, num_contexts=2000)
    values[:150], values[150:300] = 1.0, 0.6
    firing = Firing.of(values)
    assert (len(firing.context), firing.num_firing) == (MOST_FIRING, 300)
    assert np.mean(firing.activation == 0.6) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("mass", "score"), [((), 0.0), ((3,), 0.0), ((2, 2), 1.0), ((8, 2), 0.7219), ((9, 1), 0.469), ((1, 1, 1), 1.0)]
)
def test_the_score_is_the_entropy_of_the_patterns_in_bits(mass, score):
    assert pattern_score(np.array(mass, dtype=float)) == pytest.approx(score, abs=1e-4)


# Networks.


def measured(made: Made, seed: int = 0, **changes):
    arguments = {"activations": made.activations, "attended": made.attended, "num_null": 60} | changes
    return superposed_neurons(**arguments, generator=seeded(seed))


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_one_pattern_scores_near_zero_and_two_near_one(noise):
    one, two = (measured(made_network(num_patterns, noise, seed=0)) for num_patterns in (1, 2))
    assert one.average < 0.02
    assert one.num_patterns.tolist() == [1] * 32
    assert two.average > 0.9 and two.null < 0.02
    assert two.excess > 20 * two.error
    assert float((two.num_patterns == 2).double().mean()) > 0.9


def test_an_untrained_network_scores_near_zero():
    found = measured(untrained_network(0))
    assert found.average < 0.05
    assert found.num_silent_neurons > 32


def test_activations_that_know_nothing_of_the_contexts_score_as_the_null():
    made = made_network(2, 0.1, 0)
    deaf = measured(made, activations=made.activations[torch.randperm(800, generator=seeded(1))])
    assert deaf.average < 0.02
    assert abs(deaf.excess) <= 3 * deaf.error + 1e-12


def test_patterns_that_share_their_tokens_are_one_pattern():
    made = made_network(2, 0.1, 0)
    first, second = made.tokens[made.held[0]]  # give the second pattern of neuron 0 the tokens of its first
    alias = torch.arange(VOCABULARY)
    alias[second] = first
    found = measured(made, attended=Attended(ids=alias[made.attended.ids], weights=made.attended.weights))
    assert int(found.num_patterns[0]) == 1
    assert float(found.score[0]) == 0.0
    assert float(found.score[1:].mean()) > 0.85


def test_top_contexts_show_the_tokens_of_the_patterns():
    made = made_network(2, 0.1, 0)
    found = measured(made)
    neuron = int(found.superposed()[0])
    top = found.top_contexts(neuron, per_pattern=2, num_tokens=3)
    assert [context.pattern for context in top][:4] == [0, 0, 1, 1]
    assert {int(made.topic[context.context]) for context in top[:4]} == set(made.held[neuron].tolist())
    for context in top[:4]:
        assert context.activation == float(made.activations[context.context, neuron])
        assert {token for token, _ in context.tokens} <= set(made.tokens[made.topic[context.context]].tolist())
        assert [share for _, share in context.tokens] == sorted((share for _, share in context.tokens), reverse=True)
    with pytest.raises(ValueError, match="`neuron` must be one that varies, got 32"):
        found.top_contexts(32)


def test_scales_names_and_a_repetition_change_nothing():
    made = made_network(2, 0.3, 0)
    before, again = measured(made), measured(made)
    assert torch.equal(before.pattern, again.pattern) and (before.null, before.error) == (again.null, again.error)
    neurons, names = torch.randperm(32, generator=seeded(1)), torch.randperm(400, generator=seeded(2))
    scale = torch.rand(32, generator=seeded(3)) + 0.5
    attended = Attended(ids=names[made.attended.ids], weights=3 * made.attended.weights)
    after = measured(made, activations=(made.activations * scale)[:, neurons].double(), attended=attended)
    torch.testing.assert_close(after.score, before.score[neurons], atol=1e-6, rtol=0)
    assert after.num_firing.tolist() == before.num_firing[neurons].tolist()


def test_a_sink_and_half_precision_do_not_hide_the_patterns():
    made = made_network(2, 0.1, 0)
    ids = torch.cat([made.attended.ids, torch.full((800, 1), 401)], dim=1)
    weights = torch.cat([made.attended.weights, torch.full((800, 1), 9.0)], dim=1)
    found = measured(made, activations=made.activations.bfloat16(), attended=Attended(ids=ids, weights=weights))
    assert found.average > 0.9


def test_dead_and_silent_neurons_are_counted():
    made = made_network(2, 0.1, 0)
    twice = torch.zeros(800, 1)
    twice[:2] = 1.0
    found = measured(made, activations=torch.cat([torch.zeros(800, 2), made.activations, twice], dim=1))
    assert (found.num_dead_neurons, found.num_silent_neurons) == (2, 1)
    assert found.neuron.tolist() == list(range(2, 35))
    assert (float(found.score[-1]), int(found.num_firing[-1])) == (0.0, 2)
    assert found.context[-1].tolist()[2:] == [-1] * (found.context.shape[1] - 2)
    assert [context.pattern for context in found.top_contexts(34)] == [-1, -1]
    assert measured(made, activations=made.activations[:, :1]).error == 0.0  # one neuron has no spread
