"""Parameters of all runs in one buffer."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig, paper_language_model
from joma.models.parameters import Layout


def layout_of(depth: int) -> Layout:
    decoder = Decoder(paper_language_model(28_782, depth=depth))
    return Layout.of(decoder.shapes, decoder.frozen, decoder.tiled)


def test_models_that_differ_in_depth_alone_lie_alike():
    places = [layout_of(depth) for depth in (1, 2, 5, 10)]
    assert len({layout.row_length for layout in places}) == 1
    assert all(layout.size <= layout.row_length <= 2 * layout.size for layout in places)
    strides = {
        layout.views(layout.empty(3, torch.float32, torch.device("meta")))["blocks.0.mlp.lower.weight"].stride()
        for layout in places
    }
    assert strides == {(places[0].row_length, 200, 1)}


def test_a_tiled_matrix_has_room_for_whole_tiles():
    layout = layout_of(1)
    buffer = layout.empty(2, torch.float32, torch.device("meta"))
    plain, roomy = layout.views(buffer), layout.views(buffer, with_room=True)
    assert plain["output.weight"].shape == (2, 28_782, 200) and roomy["output.weight"].shape == (2, 28_800, 200)
    assert all(plain[name].shape == roomy[name].shape for name in plain if name != "output.weight")
    assert all(plain[name].storage_offset() == roomy[name].storage_offset() for name in plain)


@given(num_rows=st.integers(1, 200), width=st.integers(1, 70), tied=st.booleans())
def test_no_view_reaches_into_anothers_room(num_rows, width, tied):
    decoder = Decoder(DecoderConfig(vocabulary=num_rows, width=width, hidden=3, positions="none", tied=tied))
    layout = Layout.of(decoder.shapes, decoder.frozen, decoder.tiled)
    buffer = layout.empty(1, torch.float32, torch.device("cpu")).zero_()
    for view in layout.views(buffer, with_room=True).values():
        view.add_(1)
    assert int(buffer.max()) == 1
