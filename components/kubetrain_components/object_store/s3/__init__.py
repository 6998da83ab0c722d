"""S3, through HTTP connections of our own."""
