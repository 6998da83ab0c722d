"""Models that exist before the training starts: what they start from, are compared with and load as."""
