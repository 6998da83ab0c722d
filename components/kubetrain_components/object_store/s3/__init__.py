"""S3 over its own HTTP connections."""
