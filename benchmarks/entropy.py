"""Attention entropy against its rivals, as ratios measured in one run: `python benchmarks/entropy.py [--gpu]`.

On the CPU the rival materialises the attention (float32, in place where it can), with a causal mask and without: under
the mask the rival computes both halves of the matrix, of which joma needs one. On a GPU the yardstick is the forward
pass of flash attention itself, which computes no entropy at all.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from joma.measure.entropy import Path, attention_entropy

CPU_LENGTH, CPU_HEADS = 4096, 12
GPU_LENGTH, GPU_HEADS, LONGEST = 8192, 16, 131_072
DIM = 64
REPEATS = 5
ROUNDS = 3
"""On a CPU every method has its turn so many times: other work comes and goes."""


def materialised(q: Tensor, k: Tensor, causal: bool = True) -> Tensor:
    """Entropy the usual way: softmax of the complete matrix, then -Σ p log p."""
    s = (q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5)
    if causal:
        s.masked_fill_(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu_(1), -torch.inf)
    return torch.special.entr(s.softmax(dim=-1)).sum(dim=-1)


def entropy_alone(q: Tensor, k: Tensor, causal: bool = True) -> Tensor:
    """Entropy without companions, as the rival has none, the way that is chosen on this processor."""
    return attention_entropy(q, k, causal=causal, companions=False).entropy


def alone_by_identity(q: Tensor, k: Tensor, causal: bool = True) -> Tensor:
    """The same by fused attention with V = K, which multiplies twice as much."""
    return attention_entropy(q, k, causal=causal, companions=False, path=Path.IDENTITY).entropy


def alone_by_blocks(q: Tensor, k: Tensor, causal: bool = True) -> Tensor:
    """The same by blocks of rows."""
    return attention_entropy(q, k, causal=causal, companions=False, path=Path.CHUNKED).entropy


def with_companions(q: Tensor, k: Tensor, causal: bool = True) -> Tensor:
    """Entropy, effective keys, first-key mass, distance and largest logit."""
    return attention_entropy(q, k, causal=causal).entropy


METHODS = {
    method.__name__: method
    for method in (materialised, entropy_alone, alone_by_identity, alone_by_blocks, with_companions)
}


def inputs(
    length: int, heads: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Fresh random queries and keys."""
    return tuple(torch.randn(1, heads, length, DIM, device=device, dtype=dtype) for _ in range(2))


def measure_in_child(method: str, causal: bool) -> None:
    """Print the fastest time and the memory that one method adds, from a process that does nothing else."""
    q, k = inputs(CPU_LENGTH, CPU_HEADS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    METHODS[method](q, k, causal)
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = min(_seconds(lambda: METHODS[method](q, k, causal)) for _ in range(REPEATS))
    print(json.dumps({"seconds": seconds, "mebibytes": max(added, 1.0)}))


def _in_child(method: str, causal: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", method, *([] if causal else ["--no-mask"])]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def cpu() -> None:
    """Compare on the CPU, every method in processes of its own; each ratio is the median over rounds."""
    q, k = inputs(512, 2)
    error = (entropy_alone(q, k).double() - materialised(q.double(), k.double())).abs().max()
    print(f"CPU {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"length {CPU_LENGTH}, {CPU_HEADS} heads of {DIM}, float32; error {error:.1e} nats at length 512")
    for causal in (True, False):
        path = attention_entropy(q, k, causal=causal, companions=False).path
        print(f"{'causal' if causal else 'no mask'}; the way chosen here for the entropy alone: {path}")
        rounds = [{method: _in_child(method, causal) for method in METHODS} for _ in range(ROUNDS)]
        for method in [name for name in METHODS if name != "materialised"]:
            faster, smaller = (
                statistics.median(each["materialised"][key] / each[method][key] for each in rounds)
                for key in ("seconds", "mebibytes")
            )
            print(f"  {method:17s} {faster:5.1f}x faster than materialised, {smaller:5.1f}x less memory")


def gpu() -> None:
    """Compare with the forward pass of flash attention on the same inputs."""
    import triton  # noqa: PLC0415 (only where there is a GPU)
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415

    def milliseconds(work: Callable[[], object]) -> float:
        return triton.testing.do_bench(work, warmup=100, rep=400, return_mode="median")

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    q, k = inputs(GPU_LENGTH, GPU_HEADS, device="cuda", dtype=torch.bfloat16)
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        flash = milliseconds(lambda: attend(q, k, k, is_causal=True))
    print(f"causal, length {GPU_LENGTH}, {GPU_HEADS} heads of {DIM}, bf16: flash attention forward {flash:.3f} ms")
    for method in (entropy_alone, with_companions):
        took = milliseconds(lambda method=method: method(q, k))
        print(f"{method.__name__:16s} {took:.3f} ms, {took / flash:.2f}x that forward")
    q, k = inputs(LONGEST, GPU_HEADS, device="cuda", dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    with_companions(q, k)
    torch.cuda.synchronize()
    print(f"length {LONGEST}: peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, inputs included")


def main() -> None:
    """Run the part asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--child", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--no-mask", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        measure_in_child(arguments.child, not arguments.no_mask)
    else:
        (gpu if arguments.gpu else cpu)()


if __name__ == "__main__":
    main()
