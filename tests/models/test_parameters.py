"""Parameters of all runs in one buffer."""

import torch

from joma.models.decoder import Decoder
from joma.models.parameters import ALIGNMENT, Layout
from joma.models.presets import paper_language_model


def layout_of(depth: int) -> Layout:
    decoder = Decoder(paper_language_model(28_782, depth=depth))
    return Layout.of(decoder.shapes, decoder.frozen)


def test_models_that_differ_in_depth_alone_lie_alike():
    places = [layout_of(depth) for depth in (1, 2, 5, 10)]
    assert len({layout.row_length for layout in places}) == 1
    assert all(layout.size <= layout.row_length <= 2 * layout.size for layout in places)
    strides = {
        layout.views(layout.empty(3, torch.float32, torch.device("meta")))["blocks.0.mlp.lower.weight"].stride()
        for layout in places
    }
    assert strides == {(places[0].row_length, 200, 1)}


def test_views_share_the_buffer_and_do_not_overlap():
    layout = Layout.of({"w": (3, 5), "b": (3,), "scale": ()}, frozen=["b"])
    buffer = layout.empty(2, torch.float64, torch.device("cpu")).zero_()
    views = layout.views(buffer)
    for number, view in enumerate(views.values(), start=1):
        view.fill_(number)
    assert [float(view.sum()) for view in views.values()] == [30.0, 12.0, 6.0]
    assert float(buffer.sum()) == 48.0
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets.values())
