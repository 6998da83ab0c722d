"""The same with obstore, a Rust library: `get_async` for every object, with a given number in flight.

python benchmarks/obstore_download.py BUCKET PREFIX DIRECTORY IN_FLIGHT
"""

import asyncio
import os
import sys
from pathlib import Path

from obstore.store import S3Store

CHUNK_BYTES = 1 << 20


async def download(bucket: str, prefix: str, directory: Path, in_flight: int) -> None:
    store = S3Store(bucket, prefix=prefix, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True})
    slots = asyncio.Semaphore(in_flight)

    async def download_one(key: str) -> None:
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        async with slots:
            result = await store.get_async(key)
            with path.open("wb") as file:
                async for chunk in result.stream(CHUNK_BYTES):
                    file.write(chunk)

    async with asyncio.TaskGroup() as tasks:
        async for page in store.list():
            for item in page:
                tasks.create_task(download_one(item["path"]))


if __name__ == "__main__":
    asyncio.run(download(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
    # About one run in twenty aborts when the interpreter ends under obstore's threads, with every file written.
    os._exit(0)
