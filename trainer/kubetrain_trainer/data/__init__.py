"""The samples of a dataset: listed, put in order and drawn for each process."""
