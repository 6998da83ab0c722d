"""How one step of a pipeline works. A folder with a component.py is a step; the others are what steps share."""

IMAGE_NAME = "kubetrain/components"
"""What the steps run in; which version of it, a pipeline says."""
DATA_PATH, OUTPUT_PATH = "/data", "/output"
"""Where pods of a run see the dataset version and the output claim, the steps that read it among them."""
