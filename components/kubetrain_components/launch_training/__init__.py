"""The step that trains on a dataset version in a distributed job, and returns a checkpoint."""
