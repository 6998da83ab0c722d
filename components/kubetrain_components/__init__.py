"""The steps of the pipelines: a folder with a component.py is a step, the other folders are shared by steps."""

IMAGE_NAME = "kubetrain/components"
"""Image of the steps; pipelines add its version."""
DATA_PATH, OUTPUT_PATH = "/data", "/output"
"""Mount paths of the dataset version and the output PVC, in jobs and in the steps that read the output."""
LATEST_PATH = "/latest-model"
"""Mount path of the latest published model, in an evaluation that compares with it."""
