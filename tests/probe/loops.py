"""Small training loops, with and without a watch, and what they leave."""

import random

import models
import numpy as np
import torch
from torch import nn

from joma.probe.watching import watch

NUM_STEPS = 5

torch.set_num_threads(1)  # tensors this small take longer to share out than to compute


class Encoder(nn.Module):
    """PyTorch's own encoder with dropout, on tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(models.VOCABULARY, models.WIDTH)
        layer = nn.TransformerEncoderLayer(models.WIDTH, models.HEADS, 64, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, models.LAYERS)
        self.head = nn.Linear(models.WIDTH, models.VOCABULARY)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


class WithBuffers(models.HandWritten):
    """Writes its buffers in every forward pass, eval mode or not, by each way there is; and draws random numbers."""

    def __init__(self):
        super().__init__(dropout=0.1)
        self.norm = nn.BatchNorm1d(models.VOCABULARY)
        self.register_buffer("num_calls", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(3))
        self.register_buffer("nothing", None)

    def forward(self, tokens):
        self.num_calls += 1
        self.hidden.data.add_(1)  # unseen by autograd
        self.replaced = self.replaced + 1
        noise = random.random() + float(np.random.random()) + torch.rand(()).item()
        return self.norm(super().forward(tokens).transpose(1, 2)).transpose(1, 2) * (1 + 0.01 * noise)


DROPOUT = {"llama": {"attention_dropout": 0.2}, "gpt_neox": {"hidden_dropout": 0.1, "attention_dropout": 0.1}}


def build(name):
    """Build a model in training mode, seeded; Hugging Face's by their family, with dropout."""
    torch.manual_seed(0)
    own = {"encoder": Encoder, "hand_written": lambda: models.HandWritten(dropout=0.2), "with_buffers": WithBuffers}
    model = own[name]() if name in own else models.build(name, **DROPOUT.get(name, {}))
    return model.train()


def batch(name, seed):
    """Return what the model is called with."""
    made = models.inputs(name if name in models.FAMILIES else "gpt2", seed=seed)
    return made if name in models.FAMILIES else {"tokens": made["input_ids"]}


def loss_of(model, inputs):
    """Cross entropy of the tokens under the model."""
    output = model(**inputs)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    tokens = next(inputs[name] for name in ("tokens", "decoder_input_ids", "input_ids") if name in inputs)
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def run(model, name, seen, steps):
    """Step through a training without learning anything: the forward pass is all that a watch needs."""
    for step in steps:
        seen.step(step, loss=loss_of(model, batch(name, step)))


def train(model, name, *, settings=None, num_steps=NUM_STEPS, loss_of=loss_of):
    """Train with a seed, watched if there are settings; return everything that training leaves, and the watch."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watched = None if settings is None else watch(model, **settings)
    losses = []
    for step in range(num_steps):
        loss = loss_of(model, batch(name, step))
        loss.backward()
        losses.append(loss.detach())
        if watched is not None:
            watched.gradients()  # they are cleared before the step ends
        optimizer.step()
        if step < num_steps - 1:
            optimizer.zero_grad()
        if watched is not None:
            watched.step(step, loss=loss)
    if watched is not None:
        watched.close()
    return traces(model, optimizer, losses), watched


def traces(model, optimizer, losses):
    """Everything that must not depend on a watch."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "weights": dict(model.state_dict()),
        "gradients": [parameter.grad for parameter in model.parameters()],
        "moments": moments,
        "losses": losses,
        "modes": [module.training for module in model.modules()],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
        "hooks": [hooks_of(module) for module in model.modules()],
    }


def hooks_of(module):
    """Count the hooks of every kind."""
    return [len(getattr(module, name)) for name in vars(module) if "hooks" in name]


def assert_same(left, right, where=""):
    """Two nests of tensors are equal bit for bit."""
    assert type(left) is type(right), where
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{where}[{number}]")
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape, where
        assert torch.equal(left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8)) or (
            left.numel() == 0 and right.numel() == 0
        ), where
    else:
        assert left == right, where


def watched(name, num_steps=1, model=None, **settings):
    """Return a closed watch that has seen some steps of a model."""
    model = build(name) if model is None else model
    with watch(model, **{"every": 1} | settings) as seen:
        run(model, name, seen, range(num_steps))
    return seen
