"""One sequence of a probe batch stands for all of it, where nothing else would be measured."""

import models
import pytest
import torch
from torch import nn

from joma.probe.measurement import first_sequence_if_enough
from joma.probe.measures import ChosenMeasures, measures_of
from joma.probe.model import ProbedModel, fixed_batch
from joma.probe.watch import watch

CHEAP = ChosenMeasures(measures_of("cheap"))


def specimen_of(model):
    return ProbedModel.of(model.eval(), mlp_pattern=None, attention_pattern=None)


class Mixing(models.HandWritten):
    """Takes the mean of its batch away: what one sequence does depends on the others."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = 20 * (x - x.mean(dim=0, keepdim=True)) + tokens.shape[0]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class SequenceFirst(nn.Module):
    """PyTorch's encoder as it comes: the batch is the second axis."""

    def __init__(self):
        """Take the sizes of all models here."""
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(models.WIDTH, models.HEADS, 64), models.LAYERS, enable_nested_tensor=False
        )

    def forward(self, x):
        return self.encoder(x)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "gemma2"])
def test_the_first_sequence_is_enough_for_the_cheap_preset(family):
    batch = models.inputs(family, batch=3)
    lean = first_sequence_if_enough(specimen_of(models.build(family)), CHEAP, fixed_batch(batch))
    assert {name: tuple(value.shape) for name, value in lean.items()} == {
        name: (1, *value.shape[1:]) for name, value in batch.items()
    }
    for name, value in lean.items():
        assert torch.equal(value, batch[name][:1])


@pytest.mark.parametrize("form", ["tensor", "tuple", "list"])
def test_batches_of_every_form(form):
    tokens = models.inputs("gpt2", batch=3, padded=False)["input_ids"]
    batch = {"tensor": tokens, "tuple": (tokens,), "list": [tokens]}[form]
    lean = first_sequence_if_enough(specimen_of(models.HandWritten()), CHEAP, fixed_batch(batch))
    (only,) = (lean,) if form == "tensor" else lean
    assert torch.equal(only, tokens[:1])


@pytest.mark.parametrize(
    ("model", "batch", "measures"),
    [
        (models.HandWritten(), torch.ones(1, 8, dtype=torch.long), "cheap"),
        (models.HandWritten(), torch.randint(1, 20, (3, 8)), "full"),
        (models.HandWritten(), lambda model: model(torch.ones(3, 8, dtype=torch.long)), "cheap"),
        (Mixing(), torch.randint(1, 20, (3, 8)), "cheap"),
        (SequenceFirst(), torch.randn(8, 3, models.WIDTH), "cheap"),
        (models.HandWritten(), torch.ones(3, 8), "cheap"),
    ],
    ids=["one", "full", "function", "mixing", "sequence first", "does not run"],
)
def test_the_batch_stays_whole_where_one_sequence_would_not_do(model, batch, measures):
    fixed = fixed_batch(batch)
    assert first_sequence_if_enough(specimen_of(model), ChosenMeasures(measures_of(measures)), fixed) is fixed


def test_a_watch_finds_the_same_on_the_first_sequence():
    model = models.build("gpt2")
    batch = models.inputs("gpt2", batch=3, padded=False)

    def entropies(probe_batch):
        with watch(model, every=1, probe_batch=probe_batch) as seen:
            seen.step(0)
        return seen.frame().query("metric == 'entropy'")["value"].to_numpy()

    assert entropies(batch) == pytest.approx(entropies({"input_ids": batch["input_ids"][:1]}), rel=1e-6)
