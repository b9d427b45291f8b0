"""Every attention call of every model is seen and measured right, and training does not notice."""

import copy
import threading
from dataclasses import replace

import models
import pytest
import torch
from tapping import WAYS, Eager, Largest, Sdpa, encoder, entropies, snapshot, tapped
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported_by_name
from transformers.modeling_utils import AttentionInterface

from joma.probe.calls import AttentionCall, interface_fields, measure_call
from joma.probe.taps import tap

TOKENS = torch.arange(14).reshape(2, 7)
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
EAGER = ("gemma2", "bloom", "mpt")  # families without `scaled_dot_product_attention`


@pytest.mark.parametrize("family", models.FAMILIES)
def test_sites_layers_kinds_and_sources(family):
    seen, unseen = tapped(models.build(family), **models.inputs(family))
    calls = [call for call, _ in seen]
    assert unseen == []
    assert {call.q is None for call in calls} == {family in EAGER}
    found = [(call.layer, call.is_cross) for call in calls]
    if family == "t5":
        assert found == [(0, False), (1, False), (2, False), (2, True), (3, False), (3, True)]
        assert calls[3].site == "decoder.block.0.layer.1.EncDecAttention"
    else:
        assert found == [(0, False), (1, False)]
        assert all(f".{call.layer}." in call.site for call in calls)


def test_an_error_of_the_measurement_goes_to_its_handler_or_comes_up():
    model, errors = models.HandWritten(), []
    before = snapshot(model)

    def fail(call):
        raise ArithmeticError("no number")

    with pytest.raises(ArithmeticError, match="no number"), tap(model, fail):
        model(TOKENS)
    assert snapshot(model) == before
    wanted = model(TOKENS)
    with tap(model, fail, on_error=lambda call, error: errors.append((call.site, type(error)))):
        found = model(TOKENS)
    assert errors == [("blocks.0", ArithmeticError), ("blocks.1", ArithmeticError)]
    assert torch.equal(found, wanted) and snapshot(model) == before


def test_an_error_of_the_model_leaves_no_module_running():
    model, sites = models.HandWritten(), []
    with tap(model, lambda call: sites.append(call.site)):
        with pytest.raises(IndexError):
            model(torch.full((1, 3), 99))
        model(TOKENS)
    assert sites == ["blocks.0", "blocks.1"]


def test_a_second_tap_and_running_the_model_from_on_call_are_refused():
    model = models.HandWritten()
    with tap(model, lambda call: None), pytest.raises(RuntimeError, match="has a tap open already"):
        with tap(model, lambda call: None):
            pass
    with pytest.raises(RuntimeError, match="ran the tapped model"), tap(model, lambda call: model(TOKENS)):
        model(TOKENS)


def test_another_thread_is_not_listened_to():
    model, sites = models.HandWritten(), []
    with tap(model, lambda call: sites.append(call.site)):
        other = threading.Thread(target=model, args=(TOKENS,))
        other.start()
        other.join()
        assert sites == []
        model(TOKENS)
    assert sites == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize("way", ["wrapped", "in place"])
def test_compiled_models_are_refused_or_run_eagerly(way):
    model = models.HandWritten()
    plain = copy.deepcopy(model)
    if way == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model.blocks[1].compile(backend="eager")
    with pytest.raises(ValueError, match=r"cannot be seen, and .* is compiled"), tap(model, lambda call: None):
        pass
    layers = []
    with torch.no_grad(), tap(model, lambda call: layers.append(call.layer), eagerly=True):
        out = model(TOKENS)
    assert layers == [0, 1] and torch.equal(out, plain(TOKENS))


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
    assert unseen == [] and len(seen) == 2
    for (_, ours), theirs in zip(seen, entropies(model, **call), strict=True):
        torch.testing.assert_close(ours.entropy, theirs, atol=1e-5, rtol=0, equal_nan=True)


def test_packed_sequences_are_measured_one_by_one(flash):
    model, call = models.build("llama").double(), models.inputs("llama", batch=1, padded=False)
    seen, unseen = tapped(
        flash("llama", model), **call, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]])
    )
    assert unseen == [] and seen[0][0].rows.sum(-1).tolist() == [4, 8]
    first = entropies(model, input_ids=call["input_ids"][:, :4])[0]
    second = entropies(model, input_ids=call["input_ids"][:, 4:])[0]
    found = seen[0][1].entropy
    torch.testing.assert_close(found[:1, :, :4], first)
    torch.testing.assert_close(found[1:], second)
    assert found[0, :, 4:].isnan().all()


def test_a_registered_implementation_that_calls_sdpa_is_counted_once(monkeypatch):
    functions = dict(AttentionInterface._global_mapping)
    functions["mine"] = functions["sdpa"]
    monkeypatch.setattr(AttentionInterface, "_global_mapping", functions)
    model = models.build("opt")
    model.config._attn_implementation = "mine"
    seen, unseen = tapped(model, **models.inputs("opt", padded=False))
    assert unseen == [] and len(seen) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler and Hugging Face's masks warn of their own doings
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])
def test_flex_attention_is_measured_through_the_interface(device):
    model, call = models.build("gemma2"), models.inputs("gemma2")
    flex = models.twin("gemma2", model, attn_implementation="flex_attention").to(device)
    seen, unseen = tapped(flex, **{name: value.to(device) for name, value in call.items()})
    assert unseen == [] and len(seen) == 2
    for (_, ours), theirs in zip(seen, entropies(model, **call), strict=True):
        torch.testing.assert_close(ours.entropy.cpu(), theirs, atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [functional.scaled_dot_product_attention, imported_by_name, torch.ops.aten.scaled_dot_product_attention],
    ids=["attribute", "imported by name", "aten"],
)
def test_a_call_is_seen_however_the_function_was_imported(function):
    q = torch.randn(2, 3, 5, 4)
    seen, _ = tapped(Sdpa(function), q=q, k=q, v=q)
    assert [call.logits for call, _ in seen] == [None]


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
    assert call.q.ndim == 4 and call.is_cross
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
    call = AttentionCall(q=q, k=q)
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
    assert call.logits is not None
    torch.testing.assert_close(statistics.entropy[:, 0].double(), wanted, atol=1e-5, rtol=0)


def test_learnt_queries_attend():
    """As in Perceiver: the keys are activations."""
    latents = nn.Parameter(torch.randn(3, 8))
    seen, _ = tapped(Eager(lambda q, k: (latents @ k.mT).softmax(-1)), x=torch.randn(2, 5, 8))
    assert seen[0][0].logits.shape == (2, 1, 3, 5)


class Routers(nn.Module):
    """Every softmax that is not attention."""

    def __init__(self):
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


def test_transformer_encoder_is_seen_in_spite_of_its_fast_path():
    model, x = encoder(), torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    assert torch.backends.mha.get_fastpath_enabled()  # as PyTorch runs by default
    seen, unseen = tapped(model, src=x, src_key_padding_mask=padding)
    assert unseen == [] and [call.site for call, _ in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    first = model.double().layers[0].self_attn
    _, p = first(x.double(), x.double(), x.double(), key_padding_mask=padding, average_attn_weights=False)
    model.float()
    wanted = torch.special.entr(p).sum(-1).masked_fill(padding[:, None], torch.nan)
    torch.testing.assert_close(seen[0][1].entropy.double(), wanted, atol=1e-4, rtol=0, equal_nan=True)
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
    assert unseen == [] and call.is_cross == cross
    assert (call.q is None) == need_weights
    model.eval().double()
    _, p = model(x.double(), other.double(), other.double(), average_attn_weights=False)
    torch.testing.assert_close(statistics.entropy.double(), torch.special.entr(p).sum(-1), atol=1e-4, rtol=0)


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


@pytest.mark.parametrize("name", ["hand-written", "llama"])
def test_no_tensor_grows_with_the_square_of_the_length(name):
    length = 8192
    if name == "llama":
        small = {"hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
        model = models.build("llama", max_position_embeddings=length, intermediate_size=16, **small)
    else:
        model = models.HandWritten(width=8, heads=1, layers=1)
    seen = []
    with torch.no_grad(), Largest() as record, tap(model, lambda c: seen.append(measure_call(c))):
        model(torch.ones(1, length, dtype=torch.long))
    assert seen[0].entropy.shape == (1, 1, length)
    assert record.largest < length**2 / 3  # row blocks are the largest


class Hidden(nn.Module):
    """Attention in a kernel that is invisible from Python."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            q, k, v = (layer(x)[:, None] for layer in (self.q_proj, self.k_proj, self.v_proj))
            return functional.scaled_dot_product_attention(q, k, v)[:, 0]


@pytest.mark.parametrize("family", ["gpt2", "t5", "bloom"])
def test_the_sites_of_one_pass_show_the_same_calls_in_the_next(family):
    model, batch = models.build(family), models.inputs(family)
    sites, calls = {}, {}
    for known in (None, sites):
        calls[known is None] = []

        def on_call(call, seen=calls[known is None]):
            sites[call.site] = call.logits is not None
            seen.append((call.site, call.is_cross, call.layer, sites[call.site], call.repeat, call.causal))

        with tap(model, on_call, sites=known), torch.no_grad():
            model(**batch)
    assert calls[True] == calls[False] != []
    assert any(sites.values()) == (family == "bloom")


def test_a_softmax_where_none_was_before_is_missed_and_reported():
    sdpa = models.build("gpt2")
    eager = models.twin("gpt2", sdpa, attn_implementation="eager")
    sites, unseen = {}, []
    with tap(sdpa, lambda call: sites.update({call.site: False})), torch.no_grad():
        sdpa(**models.inputs("gpt2"))
    with tap(eager, lambda call: None, on_unseen=unseen.append, sites=sites), torch.no_grad():
        eager(**models.inputs("gpt2"))
    assert {each.site for each in unseen} == set(sites)


def test_attention_that_ran_and_was_not_seen_is_reported():
    model = nn.ModuleList([Hidden(), nn.Linear(8, 8)])
    model.forward = lambda x: model[1](model[0](x))
    seen, unseen = tapped(model, x=torch.randn(1, 5, 8))
    assert seen == [] and [each.site for each in unseen] == ["0"]
    assert "neither scaled_dot_product_attention" in unseen[0].reason


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_attention_next_to_attention_that_is_seen_is_reported():
    model = models.HandWritten()
    model.blocks[1].attention = torch.jit.script(nn.MultiheadAttention(32, 4))
    seen, unseen = tapped(model, tokens=TOKENS)
    assert [call.site for call, _ in seen] == ["blocks.0", "blocks.1"]
    assert [each.site for each in unseen] == ["blocks.1.attention"]


def test_a_model_without_attention_is_reported():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    unseen = []
    with tap(model, lambda call: None, on_unseen=unseen.append):
        model(torch.zeros(2, 4))
    assert [each.site for each in unseen] == [""]


@pytest.mark.parametrize("has_bias", [False, True])
def test_zeros_and_ones_that_a_model_adds_are_added(has_bias):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 2, 3, 5, 8, generator=generator)
    neighbours = torch.randint(2, (5, 5), generator=generator).float()  # as of a graph
    bias = torch.randn(1, 3, 5, 5, generator=generator) if has_bias else None
    for mask in (neighbours, torch.where(neighbours == 1, 0.0, -torch.inf).fill_diagonal_(0.0)):
        call = AttentionCall(q=q, k=k, mask=mask)
        added = mask.double() + (0 if bias is None else bias)
        right = torch.special.entr(torch.softmax(q.double() @ k.double().mT / 8**0.5 + added, dim=-1)).sum(-1)
        torch.testing.assert_close(measure_call(replace(call, bias=bias)).entropy.double(), right, rtol=0, atol=1e-5)


def test_no_soft_cap_as_flash_attention_says_it():
    x = torch.randn(1, 2, 4, 8)
    assert interface_fields(torch.nn.Identity(), x, x, None, {"softcap": 0.0})["softcap"] is None
    assert interface_fields(torch.nn.Identity(), x, x, None, {"softcap": 30.0})["softcap"] == 30.0
