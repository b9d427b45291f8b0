"""Entropy, rank, alignment, superposition, regime: tensors in, numbers out, no state."""
