"""Input checks say what is needed, what came and what to do."""

import numpy as np
import pytest

from joma.errors import UnknownNameError, finite, positive, same_shape, within


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
        (lambda: same_shape(a=np.zeros(2), b=np.zeros(3)), r"Shapes must agree, got `a` \(2,\), `b` \(3,\)"),
    ],
    ids=["nan", "inf", "text", "positive", "range", "shape"],
)
def test_messages(check, message):
    with pytest.raises(ValueError, match=message):
        check()


def test_an_unknown_name_far_from_all_lists_what_is_known():
    assert str(UnknownNameError("flow", "zzz", ["printed", "model"])).endswith("Known: model, printed.")
