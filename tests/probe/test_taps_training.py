"""Training does not notice a tap: same numbers, nothing counted twice, no memory of L × L."""

import copy
from contextlib import contextmanager

import models
import pytest
import torch
from tapping import WAYS, Eager, Sdpa, encoder, snapshot
from torch.nn.functional import scaled_dot_product_attention as imported_by_name
from torch.utils._python_dispatch import TorchDispatchMode

from joma.measure import entropy_logits
from joma.probe.calls import measure_call
from joma.probe.taps import tap

TRAINED = {
    "gpt2": lambda: models.build("gpt2", std=0.1),
    "bert": lambda: models.build("bert", std=0.1),
    "t5": lambda: models.build("t5", std=0.1),
    "bloom": lambda: models.build("bloom", std=0.1, hidden_dropout=0.1, attention_dropout=0.1),
    "gemma2": lambda: models.build("gemma2", std=0.1, attention_dropout=0.1),
    "hand-written": lambda: models.HandWritten(dropout=0.1),
    "encoder": lambda: encoder(dropout=0.1),
}


def one_step(name, model, on_call):
    """Loss, gradients and random state of a training step."""
    torch.manual_seed(3)
    with tap(model, on_call) if on_call else contextmanager(lambda: iter([None]))():
        if name == "encoder":
            loss = model(torch.randn(2, 7, 32)).square().mean()
        elif name == "hand-written":
            loss = model(torch.arange(14).reshape(2, 7)).square().mean()
        else:
            call = models.inputs(name)
            loss = model(**call, labels=call.get("decoder_input_ids", call["input_ids"])).loss
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None), torch.get_rng_state()]


@pytest.mark.parametrize("name", TRAINED)
def test_loss_gradients_and_random_state_are_the_same_bit_for_bit(name):
    torch.manual_seed(0)
    plain = TRAINED[name]().train()
    watched = copy.deepcopy(plain)
    before, seen = snapshot(watched), []
    without = one_step(name, plain, None)
    within = one_step(name, watched, lambda call: seen.append(measure_call(call).entropy))
    assert len(seen) == (6 if name == "t5" else 2)
    assert not any(entropy.requires_grad for entropy in seen)
    assert all(torch.equal(a, b) for a, b in zip(without, within, strict=True))
    assert snapshot(watched) == before


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_recomputation_under_checkpointing_is_not_counted_again(reentrant, implementation):
    model = models.build("gpt2", attn_implementation=implementation, use_cache=False).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    call, sites = models.inputs("gpt2"), []
    with tap(model, lambda c: sites.append(c.site)):
        for _ in range(2):
            model(**call, labels=call["input_ids"]).loss.backward()
    assert sites == ["transformer.h.0.attn", "transformer.h.1.attn"] * 2


def test_measuring_happens_without_autocast_and_gradients():
    states, q = [], torch.randn(1, 1, 4, 4, requires_grad=True)
    model = Sdpa(imported_by_name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with tap(model, lambda c: states.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), c.q))):
            out = model(q, q, q)
        assert torch.is_autocast_enabled("cpu")
    assert out.requires_grad and out.dtype == torch.bfloat16
    [(grad, autocast, seen)] = states
    assert not grad and not autocast and not seen.requires_grad


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any operation made; views of what was there take no memory."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("name", ["hand-written", "llama"])
def test_no_tensor_grows_with_the_square_of_the_length(name):
    length = 8192
    if name == "llama":
        small = {"hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
        model = models.build("llama", max_position_embeddings=length, intermediate_size=16, **small)
    else:
        model = models.HandWritten(width=8, heads=1, layers=1)
    seen = []
    with torch.no_grad(), LargestTensor() as record, tap(model, lambda c: seen.append(measure_call(c))):
        model(torch.ones(1, length, dtype=torch.long))
    assert seen[0].entropy.shape == (1, 1, length)
    assert record.largest < length**2 / 3  # row blocks are the largest


def test_the_logits_of_an_eager_model_are_measured_in_chunks(monkeypatch):
    model, x = Eager(WAYS["method"]), torch.randn(1, 512, 8)
    with torch.no_grad(), LargestTensor() as plain:
        model(x)
    monkeypatch.setattr(entropy_logits, "CHUNK_BYTES", 2**16)
    calls, record = [], LargestTensor()

    def measure(call):
        with record:
            calls.append(measure_call(call))

    with torch.no_grad(), tap(model, measure):
        model(x)
    assert plain.largest == 512**2 and len(calls) == 1
    assert record.largest <= 2**16 / 4
