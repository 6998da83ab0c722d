"""A thread that runs a job on this machine like the training operator and the kubelet on a cluster."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from kubetrain_components.jobs.job import Job, RestartPolicy
from kubetrain_components.jobs.job_state import Phase, PodTimes
from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_components.jobs.local.pod import LocalPod
from kubetrain_components.jobs.local.record import LocalRecord, Status, status_of
from kubetrain_components.jobs.operator_environment import AddressOf, operator_environment

POLL_SECONDS = 0.05
RESTART_DELAY_SECONDS = 1.0
GRACE_SECONDS = 3.0

Environments = Mapping[tuple[str, int], Mapping[str, str]]
"""Variables of each pod, by role and index."""


class LocalOperator(threading.Thread):
    """Starts pods, restarts them by their policy, and decides the job's phase like the operator."""

    def __init__(self, job: Job, record: LocalRecord, environments: Environments) -> None:
        super().__init__(name=f"operator of {job.identity.name}", daemon=True)
        self._job = job
        self._record = record
        self._must_stop, self._failure = threading.Event(), ""
        self._phase, self._message = Phase.PENDING, ""
        self._pods = [
            LocalPod(replica, index, environments[replica.role, index], record.path)
            for replica in job.replicas
            for index in range(replica.count)
        ]
        self._restart_at: dict[LocalPod, float] = {}
        self.unwritten: Status | None = None
        """The state, if it could not be written."""

    def stop(self, failure: str = "") -> None:
        """End the pods and remove the job's folder. After a failure, keep its logs."""
        self._failure = failure
        self._must_stop.set()
        self.join()

    def pod_times(self) -> tuple[PodTimes, ...]:
        return tuple(pod.times() for pod in self._pods)

    def run(self) -> None:
        try:
            self._operate()
        except Exception as error:  # noqa: BLE001 - a job without its operator must not appear to run
            self._fail(f"{type(error).__name__}: {error}")
            self._publish()

    def _operate(self) -> None:
        for pod in self._pods:
            pod.start()
        self._phase = Phase.RUNNING
        self._publish()
        while not self._is_over():
            if self._must_stop.is_set() or self._record.is_stop_requested():
                self._end_pods()
                self._record.retire(self._failure or self._record.failure_in_request(), self.unwritten)
                return
            if self._update_pods():
                self._publish()
            time.sleep(POLL_SECONDS)

    def _is_over(self) -> bool:
        return self._phase.is_final and all(pod.state.phase.is_final for pod in self._pods)

    def _update_pods(self) -> bool:
        """Handle pods that ended or are due to restart; return True if there were any."""
        ended = [pod for pod in self._pods if pod.poll()]
        for pod in ended:
            self._decide(pod)
        due = [pod for pod, moment in self._restart_at.items() if time.monotonic() >= moment]
        for pod in due:
            del self._restart_at[pod]
            pod.restart()
        if ended and self._phase is Phase.RUNNING and self._has_succeeded():
            self._phase = Phase.SUCCEEDED
        return bool(ended or due)

    def _decide(self, pod: LocalPod) -> None:
        """Restart the container of a pod that ended, fail the job, or do nothing. The launcher limits restarts."""
        code = pod.state.exit_code or 0
        if not wants_restart(pod.restart_policy, code):
            if code:
                self._fail(f"{pod.state.name} exited with code {code}")
            return
        pod.expect_restart()
        self._restart_at[pod] = time.monotonic() + RESTART_DELAY_SECONDS

    def _fail(self, message: str) -> None:
        if self._phase.is_final:
            return
        self._phase, self._message = Phase.FAILED, message
        self._restart_at.clear()
        self._end_pods()

    def _has_succeeded(self) -> bool:
        """Return True if the pods that the operator checks succeeded: the lead, any worker if elastic, or else all."""
        phases = [(pod.state.role, pod.state.phase) for pod in self._pods]
        if self._job.elastic:
            return ("Worker", Phase.SUCCEEDED) in phases
        lead = self._job.lead_role if self._job.kind.traits.requires_lead else ""
        return all(phase is Phase.SUCCEEDED for role, phase in phases if role == lead or not lead)

    def _end_pods(self) -> None:
        stoppers = [threading.Thread(target=pod.stop, args=(GRACE_SECONDS,)) for pod in self._pods]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()

    def _publish(self) -> None:
        status = status_of(self._phase, [pod.state for pod in self._pods], self._message)
        try:
            self._record.write_state(status)
        except OSError:  # a full disk must not make a job that has ended appear to run
            self.unwritten = status
        else:
            self.unwritten = None


def wants_restart(policy: RestartPolicy, exit_code: int) -> bool:
    """Return True if a container is restarted.

    policy    | exit 0 | 1-127 | 128 and more
    Always    | yes    | yes   | yes
    OnFailure | no     | yes   | yes
    ExitCode  | no     | no    | yes
    Never     | no     | no    | no
    """
    if policy is RestartPolicy.ALWAYS:
        return True
    if policy is RestartPolicy.ON_FAILURE:
        return exit_code != 0
    return policy is RestartPolicy.EXIT_CODE and exit_code >= 128


def pod_environments(job: Job, shares: Environments, for_all: Mapping[str, str]) -> Environments:
    """Return the variables that each pod gets: its share of the machine, and the loopback addresses of all pods."""
    address_of = _free_addresses(job)
    return {
        (role, index): {
            **for_all,
            **share,
            **operator_environment(_with_rendezvous_host(job, index), role, index, address_of),
            **({"PET_LOCAL_ADDR": f"127.0.0.{index + 1}"} if job.elastic else {}),
        }
        for (role, index), share in shares.items()
    }


def _with_rendezvous_host(job: Job, index: int) -> Job:
    """Let only the first pod host the rendezvous: on one machine, every pod considers the address its own.

    Nothing adds pods here, so the rendezvous waits for no more than there are.
    """
    if job.elastic is None:
        return job
    conf = {**job.elastic.rdzv_conf, "is_host": str(int(index == 0))}
    return replace(job, elastic=replace(job.elastic, rdzv_conf=conf, max_replicas=job.total_replicas))


def _free_addresses(job: Job) -> AddressOf:
    """Choose a free port for each pod: several jobs may share this machine."""
    pods = [(pod.role, pod.index) for pod in job.pods()]
    ports = dict(zip(pods, free_ports(len(pods)), strict=True))
    return lambda role, index: ("127.0.0.1", ports[role, index])
