"""The name of a pipeline's version in Kubeflow Pipelines, derived from its content.

Apart from compile.py, because `kubetrain submit` must not import kfp, which takes seconds.
"""

import hashlib

DIGEST_LENGTH = 12


def version_name(pipeline: str, content: bytes) -> str:
    return f"{pipeline}-{hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]}"
