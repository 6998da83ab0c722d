"""Two torchrun agents find each other through a real etcd 3.5, which may come late, go, or be the wrong one."""

import contextlib
import http.client
import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kubetrain_components.jobs.kubernetes.manifests.indexed_job import variables
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import own_etcd_manifest
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.jobs.quantity import amount
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.pytorch_ddp.launching.etcd_server import await_etcd
from kubetrain_trainer.settings.config import TrainConfig
from support.certificates import Authority
from support.cli import read_until
from support.etcd import Etcd, built_etcd
from support.process_groups import start_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# A program of the pods: they meet, say so, and fail if they are told to.
MEET = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
while sys.argv[1] == "stay": dist.barrier()
dist.barrier()
sys.exit(sys.argv[1] == "fail")
"""
SHORT = TrainConfig(max_steps=5, metrics_port=0)
Start = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture(scope="module")
def program() -> Path:
    if shutil.which("go") is None:
        pytest.skip("etcd is built from its Go module: install Go")
    return built_etcd()


@pytest.fixture
def etcd(program: Path, tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd(program, tmp_path, "--enable-v2")
    yield server
    server.kill()


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Start]:
    """Start two pods which run the program above."""
    started: list[subprocess.Popen[str]] = []
    script = tmp_path / "meet.py"
    script.write_text(MEET)

    def start(
        what: str, endpoint: str, instance: str = "0a", min_workers: int = 2, pods: int = 2, **settings: Any
    ) -> list["subprocess.Popen[str]"]:
        flags = ("-m", "kubetrain_trainer.pytorch_ddp.launching.launch", script, what)
        job = training(tmp_path, tmp_path, endpoint, min_workers, max_restarts=0, **settings)
        new = [
            start_python(*flags, cwd=tmp_path, **each, **termination_log(tmp_path, index))
            for index, each in enumerate(environments(job, instance)[:pods])
        ]
        started.extend(new)
        return new

    yield start
    for each in started:
        kill(each)


def termination_log(folder: Path, index: int) -> dict[str, str]:
    path = folder / f"termination-{index}"
    path.touch()
    return {"KUBETRAIN_TERMINATION_LOG": str(path)}


def training(
    data: Path,
    output: Path,
    endpoint: str,
    min_workers: int = 2,
    conf: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TrainingJob:
    return TrainingJob(
        framework="pytorch",
        config=TrainConfig(epochs=1000, checkpoint_every=100000, log_every=5, metrics_port=0),
        pipeline="p",
        run_id="run",
        data_dir=data,
        output_dir=output,
        workers=2,
        min_workers=min_workers,
        launcher=Launcher.JOB,
        placement=Placement(
            image="i", rendezvous={"backend": "etcd-v2", "endpoint": endpoint, **(conf or {})}, **settings
        ),
    )


def environments(training: TrainingJob, instance: str) -> list[dict[str, str]]:
    """Return what the pods of the manifest get, on addresses of this machine."""
    common = variables(training.to_job(), str, instance)
    both = ({**common, "PET_LOCAL_ADDR": f"127.0.0.{number}", "GLOO_SOCKET_IFNAME": "lo"} for number in (1, 2))
    return [{name: value for name, value in each.items() if "$" not in value} for each in both]


def kill(pod: "subprocess.Popen[str]") -> None:
    """End all processes of the pod, of which each has a process group of its own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        agent = psutil.Process(pod.pid)
        for process in (agent, *agent.children(recursive=True)):
            process.kill()
    pod.wait()
    assert pod.stdout is not None
    pod.stdout.close()


def ends(pods: list["subprocess.Popen[str]"]) -> tuple[list[int], str]:
    texts = [each.communicate(timeout=300)[0] for each in pods]
    return [each.returncode for each in pods], "".join(texts)


@pytest.mark.thorough
@pytest.mark.parametrize("lost", [0, 1])
def test_a_training_continues_when_one_of_its_pods_is_lost_and_comes_back(
    lost: int, etcd: Etcd, digits: Path, tmp_path: Path
) -> None:
    etcd.start()
    job = training(digits, tmp_path / "output", etcd.endpoint, min_workers=1)
    command = job.command()[1:]

    def start(environment: dict[str, str]) -> "subprocess.Popen[str]":
        return start_python(*command, cwd=tmp_path, **environment)

    pods = [start(each) for each in environments(job, "0a")]
    other = pods[1 - lost]
    try:
        read_until(pods[0], "2 processes,")  # the first has rank 0
        read_until(pods[0], "[kubetrain] step=20/")
        kill(pods[lost])
        read_until(other, "1 process,")
        pods[lost] = start(environments(job, "0a")[lost])
        read_until(pods[0], "2 processes,")
        read_until(pods[0], "[kubetrain] step=")
        assert other.poll() is None, "it restarts its processes only"
        for each in pods:
            each.send_signal(signal.SIGTERM)
        codes, text = ends(pods)
        assert codes == [143, 143], text
    finally:
        for each in pods:
            kill(each)


@pytest.mark.thorough
def test_pods_wait_for_an_etcd_that_comes_later(etcd: Etcd, meet: Start) -> None:
    pods = meet("end", etcd.endpoint)
    read_until(pods[0], f"waiting for etcd at {etcd.endpoint}: [Errno 111] Connection refused")
    etcd.start()
    codes, text = ends(pods)
    assert codes == [0, 0], text
    assert "of 2" in text


def test_pods_that_failed_meet_again(etcd: Etcd, meet: Start) -> None:
    etcd.start()
    codes, text = ends(meet("fail", etcd.endpoint))
    assert codes == [1, 1] and "of 2" in text
    codes, text = ends(meet("end", etcd.endpoint))
    assert codes == [0, 0], f"the rendezvous stays closed in etcd: {text}"


@pytest.mark.thorough
def test_a_pod_that_comes_back_after_the_end_of_the_others_meets_no_closed_rendezvous(etcd: Etcd, meet: Start) -> None:
    etcd.start()
    for _ in range(2):
        codes, text = ends(meet("end", etcd.endpoint, min_workers=1, pods=1))
        assert codes == [0] and "of 1" in text, text


@pytest.mark.thorough
def test_a_pod_that_comes_back_to_a_complete_training_reports_its_result(
    etcd: Etcd, digits: Path, tmp_path: Path
) -> None:
    etcd.start()
    job = replace(training(digits, tmp_path / "output", etcd.endpoint), config=SHORT)

    def start(index: int) -> "subprocess.Popen[str]":
        environment = {**environments(job, "0a")[index], **termination_log(tmp_path, index)}
        return start_python(*job.command()[1:], cwd=tmp_path, **environment)

    codes, text = ends([start(0), start(1)])
    assert codes == [0, 0], text
    etcd.kill()  # it is deleted when the first pod has succeeded
    reported = (tmp_path / "termination-0").read_text()
    (tmp_path / "termination-0").unlink()
    (code,), text = ends([start(0)])
    assert code == 0, text
    assert "the training is complete" in text
    result = json.loads((tmp_path / "termination-0").read_text())
    assert {**result, "time": None} == {**json.loads(reported), "time": None}
    assert TrainingOutput(tmp_path / "output").verify_result(result).step == SHORT.max_steps


@pytest.mark.thorough
def test_the_end_of_one_job_does_not_close_the_rendezvous_of_another(etcd: Etcd, meet: Start) -> None:
    etcd.start()
    for instance in ("0a", "0b"):
        codes, text = ends(meet("end", etcd.endpoint, instance))
        assert codes == [0, 0] and "of 2" in text, text


@pytest.mark.parametrize("with_data", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_pods_that_lose_etcd_fail_and_meet_again_when_they_restart(with_data: bool, etcd: Etcd, meet: Start) -> None:
    etcd.start()
    pods = meet("stay", etcd.endpoint)
    read_until(pods[0], "of 2")
    etcd.kill()
    codes, text = ends(pods)
    assert codes == [1, 1], text
    assert "this pod lost contact with the others" in text
    etcd.start(with_data=with_data)
    codes, text = ends(meet("end", etcd.endpoint))
    assert codes == [0, 0] and "of 2" in text, text


def test_an_etcd_without_the_api_that_torchrun_uses_fails_the_training_at_once(
    program: Path, meet: Start, tmp_path: Path
) -> None:
    etcd = Etcd(program, tmp_path)
    etcd.start()
    try:
        codes, text = ends(meet("end", etcd.endpoint))
    finally:
        etcd.kill()
    assert codes == [1, 1], text
    reported = json.loads((tmp_path / "termination-0").read_text())
    assert reported["curable"] is False
    assert f"etcd 3.5.35 at {etcd.endpoint} does not serve the API v2" in reported["error"]
    assert "--enable-v2" in reported["error"]


@pytest.mark.thorough
def test_the_etcd_of_a_large_job_does_not_exceed_its_memory(program: Path, tmp_path: Path) -> None:
    """Each pod writes the state of all pods once per second: these are ten minutes."""
    job = replace(training(tmp_path, tmp_path, ""), workers=64).to_job()
    manifest = own_etcd_manifest(job, None, "0a")
    assert manifest is not None
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    flags = [each for each in container["command"][1:] if "url" not in each and "data-dir" not in each]
    etcd = Etcd(program, tmp_path, *flags, "--unsafe-no-fsync")
    etcd.start()
    try:
        await_etcd(etcd.endpoint, "")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: write_states(etcd, 10_000, size=180 * job.max_pods), range(4)))
        peaks = [etcd.peak_memory]
        etcd.kill()
        etcd.start()  # it reads what it wrote
        await_etcd(etcd.endpoint, "")
        peaks.append(etcd.peak_memory)
    finally:
        etcd.kill()
    assert max(peaks) < amount(container["resources"]["limits"]["memory"]), peaks


def write_states(etcd: Etcd, count: int, size: int) -> None:
    server = http.client.HTTPConnection(etcd.endpoint)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for _ in range(count):
        server.request("PUT", "/v2/keys/torch/elastic/rendezvous/x", f"value={'x' * size}&ttl=7200", headers)
        server.getresponse().read()
    server.close()


def test_pods_meet_over_tls_with_a_certificate_of_their_own(program: Path, meet: Start, tmp_path: Path) -> None:
    authority, secret = Authority(), tmp_path / "secret"
    secret.mkdir()
    server, client = authority.signed("etcd", "127.0.0.1"), authority.signed("trainer")
    files = {"ca": authority.certificate, "etcd": server.certificate, "etcd-key": server.key}
    for name, content in {**files, "tls": client.certificate, "tls-key": client.key}.items():
        (secret / f"{name}.pem").write_bytes(content)
    etcd = Etcd(
        program,
        tmp_path,
        "--enable-v2",
        "--client-cert-auth",
        f"--trusted-ca-file={secret}/ca.pem",
        f"--cert-file={secret}/etcd.pem",
        f"--key-file={secret}/etcd-key.pem",
    )
    etcd.start(protocol="https")
    mounted = {
        "pod": pod_patch(
            {"volumes": [{"name": "tls", "secret": {"secretName": "etcd-tls"}}]},
            {"volumeMounts": [{"name": "tls", "mountPath": str(secret)}]},
        )
    }
    conf = {
        "ca_cert": f"{secret}/ca.pem",
        "ssl_cert": f"{secret}/tls.pem",
        "ssl_cert_key": f"{secret}/tls-key.pem",
    }
    try:
        codes, text = ends(meet("end", f"https://{etcd.endpoint}", **mounted, conf=conf))
    finally:
        etcd.kill()
    assert codes == [0, 0] and "of 2" in text, text
