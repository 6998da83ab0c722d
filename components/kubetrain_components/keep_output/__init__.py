"""Keep the output of runs in a store, for the pods beside it."""
