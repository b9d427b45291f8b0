"""Alignment: planted neurons are found, chance is not, and error bars mean what they say."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from joma.measure import alignment
from joma.measure.alignment import Alignment, Correlations, Units, align, peak_activation

SMALL = {"num_shuffles": 20, "num_bootstraps": 10}
"""Enough where the controls are not what is tested."""
SINGLE = 2e-6
"""Resamples are multiplied in single precision: a few of its units for sums of up to a hundred terms."""


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def independent(
    generator: torch.Generator, num_samples: int = 120, num_latents: int = 6, num_neurons: int = 60
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse binary latents, and rectified neurons that know nothing of them."""
    latents = torch.rand(num_samples, num_latents, generator=generator) < 0.3
    return latents, torch.randn(num_samples, num_neurons, generator=generator).relu()


def planted(generator: torch.Generator, strength: float, **sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with latent s written into neuron 3s + 1."""
    latents, activations = independent(generator, **sizes)
    activations[:, 1 : 3 * latents.shape[1] : 3] += strength * latents
    return latents, activations


def test_planted_neurons_are_found():
    latents, activations = planted(seeded(0), 3.0)
    found = align(latents, activations, generator=seeded(1))
    assert found.latent.tolist() == list(range(6))
    assert found.neuron.tolist() == found.matched.neuron.tolist() == [1, 4, 7, 10, 13, 16]
    # Signal of variance 9 · 0.21 on a rectified normal of variance 0.34: correlation √(1.89 / 2.23) = 0.92.
    assert found.average == pytest.approx(0.92, abs=0.02)
    assert found.shuffled.excess > 10 * found.shuffled.error
    assert found.shuffled.p_value == pytest.approx(1 / 201)


@given(st.integers(0, 10**6), st.integers(4, 30), st.integers(1, 4), st.integers(1, 6))
def test_the_best_neuron_is_that_of_a_loop(seed, num_samples, num_latents, num_neurons):
    generator = seeded(seed)
    latents = torch.randn(num_samples, num_latents, generator=generator, dtype=torch.float64)
    activations = torch.randn(num_samples, num_neurons, generator=generator, dtype=torch.float64)
    found = align(latents, activations, generator=generator, **SMALL)
    for s in range(num_latents):
        row = np.array([np.corrcoef(latents[:, s], activations[:, j])[0, 1] for j in range(num_neurons)])
        assert int(found.neuron[s]) == row.argmax()
        assert float(found.correlation[s]) == pytest.approx(row.max(), abs=1e-12)
    assert found.average == pytest.approx(float(found.correlation.mean()), abs=1e-15)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_the_matching_is_the_best_of_all(seed, num_latents, num_neurons):
    generator = seeded(seed)
    latents, activations = (torch.randn(12, n, generator=generator).double() for n in (num_latents, num_neurons))
    found = align(latents, activations, generator=generator, **SMALL).matched
    table = np.corrcoef(latents.T, activations.T)[:num_latents, num_latents:]
    wide = table if num_latents <= num_neurons else table.T
    choices = itertools.permutations(range(wide.shape[1]), len(wide))
    totals = [sum(wide[i, j] for i, j in enumerate(choice)) for choice in choices]
    assert float(found.correlation.sum()) == pytest.approx(max(totals), abs=1e-12)
    assert len(set(found.neuron.tolist())) == len(found.latent) == min(num_latents, num_neurons)
    np.testing.assert_allclose(found.correlation, table[found.latent, found.neuron], atol=1e-12)


def numbers(found: Alignment) -> list[float]:
    """What must not change under a change of names and scales."""
    shuffled = found.shuffled
    return [found.average, found.matched.average, shuffled.average, shuffled.error, shuffled.p_value]


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_scales_names_and_groups_of_one_sample_do_not_matter(seed):
    latents, activations = planted(seeded(seed), 1.0)
    latents, activations = latents.double(), activations.double()
    before = align(latents, activations, generator=seeded(1), **SMALL)
    scale, offset = torch.rand(2, 60, generator=seeded(seed)).double() * 9 + 0.1
    neurons, names = torch.randperm(60, generator=seeded(seed)), torch.randperm(6, generator=seeded(seed))
    moved = (activations * scale + offset)[:, neurons]
    after = align(7 - 2 * (3 - latents)[:, names], moved, generator=seeded(1), **SMALL)
    grouped = align(latents, activations, groups=torch.arange(120), generator=seeded(1), **SMALL)
    for found in (after, grouped):
        np.testing.assert_allclose(numbers(found), numbers(before), atol=SINGLE)
    assert neurons[after.neuron].tolist() == before.neuron[names].tolist()


def test_the_best_of_many_grows_with_their_number_and_the_control_with_it():
    few, many = (
        align(*independent(seeded(4), num_neurons=size), generator=seeded(5), num_bootstraps=10) for size in (10, 1000)
    )
    # Correlations spread by 1/√120, and the largest of 10 and of 1000 normals is 1.54 and 3.24 on average.
    assert few.shuffled.average == pytest.approx(0.14, abs=0.02)
    assert many.shuffled.average == pytest.approx(0.30, abs=0.02)
    assert many.average > few.average + 0.1
    for found in (few, many):
        assert abs(found.shuffled.excess) < 2 * found.shuffled.error


NUM_SEEDS = 100


@pytest.fixture(scope="module")
def null_runs() -> list[Alignment]:
    """Independent data, many times."""
    runs = []
    for seed in range(NUM_SEEDS):
        generator = seeded(seed)
        latents, activations = independent(generator)
        untrained = torch.randn(120, 60, generator=generator).relu()
        runs.append(
            align(latents, activations, untrained=untrained, generator=generator, num_shuffles=99, num_bootstraps=40)
        )
    return runs


@pytest.mark.parametrize("level", [0.05, 0.2, 0.5])
def test_false_positives_come_at_the_nominal_rate(null_runs, level):
    rejected = sum(run.shuffled.p_value <= level for run in null_runs)
    low, high = binom.ppf([1e-3, 1 - 1e-3], NUM_SEEDS, level)
    assert low <= rejected <= high


def test_without_alignment_excesses_stay_within_their_error_bars(null_runs):
    excess = np.array([run.shuffled.excess for run in null_runs])
    error = np.array([run.shuffled.error for run in null_runs])
    assert abs(excess.mean()) < 4 * excess.std() / np.sqrt(NUM_SEEDS)
    assert np.mean(np.abs(excess) > 2 * error) <= 0.05
    # Choosing the best neuron anew in each bootstrap errs on the wide side here: 1.4 times the true spread.
    assert 1.0 < error.mean() / excess.std() < 2.0
    ratio = np.array([run.untrained.excess / run.untrained.error for run in null_runs])
    assert abs(ratio.mean()) < 4 / np.sqrt(NUM_SEEDS)
    assert np.mean(np.abs(ratio) > 2) <= 0.1


def test_with_alignment_the_error_bar_is_the_spread_over_samples():
    runs = [align(*planted(seeded(seed), 1.0), generator=seeded(seed), **SMALL).shuffled for seed in range(40)]
    spread = np.std([run.excess for run in runs], ddof=1)
    # Forty seeds know their spread to 11 %, ten bootstraps each to less on the mean of forty.
    assert 0.75 < np.mean([run.error for run in runs]) / spread < 1.35


def by_class(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Twenty inputs, drawn again and again: what a network does with each is independent of the latents."""
    generator = seeded(seed)
    latents, activations = independent(generator, num_samples=20)
    number = torch.randint(20, (120,), generator=generator)
    return latents[number], activations[number], number


def test_repeated_inputs_are_not_independent_samples():
    grouped, single = [], []
    for seed in range(25):
        latents, activations, number = by_class(seed)
        grouped.append(align(latents, activations, groups=number, generator=seeded(seed), **SMALL).shuffled)
        single.append(align(latents, activations, generator=seeded(seed), **SMALL).shuffled)
    low, high = binom.ppf([1e-3, 1 - 1e-3], 25, 0.2)
    assert low <= sum(run.p_value <= 0.2 for run in grouped) <= high
    assert np.mean([abs(run.excess) < 2 * run.error for run in grouped]) >= 0.95
    assert all(run.p_value < 0.05 and run.excess > 5 * run.error for run in single)


def test_a_network_has_no_excess_over_itself_and_much_over_an_untrained_one():
    latents, activations = planted(seeded(0), 3.0)
    itself = align(latents, activations, untrained=activations, generator=seeded(1), **SMALL).untrained
    assert (itself.excess, itself.error) == (0.0, 0.0)
    untrained = torch.randn(120, 400, generator=seeded(2)).relu()  # of another width
    over = align(latents, activations, untrained=untrained, generator=seeded(1), **SMALL)
    assert over.untrained.excess > 5 * over.untrained.error > 0
    assert over.untrained.excess == pytest.approx(over.average - over.untrained.average, abs=1e-12)


def test_constant_latents_and_dead_neurons_are_left_out_and_counted():
    latents, activations = planted(seeded(0), 3.0)
    expected = align(latents[:, [0, 2, 3, 4, 5]], activations, generator=seeded(1), **SMALL)
    latents[:, 1] = True
    dead = torch.zeros(120, 2)
    found = align(latents, torch.cat([dead, activations], dim=1), untrained=torch.cat([activations, dead], dim=1),
                  generator=seeded(1), **SMALL)  # fmt: skip
    assert (found.num_constant_latents, found.num_dead_neurons, found.untrained.num_dead_neurons) == (1, 2, 2)
    assert found.latent.tolist() == [0, 2, 3, 4, 5]
    assert found.neuron.tolist() == [3, 9, 12, 15, 18]
    assert found.shuffled.average == pytest.approx(expected.shuffled.average, abs=1e-6)
    assert found.average == pytest.approx(expected.average, abs=1e-12)
    assert torch.isfinite(found.correlation).all()


def test_half_precision_is_read_as_it_is_and_equal_seeds_give_equal_results():
    dtype = torch.bfloat16
    latents, activations = planted(seeded(0), 3.0)
    half, whole, other = (
        align(latents, activations.to(dtype).to(kind), generator=seeded(seed), **SMALL)
        for kind, seed in ((dtype, 1), (torch.float64, 1), (dtype, 2))
    )
    assert half.average == whole.average and half.shuffled.average == whole.shuffled.average
    assert half.shuffled.average != other.shuffled.average


def test_a_neuron_that_moves_by_rounding_alone_is_dead():
    latents, activations = planted(seeded(0), 1.0)
    activations = activations.float()
    noise = activations.abs().max() * torch.finfo(torch.float32).eps * latents[:, :1]  # would correlate perfectly
    found = align(latents, torch.cat([activations, 1 + 4 * noise], dim=1), generator=seeded(1), **SMALL)
    alone = align(latents, activations, generator=seeded(1), **SMALL)
    assert found.num_dead_neurons == alone.num_dead_neurons + 1
    assert found.average == alone.average
    seen = align(latents, torch.cat([activations, 1 + 1000 * noise], dim=1), generator=seeded(1), **SMALL)
    assert seen.average > alone.average


# Resamples, against NumPy sample by sample.


def draw(seed: int, num_samples: int, num_latents: int, num_neurons: int) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.randn(num_samples, num_latents + num_neurons, generator=seeded(seed), dtype=torch.float64)
    return both[:, :num_latents], both[:, num_latents:]


def naive_best(latents: torch.Tensor, activations: torch.Tensor, weights: torch.Tensor) -> list[float]:
    found = []
    for y in latents.numpy().T:
        pairs = [np.cov(y, h, aweights=weights.numpy(), ddof=0) for h in activations.numpy().T]
        found.append(max(c[0, 1] / np.sqrt(c[0, 0] * c[1, 1]) for c in pairs))
    return found


@given(st.integers(0, 10**6))
def test_groups_are_dealt_and_weighed_as_a_whole(seed):
    of_group, _ = draw(seed, 6, 2, 1)
    member = torch.cat([torch.arange(6), torch.randint(6, (14,), generator=seeded(seed))])
    _, activations = draw(seed + 1, 20, 1, 4)
    units = Units.of(of_group[member], 10 * member + 3, of_group.device)
    network = Correlations.of("h", activations, units)
    whole = Correlations.of("h", activations, Units.of(of_group[member], None, of_group.device))
    np.testing.assert_allclose(network.table(), whole.table(), atol=1e-12)
    for resamples in (units.shuffles(2, torch.Generator()), units.bootstraps(2, torch.Generator())):
        for order, weights, row in zip(*resamples, network.best(*resamples), strict=True):
            dealt, shares = of_group[order][member], (weights / units.weights)[member]
            np.testing.assert_allclose(row, naive_best(dealt, activations, shares), atol=SINGLE)


def test_chunks_do_not_show(monkeypatch):
    latents, activations = draw(0, 30, 3, 17)
    units = Units.of(latents, None, latents.device)
    network, shuffles = Correlations.of("h", activations, units), units.shuffles(7, torch.Generator())
    whole, best = network.table(), network.best(*shuffles)
    monkeypatch.setattr(alignment, "CHUNK_BYTES", 1000)
    np.testing.assert_allclose(network.table(), whole, atol=1e-14)
    np.testing.assert_allclose(network.best(*shuffles), best, atol=SINGLE)


# The peak.


@given(st.integers(0, 10**6))
def test_the_peak_is_that_of_a_loop(seed):
    hidden = torch.randn(4, 5, 3, generator=seeded(seed))
    mask = torch.rand(4, 5, generator=seeded(seed)) < 0.5
    mask[:, 2] = True
    for n, j in itertools.product(range(4), range(3)):
        assert peak_activation(hidden)[n, j] == max(hidden[n, i, j] for i in range(5))
        assert peak_activation(hidden, mask)[n, j] == max(hidden[n, i, j] for i in range(5) if mask[n, i])
