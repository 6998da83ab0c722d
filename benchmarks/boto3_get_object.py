"""The program a Python user writes for speed: `get_object` for every object, in a thread pool.

python benchmarks/boto3_get_object.py BUCKET PREFIX DIRECTORY THREADS
"""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from botocore.config import Config

CHUNK_BYTES = 1 << 18


def download(bucket: str, prefix: str, directory: Path, threads: int) -> None:
    client = boto3.client("s3", config=Config(max_pool_connections=max(10, threads)))

    def download_one(key: str) -> None:
        path = directory / key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(client.get_object(Bucket=bucket, Key=key)["Body"], file, CHUNK_BYTES)

    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(download_one, keys))


if __name__ == "__main__":
    download(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
