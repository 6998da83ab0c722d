"""Dataset version to checkpoints, by a distributed job."""
