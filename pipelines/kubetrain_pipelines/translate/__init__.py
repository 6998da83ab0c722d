"""From the manifest of a hand-written job to the parameters of a run. Pure functions."""
