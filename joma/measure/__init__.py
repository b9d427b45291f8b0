"""Entropy, rank, alignment, superposition, effects of curves: arrays in, numbers out, no state."""

from typing import TYPE_CHECKING

from joma.lazy import lazy_exports

if TYPE_CHECKING:
    from joma.measure.alignment import Alignment, align, peak_activation
    from joma.measure.effects import Effects, Estimate, Name, describe, name_of
    from joma.measure.entropy import AttentionStatistics, attention_entropy, logits_entropy
    from joma.measure.gram import gram_drift
    from joma.measure.rank import PowerEstimate, power_step, qk_cores, spectral_norm, stable_rank
    from joma.measure.superposition import Attended, SuperpositionResult, superposed_neurons

__all__ = [
    "Alignment", "Attended", "AttentionStatistics", "Effects", "Estimate", "Name", "PowerEstimate",
    "SuperpositionResult", "align", "attention_entropy", "describe", "gram_drift", "logits_entropy", "name_of",
    "peak_activation", "power_step", "qk_cores", "spectral_norm", "stable_rank", "superposed_neurons",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
