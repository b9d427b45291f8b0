"""Where work runs: in this process, or on a Ray cluster."""
