"""Stores of objects under a URI: S3 and directories."""
