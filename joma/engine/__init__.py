"""Many runs at once: grids, packs, steps, snapshots and resuming."""
