"""The kernels of the models in Triton's interpreter; the compiled ones are held against torch on a GPU."""

import pytest
import torch

from joma.models.batch import Batch, Noise
from joma.models.decoder import Decoder
from joma.models.decoder_config import paper_language_model
from joma.randomness import run_keys

attention_triton = pytest.importorskip("joma.models.attention_triton", reason="Triton is not installed")
embedding_triton = pytest.importorskip("joma.models.embedding_triton", reason="Triton is not installed")


def test_interpreted_kernels_are_torchs_operations(answer_of):
    found = answer_of("interpreted_triton.py", "-W", "error")
    assert len(found) > 45
    for case, (distance, allowed) in found.items():
        assert distance < allowed, case


@pytest.mark.filterwarnings("default")  # the compiler warns of its own doings
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("length", [35, 100])  # in our kernel, and too long for it in single precision
def test_gpu_step_is_the_cpus(length, dropout):
    model = Decoder(paper_language_model(1003, depth=2, width=40, hidden=48, heads=2, dropout=dropout))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1003, (2, 3, length + 1), generator=generator)
    found = {}
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        parameters = {
            name: torch.stack([model.initial(seed)[name] for seed in (1, 2)]).to(device, dtype) for name in model.shapes
        }
        gradients = {name: torch.full_like(tensor, torch.nan) for name, tensor in parameters.items()}
        here = tokens.to(device)
        batch = Batch(tokens=here[:, :, :-1].contiguous(), targets=here[:, :, 1:].flatten(1))
        noise = Noise(keys=run_keys([1, 2], device), step=torch.tensor(5, device=device))
        losses = model.value_and_gradient(parameters, gradients, batch, noise)
        found[device] = {"loss": losses, **gradients}
    for name, right in found["cpu"].items():
        distance = (found["cuda"][name].cpu() - right).norm() / right.norm()
        assert distance < 1e-5, name  # float32 through two blocks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [700, 20_000])
def test_gpu_adds_rows_of_words_in_one_order(num_rows, dtype):
    """However they are sorted: few rows by comparing them all, many by torch."""
    generator = torch.Generator().manual_seed(num_rows)
    tokens = torch.randint(0, 900, (3, num_rows), generator=generator).cuda()
    rows = torch.randn(3, num_rows, 40, generator=generator).cuda()
    found = [torch.zeros(3, 1000, 40, dtype=dtype, device="cuda") for _ in range(2)]
    right = torch.zeros(3, 1000, 40, dtype=torch.float64, device="cuda")
    for each in found:
        embedding_triton.add_sorted(each, tokens, rows)
    right.scatter_add_(1, tokens[:, :, None].expand_as(rows), rows.double())
    assert torch.equal(*found)
    assert (found[0] - right).norm() / right.norm() < torch.finfo(dtype).eps


def test_the_chosen_shapes_of_attention_fit_into_shared_memory(answer_of):
    for capability, found in answer_of("compiled_attention.py").items():
        assert found
        for each in found:
            assert each["taken"] <= each["bound"] <= each["room"], (capability, each)
