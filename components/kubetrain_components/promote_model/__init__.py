"""Model to its place in S3, if it is good enough."""
