"""At least 25 architectures of transformers against an eager float64 twin: one test, generated from one table.

Attention of every row and head, padding on either side, and the matrices whose rank is measured.
"""

import re
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from tapping import tapped
from torch.nn import functional

from joma.measure.rank import stable_rank
from joma.probe.structure import Tensors, find_layout, layout_of

torch.set_num_threads(1)

WIDTH, HEADS, VOCABULARY, LENGTH, PADDING = 32, 4, 61, 12, 4
SHARP = 0.5  # mean largest attention weight that some head must exceed
_HF = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
_HF |= {"max_position_embeddings": 64, "intermediate_size": 48, "pad_token_id": 0}
_HF |= {"bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1}
_GROUPED = _HF | {"num_key_value_heads": 2, "head_dim": 8}
_GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "vocab_size": VOCABULARY, "n_positions": 64, "n_inner": 48}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 1}
_BART = {"d_model": WIDTH, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "encoder_layers": 2}
_BART |= {"decoder_layers": 2, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "pad_token_id": 0}
_BART |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_start_token_id": 2, "forced_eos_token_id": None}
_T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": HEADS}
_T5 |= {"vocab_size": VOCABULARY, "decoder_start_token_id": 0}
_VISION = {k: v for k, v in _HF.items() if k not in ("vocab_size", "max_position_embeddings", "pad_token_id")}
_VISION |= {"image_size": 16, "patch_size": 4}
_EXPERTS = {"experts_implementation": "eager", "num_experts_per_tok": 2}  # other implementations take no float64
_STACKED = r"experts\.gate_up_proj"
_GATED = r"\.(gate_proj|up_proj)\.weight"
_BERT = r"intermediate\.dense\.weight"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A class of transformers, a small configuration, and what is to be found in it."""

    name: str  # of the class without "Config" and "Model"
    sizes: dict
    lower: str  # regular expression of exactly those parameters that lead into the hidden neurons
    model: str = "Model"
    kind: str = "text"  # or "seq2seq" or "image"
    sink: bool = False
    changes: dict = field(default_factory=dict)  # of the model that is tapped; the twin has eager attention


def _of(name: str, sizes: dict, lower: str = _GATED, **given) -> Architecture:
    return Architecture(name=name, sizes=sizes, lower=lower, **given)


TABLE = [
    _of("GPT2", _GPT2, r"mlp\.c_fc\.weight"),
    _of("GPTNeoX", _HF, "dense_h_to_4h.weight"),
    _of("GPTJ", _GPT2 | {"rotary_dim": 4}, r"mlp\.fc_in\.weight"),
    _of("GPTNeo", _HF | {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 5},
        r"mlp\.c_fc\.weight"),
    _of("OPT", _HF | {"ffn_dim": 48, "word_embed_proj_dim": WIDTH}, r"\.fc1\.weight"),
    _of("Bloom", {"hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS, "vocab_size": VOCABULARY},
        "dense_h_to_4h.weight"),
    _of("Falcon", _HF | {"new_decoder_architecture": False, "multi_query": True}, "dense_h_to_4h.weight"),
    _of("Llama", _GROUPED),
    _of("Mistral", _GROUPED | {"sliding_window": 5}),
    _of("Mixtral", _GROUPED | _EXPERTS | {"num_local_experts": 3, "sliding_window": None}, _STACKED),
    _of("Qwen2", _GROUPED),
    _of("Qwen3", _GROUPED),
    _of("Qwen3Moe", _GROUPED | _EXPERTS | {"num_experts": 3, "moe_intermediate_size": 24}, _STACKED),
    _of("Gemma", _GROUPED),
    _of("Gemma2", _GROUPED | {"sliding_window": 5, "attn_logit_softcapping": 4.0, "query_pre_attn_scalar": 8},
        changes={"attn_implementation": "eager"}),
    _of("Gemma3Text", _GROUPED | {"sliding_window": 5, "query_pre_attn_scalar": 8}),
    _of("Phi", _HF, r"mlp\.fc1\.weight"),
    _of("Phi3", _GROUPED | {"sliding_window": 5}, "gate_up_proj.weight"),
    _of("Olmo", _GROUPED),
    _of("Olmo2", _GROUPED),
    _of("StableLm", _GROUPED),
    _of("Cohere", _GROUPED),
    _of("Granite", _GROUPED | {"attention_multiplier": 0.3}),
    _of("GptOss", _GROUPED | _EXPERTS | {"sliding_window": 5, "num_local_experts": 3}, r"experts\.gate_up_proj$",
        sink=True, changes={"attn_implementation": "eager"}),
    _of("DeepseekV3", _HF | _EXPERTS | {"num_key_value_heads": HEADS, "q_lora_rank": 16, "kv_lora_rank": 16}
        | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_group": 1, "topk_group": 1}
        | {"first_k_dense_replace": 1, "moe_intermediate_size": 24, "n_routed_experts": 4}, f"{_GATED}|{_STACKED}"),
    _of("Jamba", _GROUPED | _EXPERTS | {"num_experts": 3, "expert_layer_period": 2, "expert_layer_offset": 1}
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4}, f"{_GATED}|{_STACKED}"),
    _of("Bert", _HF, _BERT),
    _of("Roberta", _HF | {"pad_token_id": 1}, _BERT),
    _of("Electra", _HF | {"embedding_size": WIDTH}, _BERT),
    _of("Albert", _HF | {"embedding_size": 16}, r"\.ffn\.weight"),
    _of("DistilBert", {"dim": WIDTH, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 48, "vocab_size": VOCABULARY}
        | {"max_position_embeddings": 64, "pad_token_id": 0}, r"ffn\.lin1\.weight"),
    _of("DebertaV2", _HF | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, _BERT),
    _of("ModernBert", _HF | {"local_attention": 8, "global_attn_every_n_layers": 2}, r"mlp\.Wi\.weight"),
    _of("ViT", _VISION, r"mlp\.fc1\.weight", kind="image"),
    _of("T5", _T5, r"DenseReluDense\.wi\.weight", kind="seq2seq"),
    _of("Bart", _BART, r"\.fc1\.weight", kind="seq2seq"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def softmax_in_float64(monkeypatch):
    """Let a model of float64 keep its precision: many cast the logits to float32 before the softmax."""
    plain = functional.softmax

    def softmax(x, dim=None, _stacklevel=3, dtype=None):
        return plain(x, dim=dim, dtype=x.dtype)

    monkeypatch.setattr(functional, "softmax", softmax)


def built(architecture, state=None, **changes):
    config = getattr(transformers, f"{architecture.name}Config")(**architecture.sizes | changes)
    model = getattr(transformers, architecture.name + architecture.model)(config).double().eval()
    if state is not None:
        model.load_state_dict(state)
    return model


def sharpen(model, strength):
    """Draw all matrices anew, and scale the norms of queries and keys where a model has them."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3, generator=generator)
            if re.search(r"(^|[._])(q|k|query|key)(_|\.|uery|$)", name):
                parameter.mul_(strength)


def batch_of(architecture, side):
    """Two sequences of one length, the second padded on one side; rows that count of encoder and decoder."""
    generator = torch.Generator().manual_seed(1)
    if architecture.kind == "image":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64)}, None, None

    def tokens(prefix, length):
        ids = torch.randint(2, VOCABULARY, (2, length), generator=generator)
        kept = torch.ones_like(ids, dtype=torch.bool)
        padding = slice(0, PADDING) if side == "left" else slice(length - PADDING, None)
        if side != "none":
            kept[1, padding] = False
            ids[1] = torch.where(
                kept[1], ids[1].roll(PADDING if side == "left" else 0), architecture.sizes.get("pad_token_id", 0)
            )
        return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": kept.long()}, kept

    batch, kept = tokens("", LENGTH)
    if architecture.kind == "text":
        return batch, kept, None
    more, decoded = tokens("decoder_", LENGTH - 2)
    return batch | more, kept, decoded


def twin_weights(twin, batch):
    """Attention weights (B, H, rows, keys) in the order of the calls; without that of a sink."""
    with torch.no_grad():
        out = twin(**batch, output_attentions=True)
    if "encoder_attentions" not in out:
        weights = out.attentions
    else:
        pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        weights = [*out.encoder_attentions, *(w for pair in pairs for w in pair)]
    return weights


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", TABLE, ids=lambda each: each.name)
def test_agrees_with_an_eager_float64_twin(architecture, side):
    batch, kept, decoded = batch_of(architecture, side)
    twin = built(architecture, attn_implementation="eager")
    for strength in (1, 2, 4, 8, 16):
        sharpen(twin, strength)
        wanted = twin_weights(twin, batch)
        if max(w[0, :, 3:].amax(-1).mean(-1).max() for w in wanted) > SHARP:
            break
    else:
        pytest.fail("no head is sharp")
    model = built(architecture, twin.state_dict(), **architecture.changes)
    seen, unseen = tapped(model, **batch)
    assert unseen == [] and len(seen) == len(wanted)
    assert len({(call.label, call.layer) for call, _ in seen}) == len(seen)
    for (call, found), weights in zip(seen, wanted, strict=True):
        on_keys = weights.sum(-1)
        p = weights / on_keys[..., None]
        assert call.is_cross == (p.shape[2] != p.shape[3])
        rows = kept if p.shape[2] != LENGTH - 2 else decoded
        counts = torch.ones(p.shape[:3], dtype=torch.bool) if rows is None else rows[:, None].expand(p.shape[:3])
        assert torch.equal(found.entropy.isnan(), ~counts)
        distance = torch.arange(p.shape[2])[:, None] - torch.arange(p.shape[3])
        keys = kept if p.shape[3] != LENGTH - 2 else decoded
        first = torch.zeros(len(p), dtype=torch.long) if keys is None else keys.int().argmax(-1)
        naive = {
            "first_key_mass": p[torch.arange(len(p)), :, :, first],
            "entropy": torch.special.entr(p).sum(-1),
            "effective_keys": 1 / p.square().sum(-1),
            "mean_distance": (p * distance.abs()).sum(-1),
            "sink_mass": 1 - on_keys,
        }
        assert (found.sink_mass is not None) == architecture.sink
        for name in naive if architecture.sink else [*naive][:-1]:
            torch.testing.assert_close(getattr(found, name)[counts], naive[name][counts], atol=1e-5, rtol=0)
    parameters, refs = dict(model.named_parameters()), find_layout(model).lower
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if not architecture.sink:  # whose names do not show the order of gates
        assert layout_of(Tensors(shapes=shapes)).lower == refs
    assert {ref.name for ref in refs} == {name for name in parameters if re.search(architecture.lower, name)}
    for ref in refs:
        weight = ref.take(lambda name: parameters[name].detach())
        singular = torch.linalg.svdvals(weight)
        torch.testing.assert_close(stable_rank(weight), (singular / singular[0]).square().sum(), rtol=1e-6, atol=0)
