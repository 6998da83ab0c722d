"""The remedy for a pod that a cluster refuses to create. Pure functions."""

import re

from kubetrain_pipelines.doctor.finding import Finding, missing

ENFORCED = "pod-security.kubernetes.io/enforce"
REMEDIES = (
    (
        "violates PodSecurity",
        "turn off the settings that it names, such as host_network, rdma and volumes, or, if a run needs them:\n"
        "kubectl label namespace {namespace} " + ENFORCED + "=privileged --overwrite",
    ),
    (r'serviceaccounts? "?([\w.-]+)"? not found', "kubectl -n {namespace} create serviceaccount {0}"),
    (
        r"no PriorityClass with name ([\w.-]+)",
        "kubectl create priorityclass {0} --value=1000\nor --set priority_class=ANOTHER",
    ),
    ("exceeded quota", "request less with cpu, memory, gpus, or raise the quota: see the quota check"),
    (
        "failed quota: [^:]*: must specify (.*ephemeral.*)",
        "the quota requires {0} on every pod: give the namespace a LimitRange with defaults for it",
    ),
    ("failed quota: [^:]*: must specify (.*)", "the quota requires {0} on every pod: --set cpu_limit=… memory_limit=…"),
    (
        "(maximum|minimum) (cpu|memory|[\\w./-]+) usage per",
        "--set {1}=…, or change the limits: kubectl -n {namespace} edit limitrange",
    ),
)
"""Patterns of the server's messages with their remedies; the first match wins."""


def judge_refusal(refusal: str, namespace: str) -> Finding:
    message = refusal.partition(": ")[2] or refusal  # without the request
    for pattern, remedy in REMEDIES:
        if match := re.search(pattern, message):
            return missing(message, remedy.format(*match.groups(), namespace=namespace))
    return missing(message, "correct what the message names")
