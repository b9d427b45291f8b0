"""Figure 10: neurons and what they attend to are read as the model has them; every verdict can fail."""

import copy
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from experiments.neox_cases import text_and_cache, tiny_neox, workplace_in
from joma.experiments import figure10, figure10_public
from joma.experiments.experiment import Result
from joma.experiments.figure10 import Config, compute, draw, readings_of, unrelated_pairs, verdicts
from joma.experiments.figure10_public import (
    COLUMNS,
    PAIRS,
    TEXTS,
    Positions,
    positions_of,
    read_public,
    shared_neurons,
)
from joma.experiments.figure10_verdicts import SHUFFLED, TRAINED, UNTRAINED
from joma.experiments.record import Status
from joma.experiments.reproduction import reproduce
from joma.experiments.threads import one_thread
from joma.measure.superposition import Attended
from joma.verdicts import Outcome


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with text_and_cache(tmp_path_factory.mktemp("figure10")) as folder:
        yield folder


@pytest.fixture(scope="module")
def config(place):
    neox = tiny_neox(place / "text", every=5)
    return Config(neox=neox, num_contexts=80, length=12, small=True)


@pytest.fixture(scope="module")
def result(config, place):
    return compute(config, workplace_in(place / "first", "figure10"))


@pytest.fixture(autouse=True)
def on_one_thread():
    with one_thread("cpu"):
        yield


def by_id(found):
    return {verdict.id: verdict for verdict in found}


def small_model(*, parallel, depth=3):
    torch.manual_seed(0)
    settings = GPTNeoXConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=depth, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, use_parallel_residual=parallel, bos_token_id=0, eos_token_id=0,
        initializer_range=0.5, attn_implementation="eager",
    )  # fmt: skip
    return GPTNeoXForCausalLM(settings).eval()


def test_what_was_found_is_complete_without_the_weights(result, config, place, monkeypatch, tmp_path):
    moved = shutil.copytree(place / "first", tmp_path / "moved", ignore=shutil.ignore_patterns("*.safetensors"))
    with monkeypatch.context() as patch:
        patch.setattr(figure10, "train_series", None)
        patch.setattr(figure10, "readings_of", None)
        again = compute(config, workplace_in(moved, "figure10"))
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
    assert again.facts == result.facts
    next((moved / "figure10" / "work").glob("neurons-*.parquet")).unlink()
    again = compute(config, workplace_in(moved, "figure10"))  # now it has to be trained again
    pd.testing.assert_frame_equal(result.tables["neurons"], again.tables["neurons"], check_exact=True)


def materialised(model, tokens):
    """Neurons after the nonlinearity and the mean attention of every layer and position, of a float64 twin."""
    twin = copy.deepcopy(model).double()
    twin.set_attn_implementation("eager")
    hidden = []
    for layer in twin.gpt_neox.layers:
        layer.mlp.act.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    with torch.no_grad():
        attention = twin(tokens, output_attentions=True, use_cache=False).attentions
    return hidden, [weights.mean(dim=1) for weights in attention]


@pytest.mark.parametrize("parallel", [True, False], ids=["side by side", "one after the other"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_readings_are_the_models_own_attention_and_neurons(parallel, implementation):
    model = small_model(parallel=parallel)
    model.set_attn_implementation(implementation)
    tokens = torch.randint(40, (3, 7), generator=torch.Generator().manual_seed(1))
    readings, (hidden, attention) = readings_of(model, tokens), materialised(model, tokens)
    assert [*readings] == ([1, 2] if parallel else [0, 1, 2])
    for layer, (activations, attended) in readings.items():
        seen = attention[layer - 1 if parallel else layer]
        torch.testing.assert_close(attended.weights.double(), seen[:, -1], atol=1e-5, rtol=0)  # single precision
        torch.testing.assert_close(activations.double(), hidden[layer][:, -1], atol=1e-5, rtol=1e-5)
        assert torch.equal(attended.ids, tokens)


def test_an_mlp_side_by_side_with_attention_does_not_see_it():
    model = small_model(parallel=True, depth=2)
    tokens = torch.randint(40, (1, 7), generator=torch.Generator().manual_seed(1))
    before, _ = readings_of(model, tokens)[1]
    with torch.no_grad():
        model.gpt_neox.layers[1].attention.query_key_value.weight.mul_(3)
    assert torch.equal(before, readings_of(model, tokens)[1][0])
    with torch.no_grad():
        model.gpt_neox.layers[0].attention.query_key_value.weight.mul_(3)
    assert not torch.equal(before, readings_of(model, tokens)[1][0])


def test_every_position_of_a_text_but_the_first_is_read_as_in_the_whole_text():
    model, tokenizer, texts = small_model(parallel=True), Letters(), (TEXTS[0], TEXTS[1][:9])
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    layers = list(positions_of(model, tokenizer, texts))
    assert [layer.layer for layer in layers] == [1, 2]
    for layer in layers:
        assert layer.text.tolist() == [0] * (len(ids[0]) - 1) + [1] * (len(ids[1]) - 1)
        for number, tokens in enumerate(ids):
            hidden, attention = materialised(model, tokens[None])
            rows = torch.from_numpy(layer.text == number)
            weights = layer.attended.weights[rows].double()
            np.testing.assert_allclose(layer.activations[rows], hidden[layer.layer][0, 1:], atol=1e-5)
            torch.testing.assert_close(weights[:, : len(tokens)], attention[layer.layer - 1][0, 1:], atol=1e-5, rtol=0)
            assert (weights[:, len(tokens) :] == 0).all()


def test_the_same_command_twice_gives_the_same_numbers(result, config, place):
    again = compute(config, workplace_in(place / "second", "figure10"))
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
    assert again.facts == result.facts


def test_every_network_is_looked_at_in_every_layer(result, config):
    layers = result.tables["layers"]
    assert list(zip(layers["network"], layers["layer"], strict=True)) == [(TRAINED, 1), (UNTRAINED, 1), (SHUFFLED, 1)]
    assert (layers["num_neurons"] <= 64).all()
    assert result.facts["num_contexts"] == config.num_contexts
    (chart,) = draw(result)
    assert [bars.label for bars in chart.panels[-1].items] == [TRAINED, UNTRAINED, SHUFFLED]
    found = by_id(verdicts(result, config))
    assert list(found) == ["figure10-pairs", "figure10-patterns", "figure10-public"]
    assert found["figure10-public"].outcome is Outcome.NOT_RUN


def test_the_model_is_shared_with_figure_7_and_not_trained_again(result, config, place):
    told = []
    compute(config, workplace_in(place / "first", "figure7", lambda share, doing: told.append(doing)))
    assert told
    assert not [doing for doing in told if "training" in doing]


def test_unrelated_pairs_are_counted_by_hand():
    ids = torch.tensor([[1], [1], [2], [3]])
    attended = Attended(ids=ids, weights=torch.ones(4, 1))
    activations = torch.tensor([[3.0, 3.0], [2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert unrelated_pairs(activations, attended) == 0.5  # the first neuron's two attend to token 1 both


def test_neurons_with_two_made_patterns_come_into_the_table_with_their_contexts():
    generator = torch.Generator().manual_seed(0)
    topic = torch.arange(400) % 20
    ids = torch.stack([topic, 100 + torch.arange(400)], dim=1)
    attended = Attended(ids=ids, weights=torch.tensor([0.9, 0.1]).expand(400, 2))
    fires = torch.stack([(topic == 3) | (topic == 7), topic == 5], dim=1)
    activations = fires.float() + 0.01 * torch.rand(400, 2, generator=generator)
    found = figure10.superposed_neurons(activations, attended, generator=generator)
    words = tuple(f"w{number}" for number in range(600))
    table = figure10._top_neurons({1: found}, ids, words)
    superposed = table[table["neuron"] == 0]
    assert set(superposed["num_patterns"]) == {2}
    assert {row.attended.split()[0] for row in superposed.itertuples()} == {"w3", "w7"}
    assert set(table.loc[table["neuron"] == 1, "num_patterns"]) == {1}


def made(*, pairs=(0.9, 0.2, 0.2), excess=(0.2, 0.0, 0.0), error=0.01, silent=(0, 0, 0), public=(), **facts):
    networks = (TRAINED, UNTRAINED, SHUFFLED)
    layers = pd.DataFrame(
        {
            "network": networks, "layer": 1, "num_neurons": 100, "num_silent": silent, "one_pattern": 5,
            "several_patterns": [round(100 * value) for value in excess], "score": excess, "excess": excess,
            "error": error, "unrelated_pairs": pairs,
        }
    )  # fmt: skip
    rows = [
        {"model": "EleutherAI/pythia-70m", "revision": revision, "pair": pair, "num_shared": count}
        for revision, pair, count in public
    ]
    known = {"text": "made", "num_contexts": 100, "public_missing": "no hub"}
    neurons = pd.DataFrame(columns=figure10.NEURON_COLUMNS)
    tables = {"layers": layers, "neurons": neurons, "pairs": pd.DataFrame(rows, columns=COLUMNS)}
    return Result(tables=tables, facts=known | facts)


def test_a_chart_without_superposed_neurons_says_so():
    (chart,) = draw(made(excess=(0.0, 0.0, 0.0)))
    assert "No neuron has several patterns." in chart.caption
    assert [panel.title for panel in chart.panels] == ["Neurons with one pattern", "Two strongest contexts unrelated"]
    (chart,) = draw(made())
    assert len(chart.panels) == 3


def test_the_caption_shows_the_neuron_with_the_highest_score_by_its_strongest_contexts():
    found = made()
    found.tables["neurons"] = pd.DataFrame(
        [
            (2, 7, 0.9, 2, 0, 1.0, "a weak", "weak 0.9"),
            (2, 7, 0.9, 2, 0, 2.0, "on the first", "first 0.8, , 0.1"),
            (2, 7, 0.9, 2, 1, 1.5, "was a second", "second 0.7"),
            (2, 8, 0.5, 1, 0, 9.0, "of another", "another 0.6"),
        ],
        columns=figure10.NEURON_COLUMNS,
    )
    (chart,) = draw(found)
    shown = (
        "neuron 7 of layer 2: “… on the first” attends to “first” 0.8, “,” 0.1; “… was a second” attends to "
        "“second” 0.7."
    )
    assert shown in chart.caption and "weak" not in chart.caption and "another" not in chart.caption


def outcome_of(result, config, name):
    return by_id(verdicts(result, config))[name].outcome


def test_the_pairs_verdict_holds_fails_and_sees_controls_that_match(config):
    def judged(*pairs):
        return by_id(verdicts(made(pairs=pairs), config))["figure10-pairs"]

    shown = judged(0.9, 0.02, 0.0)
    assert shown.outcome is Outcome.HOLDS and "Corrected" not in shown.explanation
    assert judged(0.01, 0.0, 0.0).outcome is Outcome.REFUTED
    for controls in ((0.9, 0.0), (0.0, 0.9)):
        matched = judged(0.9, *controls)
        assert matched.outcome is Outcome.CONDITIONAL
        assert matched.control_passes and "The control passes as well" in matched.explanation
        assert "learned nothing" in matched.correction
        assert "alone it would refute the claim" in matched.explanation
    fewer = judged(0.9, 0.2, 0.2)  # the control passes as well, though by less
    assert fewer.outcome is Outcome.CONDITIONAL and fewer.control_passes and "learned nothing" not in fewer.correction
    near = judged(0.3, 0.26, 0.1)
    assert near.outcome is Outcome.CONDITIONAL and near.control_passes
    assert "learned nothing" not in near.correction and "26% before training" in near.correction
    alone = judged(0.06, 0.02, 0.02)
    assert alone.outcome is Outcome.CONDITIONAL and not alone.control_passes


def test_what_is_shown_first_of_pairs_that_a_control_has_too_is_a_number_with_that_control(config):
    verdict = by_id(verdicts(made(pairs=(0.86, 0.93, 0.94)), config))["figure10-pairs"]
    assert all(row.decides for row in verdict.evidence)
    assert verdict.decisive.holds and verdict.decisive.control_holds
    assert [row.holds for row in verdict.evidence] == [True, True, False, False]


def test_the_patterns_verdict_holds_fails_and_sees_controls_that_match(config):
    assert outcome_of(made(), config, "figure10-patterns") is Outcome.HOLDS
    assert outcome_of(made(excess=(0.2, 0.2, 0.0)), config, "figure10-patterns") is Outcome.CONDITIONAL
    assert outcome_of(made(excess=(0.01, 0.0, 0.0)), config, "figure10-patterns") is Outcome.INCONCLUSIVE
    nothing = made(excess=(0.0, 0.0, 0.0), error=0.0)
    assert outcome_of(nothing, config, "figure10-patterns") is Outcome.INCONCLUSIVE
    words = by_id(verdicts(nothing, config))["figure10-patterns"].explanation
    assert "No neuron has several patterns, and there is nothing to hold against chance." in words
    assert "rests on" not in words and "fails by" not in words


def test_nearly_equal_scores_of_n_neurons_are_root_n_standard_errors_above_zero():
    scores = np.zeros(5120)
    scores[:16] = np.linspace(0.99, 1.01, 16)
    assert scores.mean() / (scores.std(ddof=1) / np.sqrt(scores.size)) == pytest.approx(4, rel=0.005)  # n/N = 0.3 %


def test_the_patterns_verdict_says_how_few_neurons_it_rests_on_and_how_weak_its_control_is(config):
    near = by_id(verdicts(made(excess=(0.04, 0.0, 0.0), error=0.0099, silent=(1, 49, 1)), config))["figure10-patterns"]
    assert near.outcome is Outcome.CONDITIONAL  # above chance by 4.04, above the untrained network by 2.9 alone
    assert "one seed" in near.explanation and "rests on 4 neurons of one model" in near.explanation
    assert "4.04 standard errors, where 4 were demanded, so that it passes by 0.04" in near.explanation
    assert "amounts to at least 16 such neurons" in near.explanation
    assert "49% untrained, 1% trained, so that the untrained network is a weak control" in near.explanation
    assert not near.evidence[-1].holds and not near.evidence[-1].decides
    fair = by_id(verdicts(made(), config))["figure10-patterns"]
    assert fair.evidence[-1].holds and "weak" not in fair.explanation


def test_the_pythia_verdict_wants_a_neuron_for_each_pair_and_more_than_before_training(config):
    def judged(*counts):
        names = [("main", "a"), ("main", "b"), ("step0", "a"), ("step0", "b")]
        public = [(*name, count) for name, count in zip(names, counts, strict=True)]
        found = made(public=public, public_missing="")
        return outcome_of(found, config, "figure10-pythia-70m")

    assert judged(5, 3, 0, 0) is Outcome.HOLDS
    assert judged(5, 3, 1, 0) is judged(5, 3, 1, 3) is Outcome.CONDITIONAL  # the untrained model has one too
    assert judged(5, 0, 0, 0) is Outcome.REFUTED


def test_without_a_hub_there_is_no_pythia_and_a_verdict_says_what_it_needs(monkeypatch, config):
    reason = "It needs the Hugging Face hub. The hub cannot be reached."
    monkeypatch.setattr(figure10, "hub_missing", lambda: reason)
    assert figure10.full().public == ()
    assert figure10._why_no_public(figure10.full()) == reason
    verdict = by_id(verdicts(made(public_missing=reason), config))["figure10-public"]
    assert (verdict.outcome, verdict.explanation) == (Outcome.NOT_RUN, reason)
    monkeypatch.setattr(figure10, "hub_missing", lambda: "")
    assert figure10.full().public == tuple(PAIRS)
    monkeypatch.setattr(figure10, "hub_missing", lambda: pytest.fail("quick asks for no hub"))
    assert figure10.quick().public == ()


def test_a_model_that_the_hub_does_not_send_is_not_run(monkeypatch, config):
    def refuse(*_):
        raise OSError("The hub\nis gone")

    monkeypatch.setattr(figure10_public, "_rows_of", refuse)
    table, failures = read_public(["EleutherAI/pythia-70m"], "cpu", lambda share, doing: None)
    assert failures == {"EleutherAI/pythia-70m": "The hub is gone"}
    found = made(public_missing="", **{"failure EleutherAI/pythia-70m": "The hub is gone"})
    assert outcome_of(found, config, "figure10-pythia-70m") is Outcome.NOT_RUN
    assert table.empty


def test_the_address_where_the_hub_was_asked_is_in_no_verdict(monkeypatch, config):
    def refuse(*_):
        raise OSError("We couldn't connect to 'https://a.mirror' to load the files.\nCheckout your connection.")

    monkeypatch.setattr(figure10_public, "_rows_of", refuse)
    _, failures = read_public(["EleutherAI/pythia-70m"], "cpu", lambda share, doing: None)
    told = "We couldn't connect to its address to load the files. Checkout your connection."
    assert failures == {"EleutherAI/pythia-70m": told}
    kept = "It needs the Hugging Face hub. The hub cannot be reached at https://a.mirror: timed out. Check the network."
    verdict = by_id(verdicts(made(public_missing=kept), config))["figure10-public"]
    assert (verdict.outcome, verdict.explanation) == (Outcome.NOT_RUN, kept.replace("https://a.mirror", "its address"))


def test_a_hub_that_drops_out_is_asked_again_by_the_same_command_and_nothing_is_trained_twice(
    config, tmp_path, monkeypatch, install
):
    asked, gone = [], [True]

    def rows_of(name, revision, device):
        asked.append((name, revision))
        if name == "EleutherAI/pythia-70m" and gone[0]:
            raise OSError("The hub is gone.")
        row = {
            "model": name,
            "revision": revision,
            "num_neurons": 9,
            "layer": 1,
            "neuron": 1,
            "first": "",
            "second": "",
        }
        return [row | {"pair": pair.name, "num_shared": 3 * (revision == "main")} for pair in PAIRS[name]]

    monkeypatch.setattr(figure10_public, "_rows_of", rows_of)
    install(replace(figure10.EXPERIMENT, configs={"quick": lambda: replace(config, public=tuple(PAIRS))}))
    first = reproduce(out=tmp_path, device="cpu")
    monkeypatch.setattr(figure10, "train_series", None)
    monkeypatch.setattr(figure10, "readings_of", None)
    again = reproduce(out=tmp_path, device="cpu")
    gone[0] = False
    mended, kept = (reproduce(out=tmp_path, device="cpu") for _ in range(2))
    assert first.sound and all(each.experiments[0].status is Status.DONE for each in (first, again, mended, kept))
    small, large = ([(name, step) for step in ("main", "step0")] for name in reversed(PAIRS))
    assert asked == [*large, *small, *small, *small]
    outcomes = [by_id(each.verdicts)["figure10-pythia-70m"].outcome for each in (first, again, mended, kept)]
    assert outcomes == [Outcome.NOT_RUN, Outcome.NOT_RUN, Outcome.HOLDS, Outcome.HOLDS]
    assert by_id(first.verdicts)["figure10-pythia-70m"].explanation == "The hub is gone."
    assert by_id(first.verdicts)["figure10-pythia-160m"] == by_id(mended.verdicts)["figure10-pythia-160m"]
    assert kept.experiments == mended.experiments


def test_a_download_that_breaks_off_is_a_failure_of_the_hub_and_none_of_ours(monkeypatch):
    import transformers  # noqa: PLC0415

    from joma.probe.hub import _transport_error  # noqa: PLC0415 (whichever library the client uses)

    class BrokenOff(_transport_error()):
        pass

    def break_off(*_, **__):
        raise BrokenOff("peer closed connection without sending complete message body")

    monkeypatch.setattr(transformers.GPTNeoXForCausalLM, "from_pretrained", break_off)
    table, failures = read_public(["EleutherAI/pythia-70m"], "cpu", lambda share, doing: None)
    assert table.empty and "peer closed connection" in failures["EleutherAI/pythia-70m"]


def test_the_eight_texts_are_the_papers():
    assert len(TEXTS) == len(set(TEXTS)) == 8
    assert [text.split()[0] for text in TEXTS] == [
        "Every", "In", "The", "Novels,", "Cats", "Rainforests", "The", "The",
    ]  # fmt: skip


def test_neurons_that_two_texts_share_need_unrelated_attention():
    num = 40
    text = np.repeat(np.arange(4), 10)
    activations = np.zeros((num, 3))
    activations[[0, 1, 10, 11], 0] = 1.0  # fires in texts 0 and 1
    activations[[0, 1, 20, 21], 1] = 1.0  # fires in texts 0 and 2
    activations[[2, 3, 12, 13], 2] = 1.0  # as the first, but where both attend to one token
    ids = torch.arange(num)[:, None].clone()
    ids[[2, 12]] = 99
    layer = Positions(
        layer=1, text=text, activations=activations, attended=Attended(ids=ids, weights=torch.ones(num, 1))
    )
    assert [(each.neuron, each.first, each.second) for each in shared_neurons(layer, 0, 1)] == [(0, 0, 10)]
    assert [each.neuron for each in shared_neurons(layer, 0, 2)] == [1]


class Letters:
    """A tokenizer with a token for each letter."""

    def __call__(self, text):
        return {"input_ids": [ord(letter) % 40 for letter in text[:12]]}

    def decode(self, tokens):
        return chr(65 + tokens[0])


def test_pythia_is_read_before_and_after_training_on_all_texts(monkeypatch, config):
    import transformers  # noqa: PLC0415

    asked = []

    def build(name, **settings):
        asked.append((name, settings["revision"]))
        return small_model(parallel=True)

    monkeypatch.setattr(transformers.GPTNeoXForCausalLM, "from_pretrained", build)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name, revision: Letters())
    table, failures = read_public(list(PAIRS), "cpu", lambda share, doing: None)
    assert not failures
    assert asked == [(name, revision) for name in PAIRS for revision in ("main", "step0")]
    assert len(table) == 8
    assert set(table["num_neurons"]) == {48}
    found = made(public_missing="")
    judged = by_id(verdicts(replace(found, tables=found.tables | {"pairs": table}), config))
    assert {"figure10-pythia-70m", "figure10-pythia-160m"} <= set(judged)
