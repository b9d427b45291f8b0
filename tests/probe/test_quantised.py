"""Weights that are stored as codes of few bits are never measured as if they were weights."""

import models
import pytest
import torch
from safetensors.torch import save_file
from states import SITES, walk
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from joma.probe.neurons import read_neurons
from joma.probe.scanning import scan
from joma.probe.watching import watch
from joma.store import read

KINDS = {
    "int8": lambda codes: codes,
    "4 bits": lambda codes: codes.view(torch.uint8).reshape(-1, 1)[::2].clone(),
    "float8": lambda codes: codes.to(torch.float8_e4m3fn),
    "packs others": lambda codes: TwoTensor(codes.float(), codes.float()),
}


class QuantisedLinear(nn.Linear):
    """Keeps codes for its weight, as bitsandbytes and torchao do."""

    def __init__(self, linear, kind):
        super().__init__(linear.in_features, linear.out_features)
        self.full, self.bias = linear.weight.detach(), linear.bias
        codes = (self.full / self.full.abs().max() * 127).to(torch.int8)
        self.weight = nn.Parameter(KINDS[kind](codes), requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.full, self.bias)


def quantised(kind):
    model = models.HandWritten()
    for block in model.blocks:
        block.qkv, block.out = QuantisedLinear(block.qkv, kind), QuantisedLinear(block.out, kind)
        block.mlp[0], block.mlp[2] = (QuantisedLinear(block.mlp[i], kind) for i in (0, 2))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_watch_measures_attention_and_gives_one_reason_for_the_rest(kind):
    model = quantised(kind)
    with watch(model, every=1, measures="full") as seen:
        model(torch.ones(2, 8, dtype=torch.long))
        seen.step()
    table, events = seen.frame(), seen.events()
    assert table.query("metric == 'entropy'")["layer"].tolist() == [0, 1]
    assert not set(table["metric"]) & {"stable_rank", "frobenius_norm", "qk_spectral_norm"}
    assert set(events["kind"]) == {"unseen"} and events["message"].nunique() == 1


def test_neurons_of_a_quantised_model_can_be_read():
    model = quantised("int8")
    readings = read_neurons(model, torch.ones(2, 8, dtype=torch.long))
    assert [tuple(layer.activations.shape) for layer in readings.layers] == [(2, 4 * models.WIDTH)] * models.LAYERS


def save_quantised(folder, kind, part="mlp"):
    (state,) = walk(1)
    folder.mkdir()
    matrices = {name: tensor for name, tensor in state.items() if part in name and tensor.ndim > 1}
    codes = {name: KINDS[kind](tensor.to(torch.int8)) for name, tensor in matrices.items()}
    save_file(state | codes, folder / "step1.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["int8", "4 bits"])
def test_a_scan_of_codes_alone_is_refused(kind, tmp_path):
    with pytest.raises(ValueError, match="quantised"):
        scan(save_quantised(tmp_path / "series", kind), out=tmp_path / "out")


def test_a_scan_leaves_codes_of_queries_and_keys_out(tmp_path):
    scan(save_quantised(tmp_path / "series", "int8", "attn"), out=tmp_path / "out")
    assert set(read(tmp_path / "out").query("kind != 'cost'")["kind"]) == {"mlp"}


def test_a_scan_labels_coarse_floats(tmp_path):
    scan(save_quantised(tmp_path / "series", "float8"), out=tmp_path / "out")
    table = read(tmp_path / "out").query("kind == 'mlp'")
    assert set(table["site"]) == set(SITES) and table["flag"].str.startswith("approximate").all()
