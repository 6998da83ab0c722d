"""The pipelines, and the command line that compiles them, runs them here and submits them to a cluster."""
