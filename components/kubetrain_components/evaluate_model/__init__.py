"""Evaluate a model on the test split, and write metrics and a report."""
