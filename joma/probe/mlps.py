"""The MLPs of a model as hooks see them: modules into the hidden neurons, and those that may lead back."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from joma.probe.blocks import MATRIX_AXES, module_path, parent
from joma.probe.lower_matrices import OUTSIDE
from joma.probe.specimen import Specimen, plain_site
from joma.probe.weights import Unseen, WeightRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Mlp:
    """Lower matrices with the same neurons, and where the matrix behind these is looked for."""

    layer: int
    lower: tuple[str, ...]
    """Modules; of a gated MLP both, where they are apart."""
    width: int
    """Hidden neurons."""
    within: str
    """Module: the layer, or what holds the lower matrix where that lies outside."""


def find_mlps(specimen: Specimen) -> tuple[list[Mlp], list[Unseen]]:
    """Gather the lower matrices of each MLP, and say which have no neurons that could be read."""
    layout, modules = specimen.layout, dict(specimen.root.named_modules())
    groups: dict[tuple[int, str, int], dict[str, None]] = defaultdict(dict)
    unseen: dict[Unseen, None] = {}
    for ref in layout.lower:
        name = module_path(ref.name)
        reason = _why_not(ref, modules.get(name))
        if reason:
            unseen[Unseen(site=plain_site(parent(name) if ref.expert is not None else name), reason=reason)] = None
        else:
            groups[ref.layer, parent(name), ref.shape[0]][name] = None
    told = {each.site: each for each in reversed(layout.unseen)}  # what is said of MLPs comes first and stays
    for layer in layout.layers:
        if not layer.lower:
            unseen[told.get(layer.path) or told[""]] = None
    paths = {layer.index: layer.path for layer in layout.layers}
    mlps = [
        Mlp(layer=layer, lower=tuple(names), width=width, within=_container(paths.get(layer, holder), holder))
        for (layer, holder, width), names in groups.items()
    ]
    return mlps, list(unseen)


def ways_back(mlp: Mlp, specimen: Specimen) -> Iterator[str]:
    """Yield the modules with a matrix that may take the neurons: the first to run after the lower ones does."""
    lower = {module_path(ref.name) for ref in specimen.layout.lower}
    # A block that owns its queries itself counts as attention, and holds the MLP too.
    attention = [path for path in specimen.layout.attention if not any(_is_inside(name, path) for name in mlp.lower)]
    for name, module in specimen.root.named_modules():
        if not _is_inside(name, mlp.within) or isinstance(module, torch.jit.ScriptModule):
            continue
        fits = any(_takes(parameter, mlp.width) for parameter in module.parameters(recurse=False))
        if fits and not any(_is_inside(name, other) for other in (*lower, *attention)):
            yield name


def _why_not(ref: WeightRef, module: nn.Module | None) -> str:
    if ref.expert is not None:
        return "Its neurons belong to experts, of which every token has its own."
    if ref.layer == OUTSIDE:
        return "It belongs to no layer, so that nobody knows which attention it sees."
    if module is None or isinstance(module, torch.jit.ScriptModule):
        return "Its lower matrix is no module that takes hooks, so that nobody sees what is made of its output."
    return ""


def _container(layer: str, holder: str) -> str:
    return layer if _is_inside(holder, layer) else holder


def _is_inside(path: str, holder: str) -> bool:
    return not holder or f"{path}.".startswith(f"{holder}.")


def _takes(parameter: Tensor, width: int) -> bool:
    return parameter.ndim == MATRIX_AXES and width in parameter.shape
