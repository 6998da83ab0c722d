"""A requested run: its parameters read, planned, and told to the user."""
