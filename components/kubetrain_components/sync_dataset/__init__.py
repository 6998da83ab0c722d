"""S3 prefix to a dataset version."""
