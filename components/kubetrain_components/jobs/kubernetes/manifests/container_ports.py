"""The ports of a training's containers, and where its pods meet."""

import hashlib

from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.manifest import Manifest

RENDEZVOUS_PORT = 23456
"""The operator's default."""
HOST_PORTS = range(20_000, 30_000)
"""Below the ports that Kubernetes assigns to services and the kernel to connections."""
METRICS_PORT_NAME = "metrics"


def container_ports(job: Job, replica: Replica) -> list[Manifest]:
    ports = {**_rendezvous_ports(job, replica), **_metrics_ports(job, replica)}
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def _rendezvous_ports(job: Job, replica: Replica) -> dict[str, int]:
    """Declare the port on a node's network, so that the scheduler puts pods with the same port on different nodes."""
    if not job.placement.host_network or not job.is_training:
        return {}
    return {job.kind.traits.port_name: rendezvous_port(job, replica.role)}


def _metrics_ports(job: Job, replica: Replica) -> dict[str, int]:
    """Declare the port in the role that the chief has, where monitoring finds it by its name."""
    return {METRICS_PORT_NAME: job.metrics_port} if job.metrics_port and replica.role == job.lead_role else {}


def rendezvous_port(job: Job, role: str) -> int:
    if not job.placement.host_network:
        return RENDEZVOUS_PORT
    return host_port(job.identity, "" if role == job.lead_role else role)


def host_port(identity: JobIdentity, role: str = "") -> int:
    """Return a port that other jobs and roles are unlikely to have, and that a restarted launcher finds again."""
    digest = hashlib.sha256(f"{identity.name}{role}".encode()).hexdigest()
    return HOST_PORTS[int(digest, 16) % len(HOST_PORTS)]
