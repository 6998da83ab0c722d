"""The sync step on a cluster, with PVCs in memory."""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_components.expose_dataset import claims as claims_port
from kubetrain_components.expose_dataset.ensure_claim import ensure_claim
from kubetrain_components.expose_dataset.expose import Exposure, ExposureRequest
from kubetrain_components.expose_dataset.expose_version import check_exposure, expose_version
from kubetrain_components.expose_dataset.prune import PruneDecision, plan_pruning
from kubetrain_components.expose_dataset.prune_claims import prune_claims
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.job_state import LogLine, Phase
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import transfer_placement
from kubetrain_components.sync_dataset import prune_versions as prune_versions_module
from kubetrain_components.sync_dataset.cluster_sync import cluster_transfer_job, prune_job, sync_on_cluster
from kubetrain_components.sync_dataset.leftovers import DAMAGED, KEPT_SECONDS
from kubetrain_components.sync_dataset.locks import version_locked
from kubetrain_components.sync_dataset.prune_versions import prune_versions
from kubetrain_components.sync_dataset.transfer import check_writable, transfer_dataset
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from support.claims import MemoryClaims
from support.jobs import MemoryBackend

DIGEST, OTHER = "0123456789abcdef", "fedcba9876543210"
NAME, OLDEST = (f"ds-kubetrain-staging-digits-{digest}" for digest in (DIGEST, "0" * 16))
LATE = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": "csi.example.com"}
AT_ONCE = {"provisioner": "csi.example.com"}
STORAGE = Storage()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_port, "POLL_SECONDS", 0.001)


@pytest.fixture
def claims() -> MemoryClaims:
    memory = MemoryClaims()
    memory.classes["fast-ssd"] = AT_ONCE
    return memory


@pytest.fixture
def messages() -> list[str]:
    return []


def with_staging(claims: MemoryClaims, storage: Storage = STORAGE) -> MemoryClaims:
    ensure_claim(storage.staging, claims, lambda sentence: None)
    claims.made.clear()
    return claims


def wanted(**settings: Any) -> ExposureRequest:
    return replace(STORAGE, **settings).exposure_of("s3://bucket/digits", DIGEST, 5)


def exposed(claims: MemoryClaims, messages: list[str], seconds: float = 60.0, **settings: Any) -> Exposure:
    return expose_version(wanted(**settings), STORAGE.staging_claim, claims, messages.append, seconds)


def changed(claims: MemoryClaims, name: str, change: Callable[[Any], object]) -> None:
    found = claims.find(name)
    change(found)
    assert found is not None
    claims.put(found)


class TestEnsure:
    def test_a_missing_pvc_is_created(self, claims: MemoryClaims, messages: list[str]) -> None:
        ensure_claim(Storage(staging_size="5Gi", storage_class="slow").staging, claims, messages.append)
        found = claims.find("kubetrain-staging")
        assert found is not None
        assert found["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "kubetrain"}
        assert "ownerReferences" not in found["metadata"]
        assert found["spec"] == {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "5Gi"}},
            "storageClassName": "slow",
        }
        assert messages == ["created staging PVC kubetrain-staging: 5Gi, ReadWriteOnce"]

    def test_the_default_storage_class_is_left_to_the_cluster(self) -> None:
        assert "storageClassName" not in STORAGE.staging.manifest()["spec"]

    def test_the_access_mode_follows_the_settings(self) -> None:
        assert Storage(exposure="shared").staging.access_mode == "ReadWriteMany"
        assert Storage().wanted_output.access_mode == "ReadWriteMany"
        assert Storage(output_access_mode="ReadWriteOnce").wanted_output.access_mode == "ReadWriteOnce"

    def test_an_existing_pvc_is_used_unchanged(self, claims: MemoryClaims, messages: list[str]) -> None:
        with_staging(claims)
        found = ensure_claim(Storage(staging_size="9Ti", exposure="shared").staging, claims, messages.append)
        assert found["spec"]["resources"]["requests"]["storage"] == "100Gi"
        assert (claims.made, messages) == ([], [])

    def test_an_unbound_pvc_is_not_waited_for(self, messages: list[str]) -> None:
        ensure_claim(STORAGE.staging, MemoryClaims(phase="Pending"), messages.append)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda claim: claim["metadata"].update(deletionTimestamp="x"), "is being deleted"),
            (lambda claim: claim["spec"].update(volumeMode="Block"), "is a Block volume, which cannot hold files"),
            (lambda claim: claim["status"].update(phase="Lost"), "is Lost"),
            (lambda claim: claim["spec"].update(accessModes=["ReadOnlyMany"]), "is ReadOnlyMany, so pods cannot write"),
        ],
    )
    def test_an_unusable_pvc_is_refused(self, claims: MemoryClaims, change: Any, words: str) -> None:
        changed(with_staging(claims), "kubetrain-staging", change)
        with pytest.raises(InvalidSetting, match=f"^staging PVC kubetrain-staging {words}.*staging_claim"):
            ensure_claim(STORAGE.staging, claims, lambda sentence: None)

    def test_an_invalid_size_is_refused_before_anything_is_created(self) -> None:
        with pytest.raises(InvalidSetting, match="'100 GB' is not a Kubernetes quantity"):
            Storage(staging_size="100 GB").staging  # noqa: B018 - it checks itself


class TestExpose:
    def test_a_clone_is_created_once_and_its_use_recorded(self, claims: MemoryClaims, messages: list[str]) -> None:
        with_staging(claims)
        for _ in range(2):
            assert exposed(claims, messages).claim == NAME
        assert claims.made == [NAME]
        found = claims.find(NAME)
        assert found is not None
        assert datetime.fromisoformat(found["metadata"]["annotations"]["kubetrain/last-used"]).tzinfo
        assert messages[0].startswith(f"version {DIGEST} is exposed by clone as PVC {NAME}")
        assert messages[-1] == f"PVC {NAME} is ready with version {DIGEST}"

    def test_a_pvc_that_its_first_pod_fills_is_not_waited_for(self, messages: list[str]) -> None:
        claims = with_staging(MemoryClaims(phase="Pending"))
        claims.classes["fast-ssd"] = LATE
        exposed(claims, messages, seconds=0.0)
        assert claims.made == [NAME]

    def test_a_pvc_that_binds_immediately_is_waited_for(
        self, claims: MemoryClaims, messages: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_staging(claims).phase = "Pending"
        looks = iter(range(3))

        def fill(seconds: float) -> None:
            if next(looks) == 2:
                changed(claims, NAME, lambda claim: claim["status"].update(phase="Bound"))

        monkeypatch.setattr(claims_port, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=fill))
        exposed(claims, messages)
        assert [each for each in messages if "waiting" in each] == [f"waiting: PVC {NAME} is still being filled (0 s)"]

    def test_waiting_for_a_pvc_times_out(self, claims: MemoryClaims, messages: list[str]) -> None:
        with_staging(claims).phase = "Pending"
        claims.complaints = ["failed to provision volume: csi.example.com cannot clone"]
        with pytest.raises(KubetrainError) as caught:
            exposed(claims, messages, seconds=0.05)
        for part in (NAME, claims.complaints[0], "timeout", f"kubectl describe pvc {NAME}"):
            assert part in str(caught.value)

    def test_a_pvc_that_is_being_deleted_is_waited_for_and_created_again(
        self, claims: MemoryClaims, messages: list[str]
    ) -> None:
        exposed(with_staging(claims), messages)
        changed(claims, NAME, lambda claim: claim["metadata"].update(deletionTimestamp="x"))
        threading.Timer(0.1, claims.vanish, [NAME]).start()
        exposed(claims, messages)
        assert claims.made == [NAME] * 2

    def test_a_pvc_deleted_before_its_use_is_recorded_is_created_again(self, messages: list[str]) -> None:
        class Stolen(MemoryClaims):
            has_gone = False

            def annotate(self, found: Any, values: Any) -> Any:
                if not self.has_gone:
                    self.has_gone = True
                    self.vanish(NAME)
                return super().annotate(found, values)

        claims = with_staging(Stolen())
        exposed(claims, messages)
        assert claims.made == [NAME] * 2

    def test_a_pvc_of_someone_else_is_refused(self, claims: MemoryClaims, messages: list[str]) -> None:
        with_staging(claims).put({**STORAGE.staging.manifest(), "metadata": {"name": NAME, "uid": "x"}})
        with pytest.raises(KubetrainError, match=f"PVC {NAME} was not created by kubetrain: delete it"):
            exposed(claims, messages)

    def test_shared_and_static_exposure_create_nothing(self, claims: MemoryClaims, messages: list[str]) -> None:
        with_staging(claims, Storage(exposure="shared"))
        assert exposed(claims, messages, exposure="shared").claim == "kubetrain-staging"
        manifest = {**STORAGE.staging.manifest(), "metadata": {"name": "admins", "uid": "x"}}
        manifest["spec"]["accessModes"] = ["ReadOnlyMany"]
        claims.put({**manifest, "status": {"phase": "Bound"}})
        assert exposed(claims, messages, exposure="static", static_claim="admins").claim == "admins"
        assert claims.made == []

    def test_an_impossible_exposure_is_refused_before_the_transfer(self, claims: MemoryClaims) -> None:
        with_staging(claims)
        with pytest.raises(KubetrainError, match="no PVC admins"):
            check_exposure(wanted(exposure="static", static_claim="admins"), "kubetrain-staging", claims)
        with pytest.raises(InvalidSetting, match="'kubetrain-staging' is ReadWriteOnce, not ReadWriteMany"):
            check_exposure(wanted(exposure="shared"), "kubetrain-staging", claims)
        assert claims.made == []

    def test_staging_pvcs_of_one_namespace_have_clones_of_their_own(
        self, claims: MemoryClaims, messages: list[str]
    ) -> None:
        for staging_claim in ("fast", "slow"):
            storage = Storage(staging_claim=staging_claim)
            with_staging(claims, storage)
            request = storage.exposure_of("s3://bucket/digits", DIGEST, 5)
            made = expose_version(request, staging_claim, claims, messages.append, 60.0)
            assert claims.made == [made.claim]

    def test_two_runs_at_once_create_one_pvc(self, claims: MemoryClaims, messages: list[str]) -> None:
        with_staging(claims)
        launchers = [threading.Thread(target=exposed, args=(claims, messages)) for _ in range(8)]
        for launcher in launchers:
            launcher.start()
        for launcher in launchers:
            launcher.join()
        assert claims.made == [NAME]
        assert messages.count(f"PVC {NAME} is ready with version {DIGEST}") == 8


class TestPruneClaims:
    @pytest.fixture
    def old(self, claims: MemoryClaims, messages: list[str]) -> MemoryClaims:
        """Exposed versions, newest first."""
        with_staging(claims)
        for number, digest in enumerate((DIGEST, OTHER, "0" * 16)):
            request = replace(wanted(), digest=digest)
            exposure = expose_version(request, "kubetrain-staging", claims, messages.append, 5.0)
            age = (datetime.now(UTC) - timedelta(days=number + 2)).isoformat()
            stamps = {"creationTimestamp": age, "annotations": {"kubetrain/source": request.source}}
            changed(claims, exposure.claim, lambda claim, stamps=stamps: claim["metadata"].update(stamps))
        messages.clear()
        return claims

    def test_an_unused_pvc_is_deleted(self, old: MemoryClaims, messages: list[str]) -> None:
        prune_claims(old, keep=1, current=OTHER, say=messages.append)
        assert old.deleted == [OLDEST]
        assert messages == [f"delete PVC {OLDEST}: not among the 1 newest and not in use"]

    def test_a_mounted_pvc_is_kept(self, old: MemoryClaims, messages: list[str]) -> None:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": OLDEST}}
        pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [volume]}}
        old.pods = [pod]
        prune_claims(old, keep=1, current=OTHER, say=messages.append)
        assert old.deleted == []

    def test_a_pvc_that_a_run_starts_to_use_is_kept(self, old: MemoryClaims, messages: list[str]) -> None:
        class Taken(type(old)):  # type: ignore[misc]
            def users(self) -> Any:
                changed(self, OLDEST, lambda claim: None)
                return []

        old.__class__ = Taken
        prune_claims(old, keep=1, current=OTHER, say=messages.append)
        assert (old.deleted, messages) == ([], [])

    def test_nothing_is_deleted_if_the_users_are_unknown(self, old: MemoryClaims, messages: list[str]) -> None:
        class Forbidden(type(old)):  # type: ignore[misc]
            def users(self) -> Any:
                raise KubetrainError("you may not list pods")

        old.__class__ = Forbidden
        with pytest.raises(KubetrainError):
            prune_claims(old, keep=1, current=DIGEST, say=messages.append)
        assert old.deleted == []


class TestPruneVersions:
    def test_at_least_one_version_is_kept(self) -> None:
        with pytest.raises(InvalidSetting, match="keep_versions must be at least 1, not 0"):
            Storage(keep_versions=0)

    @pytest.fixture
    def staging(self, tmp_path: Path) -> Path:
        """Four versions of one dataset, a month apart."""
        source = tmp_path / "source"
        source.mkdir()
        for number in range(4):
            (source / "file").write_text("x" * (number + 1))
            digest = transfer_dataset(DirectoryStore(source), tmp_path / "staging").digest
            self._make_older(tmp_path / "staging" / "versions" / digest, days=(4 - number) * 30)
        return tmp_path / "staging"

    def _make_older(self, version: Path, days: int) -> None:
        then = datetime.now(UTC) - timedelta(days=days)
        header, *lines = (version / "manifest.jsonl").read_text().splitlines()
        (version / "manifest.jsonl").unlink()
        made = json.dumps(json.loads(header) | {"created": then.isoformat()})
        (version / "manifest.jsonl").write_text("\n".join([made, *lines, ""]))
        os.utime(version, (then.timestamp(), then.timestamp()))

    def _digests(self, staging: Path) -> list[str]:
        """Return the digests of the versions, oldest first."""
        versions = [path for path in (staging / "versions").iterdir() if not path.name.startswith(".")]
        return [path.name for path in sorted(versions, key=lambda path: path.stat().st_mtime)]

    def _prune(self, staging: Path, keep: int = 1, current: str = "", in_use: tuple[str, ...] = ()) -> None:
        prune_versions(staging, keep=keep, current=current, in_use=in_use)

    def test_the_newest_the_current_and_used_versions_are_kept(self, staging: Path) -> None:
        oldest, second, _, newest = self._digests(staging)
        self._prune(staging, current=oldest, in_use=(f"versions/{second}/data",))
        assert self._digests(staging) == [oldest, second, newest]
        assert (staging / "versions" / second / "data" / "file").read_text() == "xx"
        assert sorted(path.name for path in (staging / "versions").glob(".*")) == []

    def test_a_mount_of_the_whole_volume_keeps_all_versions(self, staging: Path) -> None:
        self._prune(staging, in_use=("",))
        assert len(self._digests(staging)) == 4

    def test_a_version_that_a_sync_uses_is_kept(self, staging: Path, tmp_path: Path) -> None:
        taken = self._digests(staging)[-1]
        self._make_older(staging / "versions" / taken, days=300)
        assert transfer_dataset(DirectoryStore(tmp_path / "source"), staging).digest == taken
        self._prune(staging)
        assert self._digests(staging) == [taken]

    def test_a_version_that_a_sync_makes_or_checks_is_kept(self, staging: Path) -> None:
        oldest, _, _, newest = self._digests(staging)
        with version_locked(staging, oldest):
            self._prune(staging)
        assert self._digests(staging) == [oldest, newest]
        assert {path.name for path in (staging / ".locks").iterdir()} == {oldest, newest}

    def test_a_version_that_a_sync_used_after_the_decision_is_kept(
        self, staging: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        oldest, _, _, newest = self._digests(staging)

        def decide(*arguments: Any, **keywords: Any) -> list[PruneDecision]:
            plan = plan_pruning(*arguments, **keywords)
            os.utime(staging / "versions" / oldest)
            return plan

        monkeypatch.setattr(prune_versions_module, "plan_pruning", decide)
        self._prune(staging)
        assert set(self._digests(staging)) == {oldest, newest}

    def test_a_version_that_another_pruning_deletes_does_not_end_this_one(
        self, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        *_, newest = digests = self._digests(staging)

        def decide(*arguments: Any, **keywords: Any) -> list[PruneDecision]:
            shutil.rmtree(staging / "versions" / digests[0])
            (staging / ".locks" / digests[0]).unlink(missing_ok=True)
            return plan_pruning(*arguments, **keywords)

        monkeypatch.setattr(prune_versions_module, "plan_pruning", decide)
        self._prune(staging)
        assert self._digests(staging) == [newest]
        assert [path.name for path in (staging / ".locks").iterdir()] == [newest]

    def test_a_file_that_cannot_be_deleted_does_not_keep_the_others(
        self, staging: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        left = staging / "versions" / f".pruned-{self._digests(staging)[0]}"
        left.mkdir()
        for name in (".nfs1", "file"):
            (left / name).touch()
        unlink = os.unlink

        def busy(path: Any, *rest: Any, **keywords: Any) -> None:
            if str(path).endswith(".nfs1"):
                raise OSError(errno.EBUSY, "Device or resource busy", str(path))
            unlink(path, *rest, **keywords)

        monkeypatch.setattr(os, "unlink", busy)
        self._prune(staging)
        assert len(self._digests(staging)) == 1
        assert [path.name for path in left.iterdir()] == [".nfs1"]
        assert "resource busy" in caplog.text

    @pytest.mark.parametrize(
        ("seconds", "in_use", "is_kept"),
        [(-60, "", True), (60, "versions/other/data", False), (60, f"versions/{OTHER}/data", True)],
    )
    def test_damaged_versions_are_deleted_in_time(
        self, staging: Path, seconds: int, in_use: str, is_kept: bool
    ) -> None:
        moved_at = time.time_ns() - (KEPT_SECONDS + seconds) * 1_000_000_000
        damaged = staging / "versions" / f"{DAMAGED}{OTHER}-{moved_at}"
        damaged.mkdir()
        self._prune(staging, in_use=(in_use,) if in_use else ())
        assert damaged.exists() == is_kept

    def test_a_source_with_and_without_a_slash_is_one(self, staging: Path) -> None:
        for number, digest in enumerate(self._digests(staging)):
            manifest = staging / "versions" / digest / "manifest.jsonl"
            used = manifest.parent.stat().st_mtime
            header, *lines = manifest.read_text().splitlines()
            manifest.unlink()
            source = json.dumps(json.loads(header) | {"source": "s3://b/p" + "/" * (number % 2)})
            manifest.write_text("\n".join([source, *lines, ""]))
            os.utime(manifest.parent, (used, used))
        self._prune(staging)
        assert len(self._digests(staging)) == 1

    def test_an_interrupted_pruning_is_completed(self, staging: Path) -> None:
        left = staging / "versions" / f".pruned-{OTHER}"
        (left / "data").mkdir(parents=True)
        self._prune(staging, keep=9)
        assert not left.exists()


PARAMETERS = RunParameters(
    dataset_uri="s3://bucket/digits",
    pipeline="p",
    run_id="r",
    components_image="components",
    framework="pytorch",
    model_uri="s3://bucket/models",
)


class TestJobs:
    def test_the_transfer_mounts_both_pvcs_and_first_checks_that_they_are_writable(self) -> None:
        spec = job_manifest(cluster_transfer_job(PARAMETERS))["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["command"][-4:] == ["--check-writable", "/staging", "--check-writable", "/output"]
        assert container["envFrom"] == [{"secretRef": {"name": "kubetrain-s3", "optional": True}}]
        assert [mount["mountPath"] for mount in container["volumeMounts"]][:2] == ["/staging", "/output"]

    def test_the_transfer_shares_settings_of_training_pods_but_needs_fewer_resources(self) -> None:
        training = Placement(
            image="trainer",
            gpus=8,
            memory="100Gi",
            user=1000,
            pod=pod_patch({"imagePullSecrets": [{"name": "registry"}]}),
        )
        storage = Storage(transfer={"memory": "2Gi", "pod": pod_patch({"tolerations": [{"key": "io"}]})})
        placed = transfer_placement(replace(PARAMETERS, placement=training, storage=storage, s3_secret="s3"))
        assert (placed.image, placed.user, placed.gpus, placed.memory) == ("components", 1000, 0, "2Gi")
        assert placed.spec["imagePullSecrets"] == [{"name": "registry"}]
        assert secrets_of(placed) == ["s3"]
        assert placed.spec["tolerations"] == [{"key": "io"}]

    def test_the_transfer_has_what_a_namespace_may_demand_of_every_pod(self) -> None:
        metadata: dict[str, Any] = {"labels": {"team": "vision"}, "annotations": {"a": "b"}}
        pod = pod_patch({"runtimeClassName": "nvidia", "tolerations": [{"key": "ml"}]}, **metadata)
        training = Placement(scheduler="kueue", queue="research", spot="gke", pod=pod)
        placed = transfer_placement(replace(PARAMETERS, placement=training))
        assert placed.labels.items() >= metadata["labels"].items()
        assert (placed.pod["metadata"]["annotations"], placed.spec["tolerations"]) == ({"a": "b"}, [{"key": "ml"}])
        assert (placed.scheduler, placed.queue) == ("kueue", "research")
        assert ("runtimeClassName" in placed.spec, placed.spot) == (False, "")
        job = cluster_transfer_job(replace(PARAMETERS, placement=training))
        pruning = prune_job(job, STORAGE, DIGEST, [])
        assert pruning.placement.labels["team"] == "vision"
        assert pruning.placement.queue_seconds == 300, "a run does not wait for pruning"

    def test_the_transfer_stays_out_of_queues_for_gangs(self) -> None:
        training = Placement(scheduler="volcano", queue="research")
        assert transfer_placement(replace(PARAMETERS, placement=training)).scheduler == ""

    def test_transfers_into_one_volume_prefer_one_node_if_only_one_can_mount_it(self) -> None:
        placed = transfer_placement(PARAMETERS)
        (near,) = placed.spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert near["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= placed.labels.items()
        assert placed.labels == {"kubetrain/staging": "kubetrain-staging"}
        shared = transfer_placement(replace(PARAMETERS, storage=Storage(exposure="shared")))
        assert ("affinity" in shared.spec, shared.labels) == (False, {})

    def test_the_transfer_can_be_given_other_secrets(self) -> None:
        own = replace(
            PARAMETERS, storage=Storage(transfer={"pod": pod_patch({}, {"envFrom": [{"secretRef": {"name": "mine"}}]})})
        )
        assert secrets_of(transfer_placement(own)) == ["kubetrain-s3", "mine"], "of the same variables, the last counts"

    def test_a_folder_that_is_not_writable_is_named(self, tmp_path: Path) -> None:
        check_writable(tmp_path)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(KubetrainError) as caught:
            check_writable(Path("/proc"))
        assert str(caught.value).startswith(f"user {os.getuid()} cannot write to the proc PVC mounted at /proc (")
        assert not caught.value.is_curable


def secrets_of(placement: Placement) -> list[str]:
    return [source["secretRef"]["name"] for source in placement.main["envFrom"]]


class Finishing(MemoryBackend):
    """A backend whose jobs succeed at once, the transfer with this report."""

    def __init__(self, versions: int = 1, leftovers: int = 0) -> None:
        super().__init__()
        self.commands: list[tuple[str, ...]] = []
        self._counts = {"versions": versions, "leftovers": leftovers}

    def create(self, job: Any) -> Any:
        handle = super().create(job)
        self.commands.append(job.replicas[0].command)
        report = {"status": "completed", "digest": DIGEST, "bytes": 5, **self._counts}
        report |= {"folders": ["train", "val", "test"], "folders_cut": False}
        self.finish(handle.name, Phase.SUCCEEDED, exit_code=0, last_words=json.dumps(report))
        return handle


class TestWhole:
    def _sync(self, claims: MemoryClaims, backend: Finishing, **settings: Any) -> tuple[dict[str, Any], list[str]]:
        lines: list[LogLine] = []
        parameters = replace(PARAMETERS, storage=replace(STORAGE, **settings))
        report = sync_on_cluster(parameters, backend, claims, lines.append)
        return report, [line.text for line in lines]

    def test_the_report_says_what_to_mount(self, claims: MemoryClaims) -> None:
        report, _ = self._sync(claims, Finishing())
        assert (report["claim"], report["exposure"]) == (NAME, "clone")
        assert report["sub_path"] == f"versions/{DIGEST}/data"
        assert claims.made == ["kubetrain-staging", "kubetrain-output", NAME]

    def test_a_pvc_that_is_not_filled_in_time_names_the_setting(self) -> None:
        claims = MemoryClaims(phase="Pending")
        claims.classes["fast-ssd"] = AT_ONCE
        began = time.monotonic()
        with pytest.raises(KubetrainError, match=r"raise storage\.expose_seconds"):
            self._sync(claims, Finishing(), expose_seconds=1)
        assert 1 <= time.monotonic() - began < 20

    def test_nothing_is_transferred_if_the_exposure_is_impossible(self, claims: MemoryClaims) -> None:
        backend = Finishing()
        with pytest.raises(InvalidSetting, match="is ReadWriteOnce, not ReadWriteMany"):
            self._sync(with_staging(claims), backend, exposure="shared")
        assert backend.commands == []

    def test_a_job_prunes_versions_if_there_are_more_than_are_kept(self, claims: MemoryClaims) -> None:
        claims.pods = [
            {"kind": "TFJob", "metadata": {"name": "t", "labels": {"kubetrain/dataset": OTHER}}, "spec": {}},
        ]
        for versions, leftovers, jobs in ((3, 0, 1), (3, 1, 2), (4, 0, 2)):
            backend = Finishing(versions, leftovers)
            self._sync(claims, backend)
            assert len(backend.commands) == jobs
        assert backend.commands[1][3:] == (
            *("--staging", "/staging", "--keep", "3", "--current", DIGEST, "--in-use", f"versions/{OTHER}"),
        )

    def test_no_version_is_pruned_if_something_mounts_the_whole_volume(self, claims: MemoryClaims) -> None:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "kubetrain-staging"}}
        claims.pods = [{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [volume]}}]
        backend = Finishing(versions=9)
        _, lines = self._sync(claims, backend)
        assert len(backend.commands) == 1
        assert lines[-1] == "no versions are pruned: Pod p mounts all of kubetrain-staging"

    def test_a_run_does_not_fail_if_pruning_fails(self, claims: MemoryClaims) -> None:
        class Forbidden(MemoryClaims):
            def users(self) -> Any:
                raise KubetrainError("you may not list pods")

        _, lines = self._sync(Forbidden(), Finishing(versions=9))
        assert lines[-1] == "pruning was incomplete: you may not list pods"

    def test_a_sync_only_run_has_no_output(self, claims: MemoryClaims) -> None:
        parameters = replace(PARAMETERS, framework="", storage=STORAGE)
        sync_on_cluster(parameters, Finishing(), claims, lambda line: None)
        assert "kubetrain-output" not in claims.made
