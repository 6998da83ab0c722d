"""What a cluster lacks for a run: examine.py asks it and probes.py tries it; the other files judge what was found."""
