"""A small GPT-NeoX, the architecture of Pythia, trained on a text. Figures 7 and 10 measure it.

An interrupted training goes on from its last saved state. On a CPU it gives the same weights as one that was not
interrupted.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from time import monotonic
from typing import Any, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from joma.data.text import Corpus, Windows, load_text
from joma.engine.precision import working_in
from joma.store.files import write_bytes
from joma.store.work import Workspace

BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.01, 1.0
"""Pythia's optimiser: Adam with decoupled decay, the gradient clipped at norm 1."""
EXPANSION = 4
"""Hidden neurons of the MLP for each component of the stream, as in Pythia."""
LEAST_RATE = 0.1
"""Part of the learning rate that is left at the end of the cosine."""
NUM_VALIDATION = 8
"""Windows of the validation text, each as many sequences as a batch, for the loss."""
STATE_SECONDS = 20.0
"""Least time between two savings of the state: it is three times as large as a checkpoint."""
OPERATIONS_A_SECOND = {"cpu": 2e10, "cuda": 1e13}
"""About, for models this small; measured rates replace them."""
HUB_SECONDS = 3.0
"""How long the hub may take to answer."""
T = TypeVar("T")
PYTHIA = "EleutherAI/pythia-70m"
ADDRESS = re.compile(r"""['"]?\w+://[^\s'"]*[^\s'".,:;)]['"]?""")


@dataclass(frozen=True, kw_only=True, slots=True)
class NeoxConfig:
    """A model, its text and its training."""

    texts: tuple[str, ...]
    """Texts in the order of preference: the first that is there is used."""
    vocabulary: int
    """Most words that are kept."""
    width: int
    depth: int
    heads: int
    window: int
    """Tokens of a sequence."""
    batch: int
    """Sequences of a step."""
    num_steps: int
    every: int
    """Steps between two checkpoints; the start is one too."""
    lr: float
    warmup: int
    """Steps until the learning rate is reached; then a cosine down to a tenth."""
    precision: str = "fp32"
    """Of the products of a training step: `tf32` rounds their factors on a GPU, and nowhere else."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that make no series."""
        if self.num_steps % self.every or self.width % self.heads:
            raise ValueError(
                f"`num_steps` must be a multiple of `every` and `width` one of `heads`, got {self.num_steps} and "
                f"{self.every}, {self.width} and {self.heads}. Change one of each."
            )

    @property
    def checkpoints(self) -> range:
        """Steps of the checkpoints."""
        return range(0, self.num_steps + 1, self.every)

    def seconds(self, device: str) -> float:
        """Return about how long the training takes."""
        parameters = 3 * EXPANSION * self.depth * self.width**2 + 2 * self.vocabulary * self.width
        tokens = self.num_steps * self.batch * self.window
        return 5.0 + 6.0 * parameters * tokens / OPERATIONS_A_SECOND[device.partition(":")[0]]


QUICK = NeoxConfig(
    texts=("python-docs",), vocabulary=1000, width=64, depth=4, heads=4, window=32, batch=16, num_steps=480, every=20,
    lr=2e-3, warmup=20,
)  # fmt: skip
FULL = NeoxConfig(
    texts=("wikitext2", "python-docs"), vocabulary=10_000, width=256, depth=6, heads=8, window=128, batch=32,
    num_steps=6000, every=150, lr=1e-3, warmup=150, precision="tf32",
)  # fmt: skip


def first_text(config: NeoxConfig) -> Corpus:
    """Load the first text that is there; raises what the last one raised where none is."""
    return first_found(lambda name: load_text(name, vocabulary_cap=config.vocabulary), config.texts)


def first_found(load: Callable[[str], T], names: Sequence[str]) -> T:
    """Return the first of several texts that is on this machine or on the hub."""
    for name in names[:-1]:
        with suppress(OSError):
            return load(name)
    return load(names[-1])


def new_model(config: NeoxConfig, corpus: Corpus) -> Any:
    """Return the model before its first step."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes: dict[str, Any] = {"vocab_size": len(corpus.vocabulary), "max_position_embeddings": config.window}
    sizes |= {"hidden_size": config.width, "intermediate_size": EXPANSION * config.width}
    sizes |= {"num_hidden_layers": config.depth, "num_attention_heads": config.heads}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, bos_token_id=0, eos_token_id=0))


def train(config: NeoxConfig, corpus: Corpus, space: Workspace) -> Iterator[tuple[int, Any]]:
    """Yield step and model at the start, or where an earlier call stopped, and at every checkpoint after that."""
    device, path = torch.device(space.device), space.folder / "state.pt"
    model = new_model(config, corpus).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=BETAS, weight_decay=WEIGHT_DECAY)
    windows = Windows(corpus.train.to(device), config.batch, config.window)
    step, saved_at = 0, monotonic()
    if path.exists():
        saved = torch.load(path, map_location=device, weights_only=True)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
    yield step, model
    while step < config.num_steps:
        model.train()
        for group in optimiser.param_groups:
            group["lr"] = rate(config, step)
        optimiser.zero_grad()
        with working_in(config.precision, device):
            loss(model, *windows.window(step % windows.num_windows)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        step += 1
        if step % config.every == 0:
            yield step, model
            space.progress(step / config.num_steps, f"training a small GPT-NeoX, step {step}")
            if step == config.num_steps or monotonic() - saved_at >= STATE_SECONDS:
                state = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
                content = io.BytesIO()
                torch.save(state, content)
                write_bytes(path, content.getbuffer())
                saved_at = monotonic()


def rate(config: NeoxConfig, step: int) -> float:
    """Return the learning rate of a step: it rises linearly, then falls as a cosine to `LEAST_RATE`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(config.num_steps - config.warmup, 1)
    return config.lr * (LEAST_RATE + (1 - LEAST_RATE) * (1 + math.cos(math.pi * done)) / 2)


def loss(model: Any, tokens: Int64[Tensor, "B L"], targets: Int64[Tensor, "B L"]) -> Tensor:
    """Return the mean loss of the tokens."""
    logits = model(input_ids=tokens, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def validation_loss(model: Any, config: NeoxConfig, corpus: Corpus) -> float:
    """Return the loss on the first windows of the validation text."""
    model.eval()
    windows = Windows(corpus.valid.to(model.device), config.batch, config.window)
    count = min(NUM_VALIDATION, windows.num_windows)
    return sum(float(loss(model, *windows.window(i))) for i in range(count)) / count


def transformers_missing() -> str:
    """Return what to install where transformers or the hub's client is missing; empty where both are there."""
    absent = [name for name in ("transformers", "huggingface_hub") if find_spec(name) is None]
    return f"It needs {' and '.join(absent)}. Install joma[hf]." if absent else ""


@cache
def hub_missing() -> str:
    """Return in one line why the Hugging Face hub cannot be used here; empty where it can. Asked once a process."""
    if absent := transformers_missing():
        return absent
    from huggingface_hub import HfApi

    from joma.probe.hub import HubError, hub_errors

    try:
        with hub_errors(PYTHIA):
            HfApi().model_info(PYTHIA, timeout=HUB_SECONDS)
    except HubError as error:
        return ADDRESS.sub("its address", f"It needs the Hugging Face hub. {error}")
    return ""
