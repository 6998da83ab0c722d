"""Bring a folder of your own code to the pods of a run."""
