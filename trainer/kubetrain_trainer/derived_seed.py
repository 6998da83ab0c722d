"""Seeds for single steps and samples."""

import hashlib


def derived_seed(*parts: int) -> int:
    """Return a seed for one step or one sample. Because each has its own seed, a resumed run draws the same random
    numbers as an uninterrupted one, without saving the state of generators."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
