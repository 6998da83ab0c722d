"""Sync an S3 prefix to a dataset version on a volume."""
