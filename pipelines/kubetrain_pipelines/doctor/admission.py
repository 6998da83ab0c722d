"""Why a cluster would refuse a pod, and what would have it taken. Pure functions."""

import re

from kubetrain_pipelines.doctor.finding import Finding, missing

ENFORCED = "pod-security.kubernetes.io/enforce"
REMEDIES = (
    (
        "violates PodSecurity",
        "kubectl label namespace {namespace} " + ENFORCED + "=privileged --overwrite\n"
        "or do without what it names: host_network, rdma, volumes",
    ),
    (r'serviceaccounts? "?([\w.-]+)"? not found', "kubectl -n {namespace} create serviceaccount {0}"),
    (
        r"no PriorityClass with name ([\w.-]+)",
        "kubectl create priorityclass {0} --value=1000\nor --set priority_class=ANOTHER",
    ),
    ("exceeded quota", "ask for less by cpu, memory, gpus, or have the quota raised, as the finding on the quota says"),
    ("failed quota: [^:]*: must specify (.*)", "the quota wants {0} on every pod: --set cpu_limit=… memory_limit=…"),
    (
        "(maximum|minimum) (cpu|memory|[\\w./-]+) usage per",
        "--set {1}=…, or have the limits changed: kubectl -n {namespace} edit limitrange",
    ),
)
"""By what the server says; the first that fits."""


def judge_refusal(refusal: str, namespace: str) -> Finding:
    said = refusal.partition("refuses POST")[2].partition(": ")[2] or refusal
    for pattern, remedy in REMEDIES:
        if match := re.search(pattern, said):
            return missing(said, remedy.format(*match.groups(), namespace=namespace))
    return missing(said, "correct what it names")
