"""The attention of `torch.nn` is seen, in spite of its fast path."""

from contextlib import contextmanager

import pytest
import torch
from tapping import encoder, tapped
from torch import nn

from joma.probe.calls import AttentionKind, CallSource


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
    assert unseen == [] and call.kind is (AttentionKind.CROSS if cross else AttentionKind.SELF)
    assert call.source is (CallSource.SOFTMAX if need_weights else CallSource.SDPA)
    model.eval().double()
    _, p = model(x.double(), other.double(), other.double(), average_attn_weights=False)
    torch.testing.assert_close(statistics.entropy.double(), torch.special.entr(p).sum(-1), atol=1e-4, rtol=0)


def test_decoder_layers_have_a_self_and_a_cross_call_each():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2).eval()
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    seen, _ = tapped(model, tgt=torch.randn(2, 5, 32), memory=torch.randn(2, 5, 32), tgt_mask=causal)
    assert [call.kind for call, _ in seen] == [AttentionKind.SELF, AttentionKind.CROSS] * 2
    assert [call.layer for call, _ in seen] == [0, 0, 1, 1]
    assert seen[0][1].entropy[:, :, 0].abs().max() < 1e-6  # the first row sees itself alone
