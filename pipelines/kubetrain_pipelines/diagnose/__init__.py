"""Name the known causes of a failure, from its logs and its jobs."""
