"""Which contexts fire a neuron, and which bundles are patterns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.measure.superposition import MOST_FIRING, Attended, Bundler, Firing, Patterns, Profiles, bundles


def spikes(num_firing: int, num_contexts: int = 400, bulk: float = 0.02, seed: int = 0) -> np.ndarray:
    """A rectified normal bulk, with the first contexts at 1."""
    values = np.maximum(0.0, bulk * np.random.default_rng(seed).normal(size=num_contexts))
    values[:num_firing] = 1.0
    return values


@given(st.integers(4, MOST_FIRING), st.integers(0, 10**6))
def test_spikes_fire_and_the_bulk_does_not(num_firing, seed):
    firing = Firing.of(spikes(num_firing, seed=seed))
    assert sorted(firing.context) == list(range(num_firing))
    assert firing.num_firing == num_firing


@given(st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_firing_is_relative_to_the_neuron(scale, offset):
    values = spikes(9)
    firing, moved = Firing.of(values), Firing.of(scale * values + offset)
    np.testing.assert_array_equal(np.sort(moved.context), np.sort(firing.context))
    np.testing.assert_allclose(moved.mass, scale * firing.mass, rtol=1e-6)


@pytest.mark.parametrize("shape", [lambda x: x, lambda x: np.maximum(x, 0.0)], ids=["normal", "rectified"])
def test_a_normal_neuron_is_silent(shape):
    values = np.random.default_rng(0).normal(size=(200, 1000))
    assert np.mean([Firing.of(shape(row)).silent for row in values]) > 0.95


def test_an_outlier_does_not_set_the_level():
    values = spikes(12)
    values[:3] = 100.0
    assert Firing.of(values).num_firing == 12


def test_two_contexts_are_too_few():
    firing = Firing.of(np.r_[np.ones(2), np.zeros(98)])
    assert firing.silent
    assert firing.num_firing == 2


def test_a_neuron_that_fires_for_half_of_all_contexts_has_no_bulk():
    assert Firing.of(spikes(200)).silent


def test_thinning_keeps_weak_firing_in():
    values = spikes(0, num_contexts=2000)
    values[:150], values[150:300] = 1.0, 0.6
    firing = Firing.of(values)
    assert (len(firing.context), firing.num_firing) == (MOST_FIRING, 300)
    assert np.mean(firing.activation == 0.6) == pytest.approx(0.5, abs=0.02)


def test_dealt_firing_keeps_its_activations():
    firing = Firing.of(spikes(30))
    dealt = firing.dealt(400, torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(dealt.activation, firing.activation)
    assert len(set(dealt.context)) == 30
    assert set(dealt.context) != set(firing.context)


@pytest.mark.parametrize(
    ("mass", "score"),
    [((), 0.0), ((3,), 0.0), ((2, 2), 1.0), ((8, 2), 0.7219), ((9, 1), 0.469), ((1, 1, 1), 1.0)],
)
def test_the_score_is_the_entropy_of_the_patterns_in_bits(mass, score):
    patterns = Patterns(label=np.zeros(1, dtype=int), mass=np.array(mass, dtype=float))
    assert patterns.score == pytest.approx(score, abs=1e-4)


def topics(num_topics: int, each: int, shared: float = 0.0) -> Profiles:
    """Contexts that attend to the token of their topic and to one of their own; topics 0 and 1 may share a token."""
    topic = torch.arange(num_topics).repeat_interleave(each)
    own = num_topics + torch.arange(len(topic))
    common = torch.where(topic < 2, 10**4, topic)
    ids = torch.stack([topic, own, common], dim=1)
    return Profiles.of(Attended(ids=ids, weights=torch.tensor([0.6, 0.4, shared]).expand(len(topic), 3)))


def test_bundles_are_the_topics():
    found = bundles(topics(5, each=8), np.arange(40), 0.2)
    assert len(set(found)) == 5
    assert all(len(set(found[8 * t : 8 * t + 8])) == 1 for t in range(5))


def test_topics_that_share_what_is_attended_are_one():
    assert len(set(bundles(topics(5, each=8, shared=2.0), np.arange(40), 0.2))) == 4


def bundler_of(profiles: Profiles, num_null: int = 100) -> Bundler:
    sizes, generator = {18, 20, 24}, torch.Generator().manual_seed(0)
    return Bundler.of(profiles, sizes, related=0.2, num_null=num_null, generator=generator)


def fired(context: np.ndarray, mass: np.ndarray) -> Firing:
    return Firing(context=context, activation=mass, mass=mass, num_firing=len(context))


def test_patterns_are_numbered_by_mass_and_strays_have_none():
    bundler = bundler_of(topics(40, each=10))
    context = np.r_[0:8, 10:18, 20, 30]
    mass = np.r_[np.full(8, 1.0), np.full(8, 3.0), 1.0, 1.0]
    found = bundler.patterns(fired(context, mass))
    assert found.label.tolist() == [1] * 8 + [0] * 8 + [-1, -1]
    assert found.mass.tolist() == [24.0, 8.0]


def test_random_contexts_rarely_hold_a_pattern():
    generator = torch.Generator().manual_seed(0)
    bundler = bundler_of(topics(40, each=10), num_null=200)
    draws = [torch.randperm(400, generator=generator)[:24].numpy() for _ in range(300)]
    found = [len(bundler.patterns(fired(draw, np.ones(24))).mass) for draw in draws]
    # At most 1 % by construction; 200 random sets leave that limit uncertain, 300 draws the count.
    assert np.mean(np.array(found) > 0) < 0.03


def test_contexts_of_one_topic_alone_make_no_pattern():
    bundler = bundler_of(topics(2, each=100))
    found = bundler.patterns(fired(np.r_[0:10, 100:110], np.ones(20)))
    assert len(found.mass) == 0  # any twenty contexts look like this
