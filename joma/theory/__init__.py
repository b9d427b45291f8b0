"""The mathematics of the paper, corrected: pure float64 functions in the order in which the paper needs them."""
