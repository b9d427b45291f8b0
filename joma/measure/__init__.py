"""Entropy, rank, alignment, superposition, effects of curves: arrays in, numbers out, no state."""
