"""Input checks say what is needed, what came and what to do."""

import numpy as np
import pytest

from joma.errors import UnknownNameError, finite, positive, same_shape, whole, with_axes, within


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            lambda: finite("mu", [1.0, float("nan")]),
            r"`mu` must be finite, got nan at index \(1,\)\. Remove or replace",
        ),
        (lambda: finite("mu", float("inf")), r"`mu` must be finite, got inf\. "),
        (lambda: finite("mu", "three"), r"`mu` must be numbers, got 'three'"),
        (lambda: positive("temperature", 0.0), r"`temperature` must be positive, got 0\.0\. Pass a value above 0"),
        (lambda: within("rho", 1.5, -1, 1), r"`rho` must lie in \[-1, 1\], got 1\.5\. Rescale it"),
        (lambda: with_axes("v", [1.0, 2.0], "K M"), r"`v` must have the axes \(K, M\), got shape \(2,\)\. Reshape it"),
        (lambda: with_axes("v", 1.0, "*T K M"), r"`v` must have the axes \(\*T, K, M\), got shape \(\)"),
        (lambda: whole("H", [1, 1.5], low=0), r"`H` must be a whole number of at least 0, got 1\.5\. Pass one"),
        (lambda: whole("seed", -1, low=0), r"`seed` must be a whole number of at least 0, got -1"),
        (lambda: same_shape(a=np.zeros(2), b=np.zeros(3)), r"Shapes must agree, got `a` \(2,\), `b` \(3,\)"),
    ],
    ids=["nan", "inf", "text", "positive", "range", "axes", "leading axes", "fraction", "too small", "shape"],
)
def test_messages(check, message):
    with pytest.raises(ValueError, match=message):
        check()


def test_an_unknown_name_far_from_all_lists_what_is_known():
    assert str(UnknownNameError("flow", "zzz", ["printed", "model"])).endswith("Known: model, printed.")
