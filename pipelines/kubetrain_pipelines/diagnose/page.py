"""Generates docs/troubleshooting.md from the table of rules.

python -m kubetrain_pipelines.diagnose.page >docs/troubleshooting.md
"""

from collections.abc import Iterator

from kubetrain_pipelines.diagnose.rule import Certainty, Rule
from kubetrain_pipelines.diagnose.table import AREAS, FIRST_ERROR, OWN_ERROR

HEAD = """\
# Troubleshooting

```sh
kubetrain diagnose                      # the run in ./kubetrain-workspace
kubetrain diagnose RUN                  # a run in Kubeflow Pipelines, by ID or name
kubetrain diagnose JOB                  # a job in the cluster of your kubeconfig, also one that kubetrain did not start
kubetrain diagnose worker-0.log …       # logs of any training; - reads the standard input
kubetrain diagnose JOB --bundle all.tar.gz
```

It prints the causes that it recognizes, the most likely one first, each with the line that shows it and a remedy.
`--bundle` writes what it has read into an archive, without what looks like a secret.

| it says | meaning |
| --- | --- |
| proven | The line states the cause. |
| likely | The line is typical of the cause, but may have another one. |
| unknown | No rule knows this error. It is the first of the process that failed first, as far as the logs show. |
| a consequence | Something else failed first. Its cause stands above, or in a log that you did not pass. |
| slow | Training works, but slower than it could. |
| overcome | The training has started again since. |

Pass the logs of all pods: the process that reports an error is often not the one that caused it.
"""
ADVICE = (
    (
        "Raise NCCL's timeout",
        "`train.nccl_timeout_seconds` sets it (`NCCL_TIMEOUT` has no effect). A process that exceeds it reports the "
        "line of code where it is, and logs all stacks.",
        "Raise it if a step, a validation batch or the start of a pod takes longer.",
    ),
    (
        "Set `NCCL_DEBUG=INFO`",
        "PyTorch: the log begins with the network in use, and has NCCL's warnings.",
        "`--set pods.nccl.NCCL_DEBUG=INFO` logs everything, on each rank; then diagnose the logs.",
    ),
    (
        "Set `NCCL_SOCKET_IFNAME`",
        "`pods.network=ethernet` sets it.",
        "Set it in `pods.nccl` if nodes have several networks.",
    ),
    (
        "Check the network between pods (`ping`)",
        "Processes that cannot reach each other end with a timeout, which `kubetrain diagnose` explains.",
        "`kubectl exec POD -- python -c 'import socket; socket.create_connection((\"OTHER\", PORT), 5)'` also works in "
        "images without `ping`, and where ICMP is blocked.",
    ),
    (
        "Enlarge `/dev/shm`",
        "Each pod has its own, of `pods.shm_size` (1Gi).",
        "Raise it for many loader processes or large batches, and `pods.memory` with it.",
    ),
    (
        "Check GPUs (`nvidia-smi`)",
        "The log begins with the GPUs of the pod and those in use.",
        "`kubectl exec POD -- nvidia-smi` shows the driver, memory and processes; `nvidia-smi topo -m` shows which NIC "
        "is near which GPU.",
    ),
    (
        "Check InfiniBand (`ibstat`)",
        "`pods.network=infiniband` makes NCCL fail instead of falling back to TCP.",
        "`kubectl exec POD -- ibstat` must show `State: Active`; see [InfiniBand](administrators/infiniband.md).",
    ),
    (
        "Find out why training is slow",
        "It warns if it waits for data or for a slow process, serves the times of steps as metrics, and names slow "
        "links and GPUs (`train.preflight`).",
        "See `waits-for-data`, `slow-rank`, `tcp-used`, `sockets-used`, `no-gpu-direct`, `slow-link` and `slow-device` "
        "below.",
    ),
    (
        "Restart what failed",
        "Pods restart up to `pods.max_restarts` times and resume from the last checkpoint.",
        "Start a failed run again with its run ID.",
    ),
)


OF_OWN = f"The remedy for another `error: ` of kubetrain's own (`{OWN_ERROR.name}`): {OWN_ERROR.remedy}"


def page() -> str:
    areas = (line for area, rules in AREAS.items() for line in _area(area, rules))
    return "\n".join([HEAD, *_advice(), *("## What it recognizes", ""), *areas, *_unknown()])


def _advice() -> Iterator[str]:
    yield from ("## What kubetrain does by itself", "")
    yield from ("| advice in guides | kubetrain | by hand |", "| --- | --- | --- |")
    yield from (f"| {' | '.join(row)} |" for row in ADVICE)
    yield ""


def _area(area: str, rules: tuple[Rule, ...]) -> Iterator[str]:
    yield from (f"### {area}", "")
    for rule in rules:
        if rule.certainty is not Certainty.FACT:
            yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    yield f"#### {rule.title}"
    yield ""
    yield " ".join(part for part in (f"`{rule.name}` ({rule.certainty.words}).", rule.explanation) if part)
    yield ""
    yield f"**Remedy:** {rule.remedy}"
    yield ""
    yield from ("```text", *(sample.line for sample in rule.samples), "```", "")


def _unknown() -> Iterator[str]:
    yield from ("## Anything else", "", f"{FIRST_ERROR.explanation} {FIRST_ERROR.remedy}", "")
    yield from (OF_OWN, "")


if __name__ == "__main__":
    print(page(), end="")
