"""Windows: the streams come back, targets are one ahead, and what is too short is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.data.text import Windows


@st.composite
def cases(draw) -> tuple[int, int, int]:
    num_streams, length = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    return num_streams * (length + 1) + draw(st.integers(0, 60)), num_streams, length


@given(cases())
def test_windows_one_after_the_other_are_the_streams(case):
    num_tokens, num_streams, length = case
    windows = Windows(torch.arange(num_tokens), num_streams, length)
    joined = torch.cat([windows.window(i)[0] for i in range(windows.num_windows)], dim=1)
    per_stream = num_tokens // num_streams
    for stream, tokens in enumerate(joined):  # stream s is the s-th stretch of the text
        start = stream * per_stream
        assert tokens.tolist() == list(range(start, start + windows.num_windows * length))


@given(cases())
def test_what_is_left_out_is_shorter_than_a_window_with_its_target(case):
    num_tokens, num_streams, length = case
    windows = Windows(torch.arange(num_tokens), num_streams, length)
    assert windows.num_windows >= 1
    assert 1 <= num_tokens // num_streams - windows.num_windows * length <= length


@given(cases())
def test_targets_are_one_token_ahead_in_their_own_stream(case):
    num_tokens, num_streams, length = case
    windows = Windows(torch.arange(num_tokens), num_streams, length)
    for i in range(windows.num_windows):
        inputs, targets = windows.window(i)
        assert inputs.shape == targets.shape == (num_streams, length)
        assert torch.equal(targets, inputs + 1)


def test_windows_are_views():
    tokens = torch.arange(100)
    inputs, targets = Windows(tokens, num_streams=3, length=4).window(2)
    storage = tokens.untyped_storage().data_ptr()
    assert inputs.untyped_storage().data_ptr() == targets.untyped_storage().data_ptr() == storage


def test_windows_stay_on_the_device_of_the_tokens():
    windows = Windows(torch.empty(50, dtype=torch.int64, device="meta"), num_streams=2, length=5)
    assert all(each.device.type == "meta" for each in windows.window(0))


def test_an_epoch_of_the_paper_has_2928_windows():
    assert Windows(torch.zeros(2_049_990, dtype=torch.int64), num_streams=20, length=35).num_windows == 2928


@pytest.mark.parametrize(
    ("num_tokens", "num_streams", "length", "message"),
    [
        (719, 20, 35, r"20 streams with windows of 35 need at least 720 tokens, the text has 719\. Pass a longer"),
        (0, 1, 1, r"1 streams with windows of 1 need at least 2 tokens, the text has 0\."),
        (50, 0, 5, r"`num_streams` must be a whole number of at least 1, got 0\."),
        (50, 2, 0, r"`length` must be a whole number of at least 1, got 0\."),
    ],
    ids=["short", "empty", "no streams", "no length"],
)
def test_what_gives_no_window_is_refused(num_tokens, num_streams, length, message):
    with pytest.raises(ValueError, match=message):
        Windows(torch.arange(num_tokens), num_streams, length)


def test_tokens_with_two_axes_are_refused(as_a_user_runs_it):
    with pytest.raises(ValueError, match=r"`tokens` must have one axis, got shape \(4, 5\)\. Flatten it\."):
        Windows(torch.zeros(4, 5, dtype=torch.int64), 1, 1)


@pytest.mark.parametrize("i", [-1, 2])
def test_a_window_beyond_the_text_is_refused(i):
    with pytest.raises(IndexError, match=rf"`i` must be from 0 to 1, the windows of the text, got {i}\."):
        Windows(torch.arange(10), num_streams=1, length=4).window(i)
