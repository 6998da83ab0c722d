"""The program a Python user writes first: `download_file` for every object, in a thread pool.

python benchmarks/boto3_download_file.py BUCKET PREFIX DIRECTORY THREADS
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

# The default on most machines; on some, boto3 picks its CRT client, which ignores the endpoint.
TRANSFER = TransferConfig(preferred_transfer_client="classic")


def download(bucket: str, prefix: str, directory: Path, threads: int) -> None:
    client = boto3.client("s3", config=Config(max_pool_connections=max(10, threads)))

    def download_one(key: str) -> None:
        path = directory / key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, key, str(path), Config=TRANSFER)

    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(download_one, keys))


if __name__ == "__main__":
    download(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
