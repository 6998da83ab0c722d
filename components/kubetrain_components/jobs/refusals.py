"""Why a cluster refuses to create a pod: one table, read by those who follow jobs and by `kubetrain doctor`."""

import re
from dataclasses import dataclass

from kubetrain_components.jobs.job_kinds import INIT_CONTAINER
from kubetrain_components.jobs.troubles import TroubleKind

ENFORCED = "pod-security.kubernetes.io/enforce"


@dataclass(frozen=True)
class Refusal:
    pattern: str
    """Words of the server's message."""
    kind: TroubleKind
    fix: str = ""
    """The remedy before a run, with the groups of the pattern and {namespace}; empty: the remedy of its kind."""


REFUSALS = (
    Refusal(
        "exceeded quota",
        TroubleKind.QUOTA,
        "request less with pods.cpu, pods.memory, pods.gpus, or raise the quota: see the quota check",
    ),
    Refusal(f'violates PodSecurity.*"{INIT_CONTAINER}"', TroubleKind.INIT_CONTAINER),
    Refusal(
        "violates PodSecurity",
        TroubleKind.POD_SECURITY,
        "turn off the settings that it names, such as pods.host_network, pods.rdma and volumes, or, if a run needs "
        "them:\nkubectl label namespace {namespace} " + ENFORCED + "=privileged --overwrite",
    ),
    Refusal(  # a new namespace may lack its account for a moment
        r'serviceaccounts? "?([\w.-]+)"? not found',
        TroubleKind.CONFIGURATION,
        "kubectl -n {namespace} create serviceaccount {0}",
    ),
    Refusal(
        r"no PriorityClass with name ([\w.-]+)",
        TroubleKind.CONFIGURATION,
        "kubectl create priorityclass {0} --value=1000\nor set priorityClassName of pods.pod to another one",
    ),
    Refusal(
        "failed quota: [^:]*: must specify (.*ephemeral.*)",
        TroubleKind.REFUSED,
        "the quota requires {0} on every pod: give the namespace a LimitRange with defaults for it",
    ),
    Refusal(
        "failed quota: [^:]*: must specify (.*)",
        TroubleKind.REFUSED,
        "the quota requires {0} on every pod: set limits of main in pods.pod",
    ),
    Refusal(
        "(maximum|minimum) (cpu|memory|[\\w./-]+) usage per",
        TroubleKind.REFUSED,
        "--set pods.{1}=…, or change the limits: kubectl -n {namespace} edit limitrange",
    ),
    Refusal("is forbidden|denied the request|is invalid", TroubleKind.REFUSED),
)
"""The first that matches counts."""


def kind_of_refusal(message: str) -> TroubleKind | None:
    """Return the kind of trouble; None if there is none, because the pod exists and is about to be deleted."""
    found = (refusal.kind for refusal in REFUSALS if re.search(refusal.pattern, message, re.DOTALL))
    return next(found, None if "already exists" in message else TroubleKind.NOT_CREATED)


def fix_of_refusal(message: str, namespace: str) -> str:
    for refusal in REFUSALS:
        if match := re.search(refusal.pattern, message):
            return refusal.fix.format(*match.groups(), namespace=namespace) or refusal.kind.value.remedy
    return TroubleKind.REFUSED.value.remedy
