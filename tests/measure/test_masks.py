"""Masks and biases: what broadcasts is taken for what it is expanded, and all else is refused in one line."""

import re

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from joma.measure.entropy import Path, attention_entropy
from joma.measure.masks import read_mask, split_mask

CALL = (2, 3, 4, 5)
"""Batch, heads, rows and keys: four numbers, so that no axis passes for another."""
NUMBERS = ("entropy", "fraction", "effective_keys", "sink_mass", "mean_distance", "max_logit")
SHAPES = st.lists(st.integers(1, 6), max_size=5).map(tuple)
"""Hardly any of which broadcasts."""
BROADCASTING = st.tuples(*(st.sampled_from([1, size]) for size in CALL)).flatmap(
    lambda shape: st.integers(0, 4).map(lambda first: shape[first:])
)


def queries_and_keys() -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 queries and keys of the call."""
    generator = torch.Generator().manual_seed(0)
    num_batch, num_heads, num_rows, num_keys = CALL
    q = torch.randn(num_batch, num_heads, num_rows, 8, generator=generator, dtype=torch.float64)
    return q, torch.randn(num_batch, num_heads, num_keys, 8, generator=generator, dtype=torch.float64)


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> dict[str, torch.Tensor]:
    """Draw a mask or a bias of this shape, as an option of a call."""
    normal = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    options = {
        "boolean": {"mask": normal > -0.5},
        "additive": {"mask": normal.masked_fill(normal < -0.5, -torch.inf)},
        "bias": {"bias": normal},
    }
    return options[kind]


KINDS = st.sampled_from(["boolean", "additive", "bias"])


@given(kind=KINDS, shape=BROADCASTING, seed=st.integers(0, 2**31), causal=st.booleans())
def test_what_broadcasts_is_taken_for_what_it_expands_to(kind, shape, seed, causal):
    q, k = queries_and_keys()
    options = drawn(kind, shape, seed)
    expanded = {name: value.expand(CALL).clone() for name, value in options.items()}
    found, wanted = (attention_entropy(q, k, causal=causal, **given) for given in (options, expanded))
    assert torch.equal(found.num_visible.expand(CALL[:3]), wanted.num_visible.expand(CALL[:3]))
    for name in NUMBERS:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), equal_nan=True)


@given(shape=BROADCASTING, seed=st.integers(0, 2**31))
def test_fused_attention_broadcasts_as_well(shape, seed):
    q, k = queries_and_keys()
    options = drawn("boolean", shape, seed)
    fused = attention_entropy(q, k, **options, companions=False, path=Path.IDENTITY)
    torch.testing.assert_close(fused.entropy, attention_entropy(q, k, **options).entropy, equal_nan=True)


@given(kind=KINDS, shape=SHAPES)
@example(kind="boolean", shape=(2, 5))  # padding of (batch, keys)
@example(kind="boolean", shape=(3, 1, 4, 5))
@example(kind="boolean", shape=(2, 2, 4, 5))
@example(kind="bias", shape=(6, 6))  # was cut to the rows and keys
@example(kind="bias", shape=(3, 1, 4, 5))
@example(kind="additive", shape=(1, 2, 3, 4, 5))
def test_what_does_not_broadcast_is_refused(kind, shape):
    try:
        assume(np.broadcast_shapes(shape, CALL) != CALL)
    except ValueError:
        pass
    q, k = queries_and_keys()
    (name, value), *_ = drawn(kind, shape, 0).items()
    wanted = f"`{name}` must broadcast to (batch, heads, rows, keys), {CALL}, got shape {shape}. Pass "
    with pytest.raises(ValueError, match=re.escape(wanted)) as refused:
        attention_entropy(q, k, **{name: value})
    assert "\n" not in str(refused.value)


def test_the_way_out_for_padding_works():
    q, k = queries_and_keys()
    mask = torch.tensor([[True, True, True, False, False], [True, True, False, False, False]])
    with pytest.raises(ValueError, match=re.escape("Pass `mask[:, None, None, :]`.")):
        attention_entropy(q, k, mask=mask)
    assert attention_entropy(q, k, mask=mask[:, None, None, :]).num_visible[:, 0, 0].tolist() == [3, 2]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.complex64])
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_mask_of_integers_is_refused(dtype):
    q, k = queries_and_keys()
    padding = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]], dtype=dtype)[:, None, None, :]
    with pytest.raises(TypeError, match=rf"`mask` must be boolean, .* got {dtype}\. Pass `mask\.bool\(\)` if"):
        attention_entropy(q, k, mask=padding)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ones", [torch.ones(4, 5).tril(), torch.ones(4, 5)], ids=["triangle", "all"])
def test_numbers_that_are_truth_values_are_refused_as_a_mask(dtype, ones):
    q, k = queries_and_keys()
    with pytest.raises(ValueError, match=r"got .* of 0 and 1\. Pass `mask\.bool\(\)` if 1 means visible, or `bias="):
        attention_entropy(q, k, mask=ones.to(dtype))
    assert torch.equal(attention_entropy(q, k, mask=ones.bool()).num_visible, ones.sum(-1)[None, None].long())
    assert (attention_entropy(q, k, bias=ones.to(dtype)).num_visible == 5).all()


@pytest.mark.parametrize(
    ("numbers", "num_visible"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0], 5),
        ([0.0, 1.0, 0.5, 0.0, 1.0], 5),
        ([0.0, 1.0, 2.0, 0.0, 1.0], 5),
        ([0.0, 1.0, -1.0, 0.0, 1.0], 5),
        ([0.0, 1.0, -torch.inf, 0.0, 1.0], 4),
        ([0.0, -torch.inf, -torch.inf, 0.0, 0.0], 3),
    ],
    ids=str,
)
def test_every_other_additive_mask_is_taken(numbers, num_visible):
    q, k = queries_and_keys()
    mask = torch.tensor(numbers, dtype=torch.float64)
    found = attention_entropy(q, k, mask=mask)
    assert (found.num_visible == num_visible).all()
    p = (q @ k.mT * 8**-0.5 + mask).softmax(dim=-1)
    torch.testing.assert_close(found.entropy, torch.special.entr(p).sum(dim=-1))


def test_a_mask_is_split_whatever_its_numbers():
    """What a model has added to its logits is a fact, however odd."""
    ones = torch.ones(4, 5).tril()
    parts = split_mask(ones)
    assert parts.visible is None and torch.equal(parts.added[0, 0], ones) and parts.are_zeros_and_ones


class NumbersRead(TorchDispatchMode):
    """Counts the numbers that Python reads one by one, for which it would wait on a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        (torch.randn(CALL, generator=torch.Generator().manual_seed(0)), 0),
        (torch.zeros(CALL).masked_fill(torch.ones(4, 5, dtype=torch.bool).triu(1), -torch.inf), 0),
        (torch.ones(CALL, dtype=torch.bool), 0),
        (torch.linspace(0, 1, 5).expand(CALL), 1),
    ],
    ids=["bias", "causal", "boolean", "from 0 to 1"],
)
def test_the_look_for_truth_values_makes_nobody_wait(mask, count):
    with NumbersRead() as read:
        read_mask(mask, CALL, mask.device)
    assert read.count == count


@pytest.mark.parametrize("name", ["mask", "bias", "k"])
def test_tensors_of_another_device_are_refused(name):
    q, k = queries_and_keys()
    given = {"k": k} | {name: (k if name == "k" else torch.zeros(CALL)).to("meta")}
    with pytest.raises(ValueError, match=rf"`{name}` must be where `q` is, on cpu, got it on meta. Pass `{name}\.to"):
        attention_entropy(q, **given)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_bias_that_is_not_a_number_of_floating_point_is_refused(dtype):
    q, k = queries_and_keys()
    with pytest.raises(TypeError, match=rf"`bias` must be floating point, got {dtype}\. Pass `bias\.float\(\)`"):
        attention_entropy(q, k, bias=torch.ones(4, 5, dtype=dtype))
