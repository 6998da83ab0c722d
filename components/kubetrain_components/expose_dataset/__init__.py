"""The PVCs of a run: creating them, exposing dataset versions to training pods, and pruning old versions."""
