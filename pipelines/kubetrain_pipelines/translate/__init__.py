"""From the manifest of a hand-written job to the file that describes a run. Pure functions."""
