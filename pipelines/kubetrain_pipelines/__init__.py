"""What runs: the pipelines, how they are compiled, run on this machine, and started from the command line."""
