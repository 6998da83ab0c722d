"""Objects under a URI, in S3 or in a directory."""
