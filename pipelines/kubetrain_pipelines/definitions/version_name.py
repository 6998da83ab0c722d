"""The name of a pipeline's version, from its content, apart from compile.py: kfp takes seconds to import."""

import hashlib

DIGEST_LENGTH = 12


def version_name(pipeline: str, content: bytes) -> str:
    return f"{pipeline}-{hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]}"
