"""Networks whose every parameter has a leading run axis."""
