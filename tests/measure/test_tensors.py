"""Input checks of the measures."""

import pytest
import torch

from joma.measure.tensors import finite_tensor, varying


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_bad_entry_is_named(bad, dtype):
    values = torch.zeros(3, 4, dtype=dtype)
    values[1, 2] = bad
    with pytest.raises(ValueError, match=r"`h` must be finite, got .*(nan|inf) at index \(1, 2\)"):
        finite_tensor("h", values)


def test_gradients_stay_out():
    assert not finite_tensor("h", torch.ones(2, requires_grad=True)).requires_grad


def test_integers_and_truth_values_are_finite():
    assert finite_tensor("y", torch.tensor([1, 2])).tolist() == [1, 2]
    assert finite_tensor("y", torch.tensor([True])).tolist() == [True]


def test_no_offset_or_scale_hides_that_a_column_varies():
    values = torch.tensor([[0.0, 1e-38, 1e8, -3.0], [0.0, 2e-38, 1e8 + 8, -3.0]])
    assert varying(values).tolist() == [1, 2]
