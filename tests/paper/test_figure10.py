"""Figure 10: neurons are read as the model has them, and claims on them can hold and fail."""

import pandas as pd
import pytest
import torch
from paper.cases import outcomes, tiny_neox, write_text_folder
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from joma.claims import Outcome
from joma.measure.superposition import Attended, superposed_neurons
from joma.paper import figure10
from joma.paper.experiment import Measured
from joma.paper.figure10 import (
    CLAIMS,
    NETWORKS,
    PUBLIC_CLAIMS,
    Figure10Config,
    PublicTextsConfig,
    charts,
    compute,
    compute_public,
    top_neurons,
    unrelated_pairs,
)
from joma.store import Store


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figure10")
    write_text_folder(folder / "text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOMA_CACHE", str(folder / "cache"))
        config = Figure10Config(model=tiny_neox(folder / "text", every=5), num_contexts=80, length=12, seeds=(0, 1))
        yield compute(config, Store(folder / "store"))


def made(*, pairs=(0.9, 0.2, 0.2), excess=(0.2, 0.0, 0.0), seeds=4):
    rows = [
        {"seed": seed, "network": network, "layer": 1, "num_neurons": 100, "num_silent": 0, "one_pattern": 5}
        | {"several_patterns": 3, "score": above, "excess": above + 0.001 * seed * (above > 0), "error": 0.01}
        | {"unrelated_pairs": share + 0.001 * seed * index}
        for seed in range(seeds)
        for index, (network, share, above) in enumerate(zip(NETWORKS, pairs, excess, strict=True))
    ]
    return Measured(layers=pd.DataFrame(rows))


def test_every_network_of_every_seed_is_looked_at(tables):
    assert tables.layers.groupby("seed")["network"].apply(tuple).tolist() == [NETWORKS, NETWORKS]
    assert tables.layers["num_neurons"].le(64).all() and tables.facts["num_contexts"] == 80
    assert [chart.id for chart in charts(tables)] == ["figure10"]


def test_several_models_decide_and_one_does_not():
    assert outcomes(CLAIMS, made()) == {"figure10-pairs": Outcome.HOLDS, "figure10-patterns": Outcome.HOLDS}
    assert set(outcomes(CLAIMS, made(seeds=1)).values()) == {Outcome.UNDECIDED}


def test_controls_that_do_as_well_count():
    assert outcomes(CLAIMS, made(pairs=(0.9, 0.95, 0.2)))["figure10-pairs"] is Outcome.MATCHES_CONTROL
    assert outcomes(CLAIMS, made(pairs=(0.01, 0.0, 0.0)))["figure10-pairs"] is Outcome.REFUTED
    assert outcomes(CLAIMS, made(excess=(0.2, 0.0, 0.3)))["figure10-patterns"] is Outcome.MATCHES_CONTROL


def test_unrelated_pairs_are_counted_by_hand():
    attended = Attended(ids=torch.tensor([[1], [1], [2], [3]]), weights=torch.ones(4, 1))
    activations = torch.tensor([[3.0, 3.0], [2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert unrelated_pairs(activations, attended) == 0.5  # the first neuron's two attend to token 1 both


def test_neurons_with_two_made_patterns_come_into_the_table_with_their_contexts():
    generator = torch.Generator().manual_seed(0)
    topic = torch.arange(400) % 20
    ids = torch.stack([topic, 100 + torch.arange(400)], dim=1)
    attended = Attended(ids=ids, weights=torch.tensor([0.9, 0.1]).expand(400, 2))
    fires = torch.stack([(topic == 3) | (topic == 7), topic == 5], dim=1)
    activations = fires.float() + 0.01 * torch.rand(400, 2, generator=generator)
    found = superposed_neurons(activations, attended, generator=generator)
    table = top_neurons({1: found}, ids, tuple(f"w{number}" for number in range(600)))
    superposed = table[table["neuron"] == 0]
    assert set(superposed["num_patterns"]) == {2}
    assert {row.attended.split()[0] for row in superposed.itertuples()} == {"w3", "w7"}
    assert set(table.loc[table["neuron"] == 1, "num_patterns"]) == {1}


class Letters:
    """A tokenizer with a token for each letter."""

    def __call__(self, text):
        return {"input_ids": [ord(letter) % 40 for letter in text[:30]]}

    def decode(self, tokens):
        return chr(tokens[0])


def test_pythia_is_read_before_and_after_training(tmp_path, monkeypatch):
    def made_model(name, revision, dtype):
        torch.manual_seed(revision == "main")
        settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=200, max_position_embeddings=64, **settings))

    monkeypatch.setattr("transformers.GPTNeoXForCausalLM.from_pretrained", made_model)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name, revision: Letters())
    found = compute_public(PublicTextsConfig(), Store(tmp_path))
    assert found.pairs.groupby(["model", "revision"]).size().tolist() == [2, 2, 2, 2]
    none = found.copy_with(pairs=found.pairs.assign(num_shared=0))
    assert outcomes(PUBLIC_CLAIMS, none)["figure10-public"] is Outcome.REFUTED
    learned = found.copy_with(pairs=found.pairs.assign(num_shared=(found.pairs["revision"] == "main") * 3))
    assert outcomes(PUBLIC_CLAIMS, learned)["figure10-public"] is Outcome.HOLDS
    assert {pair["model"] for pair in figure10.PAIRS} == set(found.pairs["model"])
