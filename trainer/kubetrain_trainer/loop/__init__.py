"""A training from its first line to its export, whichever framework computes its steps."""
