"""The Workers of an MPI job wait until mpirun, in the Launcher, starts processes in them.

The image follows the convention of Kubeflow Trainer's own runtimes: an SSH server for the user mpiuser.
"""

USER = 1000
"""Number of mpiuser. An SSH server accepts only users that its image knows."""
HOME = "/home/mpiuser"
SSH_PORT = 2222
SERVE = ("/usr/sbin/sshd", "-De", "-f", f"{HOME}/.sshd_config")
WAIT = ("sleep", "infinity")
"""Without SSH, mpirun starts the processes through the cluster's API."""


def until_stopped(*command: str) -> tuple[str, ...]:
    """Return a command that never succeeds by itself.

    A server that ends with code 0 when its pod is evicted would count as complete, and the pod would not be replaced.
    """
    return ("sh", "-c", "trap 'exit 143' TERM; \"$@\" & wait; exit 1", "worker", *command)
