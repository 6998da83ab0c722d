"""The step that makes a dataset version of an S3 prefix."""
