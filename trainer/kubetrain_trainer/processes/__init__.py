"""A training process: its role among the others, its machine, its start and its watchdog."""
