"""Pack an image folder into tar shards."""
