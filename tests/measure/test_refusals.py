"""What the measures refuse, as a user meets it: without the type checks of the tests."""

import re

import numpy as np
import pytest
import torch

from joma.measure.alignment import align, peak_activation
from joma.measure.entropy import attention_entropy, logits_entropy
from joma.measure.rank import power_step, qk_cores, spectral_norm, stable_rank, why_undefined
from joma.measure.superposition import Attended, superposed_neurons
from joma.measure.tensors import finite_tensor

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")
MATRIX, CALL, NAN = torch.eye(5), torch.zeros(2, 3, 4, 8), torch.full((5, 1), torch.nan)
CONTEXTS = Attended(ids=torch.arange(40)[:, None], weights=torch.ones(40, 1))
GENERATOR = {"generator": torch.Generator()}
FUNCTIONS = {
    attention_entropy: {
        "q": CALL,
        "k": torch.zeros(2, 3, 5, 8),
        "mask": torch.ones(4, 5).bool(),
        "bias": CALL[:1, :1, :, :5],
    },
    logits_entropy: {"logits": CALL},
    stable_rank: {"w": MATRIX},
    spectral_norm: {"w": MATRIX},
    why_undefined: {"w": MATRIX},
    power_step: {"w": MATRIX, "v": torch.ones(5)},
    qk_cores: {"w_q": MATRIX[:4], "w_k": MATRIX[:4]},
    peak_activation: {"hidden": CALL[0], "mask": torch.ones(3, 4, dtype=torch.bool)},
    align: {"latents": MATRIX, "activations": MATRIX, "groups": torch.arange(5)},
    Attended: {"ids": torch.tensor([[1, 2]]), "weights": torch.ones(1, 2)},
    superposed_neurons: {"activations": torch.rand(40, 2), "attended": CONTEXTS},
}
"""Tensors that each public function takes, by the names of its arguments."""
OTHERS = {qk_cores: {"num_heads": 2}, align: GENERATOR, superposed_neurons: GENERATOR}  # what else it needs
ARGUMENTS = [
    pytest.param(function, name, id=f"{function.__qualname__}-{name}")
    for function, tensors in FUNCTIONS.items()
    for name in tensors
    if name != "attended"  # not a tensor itself
]


@pytest.mark.parametrize("kind", [np.asarray, torch.Tensor.tolist])
@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
def test_what_is_not_a_tensor_is_refused_in_one_line(function, name, kind):
    options = FUNCTIONS[function] | OTHERS.get(function, {})
    given = kind(options[name])
    named = "w[0]" if function is power_step and name == "w" and isinstance(given, list) else name  # of a batch
    wanted = f"`{named}` must be a torch tensor, got {type(given).__name__}. Pass `torch.as_tensor({named})`."
    with pytest.raises(TypeError, match=re.escape(wanted)):
        function(**options | {name: given})


def test_what_is_not_a_tensor_is_named_within_lists_and_beside_tensors():
    with pytest.raises(TypeError, match=re.escape("`w[1]` must be a torch tensor, got ndarray")):
        power_step([MATRIX, MATRIX.numpy()])
    with pytest.raises(TypeError, match=r"`attended` must be an Attended, got Tensor\. Pass `Attended\("):
        superposed_neurons(MATRIX, MATRIX, generator=torch.Generator())


AXES = {
    logits_entropy: ("logits", "(B, H, rows, keys)"),
    peak_activation: ("hidden", "(N, L, J)"),
    qk_cores: ("w_k", "(rows, d)"),
    align: ("activations", "(N, J)"),
    Attended: ("weights", "(C, A)"),
    superposed_neurons: ("activations", "(C, J)"),
}


@pytest.mark.parametrize("function", AXES, ids=lambda function: function.__qualname__)
def test_tensors_of_other_axes_are_refused(function):
    name, axes = AXES[function]
    options = FUNCTIONS[function] | OTHERS.get(function, {}) | {name: torch.zeros(4)}
    with pytest.raises(ValueError, match=re.escape(f"`{name}` must have the axes {axes}, got shape (4,). Reshape it.")):
        function(**options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_bad_entry_is_named(bad, dtype):
    values = torch.zeros(3, 4, dtype=dtype)
    values[1, 2] = bad
    with pytest.raises(ValueError, match=r"`h` must be finite, got .*(nan|inf) at index \(1, 2\)"):
        finite_tensor("h", values)


KEYS, ONES, MASK = torch.zeros(2, 3, 5, 8), torch.ones(4, 5).tril(), r"Pass `mask\.bool\(\)`"
BAD = [
    (attention_entropy, {"k": KEYS[..., :7]}, ValueError, "need one B and D"),
    (attention_entropy, {"k": KEYS[:, :2]}, ValueError, "Heads of `k` must divide"),
    (attention_entropy, {"k": KEYS.to("meta")}, ValueError, "`k` must be where `q` is"),
    (attention_entropy, {"window": 0}, ValueError, "`window`"),
    *((attention_entropy, {"softcap": cap}, ValueError, "`softcap`") for cap in (0.0, -5.0, torch.inf)),
    (attention_entropy, {"path": "chunk"}, ValueError, "Did you mean 'chunked'"),
    (attention_entropy, {"path": "identity"}, ValueError, "needs `companions=False`"),
    (attention_entropy, {"mask": torch.ones(2, 5).bool()}, ValueError, re.escape("Pass `mask[:, None, None, :]`.")),
    *((attention_entropy, {name: ONES.to("meta")}, ValueError, f"`{name}` must be where") for name in ("mask", "bias")),
    *(
        (attention_entropy, {"mask": ONES.to(kind)}, TypeError, MASK)
        for kind in (torch.int64, torch.uint8, torch.complex64)
    ),
    *(
        (attention_entropy, {"bias": ONES.to(kind)}, TypeError, r"`bias\.float\(\)`")
        for kind in (torch.bool, torch.int64)
    ),
    (stable_rank, {"w": torch.ones(3)}, ValueError, r"got shape \(3,\)"),
    (stable_rank, {"w": torch.ones(2, 0)}, ValueError, r"got shape \(2, 0\)"),
    (spectral_norm, {"w": torch.ones(2, 2).int()}, TypeError, "Dequantise"),
    (power_step, {"v": torch.ones(2)}, ValueError, r"shape \(5,\), got \(2,\)"),
    (power_step, {"num_steps": 0}, ValueError, "`num_steps`"),
    (qk_cores, {"num_heads": 4, "num_kv_heads": 3}, ValueError, "must divide"),
    (qk_cores, {"w_k": torch.ones(2, 5)}, ValueError, "Split fused projections"),
    (qk_cores, {"w_k": torch.ones(4, 2)}, ValueError, r"\(4, 2\)"),
    *(
        (peak_activation, {"mask": torch.ones(3, 4).to(kind)}, TypeError, f"`mask` must be boolean, got {kind}")
        for kind in (torch.int64, torch.float32)
    ),
    (peak_activation, {"mask": torch.tensor([[True] * 4, [False] * 4, [True] * 4])}, ValueError, "none for sample 1"),
    (peak_activation, {"mask": torch.ones(3, 5).bool()}, ValueError, "samples and positions of `hidden`"),
    (align, {"activations": MATRIX[:4]}, ValueError, "`activations` must have a row for each of 5 samples"),
    (align, {"groups": torch.arange(4)}, ValueError, "a group for each of 5 samples"),
    (align, {"groups": torch.tensor([0, 0, 1, 2, 3])}, ValueError, "constant within a group, .* sample 1"),
    (align, {"latents": torch.ones(5, 1), "groups": torch.tensor([0, 0, 0, 1, 1])}, ValueError, "at least 3"),
    (align, {"latents": MATRIX[:2], "activations": MATRIX[:2], "groups": None}, ValueError, "at least 3"),
    (align, {"latents": torch.ones(5, 2)}, ValueError, "`latents` must vary"),
    (align, {"latents": NAN}, ValueError, "`latents` must be finite"),
    (align, {"activations": NAN}, ValueError, "`activations` must be finite"),
    (align, {"activations": torch.ones(5, 2)}, ValueError, "`activations` must have a neuron that varies"),
    (align, {"num_shuffles": 0}, ValueError, "`num_shuffles`"),
    (Attended, {"weights": torch.ones(1, 1)}, ValueError, "one shape"),
    (Attended, {"weights": torch.tensor([[1.0, -0.5]])}, ValueError, "not be negative"),
    (Attended, {"ids": torch.tensor([[-1, 2]])}, ValueError, "not be negative"),
    (Attended, {"weights": torch.tensor([[1.0, torch.nan]])}, ValueError, "`weights` must be finite"),
    (Attended, {"weights": torch.zeros(1, 2)}, ValueError, "context 0 has no weight"),
    (Attended, {"ids": torch.zeros(1, 0).long(), "weights": torch.zeros(1, 0)}, ValueError, "context 0 has no weight"),
    (superposed_neurons, {"activations": torch.rand(39, 2)}, ValueError, "one row for each context"),
    (superposed_neurons, {"activations": torch.ones(40, 2)}, ValueError, "a neuron that varies"),
    (superposed_neurons, {"activations": torch.full((40, 1), torch.nan)}, ValueError, "`activations` must be finite"),
    (superposed_neurons, {"related": 1.0}, ValueError, "`related`"),
    (superposed_neurons, {"num_null": 0}, ValueError, "`num_null`"),
    (
        superposed_neurons,
        {"activations": torch.rand(5, 2), "attended": Attended(ids=torch.arange(5)[:, None], weights=torch.ones(5, 1))},
        ValueError,
        "at least 32 contexts",
    ),
]


@pytest.mark.parametrize(
    ("function", "change", "error", "message"),
    BAD,
    ids=[f"{function.__qualname__}-{message}" for function, *_, message in BAD],
)
def test_what_cannot_be_measured_is_named(function, change, error, message):
    with pytest.raises(error, match=message):
        function(**FUNCTIONS[function] | OTHERS.get(function, {}) | change)
