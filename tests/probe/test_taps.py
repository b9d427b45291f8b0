"""Every attention call of every model is seen and measured right, and training does not notice."""

import copy
import threading
from contextlib import contextmanager
from dataclasses import replace

import models
import pytest
import torch
from tapping import WAYS, Eager, Sdpa, encoder, entropies, snapshot, tapped
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported_by_name
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AlbertConfig, AlbertModel
from transformers.modeling_utils import AttentionInterface

from joma.measure import entropy
from joma.probe.calls import AttentionCall, CallKind, CallSource, interface_fields, measure_call
from joma.probe.taps import tap

EAGER = ("gemma2", "bloom", "mpt")
"""Families without `scaled_dot_product_attention`."""


def materialised(family, model, call, dtype=torch.float64):
    """Entropy of the attention that an eager twin of this precision returns, in the order of the calls."""
    exact = models.twin(family, model, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        out = exact(**{k: v.to(dtype) if v.is_floating_point() else v for k, v in call.items()}, output_attentions=True)
    if family == "t5":
        pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        weights = [*out.encoder_attentions, *(w for pair in pairs for w in pair)]
    else:
        weights = out.attentions
    return [torch.special.entr(p.double()).sum(-1) for p in weights]


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("family", models.FAMILIES)
def test_entropy_is_that_of_materialised_float64_attention(family, padded):
    model, call = models.build(family), models.inputs(family, padded=padded)
    found, wanted = entropies(model, **call), materialised(family, model, call)
    assert len(found) == len(wanted) == (6 if family == "t5" else models.LAYERS)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=0)  # the tolerance
        assert theirs.std() > 0.1  # the attention compared is far from uniform


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
def test_rows_that_see_nothing_are_nan_and_the_rest_is_right(family):
    model, call = models.build(family), models.inputs(family, left=True)
    padding = call["attention_mask"] == 0
    # In float64 the lowest number that hides a key overflows the softmax, which these models take in float32.
    wanted = materialised(family, model, call, torch.float32)
    for ours, theirs in zip(entropies(model, **call), wanted, strict=True):
        rows = padding[:, None].expand_as(ours)
        assert torch.equal(ours.isnan(), rows)
        torch.testing.assert_close(ours[~rows].double(), theirs[~rows], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_sites_layers_kinds_and_sources(family):
    seen, unseen = tapped(models.build(family), **models.inputs(family))
    calls = [call for call, _ in seen]
    assert unseen == []
    assert {call.source for call in calls} == {CallSource.SOFTMAX if family in EAGER else CallSource.SDPA}
    if family == "t5":
        assert [call.layer for call in calls] == [0, 1, 2, 2, 3, 3]
        assert [call.kind for call in calls] == [CallKind.SELF] * 3 + [
            CallKind.CROSS,
            CallKind.SELF,
            CallKind.CROSS,
        ]
        assert calls[3].site == "decoder.block.0.layer.1.EncDecAttention"
    else:
        assert [call.layer for call in calls] == [0, 1]
        assert all(call.kind is CallKind.SELF for call in calls)
        assert all(f".{call.layer}." in call.site for call in calls)


def test_grouped_queries_pass_through_as_groups():
    seen, _ = tapped(models.build("llama"), **models.inputs("llama", padded=False))
    for call, _ in seen:
        assert (call.q.shape[1], call.k.shape[1]) == (4, 2)
        assert call.causal and call.mask is None


def test_t5_has_no_scale_and_a_bias_that_is_not_a_mask():
    seen, _ = tapped(models.build("t5"), **models.inputs("t5"))
    call = seen[0][0]
    assert call.scale == 1.0
    assert call.mask.dtype == torch.float32 and call.mask[0].std() > 0.1


@pytest.mark.parametrize("family", ["llama", "bert", "t5", "mixtral", "qwen3"])
def test_the_eager_twin_gives_the_same_numbers_through_its_softmax(family):
    model, call = models.build(family), models.inputs(family)
    eager = models.twin(family, model, attn_implementation="eager")
    seen, _ = tapped(eager, **call)
    assert {c.source for c, _ in seen} == {CallSource.SOFTMAX}
    for (_, ours), theirs in zip(seen, tapped(model, **call)[0], strict=True):
        for name in ("entropy", "fraction", "effective_keys", "sink_mass", "mean_distance", "max_logit"):
            # Two float32 paths that add in another order.
            torch.testing.assert_close(
                getattr(ours, name), getattr(theirs[1], name), atol=2e-4, rtol=1e-4, equal_nan=True
            )


def test_a_layer_used_again_says_so():
    config = AlbertConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, vocab_size=61
    )
    seen, _ = tapped(AlbertModel(config).eval(), input_ids=torch.ones(1, 5, dtype=torch.long))
    assert [(call.layer, call.repeat) for call, _ in seen] == [(0, 0), (0, 1), (0, 2)]


def test_an_error_of_the_measurement_goes_to_its_handler():
    model, x = models.HandWritten(), torch.arange(14).reshape(2, 7)
    before, errors = snapshot(model), []

    def fail(call):
        raise ArithmeticError("no number")

    with torch.no_grad():
        wanted = model(x)
        with tap(model, fail, on_error=lambda call, error: errors.append((call.site, error))):
            found = model(x)
    assert [site for site, _ in errors] == ["blocks.0", "blocks.1"]
    assert all(isinstance(error, ArithmeticError) for _, error in errors)
    assert torch.equal(found, wanted) and snapshot(model) == before


def test_without_a_handler_it_comes_up_and_all_is_restored():
    model = models.HandWritten()
    before = snapshot(model)

    def fail(call):
        raise ArithmeticError("no number")

    with pytest.raises(ArithmeticError, match="no number"), tap(model, fail):
        model(torch.arange(14).reshape(2, 7))
    assert snapshot(model) == before
    sites = []
    with tap(model, lambda call: sites.append(call.site)):
        model(torch.arange(14).reshape(2, 7))
    assert sites == ["blocks.0", "blocks.1"]


def test_an_error_of_the_model_leaves_no_module_running():
    model, sites = models.HandWritten(), []
    with tap(model, lambda call: sites.append(call.site)):
        with pytest.raises(IndexError):
            model(torch.full((1, 3), 99))
        model(torch.arange(14).reshape(2, 7))
    assert sites == ["blocks.0", "blocks.1"]


def test_a_second_tap_in_the_same_thread_is_refused():
    model = models.HandWritten()
    with tap(model, lambda call: None), pytest.raises(RuntimeError, match="has a tap open already"):
        with tap(model, lambda call: None):
            pass


def test_running_the_model_from_on_call_is_refused():
    model, x = models.HandWritten(), torch.arange(14).reshape(2, 7)
    with pytest.raises(RuntimeError, match="ran the tapped model"), tap(model, lambda call: model(x)):
        model(x)


def test_another_thread_is_not_listened_to():
    model, x, sites = models.HandWritten(), torch.arange(14).reshape(2, 7), []
    with tap(model, lambda call: sites.append(call.site)):
        other = threading.Thread(target=model, args=(x,))
        other.start()
        other.join()
        assert sites == []
        model(x)
    assert sites == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize("way", ["wrapped", "in place"])
def test_compiled_models_are_refused_or_run_eagerly(way):
    model, x = models.HandWritten(), torch.arange(14).reshape(2, 7)
    plain = copy.deepcopy(model)
    if way == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model.blocks[1].compile(backend="eager")
    with pytest.raises(ValueError, match=r"cannot be seen, and .* is compiled"), tap(model, lambda call: None):
        pass
    layers = []
    with torch.no_grad(), tap(model, lambda call: layers.append(call.layer), eagerly=True):
        out = model(x)
    assert layers == [0, 1] and torch.equal(out, plain(x))


def hidden_attention(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **kwargs):
    """Stand in for a kernel: attention that nothing can see, with the masks that flash attention takes."""
    with torch._C.DisableTorchFunction():
        groups = query.shape[1] // key.shape[1]
        rows, keys = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])[None]
        visible = (rows >= keys) if module.is_causal else torch.ones(len(rows), keys.shape[1], dtype=torch.bool)
        if sliding_window is not None:
            visible = visible & (rows - keys < sliding_window)
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None].bool()
        logits = scaling * query @ key.repeat_interleave(groups, 1).mT
        p = logits.masked_fill(~visible, -torch.inf).softmax(-1)
        return (p @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None


@pytest.fixture
def flash(monkeypatch):
    """Models set to flash_attention_2 that run without a GPU."""
    functions = dict(AttentionInterface._global_mapping) | {"flash_attention_2": hidden_attention}
    monkeypatch.setattr(AttentionInterface, "_global_mapping", functions)

    def make(family, model):
        other = copy.deepcopy(model)
        for module in other.modules():
            if hasattr(module, "config"):
                module.config._attn_implementation = "flash_attention_2"
        return other

    return make


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("family", ["llama", "mistral", "bert", "gpt_neox"])
def test_flash_attention_is_measured_through_the_interface(family, padded, flash):
    model, call = models.build(family), models.inputs(family, padded=padded)
    seen, unseen = tapped(flash(family, model), **call)
    assert unseen == [] and [c.source for c, _ in seen] == [CallSource.INTERFACE] * 2
    for (_, ours), theirs in zip(seen, entropies(model, **call), strict=True):
        torch.testing.assert_close(ours.entropy, theirs, atol=1e-5, rtol=0)


def test_packed_sequences_are_reported_as_unseen(flash):
    call = models.inputs("llama", batch=1, padded=False)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]])
    seen, unseen = tapped(flash("llama", models.build("llama")), **call, position_ids=positions)
    assert seen == [] and len(unseen) == 2
    assert "packs several sequences" in unseen[0].reason and unseen[0].site == "model.layers.0.self_attn"


def test_a_registered_implementation_that_calls_sdpa_is_counted_once(monkeypatch):
    functions = dict(AttentionInterface._global_mapping)
    functions["mine"] = functions["sdpa"]
    monkeypatch.setattr(AttentionInterface, "_global_mapping", functions)
    model = models.build("opt")
    model.config._attn_implementation = "mine"
    seen, unseen = tapped(model, **models.inputs("opt", padded=False))
    assert unseen == [] and [call.source for call, _ in seen] == [CallSource.SDPA] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler and Hugging Face's masks warn of their own doings
def test_flex_attention_is_measured_through_the_interface():
    model, call = models.build("gemma2"), models.inputs("gemma2")
    flex = models.twin("gemma2", model, attn_implementation="flex_attention")
    seen, unseen = tapped(flex, **call)
    assert unseen == [] and [c.source for c, _ in seen] == [CallSource.INTERFACE] * 2
    for (_, ours), theirs in zip(seen, entropies(model, **call), strict=True):
        torch.testing.assert_close(ours.entropy, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "function",
    [functional.scaled_dot_product_attention, imported_by_name, torch.ops.aten.scaled_dot_product_attention],
    ids=["attribute", "imported by name", "aten"],
)
def test_a_call_is_seen_however_the_function_was_imported(function):
    q = torch.randn(2, 3, 5, 4)
    seen, _ = tapped(Sdpa(function), q=q, k=q, v=q)
    assert [call.source for call, _ in seen] == [CallSource.SDPA]


@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (2, 3, 2)], ids=str)
def test_leading_axes_become_batch_and_heads(lead):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(*lead, n, 4, generator=generator) for n in (5, 7))
    mask = torch.rand(*lead[-1:], 5, 7, generator=generator) > 0.3
    mask[..., 0] = True
    seen, _ = tapped(Sdpa(imported_by_name, attn_mask=mask, scale=0.7), q=q, k=k, v=k)
    p = (0.7 * q.double() @ k.double().mT).masked_fill(~mask, -torch.inf).softmax(-1)
    wanted = torch.special.entr(p).sum(-1)
    call, statistics = seen[0]
    assert call.q.ndim == 4 and call.kind is CallKind.CROSS
    torch.testing.assert_close(statistics.entropy.double().reshape(wanted.shape), wanted, atol=1e-5, rtol=0)


def test_heads_inside_the_batch_axis_are_split_by_what_the_module_says():
    model = Sdpa(imported_by_name)
    model.num_heads = 3
    q = torch.randn(6, 5, 4)
    seen, _ = tapped(model, q=q, k=q, v=q)
    assert seen[0][0].q.shape == (2, 3, 5, 4)
    assert torch.equal(seen[0][0].q[1, 2], q[5])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_read_is_reported_and_does_not_stop_the_model():
    q = torch.nested.nested_tensor([torch.randn(3, 2, 4), torch.randn(5, 2, 4)], layout=torch.jagged).transpose(1, 2)
    model, unseen = Sdpa(imported_by_name), []
    with torch.no_grad(), tap(model, lambda call: None, on_unseen=unseen.append):
        model(q, q, q)
    assert len(unseen) == 1 and "nested tensors" in unseen[0].reason


def test_a_call_carries_queries_or_logits():
    q = torch.zeros(1, 1, 2, 2)
    call = AttentionCall(site="", kind=CallKind.SELF, layer=0, source=CallSource.SDPA, q=q, k=q)
    with pytest.raises(ValueError, match="needs `q` and `k`, or `logits`"):
        replace(call, logits=q)
    with pytest.raises(ValueError, match=r"got \[\]"):
        replace(call, q=None, k=None)


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


@contextmanager
def fast_path():
    """Run as PyTorch does by default, whatever ran before."""
    assert torch.backends.mha.get_fastpath_enabled()
    yield


def test_transformer_encoder_is_seen_in_spite_of_its_fast_path():
    model, x = encoder(), torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    with fast_path():
        seen, unseen = tapped(model, src=x, src_key_padding_mask=padding)
    assert unseen == [] and [call.site for call, _ in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    first = model.double().layers[0].self_attn
    _, p = first(x.double(), x.double(), x.double(), key_padding_mask=padding, average_attn_weights=False)
    model.float()
    torch.testing.assert_close(seen[0][1].entropy.double(), torch.special.entr(p).sum(-1), atol=1e-4, rtol=0)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("cross", [False, True])
def test_multihead_attention(need_weights, cross):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 4, batch_first=True, dropout=0.1).train()
    x, y = torch.randn(3, 6, 32), torch.randn(3, 8, 32) * 3
    other = y if cross else x
    seen, unseen = tapped(model, query=x, key=other, value=other, need_weights=need_weights)
    [(call, statistics)] = seen
    assert unseen == [] and call.kind is (CallKind.CROSS if cross else CallKind.SELF)
    assert call.source is (CallSource.SOFTMAX if need_weights else CallSource.SDPA)
    model.eval().double()
    _, p = model(x.double(), other.double(), other.double(), average_attn_weights=False)
    torch.testing.assert_close(statistics.entropy.double(), torch.special.entr(p).sum(-1), atol=1e-4, rtol=0)


def test_decoder_layers_have_a_self_and_a_cross_call_each():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2).eval()
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    seen, _ = tapped(model, tgt=torch.randn(2, 5, 32), memory=torch.randn(2, 5, 32), tgt_mask=causal)
    assert [call.kind for call, _ in seen] == [CallKind.SELF, CallKind.CROSS] * 2
    assert [call.layer for call, _ in seen] == [0, 0, 1, 1]
    assert seen[0][1].entropy[:, :, 0].abs().max() < 1e-6  # the first row sees itself alone


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
    monkeypatch.setattr(entropy, "CHUNK_BYTES", 2**16)
    calls, record = [], LargestTensor()

    def measure(call):
        with record:
            calls.append(measure_call(call))

    with torch.no_grad(), tap(model, measure):
        model(x)
    assert plain.largest == 512**2 and len(calls) == 1
    assert record.largest <= 2**16 / 4


class Hidden(nn.Module):
    """Attention in a kernel that is invisible from Python."""

    def __init__(self):
        """Keep the parts."""
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            q, k, v = (layer(x)[:, None] for layer in (self.q_proj, self.k_proj, self.v_proj))
            return functional.scaled_dot_product_attention(q, k, v)[:, 0]


@pytest.mark.parametrize("family", ["gpt2", "t5", "bloom"])
def test_the_sites_of_one_pass_show_the_same_calls_in_the_next(family):
    model, batch = models.build(family), models.inputs(family)
    sites, calls = set(), {}
    for known in (None, sites):
        calls[known is None] = []

        def on_call(call, seen=calls[known is None]):
            sites.add((call.site, call.source))
            seen.append((call.site, call.kind, call.layer, call.source, call.repeat, call.causal))

        with tap(model, on_call, sites=known), torch.no_grad():
            model(**batch)
    assert calls[True] == calls[False] != []
    assert any(source is CallSource.SOFTMAX for _, source in sites) == (family == "bloom")


def test_a_softmax_where_none_was_before_is_missed_and_reported():
    sdpa = models.build("gpt2")
    eager = models.twin("gpt2", sdpa, attn_implementation="eager")
    sites, unseen = set(), []
    with tap(sdpa, lambda call: sites.add((call.site, call.source))), torch.no_grad():
        sdpa(**models.inputs("gpt2"))
    with tap(eager, lambda call: None, on_unseen=unseen.append, sites=sites), torch.no_grad():
        eager(**models.inputs("gpt2"))
    assert {each.site for each in unseen} == {site for site, _ in sites}


def test_attention_that_ran_and_was_not_seen_is_reported():
    model = nn.ModuleList([Hidden(), nn.Linear(8, 8)])
    model.forward = lambda x: model[1](model[0](x))
    seen, unseen = tapped(model, x=torch.randn(1, 5, 8))
    assert seen == [] and [each.site for each in unseen] == ["0"]
    assert "neither scaled_dot_product_attention" in unseen[0].reason


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_attention_beside_attention_that_is_seen_is_reported():
    model = models.HandWritten()
    model.blocks[1].attention = torch.jit.script(nn.MultiheadAttention(32, 4))
    seen, unseen = tapped(model, tokens=torch.arange(14).reshape(2, 7))
    assert [call.site for call, _ in seen] == ["blocks.0", "blocks.1"]
    assert [each.site for each in unseen] == ["blocks.1.attention"]


def test_a_model_without_attention_is_reported():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    unseen = []
    with tap(model, lambda call: None, on_unseen=unseen.append):
        model(torch.zeros(2, 4))
    assert [each.site for each in unseen] == [""]


def call_of(q, k, **given):
    return AttentionCall(site="attention", kind=CallKind.SELF, layer=0, source=CallSource.SDPA, q=q, k=k, **given)


def exact_entropy(q, k, added):
    p = torch.softmax(q.double() @ k.double().mT / q.shape[-1] ** 0.5 + added.double(), dim=-1)
    return -torch.special.xlogy(p, p).sum(dim=-1)


@pytest.mark.parametrize("has_bias", [False, True])
def test_zeros_and_ones_that_a_model_adds_are_added(has_bias):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 2, 3, 5, 8, generator=generator)
    neighbours = torch.randint(2, (5, 5), generator=generator).float()  # as of a graph
    bias = torch.randn(1, 3, 5, 5, generator=generator) if has_bias else None
    found = measure_call(call_of(q, k, mask=neighbours, bias=bias)).entropy
    right = exact_entropy(q, k, neighbours if bias is None else neighbours + bias)
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-5)
    hidden = torch.where(neighbours == 1, 0.0, -torch.inf).fill_diagonal_(0.0)
    found = measure_call(call_of(q, k, mask=hidden, bias=bias)).entropy
    right = exact_entropy(q, k, hidden if bias is None else hidden + bias)
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-5)


def test_no_soft_cap_as_flash_attention_says_it():
    x = torch.randn(1, 2, 4, 8)
    assert interface_fields(torch.nn.Identity(), x, x, None, {"softcap": 0.0})["softcap"] is None
    assert interface_fields(torch.nn.Identity(), x, x, None, {"softcap": 30.0})["softcap"] == 30.0
