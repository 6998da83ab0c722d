"""How training pods get a dataset version, and how long it is kept: PVCs, exposure, pruning."""
