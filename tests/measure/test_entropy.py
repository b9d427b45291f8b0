"""Every path against materialised float64 attention on the inputs as given."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from attention_cases import Case, cases, reference
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode

from joma.measure import entropy, entropy_chunked
from joma.measure.entropy import AttentionStatistics, Path, attention_entropy

TOLERANCE = 1e-5
"""For float32, times the largest logit over 16: one rounding of a logit of that size moves the entropy by as much."""
COMPANIONS = ("effective_keys", "sink_mass", "mean_distance", "max_logit")


def assert_close(found: AttentionStatistics, case: Case) -> None:
    expected = reference(case)
    tolerance = TOLERANCE * max(1.0, float(expected["largest_logit"]) / 16)
    error = (found.entropy.double() - expected["entropy"]).abs()
    assert (found.entropy.isnan() == (expected["num_visible"] == 0)).all()
    assert error.nan_to_num().max() <= tolerance
    for name in COMPANIONS:  # these scale with the number of keys: relative to their own size, or to 1
        value, want = getattr(found, name).double(), expected[name]
        assert ((value - want).abs() / want.abs().clamp(min=1)).nan_to_num().max() <= 4 * tolerance, name
    assert (found.num_visible.expand_as(expected["num_visible"]) == expected["num_visible"]).all()


@settings(max_examples=150)
@given(cases())
def test_the_path_that_is_chosen_agrees_with_float64(case):
    assert_close(attention_entropy(case.q, case.k, **case.options), case)


def entropy_alone(q: torch.Tensor, k: torch.Tensor, *, few_threads: int, intel: bool, **options) -> AttentionStatistics:
    """Measure the entropy alone as on a processor of that kind; all have more than 0 threads and fewer than 10,000."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropy, "FEW_THREADS", few_threads)
        patch.setattr(entropy, "is_intel", lambda: intel)
        return attention_entropy(q, k, **options, companions=False)


entropy_on_many_cores = partial(entropy_alone, few_threads=0, intel=False)
PROCESSORS = {"many": (0, False), "few of Intel": (10_000, True), "few": (10_000, False)}


@pytest.mark.parametrize(
    ("processor", "path"), [("many", Path.IDENTITY), ("few of Intel", Path.IDENTITY), ("few", Path.CHUNKED)]
)
def test_the_fused_call_is_taken_on_many_cores_and_on_those_of_intel(processor, path):
    few_threads, intel = PROCESSORS[processor]
    q, k = torch.randn(2, 1, 2, 8, 4).unbind()
    assert entropy_alone(q, k, few_threads=few_threads, intel=intel, causal=True).path is path


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


@pytest.mark.parametrize(
    "measure",
    [partial(entropy_alone, few_threads=few, intel=intel) for few, intel in PROCESSORS.values()],
    ids=list(PROCESSORS),
)
@given(case=cases())
def test_the_entropy_alone_agrees_with_float64(measure, case):
    found, expected = measure(case.q, case.k, **case.options), reference(case)
    tolerance = TOLERANCE * max(1.0, float(expected["largest_logit"]) / 16)
    assert (found.entropy.double() - expected["entropy"]).abs().nan_to_num().max() <= tolerance
    assert (found.entropy.isnan() == (expected["num_visible"] == 0)).all()


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
def test_blocks_are_measured_as_well_in_inference_mode_and_under_autocast(num_threads, monkeypatch):
    monkeypatch.setattr(entropy_chunked, "THREADED_LOGITS", 1)
    monkeypatch.setattr(entropy_chunked, "BLOCK_BYTES", 2000)
    q = torch.randn(2, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    expected, before = attention_entropy(q, q, causal=True), torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            inside = attention_entropy(q, q, causal=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = attention_entropy(q, q, causal=True)
    finally:
        torch.set_num_threads(before)
    for name in ("entropy", *COMPANIONS):
        torch.testing.assert_close(getattr(inside, name), getattr(expected, name))
        torch.testing.assert_close(getattr(cast, name), getattr(expected, name))


@given(cases(masks=("none", "padding"), biases=("none", "keys"), softcaps=(None,)))
def test_a_shift_of_all_keys_changes_nothing(case):
    shifted = attention_entropy(case.q.double(), case.k.double() + 3.0, **case.options)
    plain = attention_entropy(case.q.double(), case.k.double(), **case.options)
    torch.testing.assert_close(shifted.entropy, plain.entropy, rtol=0, atol=1e-8, equal_nan=True)
    torch.testing.assert_close(shifted.sink_mass, plain.sink_mass, rtol=0, atol=1e-8, equal_nan=True)


@given(cases())
def test_entropy_lies_between_zero_and_its_maximum(case):
    found = attention_entropy(case.q, case.k, **case.options)
    rows = found.num_visible.expand_as(found.entropy) > 1
    assert (found.entropy[rows] >= 0).all() and (found.fraction[rows] <= 1 + TOLERANCE).all()
    assert found.fraction[~rows].isnan().all()
    assert (found.effective_keys[rows] >= 1 - TOLERANCE).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lowest", [-1e4, -1e9, "lowest", -torch.inf], ids=str)
def test_an_additive_mask_hides_whatever_it_writes_for_minus_infinity(dtype, lowest):
    low = torch.finfo(dtype).min if lowest == "lowest" else max(lowest, torch.finfo(dtype).min)
    low = lowest if lowest == -torch.inf else low
    q = torch.randn(1, 2, 6, 8)
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    additive = torch.zeros(1, 1, 6, 6, dtype=dtype).masked_fill(~seen, low)
    by_mask, causal = attention_entropy(q, q, mask=additive), attention_entropy(q, q, causal=True)
    torch.testing.assert_close(by_mask.entropy, causal.entropy)
    torch.testing.assert_close(by_mask.fraction, causal.fraction, equal_nan=True)
    assert (by_mask.num_visible == causal.num_visible).all()
    alone = entropy_on_many_cores(q, q, mask=additive)
    torch.testing.assert_close(alone.entropy, causal.entropy)
    assert alone.path is Path.IDENTITY and by_mask.path is Path.CHUNKED


def test_an_additive_mask_that_is_not_that_low_adds():
    q = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    penalty = torch.zeros(6, 6).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -50.0)
    by_mask, by_bias = attention_entropy(q, q, mask=penalty), attention_entropy(q, q, bias=penalty)
    torch.testing.assert_close(by_mask.entropy, by_bias.entropy)
    assert (by_mask.num_visible == 6).all()


def test_a_row_that_a_mask_hides_altogether_is_nan():
    q = torch.randn(1, 1, 3, 8)
    mask = torch.zeros(3, 3)
    mask[1] = -1e4
    found = attention_entropy(q, q, mask=mask)
    assert found.entropy.isnan().flatten().tolist() == [False, True, False]


def test_the_result_says_which_path_ran_and_what_was_clamped():
    q = 40 * torch.randn(1, 2, 50, 16, generator=torch.Generator().manual_seed(0))
    peaked, fused = attention_entropy(q, q), entropy_on_many_cores(q, q)
    assert peaked.path is Path.CHUNKED and fused.path is Path.IDENTITY
    assert entropy_on_many_cores(q, q, softcap=30.0).path is Path.CHUNKED
    assert peaked.entropy.min() == fused.entropy.min() == 0
    assert -TOLERANCE * float(peaked.max_logit.max()) / 16 < float(fused.lowest_before_clamp) < 0


def test_companions_are_left_out_on_demand():
    q = torch.randn(1, 1, 5, 8)
    found = attention_entropy(q, q, companions=False)
    assert all(getattr(found, name) is None for name in COMPANIONS)
    torch.testing.assert_close(found.entropy, attention_entropy(q, q).entropy)


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


@pytest.mark.parametrize(
    ("q", "k", "options", "message"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 5), {}, "need one B and D"),
        ((1, 3, 3, 4), (1, 2, 3, 4), {}, "Heads of `k` must divide those of `q`, got 2 and 3"),
        ((1, 2, 3, 4), (1, 2, 3, 4), {"window": 0}, "`window` must be at least 1, got 0"),
        ((1, 2, 3, 4), (1, 2, 3, 4), {"softcap": 0.0}, "`softcap` must be positive and finite, got 0.0. Leave it out"),
        ((1, 2, 3, 4), (1, 2, 3, 4), {"softcap": -5.0}, "`softcap` must be positive and finite, got -5.0"),
        ((1, 2, 3, 4), (1, 2, 3, 4), {"softcap": torch.inf}, "`softcap` must be positive and finite, got inf"),
        ((1, 2, 3, 4), (1, 2, 3, 4), {"path": "gpu"}, "no path named 'gpu'. Known: chunked, identity, triton"),
        ((1, 2, 3, 4), (1, 2, 3, 4), {"path": "chunk"}, "no path named 'chunk'. Did you mean 'chunked'"),
        ((1, 2, 3, 4), (1, 2, 3, 4), {"path": "identity"}, "needs `companions=False`"),
    ],
    ids=["width", "heads", "window", "no cap", "cap below 0", "endless cap", "path", "typo", "identity"],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_bad_input_is_refused(q, k, options, message):
    with pytest.raises(ValueError, match=message):
        attention_entropy(torch.zeros(q), torch.zeros(k), **options)


def test_the_kernel_needs_a_gpu():
    pytest.importorskip("triton")
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(
        ValueError, match=r"Path 'triton' needs tensors on a GPU, got them on cpu\. Move them there, or"
    ):
        attention_entropy(q, q, path=Path.TRITON)


def test_the_kernel_needs_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"needs Triton, which is not installed\. Leave `path` out"):
        attention_entropy(q, q, path=Path.TRITON)


def test_the_triton_kernel_agrees_in_the_interpreter():
    """In a process of its own: the interpreter is switched on before Triton is imported, for good."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    script = os.path.join(os.path.dirname(__file__), "interpreted_triton.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["cases"] >= 25
