r"""Random numbers as a function of (run seed, step, site, index), so that no run's numbers depend on its neighbours.

A generator has a state that everything drawn before has moved: pack two runs together and the second draws other
numbers. Here a number is a hash of where it is used. Two 32-bit keys per run are mixed with the step and the site, and
the index is hashed with both: the murmur3 finaliser with the second key injected between its multiplications, so that
streams whose first keys lie close together do not repeat each other. Integer arithmetic alone: the same bits on every
device, and a compiler fuses it into whatever uses them.
"""

import hashlib
import zlib
from collections.abc import Sequence
from functools import cache
from math import prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Step = int | Int[Tensor, ""]
Site = str | int

NUM_BITS = 31
"""Random bits in each number: 32 less the sign."""
FLOAT_BITS = 24
"""Bits that a float32 in [0, 1) holds exactly."""
GOLDEN = -1640531527  # 0x9E3779B9: consecutive indices land far apart
FIRST = -2048144789  # 0x85EBCA6B, of murmur3
SECOND = -1028477387  # 0xC2B2AE35
LOW_31 = 0x7FFFFFFF


def run_keys(seeds: Sequence[int], device: torch.device | str = "cpu") -> Int[Tensor, "R 2"]:
    """Two 32-bit keys for each run, from its seed alone.

    >>> torch.equal(run_keys([1, 2])[1], run_keys([2])[0])
    True
    """
    digests = [hashlib.sha256(str(seed).encode()).digest() for seed in seeds]
    words = [[int.from_bytes(digest[at : at + 4], "little", signed=True) for at in (0, 4)] for digest in digests]
    return torch.tensor(words, dtype=torch.int32, device=device).reshape(len(words), 2)


def random_bits(keys: Int[Tensor, "R 2"], step: Step, site: Site, num: int) -> Int[Tensor, "R num"]:
    """`num` random integers in [0, 2³¹) for each run.

    >>> bits = random_bits(run_keys([7, 8]), 0, "tokens", 3)
    >>> torch.equal(bits[1:], random_bits(run_keys([8]), 0, "tokens", 3))
    True
    """
    return bits_of(streams(keys, step, [site])[0], num)


def streams(keys: Int[Tensor, "R 2"], step: Step, sites: Sequence[Site]) -> Int[Tensor, "S R 2"]:
    """Two numbers for each site and run that everything but the index has been mixed into; see `bits_of`.

    All sites of a step at once: a handful of small kernels, however many sites there are.
    """
    return streams_at(keys, step, site_numbers(tuple(sites), keys.device))


def streams_at(keys: Int[Tensor, "R 2"], step: Step, numbers: Int[Tensor, " S"]) -> Int[Tensor, "S R 2"]:
    """The same as `streams` for sites given by their numbers: nothing but arithmetic, to be compiled."""
    places = numbers[:, None]
    first, second = keys.unbind(dim=1)
    moment = step.to(torch.int32) if isinstance(step, Tensor) else torch.full_like(first, step)
    offset = _mixed(_mixed(first + moment) ^ places)
    injected = _mixed(_mixed(second ^ places) + moment * GOLDEN)
    return torch.stack([offset, injected], dim=-1)


def bits_of(stream: Int[Tensor, "R 2"], num: int) -> Int[Tensor, "R num"]:
    """The first `num` integers of each run's stream, in [0, 2³¹)."""
    offset, injected = stream.unbind(dim=1)
    x = (torch.arange(num, dtype=torch.int32, device=stream.device) ^ offset[:, None]) * GOLDEN
    # In place: without a compiler that fuses them, large results would be bound by fresh memory.
    x ^= _shifted(x, 16)
    x *= FIRST
    x ^= injected[:, None]
    x ^= _shifted(x, 13)
    x *= SECOND
    x ^= _shifted(x, 16)
    return x.bitwise_and_(LOW_31)


def uniform(keys: Int[Tensor, "R 2"], step: Step, site: Site, num: int) -> Float[Tensor, "R num"]:
    """`num` float32 numbers in [0, 1) for each run, multiples of 2⁻²⁴."""
    return (random_bits(keys, step, site, num) >> (NUM_BITS - FLOAT_BITS)).float() * 2.0**-FLOAT_BITS


def keep_mask(stream: Int[Tensor, "R 2"], shape: Sequence[int], rate: float) -> Bool[Tensor, "R ..."]:
    """Which entries a dropout of `rate` keeps, shape (R, *shape), by a stream of `streams`.

    >>> keep_mask(streams(run_keys([0]), 0, ["embedding"])[0], (200, 500), 0.2).float().mean().round(decimals=2)
    tensor(0.8000)
    """
    if not 0 <= rate < 1:
        raise ValueError(f"A dropout rate must lie in [0, 1), got {rate}. 0 keeps everything.")
    return (bits_of(stream, prod(shape)) >= dropped_below(rate)).reshape(stream.shape[0], *shape)


def dropped_below(rate: float) -> int:
    """Numbers of `bits_of` below this one are a share `rate` of all."""
    return round(rate * 2**NUM_BITS)


@cache
def site_numbers(sites: tuple[Site, ...], device: torch.device) -> Int[Tensor, " S"]:
    """The numbers of sites on a device; kept, since a captured step must not copy from the host."""
    return torch.tensor([_signed(site) for site in sites], dtype=torch.int32, device=device)


def _signed(site: Site) -> int:
    """A site's number as a signed 32-bit integer."""
    number = zlib.crc32(site.encode()) if isinstance(site, str) else site
    return number - 2**32 if number >= 2**31 else number


def _mixed(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The murmur3 finaliser: every bit of the input moves every bit of the output."""
    x = (x ^ _shifted(x, 16)) * FIRST
    x = (x ^ _shifted(x, 13)) * SECOND
    return x ^ _shifted(x, 16)


def _shifted(x: Int[Tensor, "..."], by: int) -> Int[Tensor, "..."]:
    """Shift right without copying the sign."""
    return (x >> by) & ((1 << (32 - by)) - 1)
