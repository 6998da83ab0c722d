"""The present state of runs and jobs, with their pods, progress and troubles, and their use of resources."""
