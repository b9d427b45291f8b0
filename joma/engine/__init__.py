"""Many runs at once: configs and grids, packs that fit memory, the step of all runs, snapshots, resume (`train`)."""
