"""Input checks of the measures."""

import re

import numpy as np
import pytest
import torch

from joma.measure.alignment import align, peak_activation
from joma.measure.entropy import attention_entropy, logits_entropy
from joma.measure.rank import power_step, qk_spectral_norms, spectral_norm, stable_rank, why_undefined
from joma.measure.similarity import cosine_similarity, stream_similarity
from joma.measure.superposition import Attended, superposed_neurons
from joma.measure.tensors import finite_tensor

MATRIX, CALL = torch.eye(4), torch.zeros(1, 2, 4, 8)
ATTENDED = {"ids": torch.zeros(4, 1, dtype=torch.long), "weights": torch.ones(4, 1)}
FUNCTIONS = {
    attention_entropy: {"q": CALL, "k": CALL, "mask": torch.ones(4, 4).bool(), "bias": MATRIX},
    logits_entropy: {"logits": CALL},
    stable_rank: {"w": MATRIX},
    spectral_norm: {"w": MATRIX},
    why_undefined: {"w": MATRIX},
    power_step: {"w": MATRIX, "v": torch.ones(4)},
    qk_spectral_norms: {"w_q": MATRIX, "w_k": MATRIX},
    cosine_similarity: {"rows": MATRIX},
    stream_similarity: {"streams": [MATRIX], "visible": torch.ones(4, dtype=torch.bool)},
    peak_activation: {"hidden": CALL[0], "mask": torch.ones(2, 4, dtype=torch.bool)},
    align: {"latents": MATRIX, "activations": MATRIX, "untrained": MATRIX, "groups": torch.arange(4)},
    Attended: ATTENDED,
    superposed_neurons: {"activations": MATRIX, "attended": Attended(**ATTENDED)},
}
"""Tensors that each public function takes, by the names of its arguments."""
OTHERS = {
    qk_spectral_norms: {"num_heads": 2},
    align: {"generator": torch.Generator()},
    superposed_neurons: {"generator": torch.Generator()},
}
"""What else it needs."""
ARGUMENTS = [
    pytest.param(function, name, id=f"{function.__qualname__}-{name}")
    for function, tensors in FUNCTIONS.items()
    for name in tensors
    if name not in ("streams", "attended")  # not tensors themselves
]


@pytest.mark.parametrize("kind", [np.asarray, torch.Tensor.tolist])
@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_is_not_a_tensor_is_refused_in_one_line(function, name, kind):
    options = FUNCTIONS[function] | OTHERS.get(function, {})
    given = kind(options[name])
    named = "w[0]" if function is power_step and name == "w" and isinstance(given, list) else name  # of a batch
    wanted = f"`{named}` must be a torch tensor, got {type(given).__name__}. Pass `torch.as_tensor({named})`."
    with pytest.raises(TypeError, match=re.escape(wanted)):
        function(**options | {name: given})


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_is_not_a_tensor_is_named_within_lists_and_beside_tensors():
    with pytest.raises(TypeError, match=re.escape("`streams[1]` must be a torch tensor, got ndarray")):
        stream_similarity([MATRIX, MATRIX.numpy()])
    with pytest.raises(TypeError, match=re.escape("`w[1]` must be a torch tensor, got ndarray")):
        power_step([MATRIX, MATRIX.numpy()])
    with pytest.raises(TypeError, match=r"`attended` must be an Attended, got Tensor\. Pass `Attended\("):
        superposed_neurons(MATRIX, MATRIX, generator=torch.Generator())


AXES = {
    logits_entropy: ("logits", "(B, H, rows, keys)"),
    cosine_similarity: ("rows", "(N, d)"),
    peak_activation: ("hidden", "(N, L, J)"),
    qk_spectral_norms: ("w_k", "(rows, d)"),
    align: ("activations", "(N, J)"),
    Attended: ("weights", "(C, A)"),
    superposed_neurons: ("activations", "(C, J)"),
}


@pytest.mark.parametrize("function", AXES, ids=lambda function: function.__qualname__)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_tensors_of_other_axes_are_refused(function):
    name, axes = AXES[function]
    options = FUNCTIONS[function] | OTHERS.get(function, {}) | {name: torch.zeros(4)}
    with pytest.raises(ValueError, match=re.escape(f"`{name}` must have the axes {axes}, got shape (4,). Reshape it.")):
        function(**options)


@pytest.mark.parametrize(
    ("function", "name"), [(peak_activation, "mask"), (stream_similarity, "visible")], ids=["mask", "visible"]
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_truth_values_that_are_numbers_are_refused(function, name, dtype):
    options = FUNCTIONS[function]
    with pytest.raises(TypeError, match=re.escape(f"`{name}` must be boolean, got {dtype}. Pass `{name}.bool()`.")):
        function(**options | {name: options[name].to(dtype)})
    function(**options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_bad_entry_is_named(bad, dtype):
    values = torch.zeros(3, 4, dtype=dtype)
    values[1, 2] = bad
    with pytest.raises(ValueError, match=r"`h` must be finite, got .*(nan|inf) at index \(1, 2\)"):
        finite_tensor("h", values)
