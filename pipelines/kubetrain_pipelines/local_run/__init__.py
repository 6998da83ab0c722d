"""A whole pipeline on this machine."""
