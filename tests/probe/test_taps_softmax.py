"""Which softmax is attention, and which is a router, a vocabulary or a loss."""

import models
import pytest
import torch
from tapping import WAYS, Eager, tapped
from torch import nn
from torch.nn import functional

from joma.probe.calls import CallSource


@pytest.mark.parametrize("way", WAYS)
def test_eager_attention_is_seen_however_it_is_written(way):
    torch.manual_seed(0)
    model, x = Eager(WAYS[way]), torch.randn(2, 5, 8)
    seen, _ = tapped(model, x=x)
    [(call, statistics)] = seen
    q, k, _ = model.double().linear(x.double()).chunk(3, -1)
    wanted = torch.special.entr((q @ k.mT).softmax(-1)).sum(-1)
    assert call.source is CallSource.SOFTMAX
    torch.testing.assert_close(statistics.entropy[:, 0].double(), wanted, atol=1e-5, rtol=0)


class Latents(Eager):
    """Learnt queries (Perceiver): the keys are activations, so it is attention."""

    def __init__(self):
        """Keep the parts."""
        super().__init__(None)
        self.latents = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        q = self.linear(self.latents.expand(len(x), -1, -1))[..., :8]
        return (q @ self.linear(x)[..., 8:16].mT).softmax(-1)


def test_learnt_queries_attend():
    seen, _ = tapped(Latents(), x=torch.randn(2, 5, 8))
    assert seen[0][0].logits.shape == (2, 1, 3, 5)


class Routers(nn.Module):
    """Every softmax that is not attention."""

    def __init__(self):
        """Keep the parts."""
        super().__init__()
        self.attention = Eager(WAYS["method"])
        self.gate = nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.embedding = nn.Embedding(11, 8)
        self.centroids = nn.Buffer(torch.randn(4, 8))

    def forward(self, x):
        x = self.attention(x) + x
        chosen = [
            self.gate(x).softmax(-1),
            (x @ self.weight).softmax(-1),
            torch.einsum("bld,de->ble", x, self.weight).softmax(-1),
            (x @ functional.normalize(self.centroids, dim=-1).T.contiguous()).softmax(-1),
            (x @ functional.gelu(self.gate(self.centroids)).mT.repeat(2, 1)).softmax(-1),
            torch.softmax(x @ self.embedding.weight.t(), -1),
            functional.gumbel_softmax(self.gate(x), hard=True),
        ]
        logits = (x @ self.embedding.weight.t()).flatten(0, 1)
        loss = functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        return sum(each.sum() for each in chosen) + loss


def test_routers_vocabularies_and_losses_are_not_attention():
    torch.manual_seed(0)
    seen, _ = tapped(Routers(), x=torch.randn(2, 5, 8))
    assert [call.site for call, _ in seen] == ["attention"]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_mixtral_has_one_call_a_layer_and_none_of_its_router(implementation):
    model = models.build("mixtral", attn_implementation=implementation, output_router_logits=True)
    call = models.inputs("mixtral")
    seen, _ = tapped(model, **call, labels=call["input_ids"])
    assert [c.site for c, _ in seen] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
