"""The steps of the pipelines: a folder with a component.py is a step, the other folders are shared by steps."""

REGISTRY = "registry.invalid/kubetrain"
"""Stands for a team's own registry. Nobody can own a name below .invalid, and kubetrain publishes no images."""

IMAGE_NAME = f"{REGISTRY}/components"
"""Image of the steps; pipelines add its version."""
DATA_PATH, OUTPUT_PATH = "/data", "/output"
"""Mount paths of the dataset version and the output PVC, in jobs and in the steps that read the output."""
LATEST_PATH = "/latest-model"
"""Mount path of the latest published model, in an evaluation that compares with it."""
WORKSPACE = "kubetrain-workspace"
"""The folder of local runs, unless another one is chosen."""
