"""Figure 10 as printed: neurons of Pythia-70M and Pythia-160M that fire for both texts of a pair.

The texts are the paper's eight. Which tokens it prints in bold, and at which position it reads a neuron, its text does
not say: here every position but the first counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from joma.experiments.hub_access import without_address
from joma.experiments.timetable import Tell
from joma.measure.superposition import Attended, Firing, Profiles
from joma.probe.hub import hub_errors
from joma.probe.neurons import read_neurons
from joma.probe.text import quiet_transformers

RELATED = 0.2
"""Overlap of what two contexts attend to from which they are related."""
UNTRAINED_REVISION = "step0"
"""Pythia as it was before its first step."""
MOST_TOKENS = 3
"""Attended tokens that are shown of a context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPair:
    """Two texts that fire one neuron, as the paper prints them."""

    name: str
    first: str
    second: str


PAIRS = {
    "EleutherAI/pythia-160m": (
        TextPair(
            name="morning and physics",
            first=(
                "Every morning, as the city slowly awakens with the distant hum of traffic and the chirping of "
                "sparrows, John takes a moment to savor the peaceful ambiance before he walks his dog, Max, around the "
                "block, greeting familiar faces and enjoying the fresh air."
            ),
            second=(
                "In the realm of physics, when water is subjected to a temperature of 100°C at one atmosphere of "
                "pressure, it undergoes a phase transition from liquid to gas, producing steam that has long been "
                "harnessed for various technological and culinary applications."
            ),
        ),
        TextPair(
            name="Sahara and novels",
            first=(
                "The Sahara Desert, stretching across North Africa, is the third largest desert in the world and is "
                "renowned for its vast sand dunes and scorching temperatures. Despite its harsh conditions, it's home "
                "to various unique species that have adapted to its extreme environment."
            ),
            second=(
                "Novels, beyond their entertainment value, serve as mirrors to society, often reflecting cultural, "
                "social, and political nuances of their time. Authors like George Orwell and Jane Austen used their "
                "works to critique and provide insights into the world they lived in."
            ),
        ),
    ),
    "EleutherAI/pythia-70m": (
        TextPair(
            name="cats and rainforests",
            first=(
                "Cats are known for their independent nature. Many people appreciate them for their low-maintenance "
                "lifestyle, often content with just a comfortable spot to nap and an occasional playtime."
            ),
            second=(
                "Rainforests are vital for the Earth's ecosystem. They provide a habitat for countless species, many "
                "of which are not found anywhere else. Additionally, they play a crucial role in regulating global "
                "climate and producing oxygen."
            ),
        ),
        TextPair(
            name="Eiffel Tower and digestion",
            first=(
                "The Eiffel Tower, an iconic landmark in Paris, was originally constructed as a temporary exhibit for "
                "the 1889 World's Fair. Over the years, it has become a symbol of the city's romance and architectural "
                "prowess, attracting millions of tourists annually."
            ),
            second=(
                "The human digestive system is a complex network of organs working together to break down food into "
                "essential nutrients. Beginning with the mouth and ending at the small intestine, each part plays a "
                "crucial role in ensuring our bodies receive the energy and vitamins needed for daily function."
            ),
        ),
    ),
}
"""The pairs of figure 10 by model."""
TEXTS = tuple(text for pairs in PAIRS.values() for pair in pairs for text in (pair.first, pair.second))
COLUMNS = ["model", "revision", "pair", "num_shared", "num_neurons", "layer", "neuron", "first", "second"]


def read_public(models: Sequence[str], device: str, tell: Tell) -> tuple[pd.DataFrame, dict[str, str]]:
    """Count for each pair the neurons that fire for both texts, in the models as trained and as they began."""
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for number, name in enumerate(models):
        for revision in ("main", UNTRAINED_REVISION):
            tell(number / len(models), f"reading {name} {revision}")
            try:
                rows += _rows_of(name, revision, device)
            except (OSError, ValueError) as error:  # no such revision, or the hub is gone
                failures[name] = without_address(" ".join(str(error).split()))
    return pd.DataFrame(rows, columns=COLUMNS), failures


def _rows_of(name: str, revision: str, device: str) -> list[dict[str, Any]]:
    from transformers import AutoTokenizer, GPTNeoXForCausalLM  # noqa: PLC0415 (an extra)

    with quiet_transformers(), hub_errors(name):  # a download that breaks off raises what its HTTP library has
        model: Any = GPTNeoXForCausalLM.from_pretrained(name, revision=revision, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    layers = list(positions_of(model.to(device).eval(), tokenizer, TEXTS))
    return [{"model": name, "revision": revision} | _shared(pair, layers, tokenizer) for pair in PAIRS[name]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Positions:
    """All positions of all texts but their first, for one layer."""

    layer: int
    text: np.ndarray
    """Number of the text that a position is in."""
    activations: np.ndarray
    """Positions by neurons."""
    attended: Attended


def positions_of(model: Any, tokenizer: Any, texts: Sequence[str]) -> Iterator[Positions]:
    """Read every position of the texts, as the last one of a context that ends there; yields a layer at a time."""
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    longest = max(map(len, ids))
    tokens = torch.cat([_padded(each.expand(len(each) - 1, -1), longest) for each in ids])
    visible = torch.cat([_padded(torch.ones(len(each), len(each)).tril()[1:], longest) for each in ids])
    found = read_neurons(model, {"input_ids": tokens, "attention_mask": visible.long(), "use_cache": False})
    number = np.repeat(np.arange(len(ids)), [len(each) - 1 for each in ids])
    for each in found.layers:
        yield Positions(
            layer=each.layer, text=number, activations=each.activations.double().numpy(), attended=each.attended
        )


def _padded(rows: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]))


def _shared(pair: TextPair, layers: Sequence[Positions], tokenizer: Any) -> dict[str, Any]:
    """Count the neurons that fire in both texts where these attend to unrelated tokens, and show the strongest."""
    wanted = TEXTS.index(pair.first), TEXTS.index(pair.second)
    found = [shared for layer in layers for shared in shared_neurons(layer, *wanted)]
    row = {"pair": pair.name, "num_shared": len(found), "num_neurons": sum(x.activations.shape[1] for x in layers)}
    if not found:
        return row | {"layer": -1, "neuron": -1, "first": "", "second": ""}
    best = max(found, key=lambda each: each.strength)
    (positions,) = (layer for layer in layers if layer.layer == best.layer)
    first, second = (_in_words(positions.attended, context, tokenizer) for context in (best.first, best.second))
    return row | {"layer": best.layer, "neuron": best.neuron, "first": first, "second": second}


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedNeuron:
    """A neuron that fires in two texts, and where it does so most."""

    layer: int
    neuron: int
    first: int
    second: int
    strength: float
    """The smaller of the two activations."""


def shared_neurons(layer: Positions, first: int, second: int) -> Iterator[SharedNeuron]:
    """Yield the neurons whose strongest firing positions in two texts attend to unrelated tokens."""
    profiles = Profiles.of(layer.attended)
    for neuron, activation in enumerate(layer.activations.T):
        context = Firing.of(activation).context  # strongest first
        one, other = (context[layer.text[context] == text][:1] for text in (first, second))
        if not len(one) or not len(other):
            continue
        pair = np.concatenate([one, other])
        if profiles.overlaps(pair)[0, 1] < RELATED:
            strength = float(activation[pair].min())
            yield SharedNeuron(
                layer=layer.layer, neuron=neuron, first=int(one[0]), second=int(other[0]), strength=strength
            )


def _in_words(attended: Attended, context: int, tokenizer: Any) -> str:
    strongest = attended.strongest(context, MOST_TOKENS)
    return ", ".join(f"{tokenizer.decode([token]).strip()} {share:.2f}" for token, share in strongest)
