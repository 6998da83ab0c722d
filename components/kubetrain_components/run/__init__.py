"""What every step of a run shares: its parameters, where it runs, what it reports."""
