"""Superposition: one pattern scores near 0, two near 1, at three levels of noise; untrained networks score 0."""

import pytest
import torch
from made_networks import VOCABULARY, Made, made_network, untrained_network

from joma.measure.superposition import Attended, SuperpositionResult, superposed_neurons

NOISE = (0.1, 0.3, 0.5)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def measured(made: Made, seed: int = 0, **options: float) -> SuperpositionResult:
    return superposed_neurons(made.activations, made.attended, generator=seeded(seed), num_null=60, **options)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", NOISE)
def test_one_pattern_a_neuron_scores_near_zero(noise, seed):
    found = measured(made_network(1, noise, seed))
    assert found.average < 0.02
    assert found.num_patterns.tolist() == [1] * 32


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", NOISE)
def test_two_patterns_a_neuron_score_near_one(noise, seed):
    found = measured(made_network(2, noise, seed))
    assert found.average > 0.9
    assert found.null < 0.02
    assert found.excess > 20 * found.error
    assert float((found.num_patterns == 2).double().mean()) > 0.9


def test_three_patterns_are_three():
    found = measured(made_network(3, 0.1, 0))
    assert found.num_patterns.tolist() == [3] * 32
    assert found.average > 0.98


@pytest.mark.parametrize("seed", range(3))
def test_an_untrained_network_scores_near_zero(seed):
    found = measured(untrained_network(seed))
    assert found.average < 0.05
    assert found.num_silent_neurons > 32


def test_activations_that_know_nothing_of_the_contexts_score_as_the_null():
    made = made_network(2, 0.1, 0)
    deaf = superposed_neurons(
        made.activations[torch.randperm(800, generator=seeded(1))], made.attended, generator=seeded(0), num_null=60
    )
    assert deaf.average < 0.02
    assert abs(deaf.excess) <= 3 * deaf.error + 1e-12


def test_patterns_that_share_their_tokens_are_one_pattern():
    made = made_network(2, 0.1, 0)
    first, second = made.tokens[made.held[0]]  # give the second pattern of neuron 0 the tokens of its first
    alias = torch.arange(VOCABULARY)
    alias[second] = first
    attended = Attended(ids=alias[made.attended.ids], weights=made.attended.weights)
    found = superposed_neurons(made.activations, attended, generator=seeded(0), num_null=60)
    assert int(found.num_patterns[0]) == 1
    assert float(found.score[0]) == 0.0
    assert float(found.score[1:].mean()) > 0.85


def test_top_contexts_show_the_tokens_of_the_patterns():
    made = made_network(2, 0.1, 0)
    found = measured(made)
    neuron = int(found.superposed()[0])
    top = found.top_contexts(neuron, per_pattern=2, num_tokens=3)
    assert [context.pattern for context in top][:4] == [0, 0, 1, 1]
    shown = {int(made.topic[context.context]) for context in top[:4]}
    assert shown == set(made.held[neuron].tolist())
    for context in top[:4]:
        assert context.activation == float(made.activations[context.context, neuron])
        assert {token for token, _ in context.tokens} <= set(made.tokens[made.topic[context.context]].tolist())
        assert [share for _, share in context.tokens] == sorted((share for _, share in context.tokens), reverse=True)


def test_every_pattern_is_one_of_those_planted():
    made = made_network(2, 0.3, 1)
    found = measured(made)
    for neuron, contexts, patterns in zip(found.neuron, found.context, found.pattern, strict=True):
        for number in range(int(patterns.max()) + 1):
            topic = made.topic[contexts[patterns == number]]
            assert int(topic.mode().values) in made.held[neuron]
            assert float((topic == topic.mode().values).double().mean()) > 0.9


def test_scales_and_names_do_not_matter():
    made = made_network(2, 0.3, 0)
    before = measured(made)
    neurons, names = torch.randperm(32, generator=seeded(1)), torch.randperm(400, generator=seeded(2))
    scale = torch.rand(32, generator=seeded(3)) + 0.5
    attended = Attended(ids=names[made.attended.ids], weights=3 * made.attended.weights)
    moved = (made.activations * scale)[:, neurons].double()
    after = superposed_neurons(moved, attended, generator=seeded(0), num_null=60)
    torch.testing.assert_close(after.score, before.score[neurons], atol=1e-6, rtol=0)
    assert after.num_firing.tolist() == before.num_firing[neurons].tolist()


def test_a_sink_does_not_hide_the_patterns():
    made = made_network(2, 0.1, 0)
    ids = torch.cat([made.attended.ids, torch.full((800, 1), 401)], dim=1)
    weights = torch.cat([made.attended.weights, torch.full((800, 1), 9.0)], dim=1)
    found = superposed_neurons(made.activations, Attended(ids=ids, weights=weights), generator=seeded(0), num_null=60)
    assert found.average > 0.9


def test_equal_seeds_give_equal_results():
    made = made_network(2, 0.5, 0)
    first, again = measured(made, seed=1), measured(made, seed=1)
    assert torch.equal(first.score, again.score)
    assert torch.equal(first.pattern, again.pattern)
    assert (first.null, first.error) == (again.null, again.error)


def test_dead_and_silent_neurons_are_counted():
    made = made_network(2, 0.1, 0)
    twice = torch.zeros(800, 1)
    twice[:2] = 1.0
    activations = torch.cat([torch.zeros(800, 2), made.activations, twice], dim=1)
    found = superposed_neurons(activations, made.attended, generator=seeded(0), num_null=60)
    assert (found.num_dead_neurons, found.num_silent_neurons) == (2, 1)
    assert found.neuron.tolist() == list(range(2, 35))
    assert (float(found.score[-1]), int(found.num_firing[-1])) == (0.0, 2)
    assert found.context[-1].tolist()[2:] == [-1] * (found.context.shape[1] - 2)
    assert [context.pattern for context in found.top_contexts(34)] == [-1, -1]
    assert torch.isfinite(found.score).all()


def test_one_neuron_has_no_spread():
    made = made_network(2, 0.1, 0, num_neurons=1)
    assert measured(made).error == 0.0


def test_half_precision_is_taken():
    made = made_network(2, 0.1, 0)
    found = superposed_neurons(made.activations.bfloat16(), made.attended, generator=seeded(0), num_null=60)
    assert found.average > 0.9


BAD = {
    "rows": ({"activations": torch.rand(39, 2)}, "one row for each context, got 39 and 40"),
    "few": ({"activations": torch.rand(5, 2), "attended": 5}, "at least 32 contexts, got 5"),
    "dead": ({"activations": torch.ones(40, 2)}, "a neuron that varies over the contexts, got 2 dead"),
    "nan": ({"activations": torch.full((40, 1), torch.nan)}, "`activations` must be finite, got nan"),
    "related": ({"related": 1.0}, "`related` must lie between 0 and 1, got 1.0"),
    "num_null": ({"num_null": 0}, "`num_null` must be at least 1, got 0"),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(change, message):
    arguments = {"activations": torch.rand(40, 2), "attended": 40, "generator": seeded(0), **change}
    size = arguments["attended"]
    arguments["attended"] = Attended(ids=torch.arange(size)[:, None], weights=torch.ones(size, 1))
    with pytest.raises(ValueError, match=message):
        superposed_neurons(**arguments)


def test_a_dead_neuron_has_no_contexts_to_show():
    made = made_network(1, 0.1, 0)
    with pytest.raises(ValueError, match="`neuron` must be one that varies, got 32"):
        measured(made).top_contexts(32)
