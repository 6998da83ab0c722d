"""Exposure: the manifests of every mode, the reuse of PVCs, and what pruning may delete."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubetrain_components.expose_dataset.claim_reuse import ClaimAction, decide_reuse, last_used_annotation
from kubetrain_components.expose_dataset.expose import (
    Exposure,
    ExposureMode,
    ExposureRequest,
    claim_name,
    plan_exposure,
)
from kubetrain_components.expose_dataset.prune import exposed_claims, plan_pruning, staged_versions, uses_of
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.expose_dataset.storage_facts import StorageFacts
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_trainer.errors import InvalidSetting

DIGEST, OTHER = "0123456789abcdef", "fedcba9876543210"
NAME = f"ds-staging-digits-{DIGEST}"
SOURCE = "s3://bucket/digits"
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GI = 1024**3
STORAGE = StorageFacts(
    staging_claim="staging",
    access_modes=("ReadWriteOnce",),
    size="500Gi",
    storage_class="fast-ssd",
    provisioner="csi.example.com",
)
SHARED_STORAGE = replace(STORAGE, access_modes=("ReadWriteMany",))
REQUEST = ExposureRequest(digest=DIGEST, source=SOURCE, bytes=3 * GI)
STAGING_CLAIM: dict[str, Any] = {
    "metadata": {"name": "staging"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "400Gi"}},
        "storageClassName": "fast-ssd",
    },
    "status": {"phase": "Bound", "capacity": {"storage": "500Gi"}},
}
METADATA = {
    "name": NAME,
    "labels": {"app.kubernetes.io/managed-by": "kubetrain", "kubetrain/dataset": DIGEST},
    "annotations": {"kubetrain/source": SOURCE},
}


def exposure(mode: str, storage: StorageFacts = SHARED_STORAGE, **settings: Any) -> Exposure:
    if mode == "static":
        settings.setdefault("static_claim", "admins")
    return plan_exposure(replace(REQUEST, mode=ExposureMode(mode), **settings), storage)


def as_api_returns(manifest: dict[str, Any], phase: str = "Bound", created: str = "2026-11-01T00:00:00Z") -> Any:
    """A PVC created from this manifest."""
    metadata = {**manifest["metadata"], "uid": "u-1", "resourceVersion": "7", "creationTimestamp": created}
    status: dict[str, Any] = {"phase": phase}
    if phase == "Bound":
        status["capacity"] = {"storage": manifest["spec"]["resources"]["requests"]["storage"]}
    return {"metadata": metadata, "spec": {**manifest["spec"]}, "status": status}


def claim_of(digest: str = DIGEST, days_old: float = 20, source: str = SOURCE, **metadata: Any) -> Any:
    """An exposed PVC, as the API returns it."""
    planned = plan_exposure(replace(REQUEST, digest=digest, source=source, mode=ExposureMode.CLONE), STORAGE)
    created = (NOW - timedelta(days=days_old)).strftime("%Y-%m-%dT%H:%M:%SZ")
    claim = as_api_returns(planned.manifest(), created=created)
    claim["metadata"] |= metadata
    return claim


def header(digest: str, days_old: float = 20, source: str = SOURCE) -> dict[str, str]:
    created = (NOW - timedelta(days=days_old)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"digest": digest, "source": source, "created": created}


def digests(count: int) -> list[str]:
    return [f"{number:016x}" for number in range(1, count + 1)]


def pod_spec(claim: str = NAME, **mount: str) -> dict[str, Any]:
    return {
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/data", **mount}]}],
        "volumes": [{"name": "shm", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }


def pod(spec: dict[str, Any], phase: str = "Running", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "p", "labels": labels}, "spec": spec, "status": {"phase": phase}}


def job(kind: str, *conditions: str, claim: str = NAME, **labels: str) -> dict[str, Any]:
    template = {"template": {"spec": pod_spec(claim)}}
    spec = {
        "PyTorchJob": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": template}},
        "TFJob": {"tfReplicaSpecs": {"Chief": template}},
        "Job": template,
        "CronJob": {"jobTemplate": {"spec": template}},
        "VolcanoJob": {"volumes": [{"mountPath": "/x"}], "tasks": [template]},
    }[kind]
    status = {"conditions": [{"type": each.strip("-"), "status": str(not each.endswith("-"))} for each in conditions]}
    return {"kind": kind, "metadata": {"name": "j", "labels": labels}, "spec": spec, "status": status}


class TestManifests:
    def test_a_clone_is_a_read_only_pvc_created_from_the_staging_pvc(self) -> None:
        assert exposure("clone").manifest() == {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": METADATA,
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "500Gi"}},
                "storageClassName": "fast-ssd",
                "dataSource": {"kind": "PersistentVolumeClaim", "name": "staging"},
            },
        }

    def test_the_clusters_storage_class_is_the_default(self) -> None:
        assert "storageClassName" not in exposure("clone", replace(STORAGE, storage_class=None)).manifest()["spec"]

    @pytest.mark.parametrize(("mode", "claim"), [("shared", "staging"), ("static", "admins")])
    def test_shared_and_static_create_nothing(self, mode: str, claim: str) -> None:
        planned = exposure(mode)
        assert not planned.creates_claim
        assert planned.claim == claim

    def test_pods_mount_the_versions_data(self) -> None:
        planned = exposure("clone")
        assert (planned.claim, planned.sub_path) == (NAME, f"versions/{DIGEST}/data")

    @pytest.mark.parametrize("name", ["digits", "Ünï / cödé", "日本", "", "-x-", "a" * 80, "a" * 42 + "-b", "7"])
    def test_every_name_is_a_dns_label(self, name: str) -> None:
        made = claim_name("staging", f"s3://bucket/{name}", DIGEST)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", made)
        assert len(made) <= 63
        assert made.startswith("ds-")
        assert made.endswith(f"-{DIGEST}")

    def test_a_name_of_no_plain_letters_is_left_out(self) -> None:
        assert claim_name("staging", "s3://bucket/日本", DIGEST) == f"ds-staging-{DIGEST}"

    @pytest.mark.parametrize(
        ("source", "public"),
        [
            ("s3://bucket/a b/ü@home?x", "s3://bucket/a b/ü@home?x"),
            ("/data/digits", "/data/digits"),
            ("s3://AKIA123:secret@bucket/digits", "s3://…@bucket/digits"),
            ("https://h/digits?X-Amz-Credential=A&X-Amz-Signature=s", "https://h/digits"),
            ("https://h/digits?versionId=1&x-amz-signature=s", "https://h/digits"),
            ("https://h/digits?AWSAccessKeyId=A&Signature=s", "https://h/digits"),
            ("https://h/digits?sv=1&sig=s", "https://h/digits"),
        ],
    )
    def test_no_credential_gets_into_an_annotation(self, source: str, public: str) -> None:
        manifest = exposure("clone", source=source).manifest()
        assert manifest["metadata"]["annotations"] == {"kubetrain/source": public}


class TestChoice:
    @pytest.mark.parametrize(
        ("can_clone", "can_read_only_many", "access_mode", "mode"),
        [
            (True, None, "ReadWriteMany", "clone"),
            (True, True, "ReadWriteOnce", "clone"),
            (None, None, "ReadWriteMany", "shared"),
            (None, None, "ReadWriteOnce", "clone"),
            (False, True, "ReadWriteMany", "shared"),
            (True, False, "ReadWriteMany", "shared"),
            (False, None, "ReadWriteOnce", None),
            (True, False, "ReadWriteOnce", None),
        ],
    )
    def test_auto(
        self, can_clone: bool | None, can_read_only_many: bool | None, access_mode: str, mode: str | None
    ) -> None:
        abilities = {"can_clone": can_clone, "can_read_only_many": can_read_only_many}
        storage = replace(STORAGE, access_modes=(access_mode,), **abilities)
        if mode is None:
            with pytest.raises(InvalidSetting, match="exposure 'auto' found no mode that works"):
                exposure("auto", storage)
        else:
            assert exposure("auto", storage).mode == mode

    def test_auto_says_which_and_why(self) -> None:
        clone = str(exposure("auto", replace(STORAGE, can_clone=True)))
        assert f"version {DIGEST} is exposed by clone as PVC {NAME}" in clone
        assert "'csi.example.com' can clone volumes" in clone
        shared = str(exposure("auto", replace(SHARED_STORAGE, can_clone=False)))
        assert "'csi.example.com' cannot clone volumes" in shared
        assert "'staging' is ReadWriteMany" in shared
        assert "unknown whether the storage driver can clone" in str(
            exposure("auto", replace(SHARED_STORAGE, provisioner=""))
        )

    @pytest.mark.parametrize(
        ("mode", "facts", "words"),
        [
            (
                "clone",
                {"can_clone": False, "access_modes": ("ReadWriteMany",)},
                "'csi.example.com' cannot clone volumes; set storage.exposure to shared",
            ),
            (
                "clone",
                {"can_read_only_many": False},
                "cannot mount files ReadOnlyMany; use a ReadWriteMany staging PVC",
            ),
            ("clone", {"storage_class": ""}, "'staging' has no storage class"),
            ("shared", {}, "'staging' is ReadWriteOnce, not ReadWriteMany; set storage.exposure to clone"),
            ("shared", {"volume_mode": "Block"}, "is a Block volume"),
            ("clone", {"volume_mode": "Block"}, "is a Block volume"),
        ],
    )
    def test_a_mode_that_cannot_work_is_refused_with_those_that_can(
        self, mode: str, facts: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InvalidSetting) as caught:
            exposure(mode, replace(STORAGE, **facts))
        assert f"exposure '{mode}' cannot work" in str(caught.value)
        assert words in str(caught.value)

    def test_static_works_whatever_the_staging_claim_is(self) -> None:
        storage = replace(STORAGE, storage_class="", volume_mode="Block", can_read_only_many=False)
        assert exposure("static", storage).mode == "static"

    def test_the_requested_mode_is_used_unless_it_is_known_not_to_work(self) -> None:
        for mode in ("clone", "static"):
            assert exposure(mode, STORAGE).mode == mode

    def test_an_unknown_mode_suggests_the_nearest(self) -> None:
        with pytest.raises(InvalidSetting, match=r"exposure cannot be 'clones': did you mean 'clone'\?"):
            Storage(exposure="clones")

    @pytest.mark.parametrize(("mode", "static_claim"), [("static", ""), ("auto", "admins"), ("clone", "admins")])
    def test_static_and_its_claim_go_together(self, mode: str, static_claim: str) -> None:
        with pytest.raises(InvalidSetting, match="static_claim"):
            exposure(mode, static_claim=static_claim)

    @pytest.mark.parametrize("digest", ["", "0" * 15, "0" * 17, "A" * 16, "g" * 16, "../" + "0" * 13])
    def test_only_a_digest_names_a_version(self, digest: str) -> None:
        with pytest.raises(InvalidSetting, match="16 hex digits"):
            exposure("clone", digest=digest)

    @pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "a-", "a..b", "a" * 254])
    def test_names_of_objects_are_checked(self, name: str) -> None:
        for setting, make in (
            ("storage.static_claim", lambda: exposure("static", static_claim=name)),
            ("storage.staging_claim", lambda: Storage(staging_claim=name).staging),
        ):
            with pytest.raises(InvalidSetting, match=f"^{setting} '.*' is not a valid object name"):
                make()
        assert exposure("static", static_claim="team-a.data").claim == "team-a.data"

    @pytest.mark.parametrize(
        ("quantity", "size"),
        [
            ("1", 1),
            ("500Gi", 500 * GI),
            ("1.5Ki", 1536),
            ("2k", 2000),
            ("3E", 3 * 10**18),
            ("12e6", 12_000_000),
            ("1Ei", 2**60),
            ("1500m", 2),
            (".5M", 500_000),
            ("5.", 5),
        ],
    )
    def test_quantities(self, quantity: str, size: int) -> None:
        assert whole_amount(quantity) == size

    @pytest.mark.parametrize("quantity", ["", "Gi", "1GB", "-1Gi", "1 Gi", "1gi", "1e", "NaN"])
    def test_invalid_quantities(self, quantity: str) -> None:
        with pytest.raises(InvalidSetting):
            whole_amount(quantity)


class TestFacts:
    def test_they_are_what_the_api_says(self) -> None:
        storage_class = {"provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
        assert StorageFacts.read(STAGING_CLAIM, storage_class) == replace(SHARED_STORAGE, binds_immediately=False)

    def test_the_request_counts_until_there_is_a_capacity(self) -> None:
        assert StorageFacts.read({**STAGING_CLAIM, "status": {"phase": "Pending"}}, None).size == "400Gi"

    def test_a_block_volume_is_seen(self) -> None:
        claim = {**STAGING_CLAIM, "spec": {**STAGING_CLAIM["spec"], "volumeMode": "Block"}}
        assert StorageFacts.read(claim, None).volume_mode == "Block"

    def test_without_the_right_to_read_classes_nothing_is_known(self) -> None:
        assert StorageFacts.read(STAGING_CLAIM, None) == replace(SHARED_STORAGE, provisioner="")

    @pytest.mark.parametrize("binding", [{}, {"volumeBindingMode": "Immediate"}])
    def test_a_class_binds_immediately_unless_it_says_otherwise(self, binding: dict[str, str]) -> None:
        assert StorageFacts.read(STAGING_CLAIM, {"provisioner": "x", **binding}).binds_immediately is True

    @pytest.mark.parametrize(
        ("provisioner", "abilities"),
        [
            ("pd.csi.storage.gke.io", (True, True)),
            ("rook-ceph.rbd.csi.ceph.com", (True, True)),
            ("cephfs.csi.ceph.com", (True, True)),
            ("ebs.csi.aws.com", (None, False)),
            ("disk.csi.azure.com", (None, False)),
            ("driver.longhorn.io", (None, False)),
            ("rancher.io/local-path", (False, None)),
            ("kubernetes.io/no-provisioner", (False, None)),
            ("notebs.csi.aws.com", (None, None)),
            ("test-cluster/directory", (None, None)),
        ],
    )
    def test_known_drivers(self, provisioner: str, abilities: tuple[bool | None, ...]) -> None:
        facts = StorageFacts.read(STAGING_CLAIM, {"provisioner": provisioner})
        assert (facts.can_clone, facts.can_read_only_many) == abilities


class TestReuse:
    def test_a_missing_pvc_is_created(self) -> None:
        decision = decide_reuse(exposure("clone"), None)
        assert decision.action is ClaimAction.CREATE
        assert NAME in decision.reason

    def test_a_matching_pvc_is_reused(self) -> None:
        decision = decide_reuse(exposure("clone"), claim_of())
        assert decision.action is ClaimAction.REUSE
        assert decision.reason == f"PVC {NAME} is ready with version {DIGEST}"

    def test_a_staging_claim_that_grew_does_not_spoil_older_clones(self) -> None:
        assert decide_reuse(exposure("clone", replace(STORAGE, size="2Ti")), claim_of()).action is ClaimAction.REUSE

    def test_a_claim_of_just_the_size_is_enough(self) -> None:
        there = claim_of()
        there["status"]["capacity"]["storage"] = "3Gi"
        assert decide_reuse(exposure("clone"), there).action is ClaimAction.REUSE

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda claim: claim["metadata"].pop("labels"), "was not created by kubetrain"),
            (
                lambda claim: claim["metadata"]["labels"].update({"app.kubernetes.io/managed-by": "Helm"}),
                "was not created by kubetrain",
            ),
            (lambda claim: claim["metadata"]["labels"].pop("kubetrain/dataset"), "was not created by kubetrain"),
            (
                lambda claim: claim["metadata"]["labels"].update({"kubetrain/dataset": OTHER}),
                f"has version {OTHER}, not {DIGEST}",
            ),
            (
                lambda claim: claim["spec"]["dataSource"].update(name="another"),
                "was created from PersistentVolumeClaim another, not from PersistentVolumeClaim staging",
            ),
            (
                lambda claim: claim["spec"]["dataSource"].update(kind="VolumeSnapshot"),
                "was created from VolumeSnapshot staging, not from PersistentVolumeClaim staging",
            ),
            (lambda claim: claim["spec"].pop("dataSource"), "was created from nothing"),
            (
                lambda claim: claim["spec"].update(accessModes=["ReadWriteOnce"]),
                "is ReadWriteOnce, not only ReadOnlyMany",
            ),
            (
                lambda claim: claim["spec"].update(accessModes=["ReadOnlyMany", "ReadWriteMany"]),
                "is ReadOnlyMany, ReadWriteMany, not only ReadOnlyMany",
            ),
            (lambda claim: claim["spec"].update(volumeMode="Block"), "is a Block volume"),
            (
                lambda claim: claim["status"].update(capacity={"storage": "2Gi"}),
                f"has 2Gi, less than the {3 * GI} bytes of the version",
            ),
            (lambda claim: claim["status"].update(phase="Lost"), "is Lost, not Bound"),
            (lambda claim: claim.pop("status"), "is Unknown, not Bound"),
        ],
    )
    def test_a_mismatching_pvc_is_refused_with_the_reason(self, change: Any, words: str) -> None:
        there = claim_of()
        change(there)
        decision = decide_reuse(exposure("clone"), there)
        assert decision.action is ClaimAction.REFUSE
        assert words in decision.reason
        assert NAME in decision.reason
        assert "delete it" in decision.reason, "the remedy"

    def test_a_pvc_being_deleted_is_waited_for(self) -> None:
        there = claim_of(deletionTimestamp="2026-11-21T11:00:00Z")
        there["spec"]["dataSource"]["name"] = "another"
        assert decide_reuse(exposure("clone"), there).action is ClaimAction.WAIT

    def test_a_foreign_claim_that_is_being_deleted_is_still_foreign(self) -> None:
        there = claim_of(deletionTimestamp="2026-11-21T11:00:00Z", labels={})
        assert decide_reuse(exposure("clone"), there).action is ClaimAction.REFUSE

    @pytest.mark.parametrize(
        ("binds_immediately", "action"),
        [(True, ClaimAction.WAIT), (False, ClaimAction.REUSE), (None, ClaimAction.REUSE)],
    )
    def test_a_pending_pvc_is_waited_for_only_if_its_class_binds_immediately(
        self, binds_immediately: bool | None, action: ClaimAction
    ) -> None:
        planned = exposure("clone", replace(STORAGE, binds_immediately=binds_immediately))
        there = as_api_returns(planned.manifest(), phase="Pending")
        assert decide_reuse(planned, there).action is action

    @pytest.mark.parametrize(("mode", "access_mode"), [("shared", "ReadWriteMany"), ("static", "ReadOnlyMany")])
    def test_the_administrators_pvcs_need_only_suit_the_pods(self, mode: str, access_mode: str) -> None:
        planned = exposure(mode)
        there: dict[str, Any] = {
            "metadata": {"name": planned.claim},
            "spec": {"accessModes": ["ReadWriteOnce", access_mode], "resources": {"requests": {"storage": "1Mi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Mi"}},
        }
        assert decide_reuse(planned, there).action is ClaimAction.REUSE
        absent = decide_reuse(planned, None)
        assert absent.action is ClaimAction.REFUSE
        setting = {"shared": "storage.staging_claim", "static": "storage.static_claim"}[mode]
        assert f"no PVC {planned.claim}: create it, or correct {setting}" in absent.reason
        for broken, words in (
            ({**there, "spec": {**there["spec"], "accessModes": ["ReadWriteOnce"]}}, f"not {access_mode}"),
            ({**there, "spec": {**there["spec"], "volumeMode": "Block"}}, "is a Block volume"),
            ({**there, "status": {"phase": "Pending"}}, "is Pending, not Bound"),
            ({**there, "metadata": {**there["metadata"], "deletionTimestamp": "x"}}, "is being deleted"),
        ):
            decision = decide_reuse(planned, broken)
            assert decision.action is ClaimAction.REFUSE
            assert words in decision.reason
            assert "staging_claim" not in decision.reason, "a remedy for our own PVCs only"

    def test_reuse_is_noted_on_the_claim(self) -> None:
        assert last_used_annotation(NOW.astimezone()) == {"kubetrain/last-used": "2026-11-21T12:00:00Z"}


class TestUses:
    def test_a_pod_uses_the_claims_it_mounts(self) -> None:
        (use,) = uses_of([pod(pod_spec(subPath="versions/x/data"))], NOW)
        assert (use.by, use.claim, use.sub_path) == ("pod or job p", NAME, "versions/x/data")

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_a_finished_pod_uses_nothing(self, phase: str) -> None:
        assert uses_of([pod(pod_spec(), phase, **{"kubetrain/dataset": DIGEST})], NOW) == []

    @pytest.mark.parametrize("phase", ["Pending", "Unknown", "Something new"])
    def test_any_other_pod_does(self, phase: str) -> None:
        assert uses_of([pod(pod_spec(), phase)], NOW)
        assert uses_of([{"metadata": {"name": "p"}, "spec": pod_spec()}], NOW)

    @pytest.mark.parametrize("kind", ["initContainers", "ephemeralContainers"])
    def test_every_kind_of_container_mounts(self, kind: str) -> None:
        spec = pod_spec(subPath="a")
        spec[kind] = [{"name": "i", "volumeMounts": [{"name": "data", "mountPath": "/i", "subPath": "b"}]}]
        assert {use.sub_path for use in uses_of([pod(spec)], NOW)} == {"a", "b"}

    @pytest.mark.parametrize("mount", [{}, {"subPathExpr": "versions/$(DIGEST)"}])
    def test_an_unclear_path_is_the_whole_volume(self, mount: dict[str, str]) -> None:
        assert [use.sub_path for use in uses_of([pod(pod_spec(**mount))], NOW)] == [""]
        unmounted = {**pod_spec(), "containers": [{"name": "c"}]}
        assert [use.sub_path for use in uses_of([pod(unmounted)], NOW)] == [""]

    def test_the_mounts_of_other_volumes_do_not_count(self) -> None:
        spec = pod_spec(subPath="a")
        spec["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm", "subPath": "b"})
        assert [use.sub_path for use in uses_of([pod(spec)], NOW)] == ["a"]

    def test_what_mounts_nothing_uses_nothing(self) -> None:
        bare = {"containers": [{"name": "c"}]}
        assert uses_of([pod(bare), pod({**bare, "volumes": None}), {"metadata": {"name": "x"}}], NOW) == []

    @pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob", "Job", "CronJob", "VolcanoJob"])
    def test_jobs_use_what_their_templates_mount(self, kind: str) -> None:
        assert [(use.by, use.claim) for use in uses_of([job(kind)], NOW)] == [(f"{kind} j", NAME)]

    @pytest.mark.parametrize("condition", ["Succeeded", "Failed", "Complete", "Completed"])
    def test_a_finished_job_uses_nothing(self, condition: str) -> None:
        assert uses_of([job("PyTorchJob", "Created", "Running-", condition)], NOW) == []

    @pytest.mark.parametrize("conditions", [(), ("Created", "Running"), ("Failed-", "Restarting"), ("Suspended",)])
    def test_any_other_job_does(self, conditions: tuple[str, ...]) -> None:
        assert uses_of([job("PyTorchJob", *conditions)], NOW)

    def test_a_job_needs_the_version_on_its_label(self) -> None:
        uses = uses_of([job("Job", **{"kubetrain/dataset": DIGEST})], NOW)
        assert DIGEST in [use.digest for use in uses]

    def test_a_job_that_has_just_ended_keeps_its_version(self) -> None:
        ended = job("PyTorchJob", "Succeeded", **{"kubetrain/dataset": DIGEST})
        for hours, kept in ((23, [DIGEST]), (25, [])):
            ended["status"]["conditions"][0]["lastTransitionTime"] = (NOW - timedelta(hours=hours)).isoformat()
            assert [use.digest for use in uses_of([ended], NOW)] == kept

    def test_a_clone_that_is_not_filled_yet_needs_its_source(self) -> None:
        pending = claim_of()
        pending["status"] = {"phase": "Pending"}
        (use,) = uses_of([pending, claim_of(OTHER)], NOW)
        assert (use.claim, use.sub_path, use.digest) == ("staging", f"versions/{DIGEST}", "")
        assert "not filled yet" in use.by
        pending["metadata"]["labels"] = {}
        assert uses_of([pending], NOW)[0].sub_path == "", "a PVC without our label copies the whole volume"

    def test_other_claims_use_nothing(self) -> None:
        plain = {"metadata": {"name": "x"}, "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Pending"}}
        source = {"kind": "VolumeSnapshot", "name": "staging"}
        restored = {**plain, "spec": {**plain["spec"], "dataSource": source}}
        assert uses_of([restored, plain], NOW) == []


def deleted(items: list[Any], uses: list[Any] | None = None, keep: int = 1, current: str = "") -> list[str]:
    plan = plan_pruning(items, uses_of(uses or [], NOW), keep=keep, current=current, now=NOW)
    return [decision.item.digest for decision in plan if decision.deletes]


class TestPruning:
    def test_the_newest_stay(self) -> None:
        made = digests(5)
        claims = [claim_of(digest, days_old=number + 2) for number, digest in enumerate(made)]
        for keep, rest in ((1, made[1:]), (3, made[3:]), (5, []), (9, [])):
            assert deleted(exposed_claims(reversed(claims)), keep=keep) == rest

    def test_versions_on_the_staging_volume_are_pruned_alike(self) -> None:
        made = digests(3)
        headers = [header(digest, days_old=number + 2) for number, digest in enumerate(made)]
        assert deleted(staged_versions(headers, "staging", {})) == made[1:]

    def test_every_source_has_its_own_newest_and_so_have_claims_and_versions(self) -> None:
        made = digests(4)
        claims = [claim_of(made[0], 2), claim_of(made[1], 3), claim_of(made[2], 4, source="s3://bucket/other")]
        items = exposed_claims(claims) + staged_versions([header(made[3], 5)], "staging", {})
        assert deleted(items) == [made[1]]

    def test_items_younger_than_a_day_stay(self) -> None:
        made = digests(3)
        claims = [claim_of(made[0], 0), claim_of(made[1], 0.999), claim_of(made[2], 1)]
        assert deleted(exposed_claims(claims)) == [made[2]]
        headers = [header(made[0], 0), header(made[1], 0.999), header(made[2], 1)]
        assert deleted(staged_versions(headers, "staging", {})) == [made[2]]

    def test_items_used_less_than_a_day_ago_stay(self) -> None:
        made = digests(3)
        claims = [claim_of(digest, days_old) for digest, days_old in zip(made, (3, 30, 40), strict=True)]
        patch = last_used_annotation(NOW - timedelta(hours=5))
        claims[1]["metadata"]["annotations"] = {**claims[1]["metadata"]["annotations"], **patch}
        assert deleted(exposed_claims(claims), keep=2) == [made[2]]
        headers = [header(digest, days_old) for digest, days_old in zip(made, (3, 30, 40), strict=True)]
        taken = {made[1]: "2026-11-21T07:00:00Z"}
        assert deleted(staged_versions(headers, "staging", taken), keep=1) == [made[0], made[2]], "it is the newest now"

    def test_an_older_last_used_annotation_changes_nothing(self) -> None:
        made = digests(2)
        claims = [claim_of(made[0], 0.1), claim_of(made[1], 0.2)]
        claims[1]["metadata"]["annotations"] = {
            **claims[1]["metadata"]["annotations"],
            "kubetrain/last-used": "2020-01-01T00:00:00Z",
        }
        assert deleted(exposed_claims(claims)) == []

    @pytest.mark.parametrize("stamp", [None, "", "yesterday", "2020-13-01T00:00:00Z", "2020-01-01T00:00:00", 7])
    def test_items_of_unreadable_age_stay(self, stamp: object) -> None:
        made = digests(3)
        claims = [claim_of(made[0], 2), claim_of(made[1], 9, creationTimestamp=stamp), claim_of(made[2], 9)]
        assert deleted(exposed_claims(claims)) == [made[2]], "and it does not count among the newest"
        headers = [header(made[0], 2), {**header(made[1]), "created": stamp}, header(made[2], 9)]
        assert deleted(staged_versions(headers, "staging", {})) == [made[2]]

    def test_items_with_an_unreadable_last_used_annotation_stay(self) -> None:
        claims = [claim_of(digests(2)[0], 2), claim_of(digests(2)[1], 9)]
        claims[1]["metadata"]["annotations"] = {
            **claims[1]["metadata"]["annotations"],
            "kubetrain/last-used": "yesterday",
        }
        assert deleted(exposed_claims(claims)) == []

    def test_the_current_version_stays_at_any_age(self) -> None:
        made = digests(3)
        claims = [claim_of(digest, days_old=number + 2) for number, digest in enumerate(made)]
        assert deleted(exposed_claims(claims), current=made[2]) == [made[1]]

    @pytest.mark.parametrize("user", [pod(pod_spec()), job("PyTorchJob"), job("TFJob"), job("Job", "Suspended")])
    def test_a_pvc_in_use_stays(self, user: dict[str, Any]) -> None:
        items = exposed_claims([claim_of(OTHER, 2), claim_of(DIGEST, 9)])
        assert deleted(items, [user]) == []
        assert deleted(items) == [DIGEST]

    def test_finished_users_do_not_count(self) -> None:
        items = exposed_claims([claim_of(OTHER, 2), claim_of(DIGEST, 9)])
        finished = [pod(pod_spec(), "Succeeded"), pod(pod_spec(), "Failed"), job("PyTorchJob", "Succeeded")]
        assert deleted(items, finished) == [DIGEST]

    @pytest.mark.parametrize(
        ("claim", "path", "is_used"),
        [
            ("staging", f"versions/{DIGEST}/data", True),
            ("staging", f"versions/{DIGEST}/data/train", True),
            ("staging", f"./versions/{DIGEST}", True),
            ("staging", "versions", True),
            ("staging", "", True),
            ("staging", f"versions/{OTHER}/data", False),
            ("staging", f"versions/{DIGEST}0", False),
            ("staging", "elsewhere", False),
            ("another", "", False),
        ],
    )
    def test_a_version_that_a_pod_mounts_stays(self, claim: str, path: str, is_used: bool) -> None:
        items = staged_versions([header(digests(1)[0], 2), header(DIGEST, 9)], "staging", {})
        mounted = pod(pod_spec(claim, **({"subPath": path} if path else {})))
        assert deleted(items, [mounted]) == ([] if is_used else [DIGEST])

    def test_a_version_on_the_label_of_a_waiting_job_stays(self) -> None:
        items = exposed_claims([claim_of(OTHER, 2), claim_of(DIGEST, 9)])
        items += staged_versions([header(OTHER, 2), header(DIGEST, 9)], "staging", {})
        assert deleted(items) == [DIGEST, DIGEST]
        assert deleted(items, [job("Job", claim="x", **{"kubetrain/dataset": DIGEST})]) == []

    def test_a_version_that_a_clone_still_has_to_copy_stays(self) -> None:
        pending = claim_of()
        pending["status"] = {"phase": "Pending"}
        items = staged_versions([header(OTHER, 2), header(DIGEST, 9)], "staging", {})
        assert deleted(items, [pending]) == []
        assert deleted(exposed_claims([claim_of(OTHER, 2), pending]), [pending]) == [DIGEST], "the clone itself may go"

    def test_items_being_deleted_are_not_deleted_again_and_do_not_count(self) -> None:
        made = digests(3)
        claims = [claim_of(made[0], 2, deletionTimestamp="x"), claim_of(made[1], 3), claim_of(made[2], 4)]
        assert deleted(exposed_claims(claims)) == [made[2]]

    @pytest.mark.parametrize(
        "labels",
        [
            {},
            None,
            {**METADATA["labels"], "app.kubernetes.io/managed-by": "Helm"},
            {"app.kubernetes.io/managed-by": "kubetrain"},
            {"kubetrain/dataset": DIGEST},
            {**METADATA["labels"], "kubetrain/dataset": "x"},
        ],
    )
    def test_only_pvcs_exposed_by_kubetrain_are_considered(self, labels: Any) -> None:
        assert exposed_claims([claim_of(labels=labels)]) == []

    def test_pvcs_without_annotations_form_a_group(self) -> None:
        made = digests(2)
        claims = [claim_of(made[0], 2, annotations=None), claim_of(made[1], 3, annotations=None)]
        assert deleted(exposed_claims(claims)) == [made[1]]

    def test_only_the_pvc_seen_by_the_plan_is_deleted(self) -> None:
        (item,) = exposed_claims([claim_of()])
        assert item.preconditions == {"uid": "u-1", "resourceVersion": "7"}

    def test_it_prints_a_line_for_each_with_the_reason(self) -> None:
        made = digests(7)
        claims = [claim_of(digest, days_old=number + 2) for number, digest in enumerate(made)]
        claims[2]["metadata"]["deletionTimestamp"] = "x"
        claims[4]["metadata"]["creationTimestamp"] = (NOW - timedelta(hours=1)).isoformat()
        claims[5]["metadata"]["creationTimestamp"] = None
        uses = uses_of([job("TFJob", claim=f"ds-staging-digits-{made[3]}")], NOW)
        plan = plan_pruning(exposed_claims(claims), uses, keep=1, current=made[6], now=NOW)
        assert [str(decision) for decision in plan] == [
            f"keep PVC ds-staging-digits-{made[4]}: created or used less than a day ago",
            f"delete PVC ds-staging-digits-{made[0]}: not among the 1 newest and not in use",
            f"delete PVC ds-staging-digits-{made[1]}: not among the 1 newest and not in use",
            f"keep PVC ds-staging-digits-{made[2]}: already being deleted",
            f"keep PVC ds-staging-digits-{made[3]}: used by TFJob j",
            f"keep PVC ds-staging-digits-{made[6]}: this run's version",
            f"keep PVC ds-staging-digits-{made[5]}: its age is unknown",
        ]
        (kept,) = plan_pruning(exposed_claims(claims[:1]), [], keep=1, current="", now=NOW)
        assert str(kept) == f"keep PVC ds-staging-digits-{made[0]}: among the 1 newest"
        (kept,) = plan_pruning(staged_versions([header(DIGEST)], "staging", {}), [], keep=3, current="", now=NOW)
        assert str(kept) == f"keep version versions/{DIGEST}: among the 3 newest"
