"""Publish a model in S3 if it is good enough."""
