"""Faults that a test asks for by arguments or variables: SLEEP=seconds after the first exchange, FAIL=1 on rank 1."""

import os
import sys
import time

EXIT_CODE = 3


def wait_or_fail(rank: int) -> None:
    asked = os.environ | dict(argument.split("=", 1) for argument in sys.argv[1:])
    time.sleep(float(asked.get("SLEEP", 0)))
    if asked.get("FAIL") == "1" and rank == 1:
        print(f"rank {rank} fails on purpose", flush=True)
        os._exit(EXIT_CODE)  # at once, as a crash: exit handlers of the frameworks wait for the other ranks
