"""Drawing only: curves and heat maps from values computed elsewhere."""
