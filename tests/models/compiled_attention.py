"""Prints what shared memory attention's backward, which takes most, has when compiled for kinds of GPU.

A script, as modules that are checked for their types are rewritten, and kernels with them.
"""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from joma.models import attention_triton
from joma.models.attention import LONGEST_IN_A_KERNEL, LONGEST_OF_SINGLES

SHARED = {89: 101_376, 90: 232_448}
"""Bytes that a program may have, by compute capability: RTX 40, H200."""
FEW, MANY = 1, 10**6
CASES = (
    ("bf16", 2, "ieee", LONGEST_IN_A_KERNEL),
    ("bf16", 2, "ieee", LONGEST_OF_SINGLES),
    ("fp32", 4, "tf32", LONGEST_OF_SINGLES),
    ("fp32", 4, "ieee", LONGEST_OF_SINGLES),
)
POINTERS, FLOATS = ("qkv", "out", "gradient", "bias", "stream"), ("kept_scale", "scale")
NUMBERS = ("threshold", "num_sequences", "length", "num_heads", "width")


def taken(dtype, block, shape, precision, capability):
    """Shared memory of the compiled kernel."""
    kernel = attention_triton._backward
    sizes = {"DROPPED": True, "BIASED": False, "CAUSAL": True}
    sizes |= {"BLOCK_L": block, "BLOCK_D": shape.columns, "PRECISION": precision}
    names = kernel.arg_names
    signature = dict.fromkeys(names, "constexpr") | dict.fromkeys(NUMBERS, "i32") | dict.fromkeys(FLOATS, "fp32")
    signature |= {name: "*i32" if name == "stream" else f"*{dtype}" for name in POINTERS if name in names}
    source = ASTSource(
        fn=kernel,
        signature={name: signature[name] for name in names},
        constexprs={(names.index(name),): value for name, value in sizes.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in (*POINTERS, "width") if name in names},
    )
    options = {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared


def of_gpu(capability):
    """What the shapes that would be chosen on a GPU take, with the bound by which they were and the room there is."""
    for dtype, size, precision, block in CASES:
        chosen = {attention_triton._shape(heads, block, size, SHARED[capability]) for heads in (FEW, MANY)}
        for shape in sorted(chosen):
            yield {
                "case": f"{dtype} {precision} {block} {tuple(shape)}",
                "taken": taken(dtype, block, shape, precision, capability),
                "bound": shape.shared_bytes(block, size) if shape.num_stages > 1 else SHARED[capability],
                "room": SHARED[capability],
            }


if __name__ == "__main__":
    json.dump({capability: list(of_gpu(capability)) for capability in SHARED}, sys.stdout)
