"""Labels read off neurons: perfect neurons, noise, and a label that only several neurons together hold."""

import pytest
import torch

from joma.measure.readable import best_neuron, linear_probe

N, F = 2000, 40


def drawn(seed=0):
    random = torch.Generator().manual_seed(seed)
    truth = torch.rand(2, N, 3, generator=random) < torch.tensor([0.5, 0.2, 0.7])
    return torch.randn(2, N, F, generator=random), truth


@pytest.mark.parametrize("sign", [1.0, -3.0])
def test_a_neuron_that_is_the_label_gives_1(sign):
    hidden, truth = drawn()
    hidden[:, :, 7:10] = sign * truth.float()
    assert best_neuron(hidden, truth) == pytest.approx([1.0] * 3)
    assert (linear_probe(hidden, truth) > 0.999).all()


@pytest.mark.parametrize("score", [best_neuron, linear_probe])
def test_noise_gives_a_half(score):
    hidden, truth = drawn(1)
    assert (score(hidden, truth) - 0.5).abs().max() < 0.04
    assert score(0 * hidden, truth) == pytest.approx([0.5] * 3)  # silent neurons


def test_a_neuron_that_fires_for_some_of_the_label_counts_its_share():
    hidden, truth = drawn(2)
    some = torch.arange(N) % 10 < 4
    hidden[:, :, 3] = 5 * (truth[:, :, 0] & some)
    expected = 0.5 + (truth[1, :, 0] & some).sum() / truth[1, :, 0].sum() / 2
    assert best_neuron(hidden, truth)[0] == pytest.approx(float(expected), abs=1e-6)


def test_a_neuron_that_is_right_in_the_first_half_alone_is_not_trusted():
    hidden, truth = drawn(3)
    hidden[0, :, 5] = 2 * truth[0, :, 1].float()
    assert abs(float(best_neuron(hidden, truth)[1]) - 0.5) < 0.05


def test_a_probe_adds_up_what_no_neuron_has_alone():
    hidden, truth = drawn(4)
    hidden = hidden + 0.6 * truth[..., :1]
    alone, together = float(best_neuron(hidden, truth)[0]), float(linear_probe(hidden, truth)[0])
    assert alone < 0.68 and together > 0.95
