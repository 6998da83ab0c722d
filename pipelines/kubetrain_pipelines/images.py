"""Every image reference, in one place."""

from kubetrain_components import IMAGE_NAME

COMPONENTS = f"{IMAGE_NAME}:0.1.0"
TRAINERS = {
    "pytorch": "kubetrain/trainer-pytorch:0.1.0",
    "tensorflow": "kubetrain/trainer-tensorflow:0.1.0",
}
