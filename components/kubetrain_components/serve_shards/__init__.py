"""Fetch tar shards from the store into the cache of a pod, for the training beside it."""
