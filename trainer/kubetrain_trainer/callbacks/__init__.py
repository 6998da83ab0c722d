"""Callbacks by which the loops of libraries save, resume, report and stop as kubetrain's trainers do."""
