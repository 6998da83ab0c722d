"""Causes found in logs and job states: the right one first, and no wrong one called proven."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_pipelines.cli.diagnose import DiagnoseOptions, diagnose_and_show, lines
from kubetrain_pipelines.diagnose.bundle import write_bundle
from kubetrain_pipelines.diagnose.case import Case, Outcome
from kubetrain_pipelines.diagnose.diagnosis import Diagnosis, diagnose
from kubetrain_pipelines.diagnose.local_case import read_path
from kubetrain_pipelines.diagnose.rule import Certainty
from kubetrain_pipelines.diagnose.scan import CHUNK_BYTES
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from support.provoked import FAILURES, HELD_OUT

RECORDED = Path(__file__).parent / "recorded"
OF_CLUSTER = {
    "crash_loop": "crash-loop",
    "deleted_by_force": "deleted",
    "denied": "rejected",
    "evicted_by_api": "evicted",
    "evicted_for_storage": "disk-full",
    "image_name": "image-name",
    "image_pull": "image-pull",
    "init_container_refused": "init-container",
    "invalid_pod": "rejected",
    "kueue_not_admitted": "queue-never",
    "kueue_preempted_batch": "queue",
    "missing_claim": "volume",
    "missing_secret": "missing-reference",
    "missing_secret_volume": "volume",
    "node_lost": "node-lost",
    "out_of_memory": "pod-memory",
    "out_of_memory_batch": "pod-memory",
    "own_words": "first-error",
    "pod_security": "pod-security",
    "preempted": "preempted",
    "quota": "quota",
    "quota_without_limits": "rejected",
    "suspended": "queue",
    "unschedulable": "unschedulable",
    "volcano_not_admitted": "queue",
    "webhook_fails": "webhook",
}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
PEER_LOST = "error: another process was lost in step 7: look for the one that failed first"


def diagnosis_of(folder: Path, **logs: str) -> Diagnosis:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    case = Case()
    read_path(case, folder)
    return diagnose(case)


def names(found: Diagnosis) -> list[str]:
    return [cause.rule.name for cause in found.causes]


def proven(found: Diagnosis) -> set[str]:
    return {cause.rule.name for cause in found.causes if cause.certainty is Certainty.CAUSE}


@pytest.mark.parametrize("name", [*FAILURES, *HELD_OUT])
def test_the_cause_of_a_provoked_failure_comes_first_and_no_other_is_proven(name: str) -> None:
    found = diagnosis_of(RECORDED / "failures" / name)
    rule = {**FAILURES, **HELD_OUT}[name].rule
    assert names(found)[:1] == [rule]
    assert proven(found) <= {rule}
    assert found.exit_code == 1


@pytest.mark.parametrize(("name", "rule"), OF_CLUSTER.items())
def test_the_cause_in_a_recorded_state_of_a_cluster_comes_first(name: str, rule: str) -> None:
    seen = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
    case = Case()
    kind = JobKind(seen["job"]["kind"])
    case.add_job(name, job_state(kind, seen["job"], seen["pods"], seen.get("events", [])))
    found = diagnose(case)
    assert names(found)[:1] == [rule]
    assert proven(found) <= {rule, "node"}, "a lost node does not respond either"


def test_a_cause_comes_before_its_consequences_in_other_logs(tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, rank0=PEER_LOST, rank1=f"{OOM}\n{PEER_LOST}")
    assert [(cause.rule.name, cause.certainty, cause.place) for cause in found.causes] == [
        ("gpu-memory", Certainty.CAUSE, "rank1.log:1"),
        ("peer-lost", Certainty.EFFECT, "rank0.log:1"),
    ]
    assert found.causes[1].others == ("rank1.log",)


def test_of_several_causes_the_earliest_comes_first(tmp_path: Path) -> None:
    late = "2026-11-26 05:21:27 OSError: [Errno 28] No space left on device"
    early = f"2026-11-26 05:21:26 {OOM}"
    assert names(diagnosis_of(tmp_path, a=late, b=early)) == ["gpu-memory", "disk-full"]


def test_what_came_before_the_last_start_was_overcome(tmp_path: Path) -> None:
    start = "training starts: PyTorch, 2 processes"
    overcome = diagnosis_of(tmp_path, rank0=f"{start}\n{OOM}\n{start}\nsaved step-00000004")
    assert [(cause.rule.name, cause.certainty) for cause in overcome.causes] == [("gpu-memory", Certainty.OVERCOME)]
    again = diagnosis_of(tmp_path, rank0=f"{start}\n{OOM}\n{start}\n{OOM}")
    assert [(cause.place, cause.certainty) for cause in again.causes] == [("rank0.log:4", Certainty.CAUSE)]


def test_what_slows_training_down_is_not_overcome_by_a_start(tmp_path: Path) -> None:
    slow = "the training waits for data 62% of the time: give each pod more CPUs"
    (cause,) = diagnosis_of(tmp_path, rank0=f"{slow}\ntraining starts: again\nsaved step-00000004").causes
    assert (cause.rule.name, cause.certainty) == ("waits-for-data", Certainty.SLOW)


def test_a_failure_that_came_again_after_a_start_is_found_in_a_large_log(tmp_path: Path) -> None:
    filler = "".join(f"step {number} of many\n" for number in range(CHUNK_BYTES // 10))
    found = diagnosis_of(tmp_path, rank0=f"{OOM}\n{filler}training starts: again\n{filler}{OOM}\n")
    assert [(cause.evidence.line, cause.certainty) for cause in found.causes] == [
        (2 * filler.count("\n") + 3, Certainty.CAUSE)
    ]


def test_a_line_across_two_reads_is_found_with_its_number(tmp_path: Path) -> None:
    filler = "x" * 99 + "\n"
    lines_before = CHUNK_BYTES // len(filler)
    found = diagnosis_of(tmp_path, rank0=filler * lines_before + f"{'y' * 40} {OOM}\n")
    assert [(cause.rule.name, cause.evidence.line) for cause in found.causes] == [("gpu-memory", lines_before + 1)]


def test_progress_bars_without_line_ends_are_split(tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, rank0="\r".join(f"{percent}%" for percent in range(100)) + f"\r{OOM}")
    assert found.causes[0].quote == OOM


def test_an_unknown_failure_shows_the_first_error_of_the_process_that_did_not_just_lose_another(tmp_path: Path) -> None:
    unknown = "Traceback (most recent call last):\nKeyError: 'label'\n\nValueError: a consequence\n"
    found = diagnosis_of(tmp_path, rank0=PEER_LOST, rank1=unknown)
    assert [cause.quote for cause in found.causes] == ["KeyError: 'label'", PEER_LOST]
    assert found.causes[0].certainty is Certainty.UNKNOWN


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "[worker-0] ", "2026-11-26T05:21:26.123Z "])
def test_an_unknown_error_is_found_behind_what_launchers_write_before_it(prefix: str, tmp_path: Path) -> None:
    assert names(diagnosis_of(tmp_path, a=f"{prefix}mine.BadLabels: 3\n{prefix}ValueError: 3")) == ["first-error"]
    assert names(diagnosis_of(tmp_path, a=f"{prefix}no Error: in words")) == []


@pytest.mark.parametrize("prefix", ["", "[master-0] [rank0]: "])
@pytest.mark.parametrize(
    "error",
    [
        "error: train.freeze: the model has nothing called 'conv9': valid names: conv1, head",
        "error: /out/r1 holds the output of another training: choose another run ID",
    ],
)
def test_an_error_of_kubetrain_has_its_remedy_in_its_own_words(prefix: str, error: str, tmp_path: Path) -> None:
    (cause,) = diagnosis_of(tmp_path, rank0=f"{prefix}{error}").causes
    assert (cause.rule.name, cause.certainty) == ("own-error", Certainty.LIKELY)
    assert cause.quote == f"{prefix}{error}"
    assert "message says what to change" in cause.rule.remedy


@pytest.mark.parametrize(
    "line", ["error: no data", "error: mine.BadError: 3: 4", "cc: error: x: y", "ValueError: a: b"]
)
def test_errors_of_others_stay_unknown(line: str, tmp_path: Path) -> None:
    assert names(diagnosis_of(tmp_path, a=line)) == ["first-error"]


def test_an_error_of_kubetrain_after_a_traceback_is_not_the_cause(tmp_path: Path) -> None:
    log = "Traceback (most recent call last):\nKeyError: 'label'\nerror: the training failed: see its log"
    assert names(diagnosis_of(tmp_path, a=log)) == ["first-error"]
    assert names(diagnosis_of(tmp_path, a="error: the job failed: see its log", b=OOM)) == ["gpu-memory"]


def test_an_unknown_error_is_not_shown_beside_a_proven_cause_or_after_a_known_failure(tmp_path: Path) -> None:
    unknown = "ValueError: while the process ended"
    assert names(diagnosis_of(tmp_path, rank0=unknown, rank1=OOM)) == ["gpu-memory"]
    assert names(diagnosis_of(tmp_path, rank0=f"{PEER_LOST}\n{unknown}", rank1="")) == ["peer-lost"]
    closed = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    found = diagnosis_of(tmp_path, rank0=f"{PEER_LOST}\n{unknown}\n{closed}")
    assert names(found) == ["peer-lost", "rendezvous-closed"]


def test_the_rank_that_started_fewer_operations_is_named(tmp_path: Path) -> None:
    report = (
        "[rank{0}]:[E321 02:07:08.46 ProcessGroupNCCL.cpp:1664] [PG 1 Rank {0}] Exception (either an error or timeout) "
        "detected by watchdog at work: 1580, last enqueued NCCL work: {1}, last completed NCCL work: 1579."
    )
    found = diagnosis_of(tmp_path, a=f"{report.format(0, 1582)}\n{report.format(3, 1579)}", b=report.format(1, 1582))
    (cause,) = found.causes
    assert cause.rule.name == "straggler"
    assert cause.quote == "rank 3 has started 1579 collective operations, and rank 0 has started 1582"
    assert diagnosis_of(tmp_path, a=report.format(0, 1582), b="").causes == []
    overcome = f"{report.format(0, 1582)}\n{report.format(3, 1579)}\ntraining starts: again"
    assert "straggler" not in names(diagnosis_of(tmp_path, a=overcome))


def test_versions_that_differ_between_logs_are_named(tmp_path: Path) -> None:
    drivers = [f"node:1:1 [0] NCCL INFO cudaDriverVersion {version}" for version in (12020, 12010)]
    found = diagnosis_of(tmp_path, a="\n".join([drivers[0]] * 2), b=drivers[1], c="NCCL version 2.27.5+cuda12.9")
    (cause,) = found.causes
    assert (cause.rule.name, cause.place) == ("mixed-versions", "a.log:1")
    assert cause.quote == "cudaDriverVersion 12020 in one log, cudaDriverVersion 12010 in b.log"
    assert names(diagnosis_of(tmp_path, b=drivers[0])) == []


@pytest.mark.parametrize(
    "line",
    [
        "E0000 00:00:1795670405.711269 27085 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed",
        "UserWarning: CUDA initialization: Found no NVIDIA driver on your system. Please check that you have one",
        "mkdir -p failed for path /.config/matplotlib: [Errno 30] Read-only file system: '/.config'",
        "cannot serve metrics on port 8000 (Address already in use), retrying: set metrics_port to a free one or to 0",
        "skipped a step: the loss of rank 0 is nan at step 7, with a learning rate of 0.0052 (7 skipped so far)",
        'MountVolume.SetUp succeeded for volume "data"',
        "node:1:1 [0] NCCL INFO NET/IB : No device found.",
    ],
)
def test_warnings_of_healthy_logs_are_no_causes(line: str, tmp_path: Path) -> None:
    assert names(diagnosis_of(tmp_path, rank0=line)) == []


def test_the_log_of_the_pod_that_failed_first_comes_first(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    (tmp_path / "worker-1.log").write_text("OSError: [Errno 28] No space left on device")
    case = Case()
    pods = [
        PodState(role="Worker", index=index, phase=Phase.FAILED, exit_code=1, finished=9 - index) for index in (0, 1)
    ]
    handle = JobHandle(kind=JobKind.PYTORCH_JOB, name="train", uid="1")
    case.add_job("train", JobState(handle=handle, phase=Phase.FAILED, pods=tuple(pods)))
    read_path(case, tmp_path)
    assert names(diagnose(case)) == ["disk-full", "gpu-memory"]


def test_of_a_success_only_what_slows_training_down_is_shown() -> None:
    statements = [("log", OOM), ("log", "the training waits for data 62% of the time: give each pod more CPUs")]
    found = diagnose(Case(outcome=Outcome.SUCCEEDED, statements=statements))
    assert (names(found), found.exit_code) == (["waits-for-data"], 0)
    nothing = diagnose(Case(outcome=Outcome.SUCCEEDED))
    assert [*lines(nothing)][-1] == "nothing is wrong"


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    found = diagnose(Case(logs={"a": tmp_path / "nosuch"}))
    assert (found.case.gaps, found.exit_code) == ([f"{tmp_path}/nosuch: No such file or directory"], 3)


def test_a_failure_without_a_known_cause_is_no_success() -> None:
    assert diagnose(Case(outcome=Outcome.FAILED)).exit_code == 3
    assert diagnose(Case(gaps=["events: denied"])).exit_code == 3
    assert diagnose(Case()).exit_code == 0
    assert diagnose(Case(outcome=Outcome.SUCCEEDED, gaps=["events: denied"])).exit_code == 0


def test_the_output_fits_a_terminal_and_hides_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text(f"{OOM} token=hf_abcdefghijklmnopqrstuvwxyz {'and more ' * 50}")
    assert diagnose_and_show(DiagnoseOptions(targets=[str(log)])) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("1 log read\n\n1. The memory of a GPU ran out (proven)\n")
    assert "Remedy: Lower train.batch_size" in shown
    assert "hf_" not in shown
    assert max(map(len, shown.replace(str(log), "").splitlines())) <= 80


@pytest.mark.parametrize("bundle", [None, "all.tar.gz"])
def test_json_has_the_same(bundle: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text(OOM)
    to = tmp_path / bundle if bundle else None
    diagnose_and_show(DiagnoseOptions(targets=[str(tmp_path)], as_json=True, bundle=to))
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert (cause["rule"], cause["source"], cause["evidence"]) == ("gpu-memory", "a.log:1", OOM)


def test_the_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(OOM.encode())))
    assert diagnose_and_show(DiagnoseOptions(targets=["-"])) == 1
    assert "standard input:1:" in capsys.readouterr().out


def test_a_folder_without_logs_and_no_folder_at_all_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetting, match="has no logs"):
        diagnose_and_show(DiagnoseOptions(targets=[str(tmp_path)]))
    with pytest.raises(InvalidSetting, match="no kubetrain-workspace here: name a run"):
        diagnose_and_show(DiagnoseOptions())


def test_a_name_that_no_cluster_can_be_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nosuch")
    with pytest.raises(KubetrainError, match="'nosuch' is not a file or folder, and no cluster can be asked"):
        diagnose_and_show(DiagnoseOptions(targets=["nosuch"]))


def test_a_bundle_has_everything_that_was_read_without_secrets(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text(f"password: hunter2\n{OOM}\n")
    variables = [{"name": "HF_TOKEN", "value": "hf_secret"}, {"name": "NCCL_DEBUG", "value": "INFO"}]
    applied = {"kubectl.kubernetes.io/last-applied-configuration": '{"name": "PASSWORD", "value": "hunter2"}'}
    container = {"env": variables, "resources": {"limits": {"memory": "4Gi"}}}
    pod: dict[str, Any] = {"metadata": {"annotations": applied}, "spec": {"containers": [container]}}
    case = Case(logs={"rank-0.log": log}, documents={"job/pods.json": [pod]}, statements=[("pod", "api_key=abcdef")])
    write_bundle(diagnose(case), tmp_path / "all.tar.gz")
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert texts.keys() == {"job/pods.json", "reports.json", "diagnosis.json", "logs/0-rank-0.log"}
    assert texts["logs/0-rank-0.log"] == f"password: …\n{OOM}\n"
    assert json.loads(texts["job/pods.json"]) == [
        {
            "metadata": {"annotations": {}},
            "spec": {
                "containers": [{**pod["spec"]["containers"][0], "env": [{**variables[0], "value": "…"}, variables[1]]}]
            },
        }
    ]
    assert not any(secret in text for text in texts.values() for secret in ("hunter2", "hf_secret", "abcdef"))


def test_a_bundle_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "all.tar.gz"
    folder.mkdir()
    for path in (tmp_path / "nosuch" / "all.tar.gz", folder):
        with pytest.raises(KubetrainError, match=r"cannot write .* choose (another|a) file with --bundle"):
            write_bundle(diagnose(Case()), path)
    assert [*tmp_path.iterdir()] == [folder]
