"""Train on a dataset version in a distributed job."""
