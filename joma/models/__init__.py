"""Networks whose every parameter has a leading run axis: the decoder and the layer that the theory analyses."""

from typing import TYPE_CHECKING

from joma.lazy import lazy_exports

if TYPE_CHECKING:
    from joma.models.batch import Batch, LayerReading, Model, Noise
    from joma.models.decoder import Decoder
    from joma.models.decoder_config import DecoderConfig, paper_language_model, paper_table1
    from joma.models.layer import AnalysedLayer, LayerConfig

__all__ = [
    "AnalysedLayer", "Batch", "Decoder", "DecoderConfig", "LayerConfig", "LayerReading", "Model", "Noise",
    "paper_language_model", "paper_table1",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
