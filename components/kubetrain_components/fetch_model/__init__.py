"""A published model as a folder on this machine, and loaded from there."""
