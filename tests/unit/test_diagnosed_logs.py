"""Logs of users' own programs: the error that ended them is found, and healthy ones are not accused."""

import gzip
import tarfile
import textwrap
from pathlib import Path

import pytest

from kubetrain_pipelines.diagnose.bundle import write_bundle
from kubetrain_pipelines.diagnose.case import Case
from kubetrain_pipelines.diagnose.diagnosis import Diagnosis, diagnose
from kubetrain_pipelines.diagnose.local_case import read_path
from kubetrain_pipelines.diagnose.rule import Certainty

DNS = (
    "[W1126 05:21:06.320964453 socket.cpp:764] [c10d] The IPv6 network addresses of (job-master-0, 23456) cannot be "
    "retrieved (gai error: -2 - Name or service not known)."
)
TASKS = "I0000 00:00:1795670491.06 28078 coordination_service.cc:502] Waiting for 1/2 tasks to connect."
ALL_TASKS = (
    "I0000 00:00:1795672595.71 7388 coordination_service.cc:1472] Barrier(WaitForAllTasks::26::0) has passed with "
    "status: OK"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
START = "training starts: PyTorch, 2 processes"


def diagnosis_of(folder: Path, *logs: str) -> Diagnosis:
    for number, log in enumerate(logs):
        (folder / f"{number}.log").write_text(log + "\n")
    case = Case()
    read_path(case, folder)
    return diagnose(case)


@pytest.mark.parametrize("before", [DNS, f"{TASKS}\n{ALL_TASKS}", TASKS])
def test_what_a_start_waits_for_does_not_hide_the_error_that_ended_it(before: str, tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, f"{before}\nepoch 1 loss 0.4\n{TRACEBACK}KeyError: 'label'")
    assert found.causes[0].quote == "KeyError: 'label'"


@pytest.mark.parametrize(
    "log",
    [
        f"{TASKS}\n{ALL_TASKS}\nEpoch 1/3",
        "I0000 00:00:1795670491.06 28078 coordination_service.cc:502] Waiting for 0/2 tasks to connect.",
        "epoch 3 error: 0.1832",
        "error: 0.1832",
        "metrics are not served: OSError: [Errno 98] Address already in use",
        "epoch 1 loss: nanmean 0.3",
        f"Exception ignored in: <function Iterator.__del__ at 0x7f>\n{TRACEBACK}AssertionError: only a child\nepoch 2",
        "warmup: the scheduler resumes from its state",
    ],
)
def test_a_healthy_log_is_not_accused(log: str, tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, log)
    assert [cause for cause in found.causes if cause.certainty is not Certainty.OVERCOME] == []


@pytest.mark.parametrize(
    "line",
    [
        "zipfile.BadZipFile: File is not a zip file",
        "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped",
        "StopIteration",
        "team.data.DatasetCorrupt: page 7",
        "KeyboardInterrupt",
    ],
)
@pytest.mark.parametrize(
    "prefix", ["", "[rank0]: ", "[default0]:", "[pod/train-master-0/pytorch] ", "[master-0] [rank0]: "]
)
def test_the_end_of_a_traceback_is_an_error_whatever_its_name(prefix: str, line: str, tmp_path: Path) -> None:
    log = textwrap.indent(f"{TRACEBACK}{line}\n{CHILD}", prefix)
    found = diagnosis_of(tmp_path, log)
    assert [(cause.rule.name, cause.place) for cause in found.causes] == [("first-error", "0.log:4")]


def test_a_traceback_between_the_lines_of_another_process_is_found(tmp_path: Path) -> None:
    lines = textwrap.indent(f"{TRACEBACK}shop.Empty: no data", "[rank0]: ").splitlines()
    found = diagnosis_of(tmp_path, "\n[rank1]: step 7\n".join(lines))
    assert [cause.quote for cause in found.causes] == ["[rank0]: shop.Empty: no data"]


def test_errors_of_a_group_are_found(tmp_path: Path) -> None:
    group = "  + Exception Group Traceback (most recent call last):\n  |   File 'a.py'\n  | shop.Several: 2 errors"
    assert [cause.quote for cause in diagnosis_of(tmp_path, group).causes] == ["| shop.Several: 2 errors"]


def test_an_error_that_names_the_checkpoint_to_resume_from_is_no_start(tmp_path: Path) -> None:
    error = (
        "error: the checkpoint of step 4 could not be written to /output/checkpoints (Input/output error): check this "
        "volume, then start this run again, which resumes from step-00000002"
    )
    assert [cause.rule.name for cause in diagnosis_of(tmp_path, f"{START}\n{error}").causes] == ["storage-error"]
    other = error.replace("Input/output error", "File too large")
    assert [cause.quote for cause in diagnosis_of(tmp_path, f"{START}\n{other}").causes] == [other]
    stopped = "stopped before the end without session.save(): this run resumes from its last checkpoint"
    assert diagnosis_of(tmp_path, f"{OOM}\n{stopped}").causes[0].certainty is Certainty.CAUSE


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (f"{CHILD}\n  traceback : Signal 7 (SIGBUS) received by PID 7", "bus-error"),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
            "(shm).\nRuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly",
            "shared-memory",
        ),
        ("Error while creating shared memory segment /dev/shm/nccl-VXz (size 9637888)", "shared-memory"),
        ('exec: "torchrun": executable file not found in $PATH', "no-program"),
        ("run.sh: line 3:  4213 Killed                  python train.py", "killed"),
        ("mkdir: cannot create directory '/output/ckpt': Permission denied", "permission"),
        (
            "ncclSystemError: System call (e.g. socket, malloc) failed.\nLast error:\nsocketStartConnect: Connect to "
            "10.0.0.1<43523> failed : Connection refused",
            "nccl-init",
        ),
        ("torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.", "peer-lost"),
        ("TimeoutError: The client socket has timed out after 900s while trying to connect", "master-unreachable"),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 7Mi.", "evicted"),
        ("maximum memory usage per Container is 16Gi, but limit is 32Gi", "rejected"),
        ("RuntimeError: CUDA initialization: The NVIDIA driver on your system is too old", "driver"),
        (f"{DNS}\n{OOM}", "gpu-memory"),
    ],
)
def test_a_failure_in_other_words_is_known(log: str, rule: str, tmp_path: Path) -> None:
    assert diagnosis_of(tmp_path, log).causes[0].rule.name == rule


def test_the_earliest_cause_comes_first_across_midnight(tmp_path: Path) -> None:
    found = diagnosis_of(
        tmp_path,
        "2026-11-27T00:00:06.1Z PermissionError: [Errno 13] Permission denied: 'x'",
        "2026-11-26T23:59:58.1Z OSError: [Errno 28] No space left on device",
    )
    assert [cause.rule.name for cause in found.causes] == ["disk-full", "permission"]


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: api_key not configured (no-tty)",
        "ValueError: missing key: image",
        "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0",
        "RuntimeError: embedding key: (32, 64) != (32, 128)",
        "RuntimeError: login failed for user bob",
    ],
)
def test_a_sentence_about_keys_is_shown_whole(line: str, tmp_path: Path) -> None:
    assert diagnosis_of(tmp_path, line).causes[0].quote == line


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: api_key=hunter2 is invalid",
        "ValueError: key: hunter2hunter2hunter2",
        "ValueError: WANDB_API_KEY hunter2",
        "ValueError: ran wandb login hunter2",
        'ValueError: {"auths": {"registry.io": {"auth": "hunter2"}}}',
        "ValueError: cannot post to https://hooks.slack.com/services/T0/B0/hunter2",
        "ValueError: sk_live_hunter2hunter2hunter2",
        "ValueError: https://user:pa@hunter2@example.com/x",
        "ValueError: wandb: Appending key for api.wandb.ai 0123456789hunter2",
    ],
)
def test_a_secret_in_an_error_is_hidden(line: str, tmp_path: Path) -> None:
    assert "hunter2" not in diagnosis_of(tmp_path, line).causes[0].quote


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b"\x7fELF\0\0\1", "it is not text"),
        (gzip.compress(OOM.encode(), mtime=0), "it is compressed, so unpack it with gunzip"),
        (OOM.encode("utf-16"), "it is UTF-16, so convert it with iconv -f UTF-16"),
    ],
    ids=["empty", "binary", "compressed", "utf-16"],
)
def test_a_log_without_text_is_said(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(content)
    case = Case()
    read_path(case, tmp_path / "0.log")
    found = diagnose(case)
    assert case.gaps == [f"{tmp_path / '0.log'}: {problem}"]
    assert found.exit_code == 3


def test_a_private_key_is_not_in_a_bundle(tmp_path: Path) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nhunter2\nhunter2\n-----END RSA PRIVATE KEY-----"
    write_bundle(diagnosis_of(tmp_path, f"before\n{key}\nafter"), tmp_path / "all.tar.gz")
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        text = archive.extractfile("logs/0-0.log").read().decode()  # type: ignore[union-attr]
    assert "hunter2" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
