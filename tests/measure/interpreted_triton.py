"""Runs the Triton kernel in Triton's interpreter on the CPU against float64; started by test_entropy.py."""

import json
import sys
import warnings

import pytest
import torch
from attention_cases import cases
from hypothesis import HealthCheck, given, settings
from test_entropy import assert_close

from joma.measure.entropy import Path, attention_entropy

warnings.filterwarnings("ignore", category=RuntimeWarning)  # the interpreter's NumPy logs rows that see no key
COUNT = {"cases": 0}


@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    cases(dtypes=(torch.float32, torch.float16), masks=("none", "padding"), biases=("none", "keys"), softcaps=(None,))
)
def check(case):
    """One drawn call."""
    found = attention_entropy(case.q, case.k, **case.options, path=Path.TRITON)
    assert_close(found, case)
    alone = attention_entropy(case.q, case.k, **case.options, path=Path.TRITON, companions=False)
    torch.testing.assert_close(alone.entropy, found.entropy, equal_nan=True)
    COUNT["cases"] += 1


@settings(max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(cases(dtypes=(torch.float32,), masks=("full",), biases=("none", "keys", "full")))
def check_that_others_are_refused(case):
    """One drawn call that the kernel does not know."""
    with pytest.raises(
        ValueError, match="Path 'triton' needs rows and keys, no soft cap or sink, mask and bias the same"
    ):
        attention_entropy(case.q, case.k, **case.options, path=Path.TRITON)


check()
check_that_others_are_refused()
json.dump(COUNT, sys.stdout)
