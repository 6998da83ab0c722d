"""The table of all rules. If several match one line, the first counts, so rules of fewer lines come first."""

from kubetrain_pipelines.diagnose import (
    memory_rules,
    nccl_rules,
    network_rules,
    program_rules,
    scheduling_rules,
    storage_rules,
    training_rules,
    transport_rules,
)

AREAS = {
    "Network, NCCL and rendezvous": (*network_rules.RULES, *nccl_rules.RULES, *transport_rules.RULES),
    "Memory": memory_rules.RULES,
    "Disks, volumes and credentials": storage_rules.RULES,
    "Pods, nodes and queues": scheduling_rules.RULES,
    "Numbers, data and GPUs": training_rules.RULES,
    "Programs and libraries": program_rules.RULES,
}
START, FIRST_ERROR, OWN_ERROR = training_rules.START, training_rules.FIRST_ERROR, training_rules.OWN_ERROR
UNKNOWN_FAILURE = training_rules.UNKNOWN_FAILURE
RULES = (*(rule for rules in AREAS.values() for rule in rules), START, UNKNOWN_FAILURE)
