"""Networks whose every parameter has a leading run axis: the decoder, and the layer that the theory analyses."""
