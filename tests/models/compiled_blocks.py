"""Compiles a block for many settings in one process; a script, since the shape checker's wrappers do not compile."""

import torch
from decoders import ROWS, make_pack, small_config

from joma.models.block import block, block_shapes, block_state
from joma.models.functional import compiled, site_streams

NUM_SETTINGS = 10
"""More than the eight after which torch gives up by itself."""


def greatest_difference(row: dict) -> float:
    """How far the compiled blocks of a decoder, in training and in evaluation, are from the plain one."""
    config = small_config(row)
    pack = make_pack(config, [1, 2])
    _, (streams, *_) = site_streams(pack.noise, config.dropout, config.depth)
    own = {name: pack.parameters[f"blocks.0.{name}"] for name in block_shapes(config)}
    given = config, own, pack.decoder.embed(pack.parameters, pack.batch.tokens), pack.batch.tokens
    pairs = [(compiled(block_state, "aot_eager")(*given, streams), block_state(*given, streams))]
    with torch.no_grad():
        pairs += zip(compiled(block, "aot_eager")(*given, {}), block(*given, {}), strict=True)
    assert all((found is None) == (expected is None) for found, expected in pairs)
    return max(float((found - expected).abs().max()) for found, expected in pairs if found is not None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert max(greatest_difference(row) for row in ROWS[:NUM_SETTINGS]) < 1e-12
