"""Checks of a cluster before the first run: examine.py and probes.py collect facts, the other files judge them."""
