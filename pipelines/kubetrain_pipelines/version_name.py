"""What a version of a pipeline is called, whoever brings it to Kubeflow Pipelines: by its content."""

import hashlib

DIGEST_LENGTH = 12


def version_name(pipeline: str, content: bytes) -> str:
    return f"{pipeline}-{hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]}"
