"""Hidden neurons of a GPT-NeoX and what the query attends to, layer by layer, for figure 10."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from joma.measure.attended import Attended
from joma.probe.calls import AttentionCall
from joma.probe.taps import tap


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerReading:
    """Neurons of one layer's MLP, with the attention that they see."""

    layer: int
    hidden: Float[Tensor, "B L J"]
    """Activations, after the nonlinearity."""
    attention: Float[Tensor, "B L L"]
    """Mean over the heads of the last attention below the MLP.

    Pythia's attention and MLP run side by side: an MLP sees the attention of the layer below it, not of its own, and
    that of the first layer sees none. Without such parallel residuals it is the attention of the same layer.
    """


@torch.no_grad()
def read_layers(model: Any, tokens: Int64[Tensor, "B L"]) -> list[LayerReading]:
    """Run a GPT-NeoX on sequences without padding, and return what its layers show, but those that see no attention."""
    hidden: dict[int, Tensor] = {}
    attention: dict[int, Tensor] = {}
    hooks = [
        layer.mlp.dense_4h_to_h.register_forward_pre_hook(_keeper(hidden, number))
        for number, layer in enumerate(model.gpt_neox.layers)
    ]
    try:
        with tap(model, lambda call: attention.__setitem__(call.layer, _mean_weights(call))):
            model(input_ids=tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    below = 1 if model.config.use_parallel_residual else 0
    return [
        LayerReading(layer=layer, hidden=hidden[layer], attention=attention[layer - below])
        for layer in range(below, len(hidden))
    ]


def read_last(model: Any, tokens: Int64[Tensor, "C L"], *, batch: int) -> dict[int, tuple[Tensor, Attended]]:
    """Return the neurons at the last position of each context, and what it attends to, for each layer."""
    activations: dict[int, list[Tensor]] = {}
    weights: dict[int, list[Tensor]] = {}
    for part in tokens.split(batch):
        for reading in read_layers(model, part):
            activations.setdefault(reading.layer, []).append(reading.hidden[:, -1].cpu())
            weights.setdefault(reading.layer, []).append(reading.attention[:, -1].cpu())
    ids = tokens.cpu()
    return {
        layer: (torch.cat(activations[layer]), Attended(ids=ids, weights=torch.cat(weights[layer])))
        for layer in activations
    }


def _keeper(kept: dict[int, Tensor], number: int) -> Any:
    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept[number] = inputs[0]

    return keep


def _mean_weights(call: AttentionCall) -> Float[Tensor, "B L L"]:
    """Attention weights of a causal call, averaged over the heads."""
    if call.logits is not None:
        return call.logits.softmax(dim=-1).mean(dim=1)
    assert call.q is not None and call.k is not None
    scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    logits = scale * call.q @ call.k.mT
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(hidden, -torch.inf).softmax(dim=-1).mean(dim=1)
