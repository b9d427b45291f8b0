"""Every path against materialised float64 attention on the inputs as given; masks, biases and given logits."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from attention_cases import Case, cases, moments, reference
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from joma.measure import entropy, entropy_chunked
from joma.measure.entropy import AttentionStatistics, Path, attention_entropy, logits_entropy
from joma.measure.masks import split_mask

TOLERANCE = 1e-5
"""For float32, times the largest logit over 16: one rounding of a logit of that size moves the entropy by as much."""
COMPANIONS = ("effective_keys", "first_key_mass", "mean_distance", "max_logit")
NUMBERS = ("entropy", "fraction", *COMPANIONS)


def assert_close(found: AttentionStatistics, case: Case) -> None:
    expected = reference(case)
    tolerance = TOLERANCE * max(1.0, float(expected["largest_logit"]) / 16)
    assert_entropy_close(found, expected, tolerance)
    for name in COMPANIONS:  # these scale with the number of keys: relative to their own size, or to 1
        value, want = getattr(found, name).double(), expected[name]
        assert ((value - want).abs() / want.abs().clamp(min=1)).nan_to_num().max() <= 4 * tolerance, name
    num_visible = found.num_visible.expand_as(expected["num_visible"])
    assert (num_visible == expected["num_visible"]).all()
    fraction = torch.where(num_visible > 1, expected["entropy"] / num_visible.double().log(), torch.nan)
    torch.testing.assert_close(found.fraction.double(), fraction, rtol=0, atol=2 * tolerance, equal_nan=True)


def assert_entropy_close(found: AttentionStatistics, expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert (found.entropy.isnan() == (expected["num_visible"] == 0)).all()
    assert (found.entropy.double() - expected["entropy"]).abs().nan_to_num().max() <= tolerance
    assert not (found.entropy < 0).any()


@settings(max_examples=150)
@given(cases())
def test_the_path_that_is_chosen_agrees_with_float64(case):
    assert_close(attention_entropy(case.q, case.k, **case.options), case)


@settings(max_examples=50)
@given(case=cases(dtypes=(torch.float32, torch.float64)), padded=st.booleans())
def test_moments_of_the_logits_agree_with_float64(case, padded):
    rows = torch.arange(case.q.shape[2]).expand(2, -1) >= (9 if padded else 0)
    found = attention_entropy(case.q, case.k, **case.options, rows=rows, moments=True, path=Path.CHUNKED)
    variance, share = moments(case, rows)
    size = max(1.0, float(reference(case)["largest_logit"]))
    torch.testing.assert_close(found.logit_variance.double(), variance, atol=1e-6 * size**2, rtol=1e-4, equal_nan=True)
    steady = variance.nansum(-1, keepdim=True) > 1e-3 * size**2  # else the share is a ratio of roundings
    torch.testing.assert_close(found.key_bias_share.double()[steady], share[steady], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("length", [1, 5, 64, 130, 192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variances_of_causal_logits_agree_over_many_blocks_of_rows(length, dtype):
    """Neighbouring queries of a group share their keys; both lie far from 0, where sums of squares lose digits."""
    q, k = torch.randn(2, 2, 4, length, 8, generator=torch.Generator().manual_seed(0), dtype=dtype) + 3
    k = k[:, ::2]
    found = attention_entropy(q, k, causal=True, moments=True)
    s = (q.double() @ k.double().repeat_interleave(2, dim=1).mT * 8**-0.5).masked_fill(
        torch.ones(length, length).bool().triu(1), torch.nan
    )
    expected = (s - s.nanmean(dim=-1, keepdim=True)).square().nanmean(dim=-1)
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-11}[dtype]
    torch.testing.assert_close(found.logit_variance.double(), expected, rtol=tolerance, atol=tolerance)


def test_without_differences_between_queries_all_of_the_logits_is_key_bias():
    q, k = torch.randn(2, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same = attention_entropy(q[:, :, :1].expand_as(q), k, causal=True, moments=True).key_bias_share
    torch.testing.assert_close(same, torch.ones_like(same))
    apart = attention_entropy(q - q.mean(dim=2, keepdim=True), k, moments=True).key_bias_share
    torch.testing.assert_close(apart, torch.zeros_like(apart))
    logits = (q @ k.mT * 8**-0.5).masked_fill(torch.ones(9, 9).bool().triu(1), -torch.inf)
    of_logits, of_keys = (
        found.logit_variance
        for found in (logits_entropy(logits, moments=True), attention_entropy(q, k, causal=True, moments=True))
    )
    torch.testing.assert_close(of_logits, of_keys)


def entropy_alone(q: torch.Tensor, k: torch.Tensor, *, few_threads: int, intel: bool, **options) -> AttentionStatistics:
    """Measure the entropy alone as on a processor of that kind; all have more than 0 threads and fewer than 10,000."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropy, "FEW_THREADS", few_threads)
        patch.setattr(entropy, "is_intel", lambda: intel)
        return attention_entropy(q, k, **options, companions=False)


entropy_on_many_cores = partial(entropy_alone, few_threads=0, intel=False)
PROCESSORS = {
    "many": (entropy_on_many_cores, Path.IDENTITY),
    "few of Intel": (partial(entropy_alone, few_threads=10_000, intel=True), Path.IDENTITY),
    "few": (partial(entropy_alone, few_threads=10_000, intel=False), Path.CHUNKED),
}


@pytest.mark.parametrize(("measure", "path"), PROCESSORS.values(), ids=PROCESSORS)
@given(case=cases())
def test_the_entropy_alone_agrees_with_float64(measure, path, case):
    assert measure(case.q, case.k, causal=True).path is path
    found, expected = measure(case.q, case.k, **case.options), reference(case)
    assert_entropy_close(found, expected, TOLERANCE * max(1.0, float(expected["largest_logit"]) / 16))
    assert all(getattr(found, name) is None for name in COMPANIONS)


@pytest.mark.parametrize(
    ("processor", "cpuinfo", "expected"),
    [
        ("", "vendor_id\t: GenuineIntel\n", True),
        ("", "vendor_id\t: AuthenticAMD\n", False),
        ("Intel64 Family 6 Model 143 Stepping 8, GenuineIntel", None, True),
        ("arm", None, False),
    ],
)
def test_a_processor_is_intels_if_it_says_so(monkeypatch, processor, cpuinfo, expected):
    def read_text(self, encoding):
        if cpuinfo is None:
            raise FileNotFoundError
        return cpuinfo

    monkeypatch.setattr(entropy.platform, "processor", lambda: processor)
    monkeypatch.setattr(entropy.pathlib.Path, "read_text", read_text)
    assert entropy.is_intel.__wrapped__() is expected


@pytest.mark.parametrize("num_threads", [1, 3])
@given(case=cases())
def test_small_blocks_and_threads_change_nothing(num_threads, case):
    whole = attention_entropy(case.q, case.k, **case.options, path=Path.CHUNKED)
    small = {"BLOCK_ROWS": 8, "FEWEST_ROWS": 3, "BLOCK_BYTES": 2000, "THREADED_LOGITS": 1}
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small.items():
            patch.setattr(entropy_chunked, name, value)
        torch.set_num_threads(num_threads)
        try:
            cut = attention_entropy(case.q, case.k, **case.options, path=Path.CHUNKED)
            with ThreadPoolExecutor(1) as later:
                assert torch.get_num_threads() == later.submit(torch.get_num_threads).result() == num_threads
        finally:
            torch.set_num_threads(before)
    assert_close(cut, case)
    # rounding of a logit at most: other blocks, other orders of summation
    torch.testing.assert_close(cut.entropy, whole.entropy, rtol=0, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_inference_mode_and_autocast_change_nothing(num_threads, monkeypatch):
    monkeypatch.setattr(entropy_chunked, "THREADED_LOGITS", 1)
    monkeypatch.setattr(entropy_chunked, "BLOCK_BYTES", 2000)
    q = torch.randn(2, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    logits, before = q @ q.mT, torch.get_num_threads()
    expected, of_logits = attention_entropy(q, q, causal=True), logits_entropy(logits)
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            inside = attention_entropy(q, q, causal=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = attention_entropy(q, q, causal=True)
            assert torch.equal(logits_entropy(logits).entropy, of_logits.entropy)
    finally:
        torch.set_num_threads(before)
    for name in ("entropy", *COMPANIONS):
        torch.testing.assert_close(getattr(inside, name), getattr(expected, name))
        torch.testing.assert_close(getattr(cast, name), getattr(expected, name))


def test_the_result_says_what_was_clamped():
    q = 40 * torch.randn(1, 2, 50, 16, generator=torch.Generator().manual_seed(0))
    peaked, fused = attention_entropy(q, q), entropy_on_many_cores(q, q)
    assert peaked.path is Path.CHUNKED and fused.path is Path.IDENTITY
    assert entropy_on_many_cores(q, q, softcap=30.0).path is Path.CHUNKED
    assert peaked.entropy.min() == fused.entropy.min() == 0
    assert -TOLERANCE * float(peaked.max_logit.max()) / 16 < float(fused.lowest_before_clamp.min()) < 0


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, torch.Tensor):
                self.numel = max(self.numel, part.numel())
        return out


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 512}], ids=str)
def test_memory_grows_linearly_with_the_length(options):
    def largest(length: int) -> int:
        q = torch.randn(1, 2, length, 16)
        with LargestTensor() as seen:
            attention_entropy(q, q, **options, companions=False)
        return seen.numel

    assert largest(8192) <= 4 * largest(2048)
    assert largest(8192) < 8192**2 / 4


def test_the_triton_kernel_agrees_in_the_interpreter(answer_of):
    """In a process of its own: the interpreter is switched on before Triton is imported, for good."""
    pytest.importorskip("triton")
    assert answer_of("interpreted_triton.py", TRITON_INTERPRET="1")["cases"] >= 25


# Logits that a model has built itself.


@pytest.mark.parametrize("hidden", [-torch.inf, -1e4, -1e9, torch.finfo(torch.float64).min], ids=str)
@pytest.mark.parametrize("chunk_bytes", [1, 2**12, 2**26])
def test_logits_are_measured_like_the_queries_and_keys_behind_them(hidden, chunk_bytes, monkeypatch):
    monkeypatch.setattr(entropy, "CHUNK_BYTES", chunk_bytes)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, n, 8, generator=generator, dtype=torch.float64) * 2 for n in (11, 13))
    mask = torch.rand(2, 1, 11, 13, generator=generator) > 0.4
    mask[0, :, 4] = False  # a row that sees nothing
    mask[1, :, :, 0] = False  # a key that nobody sees
    found = logits_entropy((q @ k.mT * 8**-0.5).masked_fill(~mask, hidden), offset=2)
    wanted = attention_entropy(q, k, mask=mask, offset=2, path=Path.CHUNKED)
    assert torch.equal(found.num_visible, wanted.num_visible.expand_as(found.num_visible))
    for name in NUMBERS:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), atol=1e-12, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_are_measured_in_single(dtype):
    logits = torch.randn(2, 3, 11, 13, generator=torch.Generator().manual_seed(0)).to(dtype)
    found, wanted = logits_entropy(logits, companions=False), logits_entropy(logits.double())
    assert found.entropy.dtype == torch.float32 and found.first_key_mass is None
    torch.testing.assert_close(found.entropy.double(), wanted.entropy, atol=1e-5, rtol=0)
    assert logits_entropy(logits[:, :, :0]).entropy.shape == (2, 3, 0)


# Masks and biases.

CALL = (2, 3, 4, 5)  # batch, heads, rows and keys: four numbers, so that no axis passes for another
SHAPES = st.lists(st.integers(1, 6), max_size=5).map(tuple)  # hardly any of which broadcasts
BROADCASTING = st.tuples(*(st.sampled_from([1, size]) for size in CALL)).flatmap(
    lambda shape: st.integers(0, 4).map(lambda first: shape[first:])
)
KINDS = st.sampled_from(["boolean", "additive", "bias"])
Q, K = (
    torch.randn(*CALL[:2], length, 8, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    for length in CALL[2:]
)
ONES = torch.ones(4, 5).tril()


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> dict[str, torch.Tensor]:
    """Draw a mask or a bias of this shape, as an option of a call."""
    normal = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    options = {
        "boolean": {"mask": normal > -0.5},
        "additive": {"mask": normal.masked_fill(normal < -0.5, -torch.inf)},
        "bias": {"bias": normal},
    }
    return options[kind]


@given(kind=KINDS, shape=BROADCASTING, seed=st.integers(0, 2**31), causal=st.booleans())
def test_what_broadcasts_is_taken_for_what_it_expands_to(kind, shape, seed, causal):
    options = drawn(kind, shape, seed)
    expanded = {name: value.expand(CALL).clone() for name, value in options.items()}
    found, wanted = (attention_entropy(Q, K, causal=causal, **given) for given in (options, expanded))
    assert torch.equal(found.num_visible.expand(CALL[:3]), wanted.num_visible.expand(CALL[:3]))
    for name in NUMBERS:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), equal_nan=True)
    if kind == "boolean":
        fused = attention_entropy(Q, K, causal=causal, **options, companions=False, path=Path.IDENTITY)
        torch.testing.assert_close(fused.entropy, found.entropy, equal_nan=True)


@given(kind=KINDS, shape=SHAPES)
@example(kind="boolean", shape=(2, 5))  # padding of (batch, keys)
@example(kind="bias", shape=(6, 6))  # was cut to the rows and keys
@example(kind="additive", shape=(1, 2, 3, 4, 5))
def test_what_does_not_broadcast_is_refused(kind, shape):
    try:
        assume(np.broadcast_shapes(shape, CALL) != CALL)
    except ValueError:
        pass
    (name, value), *_ = drawn(kind, shape, 0).items()
    with pytest.raises(ValueError, match=re.escape(f"`{name}` must broadcast to (batch, heads, rows, keys), {CALL}")):
        attention_entropy(Q, K, **{name: value})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lowest", [-1e4, -1e9, "lowest", -torch.inf], ids=str)
def test_an_additive_mask_hides_whatever_it_writes_for_minus_infinity(dtype, lowest):
    low = torch.finfo(dtype).min if lowest == "lowest" else max(lowest, torch.finfo(dtype).min)
    low = lowest if lowest == -torch.inf else low
    q = torch.randn(1, 2, 6, 8)
    additive = torch.zeros(1, 1, 6, 6, dtype=dtype).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), low)
    causal = attention_entropy(q, q, causal=True)
    for found in (attention_entropy(q, q, mask=additive), entropy_on_many_cores(q, q, mask=additive)):
        torch.testing.assert_close(found.entropy, causal.entropy)
        torch.testing.assert_close(found.fraction, causal.fraction, equal_nan=True)
        assert (found.num_visible == causal.num_visible).all()


@pytest.mark.parametrize(
    ("numbers", "num_visible"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0], 5),
        ([0.0, -50.0, 0.0, 0.0, 0.0], 5),
        ([0.0, 1.0, 0.5, 0.0, 1.0], 5),
        ([0.0, 1.0, 2.0, 0.0, 1.0], 5),
        ([0.0, 1.0, -1.0, 0.0, 1.0], 5),
        ([0.0, 1.0, -torch.inf, 0.0, 1.0], 4),
        ([0.0, -torch.inf, -torch.inf, 0.0, 0.0], 3),
    ],
    ids=str,
)
def test_an_additive_mask_is_added_to_the_logits_and_to_a_bias(numbers, num_visible):
    mask, bias = torch.tensor(numbers, dtype=torch.float64), torch.linspace(-1, 1, 5, dtype=torch.float64)
    for options in ({"mask": mask}, {"mask": mask, "bias": bias}):
        found = attention_entropy(Q, K, **options)
        assert (found.num_visible == num_visible).all()
        p = (Q @ K.mT * 8**-0.5 + sum(options.values())).softmax(dim=-1)
        torch.testing.assert_close(found.entropy, torch.special.entr(p).sum(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ones", [ONES, torch.ones(4, 5)], ids=["triangle", "all"])
def test_numbers_that_are_truth_values_are_refused_as_a_mask(dtype, ones):
    with pytest.raises(ValueError, match=r"Pass `mask\.bool\(\)` if 1 means visible, or `bias=mask`"):
        attention_entropy(Q, K, mask=ones.to(dtype))
    assert torch.equal(attention_entropy(Q, K, mask=ones.bool()).num_visible, ones.sum(-1)[None, None].long())
    assert (attention_entropy(Q, K, bias=ones.to(dtype)).num_visible == 5).all()
    parts = split_mask(ones)  # what a model has added to its logits is a fact, however odd
    assert parts.visible is None and torch.equal(parts.added[0, 0], ones)


def test_the_kernel_needs_triton_and_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="Path 'triton' needs tensors on a GPU"):
        attention_entropy(Q, K, path=Path.TRITON)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs Triton, which is not installed"):
        attention_entropy(Q, K, path=Path.TRITON)
