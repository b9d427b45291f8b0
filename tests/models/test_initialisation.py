"""Where a run starts depends on its seed and the settings of the part alone."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig, paper_language_model, paper_table1
from joma.models.functional import entrance

SMALL = DecoderConfig(vocabulary=300, width=64, hidden=96, heads=2, depth=3, positions="learned")


def test_a_start_is_a_function_of_the_seed():
    torch.manual_seed(0)
    first = Decoder(SMALL).initial(7)
    torch.manual_seed(1)
    again, other = Decoder(SMALL).initial(7), Decoder(SMALL).initial(8)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    assert {name: tuple(tensor.shape) for name, tensor in first.items()} == Decoder(SMALL).shapes


def test_a_deeper_model_starts_with_the_same_first_blocks():
    shallow = Decoder(SMALL).initial(7)
    deep = Decoder(dataclasses.replace(SMALL, depth=5)).initial(7)
    assert all(torch.equal(tensor, deep[name]) for name, tensor in shallow.items())


@pytest.mark.parametrize("identical", [True, False])
def test_blocks_start_alike_only_when_asked_to(identical):
    start = Decoder(dataclasses.replace(SMALL, identical_blocks=identical)).initial(7)
    for part in ("attention.qkv.weight", "mlp.lower.weight"):
        assert torch.equal(start[f"blocks.0.{part}"], start[f"blocks.2.{part}"]) == identical


@pytest.mark.parametrize("positions", ["constant", "displaced", "redirected"])
def test_the_random_vector_of_positions_has_the_norm_of_their_mean_and_a_direction_by_seed(positions):
    config = dataclasses.replace(SMALL, positions=positions)
    starts = [Decoder(config).initial(seed)["positions.weight"].double() for seed in (7, 7, 8)]
    assert torch.equal(starts[0], starts[1]) and not torch.equal(starts[0], starts[2])
    assert Decoder(config).frozen == {"positions.weight"}
    rows = torch.zeros(1, 1, 20, 64, dtype=torch.float64)
    waves = entrance(dataclasses.replace(SMALL, positions="sinusoidal"), rows, None, None)
    fixed = {"constant": 0, "displaced": waves, "redirected": waves - waves.mean(dim=2, keepdim=True)}
    moved = entrance(config, rows, starts[0][None], None) - fixed[positions]
    torch.testing.assert_close(moved.norm(dim=-1), waves.mean(dim=2, keepdim=True).norm(dim=-1).expand(1, 1, 20))


def test_rescaled_positions_have_no_mean_and_the_norm_of_all_waves():
    rows = torch.zeros(1, 1, 20, 64, dtype=torch.float64)
    waves, rescaled = (
        entrance(dataclasses.replace(SMALL, positions=name), rows, None, None) for name in ("sinusoidal", "rescaled")
    )
    torch.testing.assert_close(rescaled.norm(), waves.norm())
    assert rescaled.mean(dim=2).abs().max() < 1e-14
    single = entrance(dataclasses.replace(SMALL, positions="rescaled"), rows[:, :, :1], None, None)
    assert not single.any()  # a single position is its own mean


def spread(tensor: torch.Tensor) -> tuple[float, float]:
    return float(tensor.double().std()), float(tensor.abs().max())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("blocks.0.attention.qkv.weight", "self_attn.in_proj_weight"),
        ("blocks.0.attention.output.weight", "self_attn.out_proj.weight"),
        ("blocks.0.mlp.lower.weight", "linear1.weight"),
        ("blocks.0.mlp.lower.bias", "linear1.bias"),
        ("blocks.0.mlp.upper.weight", "linear2.weight"),
        ("blocks.0.mlp_norm.weight", "norm2.weight"),
        ("blocks.0.attention.qkv.bias", "self_attn.in_proj_bias"),
        ("blocks.0.attention.output.bias", "self_attn.out_proj.bias"),
    ],
)
def test_the_text_scheme_is_torchs_encoder(ours, theirs):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(200, 1, 200, batch_first=True)
    start = Decoder(paper_language_model(50, depth=1)).initial(0)[ours]
    std, top = spread(layer.get_parameter(theirs).detach())
    # The smallest has 200 entries: its standard deviation is known to 5 %, its largest entry better.
    assert spread(start) == (pytest.approx(std, rel=0.15), pytest.approx(top, rel=0.05))


def test_the_text_schemes_two_ends():
    start = Decoder(paper_language_model(500, depth=1)).initial(0)
    for name in ("embedding.weight", "output.weight"):
        assert spread(start[name]) == (pytest.approx(0.1 / math.sqrt(3), rel=0.01), pytest.approx(0.1, rel=1e-3))
    assert not start["output.bias"].any()


def test_table_1_starts_as_torch_does():
    start = Decoder(paper_table1(20, width=256, hidden=128)).initial(0)
    assert spread(start["embedding.weight"])[0] == pytest.approx(1.0, rel=0.02)
    for name in ("blocks.2.attention.qkv.weight", "blocks.0.mlp.lower.bias", "output.weight"):
        assert spread(start[name]) == (pytest.approx(1 / 16 / math.sqrt(3), rel=0.15), pytest.approx(1 / 16, rel=0.05))
    assert not torch.equal(start["blocks.0.mlp.lower.weight"], start["blocks.1.mlp.lower.weight"])


def test_orthonormal_rows_are_orthonormal():
    config = dataclasses.replace(SMALL, vocabulary=60, embedding="orthonormal")
    u = Decoder(config).initial(3)["embedding.weight"]
    torch.testing.assert_close(u @ u.mT, torch.eye(60, dtype=torch.float64), atol=1e-13, rtol=0)


def test_almost_orthogonal_rows_have_length_1_and_overlap_little():
    u = Decoder(dataclasses.replace(SMALL, embedding="almost_orthogonal")).initial(3)["embedding.weight"]
    gram = u @ u.mT
    torch.testing.assert_close(gram.diagonal(), torch.ones(300, dtype=torch.float64))
    overlap = (gram - torch.eye(300, dtype=torch.float64)).abs().max()
    # √(4 log V / d), the largest of V²/2 nearly normal numbers of variance 1/d; Johnson–Lindenstrauss allows 8 for 4.
    assert overlap < math.sqrt(8 * math.log(300) / 64)
