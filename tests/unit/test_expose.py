"""Exposure: the manifests of every mode, which claim is reused, and what pruning may delete."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubetrain_components.expose_dataset.claim_reuse import Verdict, judge_claims, last_used_patch
from kubetrain_components.expose_dataset.expose import (
    Exposure,
    ExposureRequest,
    StorageFacts,
    claim_name,
    plan_exposure,
    without_credentials,
)
from kubetrain_components.expose_dataset.prune import exposed_claims, plan_pruning, staged_versions, uses_of
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_trainer.errors import InvalidSetting

DIGEST, OTHER = "0123456789abcdef", "fedcba9876543210"
NAME = f"ds-digits-{DIGEST}"
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
REQUEST = ExposureRequest(dataset_name="digits", digest=DIGEST, source=SOURCE, bytes=3 * GI)
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
    "labels": {
        "app.kubernetes.io/managed-by": "kubetrain",
        "kubetrain/dataset": DIGEST,
        "kubetrain/exposure": "clone",
    },
    "annotations": {"kubetrain/source": SOURCE},
}


def exposure(mode: str, storage: StorageFacts = SHARED_STORAGE, **settings: Any) -> Exposure:
    if mode == "static":
        settings.setdefault("static_claim", "admins")
    return plan_exposure(replace(REQUEST, mode=mode, **settings), storage)


def as_api_returns(manifest: dict[str, Any], phase: str = "Bound", created: str = "2026-11-01T00:00:00Z") -> Any:
    """A claim made from this manifest."""
    metadata = {**manifest["metadata"], "uid": "u-1", "resourceVersion": "7", "creationTimestamp": created}
    status: dict[str, Any] = {"phase": phase}
    if phase == "Bound":
        status["capacity"] = {"storage": manifest["spec"]["resources"]["requests"]["storage"]}
    return {"metadata": metadata, "spec": {**manifest["spec"]}, "status": status}


def claim_of(digest: str = DIGEST, days_old: float = 20, source: str = SOURCE, **metadata: Any) -> Any:
    """An exposed claim, as the API returns it."""
    planned = plan_exposure(replace(REQUEST, digest=digest, source=source, mode="clone"), STORAGE)
    created = (NOW - timedelta(days=days_old)).strftime("%Y-%m-%dT%H:%M:%SZ")
    claim = as_api_returns(planned.manifests()[0], created=created)
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
    def test_a_clone_is_a_read_only_claim_made_from_the_staging_claim(self) -> None:
        assert exposure("clone").manifests() == [
            {
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
        ]

    def test_a_snapshot_comes_before_the_claim_made_from_it(self) -> None:
        labels = {**METADATA["labels"], "kubetrain/exposure": "snapshot"}
        snapshot, claim = exposure("snapshot", snapshot_class="daily").manifests()
        assert snapshot == {
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {**METADATA, "labels": labels},
            "spec": {"source": {"persistentVolumeClaimName": "staging"}, "volumeSnapshotClassName": "daily"},
        }
        (clone,) = exposure("clone").manifests()
        origin = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": NAME}
        assert claim == {
            **clone,
            "metadata": {**METADATA, "labels": labels},
            "spec": {**clone["spec"], "dataSource": origin},
        }

    def test_without_a_snapshot_class_the_drivers_default_is_taken(self) -> None:
        assert "volumeSnapshotClassName" not in exposure("snapshot").manifests()[0]["spec"]

    def test_without_a_storage_class_the_clusters_default_is_taken(self) -> None:
        assert "storageClassName" not in exposure("clone", replace(STORAGE, storage_class=None)).manifests()[0]["spec"]

    @pytest.mark.parametrize(("mode", "claim"), [("shared", "staging"), ("static", "admins")])
    def test_shared_and_static_make_nothing(self, mode: str, claim: str) -> None:
        planned = exposure(mode)
        assert planned.manifests() == []
        assert planned.claim == claim

    @pytest.mark.parametrize("mode", ["clone", "snapshot", "shared", "static"])
    def test_pods_mount_the_versions_data_read_only_on_volume_and_mount(self, mode: str) -> None:
        planned = exposure(mode)
        claim = {"clone": NAME, "snapshot": NAME, "shared": "staging", "static": "admins"}[mode]
        assert planned.volume() == {
            "name": "dataset",
            "persistentVolumeClaim": {"claimName": claim, "readOnly": True},
        }
        assert planned.mount() == {
            "name": "dataset",
            "mountPath": "/data",
            "subPath": f"versions/{DIGEST}/data",
            "readOnly": True,
        }

    def test_claims_outlive_the_run(self) -> None:
        for manifest in exposure("snapshot").manifests():
            assert "ownerReferences" not in manifest["metadata"]

    @pytest.mark.parametrize("name", ["digits", "Ünï / cödé", "日本", "", "-x-", "a" * 80, "a" * 42 + "-b", "7"])
    def test_every_name_is_a_dns_label(self, name: str) -> None:
        made = claim_name(name, DIGEST)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", made)
        assert len(made) <= 63
        assert made.startswith("ds-")
        assert made.endswith(f"-{DIGEST}")

    def test_a_name_of_no_plain_letters_leaves_the_digest(self) -> None:
        assert claim_name("日本", DIGEST) == f"ds-{DIGEST}"

    @pytest.mark.parametrize(
        ("source", "public"),
        [
            ("s3://bucket/a b/ü@home?x", "s3://bucket/a b/ü@home?x"),
            ("/data/digits", "/data/digits"),
            ("s3://AKIA123:secret@bucket/digits", "s3://bucket/digits"),
            ("https://h/digits?X-Amz-Credential=A&X-Amz-Signature=s", "https://h/digits"),
            ("https://h/digits?versionId=1&x-amz-signature=s", "https://h/digits"),
            ("https://h/digits?AWSAccessKeyId=A&Signature=s", "https://h/digits"),
            ("https://h/digits?sv=1&sig=s", "https://h/digits"),
        ],
    )
    def test_no_credential_gets_into_an_annotation(self, source: str, public: str) -> None:
        assert without_credentials(source) == public
        (manifest,) = exposure("clone", source=source).manifests()
        assert manifest["metadata"]["annotations"] == {"kubetrain/source": public}


class TestChoice:
    @pytest.mark.parametrize(
        ("can_clone", "can_snapshot", "can_read_only_many", "access_mode", "mode"),
        [
            (True, None, None, "ReadWriteMany", "clone"),
            (True, None, True, "ReadWriteOnce", "clone"),
            (None, None, None, "ReadWriteMany", "shared"),
            (None, None, None, "ReadWriteOnce", "clone"),
            (False, True, True, "ReadWriteMany", "shared"),
            (False, True, True, "ReadWriteOnce", "snapshot"),
            (True, True, False, "ReadWriteMany", "shared"),
            (False, None, None, "ReadWriteOnce", None),
            (True, True, False, "ReadWriteOnce", None),
            (False, True, False, "ReadWriteOnce", None),
        ],
    )
    def test_auto(
        self,
        can_clone: bool | None,
        can_snapshot: bool | None,
        can_read_only_many: bool | None,
        access_mode: str,
        mode: str | None,
    ) -> None:
        storage = replace(
            STORAGE,
            access_modes=(access_mode,),
            can_clone=can_clone,
            can_snapshot=can_snapshot,
            can_read_only_many=can_read_only_many,
        )
        if mode is None:
            with pytest.raises(InvalidSetting, match="no exposure works by itself"):
                exposure("auto", storage)
        else:
            assert exposure("auto", storage).mode == mode

    def test_auto_says_which_and_why(self) -> None:
        assert str(exposure("auto", replace(STORAGE, can_clone=True))) == (
            f"version {DIGEST} is exposed by clone as claim {NAME} (the storage driver 'csi.example.com' can clone "
            "volumes)"
        )
        assert str(exposure("auto", replace(SHARED_STORAGE, can_clone=False))).endswith(
            "(the storage driver 'csi.example.com' cannot clone volumes, and the staging claim 'staging' is "
            "ReadWriteMany)"
        )
        assert str(exposure("auto", replace(SHARED_STORAGE, provisioner=""))).endswith(
            "(whether the storage driver can clone volumes is not known, and the staging claim 'staging' is "
            "ReadWriteMany)"
        )

    @pytest.mark.parametrize(
        ("mode", "facts", "words"),
        [
            ("clone", {"can_clone": False}, "'csi.example.com' cannot clone volumes; set exposure to snapshot"),
            ("snapshot", {"can_snapshot": False}, "cannot take snapshots; set exposure to clone"),
            ("clone", {"can_read_only_many": False}, "cannot mount files ReadOnlyMany; use a staging claim that is"),
            ("snapshot", {"can_read_only_many": False}, "cannot mount files ReadOnlyMany"),
            ("clone", {"storage_class": ""}, "'staging' has no storage class"),
            ("shared", {}, "'staging' is ReadWriteOnce, not ReadWriteMany; set exposure to clone or snapshot"),
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

    def test_what_is_asked_for_is_taken_where_nothing_speaks_against_it(self) -> None:
        for mode in ("clone", "snapshot", "static"):
            assert exposure(mode, STORAGE).mode == mode

    def test_an_unknown_mode_is_met_with_the_nearest(self) -> None:
        with pytest.raises(InvalidSetting, match=r"unknown exposure 'snapshots': did you mean 'snapshot'\?"):
            exposure("snapshots")

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
            ("static_claim", lambda: exposure("static", static_claim=name)),
            ("snapshot_class", lambda: exposure("snapshot", snapshot_class=name)),
            ("staging_claim", lambda: replace(STORAGE, staging_claim=name)),
        ):
            with pytest.raises(InvalidSetting, match=f"^{setting} '.*' cannot name an object"):
                make()
        assert exposure("static", static_claim="team-a.data").claim == "team-a.data"

    def test_a_size_that_is_none_is_refused(self) -> None:
        with pytest.raises(InvalidSetting, match="size '500 GB' is no Kubernetes quantity"):
            replace(STORAGE, size="500 GB")

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
    def test_what_is_no_quantity(self, quantity: str) -> None:
        with pytest.raises(InvalidSetting):
            whole_amount(quantity)


class TestFacts:
    def test_they_are_what_the_api_says(self) -> None:
        storage_class = {"provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
        assert StorageFacts.read(STAGING_CLAIM, storage_class) == replace(SHARED_STORAGE, binds_at_once=False)

    def test_the_request_counts_until_there_is_a_capacity(self) -> None:
        assert StorageFacts.read({**STAGING_CLAIM, "status": {"phase": "Pending"}}, None).size == "400Gi"

    def test_a_block_volume_is_seen(self) -> None:
        claim = {**STAGING_CLAIM, "spec": {**STAGING_CLAIM["spec"], "volumeMode": "Block"}}
        assert StorageFacts.read(claim, None).volume_mode == "Block"

    def test_without_the_right_to_read_classes_nothing_is_known(self) -> None:
        assert StorageFacts.read(STAGING_CLAIM, None) == replace(SHARED_STORAGE, provisioner="")

    @pytest.mark.parametrize("binding", [{}, {"volumeBindingMode": "Immediate"}])
    def test_a_class_binds_at_once_unless_it_says_otherwise(self, binding: dict[str, str]) -> None:
        assert StorageFacts.read(STAGING_CLAIM, {"provisioner": "x", **binding}).binds_at_once is True

    @pytest.mark.parametrize(
        ("provisioner", "abilities"),
        [
            ("pd.csi.storage.gke.io", (True, True, True)),
            ("rook-ceph.rbd.csi.ceph.com", (True, True, True)),
            ("cephfs.csi.ceph.com", (True, True, True)),
            ("ebs.csi.aws.com", (None, None, False)),
            ("disk.csi.azure.com", (None, None, False)),
            ("driver.longhorn.io", (None, None, False)),
            ("rancher.io/local-path", (False, False, None)),
            ("kubernetes.io/no-provisioner", (False, False, None)),
            ("notebs.csi.aws.com", (None, None, None)),
            ("test-cluster/directory", (None, None, None)),
        ],
    )
    def test_known_drivers(self, provisioner: str, abilities: tuple[bool | None, ...]) -> None:
        facts = StorageFacts.read(STAGING_CLAIM, {"provisioner": provisioner})
        assert (facts.can_clone, facts.can_snapshot, facts.can_read_only_many) == abilities


class TestReuse:
    @pytest.mark.parametrize("mode", ["clone", "snapshot"])
    def test_nothing_there_is_made(self, mode: str) -> None:
        decision = judge_claims(exposure(mode), [claim_of(OTHER)])
        assert decision.verdict is Verdict.CREATE
        assert NAME in decision.sentence

    @pytest.mark.parametrize("mode", ["clone", "snapshot"])
    def test_what_we_would_make_is_reused(self, mode: str) -> None:
        planned = exposure(mode)
        there = as_api_returns(planned.manifests()[-1])
        decision = judge_claims(planned, [claim_of(OTHER), there])
        assert decision.verdict is Verdict.REUSE
        assert decision.sentence == f"claim {NAME} is there, for version {DIGEST}"

    def test_the_apis_way_to_write_the_core_group_is_no_difference(self) -> None:
        there = claim_of()
        there["spec"]["dataSource"]["apiGroup"] = None
        assert judge_claims(exposure("clone"), [there]).verdict is Verdict.REUSE

    def test_a_staging_claim_that_grew_does_not_spoil_older_clones(self) -> None:
        assert judge_claims(exposure("clone", replace(STORAGE, size="2Ti")), [claim_of()]).verdict is Verdict.REUSE

    def test_a_claim_of_just_the_size_is_enough(self) -> None:
        there = claim_of()
        there["status"]["capacity"]["storage"] = "3Gi"
        assert judge_claims(exposure("clone"), [there]).verdict is Verdict.REUSE

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda claim: claim["metadata"].pop("labels"), "was not made by kubetrain"),
            (
                lambda claim: claim["metadata"]["labels"].update({"app.kubernetes.io/managed-by": "Helm"}),
                "was not made by kubetrain",
            ),
            (lambda claim: claim["metadata"]["labels"].pop("kubetrain/exposure"), "was not made by kubetrain"),
            (
                lambda claim: claim["metadata"]["labels"].update({"kubetrain/dataset": OTHER}),
                f"has version {OTHER}, not {DIGEST}",
            ),
            (
                lambda claim: claim["spec"]["dataSource"].update(name="another"),
                "was made from PersistentVolumeClaim another, not from PersistentVolumeClaim staging",
            ),
            (
                lambda claim: claim["spec"]["dataSource"].update(apiGroup="snapshot.storage.k8s.io"),
                "was made from PersistentVolumeClaim.snapshot.storage.k8s.io staging",
            ),
            (lambda claim: claim["spec"].pop("dataSource"), "was made from nothing"),
            (lambda claim: claim["spec"].update(accessModes=["ReadWriteOnce"]), "is ReadWriteOnce, not ReadOnlyMany"),
            (
                lambda claim: claim["spec"].update(accessModes=["ReadOnlyMany", "ReadWriteMany"]),
                "is ReadOnlyMany, ReadWriteMany, not ReadOnlyMany alone",
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
    def test_what_is_not_what_it_says_is_refused_with_the_reason(self, change: Any, words: str) -> None:
        there = claim_of()
        change(there)
        decision = judge_claims(exposure("clone"), [there])
        assert decision.verdict is Verdict.REFUSE
        assert words in decision.sentence
        assert NAME in decision.sentence
        assert re.search("delete it|another name", decision.sentence), "the remedy"

    def test_a_refusal_is_a_sentence_with_the_remedy(self) -> None:
        assert judge_claims(exposure("clone"), [claim_of(labels={})]).sentence == (
            f"claim {NAME} was not made by kubetrain: delete it if nobody needs it, or give the dataset another name"
        )

    def test_a_clone_does_not_pass_for_a_snapshot(self) -> None:
        decision = judge_claims(exposure("snapshot"), [claim_of()])
        assert decision.verdict is Verdict.REFUSE
        assert f"not from VolumeSnapshot.snapshot.storage.k8s.io {NAME}" in decision.sentence

    def test_what_is_being_deleted_is_waited_for_and_made_again(self) -> None:
        there = claim_of(deletionTimestamp="2026-11-21T11:00:00Z")
        there["spec"]["dataSource"]["name"] = "another"
        assert judge_claims(exposure("clone"), [there]).verdict is Verdict.WAIT

    def test_a_foreign_claim_that_is_being_deleted_is_still_foreign(self) -> None:
        there = claim_of(deletionTimestamp="2026-11-21T11:00:00Z", labels={})
        assert judge_claims(exposure("clone"), [there]).verdict is Verdict.REFUSE

    @pytest.mark.parametrize(
        ("binds_at_once", "verdict"), [(True, Verdict.WAIT), (False, Verdict.REUSE), (None, Verdict.REUSE)]
    )
    def test_pending_is_waited_for_only_where_claims_bind_at_once(
        self, binds_at_once: bool | None, verdict: Verdict
    ) -> None:
        planned = exposure("clone", replace(STORAGE, binds_at_once=binds_at_once))
        there = as_api_returns(planned.manifests()[0], phase="Pending")
        assert judge_claims(planned, [there]).verdict is verdict

    @pytest.mark.parametrize(("mode", "access_mode"), [("shared", "ReadWriteMany"), ("static", "ReadOnlyMany")])
    def test_others_claims_are_judged_by_what_pods_need_of_them(self, mode: str, access_mode: str) -> None:
        planned = exposure(mode)
        there: dict[str, Any] = {
            "metadata": {"name": planned.claim},
            "spec": {"accessModes": ["ReadWriteOnce", access_mode], "resources": {"requests": {"storage": "1Mi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Mi"}},
        }
        assert judge_claims(planned, [there]).verdict is Verdict.REUSE
        absent = judge_claims(planned, [])
        assert absent.verdict is Verdict.REFUSE
        setting = {"shared": "the staging claim", "static": "static_claim"}[mode]
        assert absent.sentence == (
            f"there is no claim {planned.claim} in this namespace: make it, or correct {setting}"
        )
        for broken, words in (
            ({**there, "spec": {**there["spec"], "accessModes": ["ReadWriteOnce"]}}, f"not {access_mode}"),
            ({**there, "spec": {**there["spec"], "volumeMode": "Block"}}, "is a Block volume"),
            ({**there, "status": {"phase": "Pending"}}, "is Pending, not Bound"),
            ({**there, "metadata": {**there["metadata"], "deletionTimestamp": "x"}}, "is being deleted"),
        ):
            decision = judge_claims(planned, [broken])
            assert decision.verdict is Verdict.REFUSE
            assert words in decision.sentence
            assert "another name" not in decision.sentence, "a remedy for our own claims only"

    def test_reuse_is_noted_on_the_claim(self) -> None:
        patch = {"metadata": {"annotations": {"kubetrain/last-used": "2026-11-21T12:00:00Z"}}}
        assert last_used_patch(NOW.astimezone()) == patch


class TestUses:
    def test_a_pod_uses_the_claims_it_mounts(self) -> None:
        (use,) = uses_of([pod(pod_spec(subPath="versions/x/data"))])
        assert (use.by, use.claim, use.sub_path) == ("pod or job p", NAME, "versions/x/data")

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_a_finished_pod_uses_nothing(self, phase: str) -> None:
        assert uses_of([pod(pod_spec(), phase, **{"kubetrain/dataset": DIGEST})]) == []

    @pytest.mark.parametrize("phase", ["Pending", "Unknown", "Something new"])
    def test_any_other_pod_does(self, phase: str) -> None:
        assert uses_of([pod(pod_spec(), phase)])
        assert uses_of([{"metadata": {"name": "p"}, "spec": pod_spec()}])

    @pytest.mark.parametrize("kind", ["initContainers", "ephemeralContainers"])
    def test_every_kind_of_container_mounts(self, kind: str) -> None:
        spec = pod_spec(subPath="a")
        spec[kind] = [{"name": "i", "volumeMounts": [{"name": "data", "mountPath": "/i", "subPath": "b"}]}]
        assert {use.sub_path for use in uses_of([pod(spec)])} == {"a", "b"}

    @pytest.mark.parametrize("mount", [{}, {"subPathExpr": "versions/$(DIGEST)"}])
    def test_an_unclear_path_is_the_whole_volume(self, mount: dict[str, str]) -> None:
        assert [use.sub_path for use in uses_of([pod(pod_spec(**mount))])] == [""]
        unmounted = {**pod_spec(), "containers": [{"name": "c"}]}
        assert [use.sub_path for use in uses_of([pod(unmounted)])] == [""]

    def test_the_mounts_of_other_volumes_do_not_count(self) -> None:
        spec = pod_spec(subPath="a")
        spec["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm", "subPath": "b"})
        assert [use.sub_path for use in uses_of([pod(spec)])] == ["a"]

    def test_what_mounts_nothing_uses_nothing(self) -> None:
        bare = {"containers": [{"name": "c"}]}
        assert uses_of([pod(bare), pod({**bare, "volumes": None}), {"metadata": {"name": "x"}}]) == []

    @pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob", "Job", "CronJob", "VolcanoJob"])
    def test_jobs_use_what_their_templates_mount(self, kind: str) -> None:
        assert [(use.by, use.claim) for use in uses_of([job(kind)])] == [(f"{kind} j", NAME)]

    @pytest.mark.parametrize("condition", ["Succeeded", "Failed", "Complete", "Completed"])
    def test_a_finished_job_uses_nothing(self, condition: str) -> None:
        assert uses_of([job("PyTorchJob", "Created", "Running-", condition)]) == []

    @pytest.mark.parametrize("conditions", [(), ("Created", "Running"), ("Failed-", "Restarting"), ("Suspended",)])
    def test_any_other_job_does(self, conditions: tuple[str, ...]) -> None:
        assert uses_of([job("PyTorchJob", *conditions)])

    def test_a_job_needs_the_version_on_its_label(self) -> None:
        uses = uses_of([job("Job", **{"kubetrain/dataset": DIGEST})])
        assert DIGEST in [use.digest for use in uses]

    def test_a_job_that_has_just_ended_keeps_its_version(self) -> None:
        ended = job("PyTorchJob", "Succeeded", **{"kubetrain/dataset": DIGEST})
        for hours, kept in ((23, [DIGEST]), (25, [])):
            ended["status"]["conditions"][0]["lastTransitionTime"] = (NOW - timedelta(hours=hours)).isoformat()
            assert [use.digest for use in uses_of([ended], NOW)] == kept

    def test_a_snapshot_that_is_not_taken_yet_needs_its_source(self) -> None:
        (snapshot, _) = exposure("snapshot").manifests()
        (use,) = uses_of([snapshot])
        assert (use.claim, use.sub_path) == ("staging", f"versions/{DIGEST}")
        assert uses_of([{**snapshot, "status": {"readyToUse": True}}]) == []

    def test_a_clone_that_is_not_filled_yet_needs_its_source(self) -> None:
        pending = claim_of()
        pending["status"] = {"phase": "Pending"}
        (use,) = uses_of([pending, claim_of(OTHER)])
        assert (use.claim, use.sub_path, use.digest) == ("staging", f"versions/{DIGEST}", "")
        assert "not filled yet" in use.by
        pending["metadata"]["labels"] = {}
        assert uses_of([pending])[0].sub_path == "", "whatever it is, it copies all"

    def test_other_claims_use_nothing(self) -> None:
        restored = as_api_returns(exposure("snapshot").manifests()[1], phase="Pending")
        plain = {"metadata": {"name": "x"}, "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Pending"}}
        assert uses_of([restored, plain]) == []


def deleted(items: list[Any], uses: list[Any] | None = None, keep: int = 1, current: str = "") -> list[str]:
    plan = plan_pruning(items, uses_of(uses or []), keep=keep, current=current, now=NOW)
    return [item.digest for item in plan.delete]


class TestPruning:
    def test_the_newest_stay(self) -> None:
        made = digests(5)
        claims = [claim_of(digest, days_old=number + 2) for number, digest in enumerate(made)]
        for keep, rest in ((1, made[1:]), (3, made[3:]), (5, []), (9, [])):
            assert deleted(exposed_claims(reversed(claims)), keep=keep) == rest

    def test_versions_on_the_staging_volume_are_pruned_alike(self) -> None:
        made = digests(3)
        headers = [header(digest, days_old=number + 2) for number, digest in enumerate(made)]
        assert deleted(staged_versions(headers, ["staging"], {})) == made[1:]

    def test_every_source_has_its_own_newest_and_so_have_claims_and_versions(self) -> None:
        made = digests(4)
        claims = [claim_of(made[0], 2), claim_of(made[1], 3), claim_of(made[2], 4, source="s3://bucket/other")]
        items = exposed_claims(claims) + staged_versions([header(made[3], 5)], ["staging"], {})
        assert deleted(items) == [made[1]]

    def test_none_younger_than_a_day(self) -> None:
        made = digests(3)
        claims = [claim_of(made[0], 0), claim_of(made[1], 0.999), claim_of(made[2], 1)]
        assert deleted(exposed_claims(claims)) == [made[2]]
        headers = [header(made[0], 0), header(made[1], 0.999), header(made[2], 1)]
        assert deleted(staged_versions(headers, [], {})) == [made[2]]

    def test_nor_one_that_a_run_took_less_than_a_day_ago(self) -> None:
        made = digests(3)
        claims = [claim_of(digest, days_old) for digest, days_old in zip(made, (3, 30, 40), strict=True)]
        patch = last_used_patch(NOW - timedelta(hours=5))["metadata"]["annotations"]
        claims[1]["metadata"]["annotations"] = {**claims[1]["metadata"]["annotations"], **patch}
        assert deleted(exposed_claims(claims), keep=2) == [made[2]]
        headers = [header(digest, days_old) for digest, days_old in zip(made, (3, 30, 40), strict=True)]
        taken = {made[1]: "2026-11-21T07:00:00Z"}
        assert deleted(staged_versions(headers, [], taken), keep=1) == [made[0], made[2]], "it is the newest now"

    def test_an_older_note_makes_a_claim_no_older(self) -> None:
        made = digests(2)
        claims = [claim_of(made[0], 0.1), claim_of(made[1], 0.2)]
        claims[1]["metadata"]["annotations"] = {
            **claims[1]["metadata"]["annotations"],
            "kubetrain/last-used": "2020-01-01T00:00:00Z",
        }
        assert deleted(exposed_claims(claims)) == []

    @pytest.mark.parametrize("stamp", [None, "", "yesterday", "2020-13-01T00:00:00Z", "2020-01-01T00:00:00", 7])
    def test_nor_one_whose_age_cannot_be_read(self, stamp: object) -> None:
        made = digests(3)
        claims = [claim_of(made[0], 2), claim_of(made[1], 9, creationTimestamp=stamp), claim_of(made[2], 9)]
        assert deleted(exposed_claims(claims)) == [made[2]], "and it takes no place among the newest"
        headers = [header(made[0], 2), {**header(made[1]), "created": stamp}, header(made[2], 9)]
        assert deleted(staged_versions(headers, [], {})) == [made[2]]

    def test_nor_one_whose_note_cannot_be_read(self) -> None:
        claims = [claim_of(digests(2)[0], 2), claim_of(digests(2)[1], 9)]
        claims[1]["metadata"]["annotations"] = {
            **claims[1]["metadata"]["annotations"],
            "kubetrain/last-used": "yesterday",
        }
        assert deleted(exposed_claims(claims)) == []

    def test_nor_the_one_just_made_whatever_the_clocks_say(self) -> None:
        made = digests(3)
        claims = [claim_of(digest, days_old=number + 2) for number, digest in enumerate(made)]
        assert deleted(exposed_claims(claims), current=made[2]) == [made[1]]

    @pytest.mark.parametrize("user", [pod(pod_spec()), job("PyTorchJob"), job("TFJob"), job("Job", "Suspended")])
    def test_nor_a_claim_in_use(self, user: dict[str, Any]) -> None:
        items = exposed_claims([claim_of(OTHER, 2), claim_of(DIGEST, 9)])
        assert deleted(items, [user]) == []
        assert deleted(items) == [DIGEST]

    def test_a_finished_user_holds_nothing(self) -> None:
        items = exposed_claims([claim_of(OTHER, 2), claim_of(DIGEST, 9)])
        finished = [pod(pod_spec(), "Succeeded"), pod(pod_spec(), "Failed"), job("PyTorchJob", "Succeeded")]
        assert deleted(items, finished) == [DIGEST]

    @pytest.mark.parametrize(
        ("claim", "path", "is_used"),
        [
            ("staging", f"versions/{DIGEST}/data", True),
            ("staging", f"versions/{DIGEST}/data/train", True),
            ("staging", f"./versions/{DIGEST}", True),
            ("static", f"versions/{DIGEST}/data", True),
            ("staging", "versions", True),
            ("staging", "", True),
            ("staging", f"versions/{OTHER}/data", False),
            ("staging", f"versions/{DIGEST}0", False),
            ("staging", "elsewhere", False),
            ("another", "", False),
        ],
    )
    def test_nor_a_version_that_a_pod_sees(self, claim: str, path: str, is_used: bool) -> None:
        items = staged_versions([header(digests(1)[0], 2), header(DIGEST, 9)], ["staging", "static"], {})
        mounted = pod(pod_spec(claim, **({"subPath": path} if path else {})))
        assert deleted(items, [mounted]) == ([] if is_used else [DIGEST])

    def test_nor_one_that_a_waiting_job_names_on_its_label(self) -> None:
        items = exposed_claims([claim_of(OTHER, 2), claim_of(DIGEST, 9)])
        items += staged_versions([header(OTHER, 2), header(DIGEST, 9)], ["staging"], {})
        assert deleted(items) == [DIGEST, DIGEST]
        assert deleted(items, [job("Job", claim="x", **{"kubetrain/dataset": DIGEST})]) == []

    def test_nor_a_version_that_a_clone_has_still_to_copy(self) -> None:
        pending = claim_of()
        pending["status"] = {"phase": "Pending"}
        items = staged_versions([header(OTHER, 2), header(DIGEST, 9)], ["staging"], {})
        assert deleted(items, [pending]) == []
        assert deleted(exposed_claims([claim_of(OTHER, 2), pending]), [pending]) == [DIGEST], "itself it may go"

    def test_what_goes_already_is_not_deleted_again_and_takes_no_place(self) -> None:
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
            {"app.kubernetes.io/managed-by": "kubetrain", "kubetrain/dataset": DIGEST},
            {**METADATA["labels"], "kubetrain/exposure": "static"},
            {**METADATA["labels"], "kubetrain/dataset": "x"},
        ],
    )
    def test_only_what_kubetrain_exposed_is_looked_at(self, labels: Any) -> None:
        assert exposed_claims([claim_of(labels=labels)]) == []

    def test_a_claim_without_annotations_is_pruned_among_its_like(self) -> None:
        made = digests(2)
        claims = [claim_of(made[0], 2, annotations=None), claim_of(made[1], 3, annotations=None)]
        assert deleted(exposed_claims(claims)) == [made[1]]

    def test_a_snapshot_goes_with_its_claim(self) -> None:
        items = exposed_claims([as_api_returns(exposure("snapshot").manifests()[1]), claim_of(OTHER, 2)])
        assert [(item.name, item.snapshot) for item in items] == [(NAME, NAME), (f"ds-digits-{OTHER}", "")]

    def test_deletion_is_of_this_claim_as_it_was_seen(self) -> None:
        (item,) = exposed_claims([claim_of()])
        assert item.preconditions == {"uid": "u-1", "resourceVersion": "7"}

    @pytest.mark.parametrize("keep", [0, -1, True, 1.5, "3", None])
    def test_at_least_one_is_kept(self, keep: Any) -> None:
        with pytest.raises(InvalidSetting, match="keep_versions must be a whole number from 1 up"):
            plan_pruning([], [], keep=keep, current="", now=NOW)

    def test_it_prints_a_line_for_each_with_the_reason(self) -> None:
        made = digests(7)
        claims = [claim_of(digest, days_old=number + 2) for number, digest in enumerate(made)]
        claims[1] = as_api_returns(exposure("snapshot", digest=made[1]).manifests()[1])
        claims[2]["metadata"]["deletionTimestamp"] = "x"
        claims[4]["metadata"]["creationTimestamp"] = (NOW - timedelta(hours=1)).isoformat()
        claims[5]["metadata"]["creationTimestamp"] = None
        uses = uses_of([job("TFJob", claim=f"ds-digits-{made[3]}")])
        plan = plan_pruning(exposed_claims(claims), uses, keep=1, current=made[6], now=NOW)
        assert str(plan).splitlines() == [
            f"keep claim ds-digits-{made[4]}: made or used less than a day ago",
            f"delete claim ds-digits-{made[0]}: not among the 1 newest, and nothing uses it",
            f"keep claim ds-digits-{made[2]}: is being deleted already",
            f"keep claim ds-digits-{made[3]}: used by TFJob j",
            f"keep claim ds-digits-{made[6]}: the version of this run",
            f"delete claim ds-digits-{made[1]} and snapshot ds-digits-{made[1]}: "
            "not among the 1 newest, and nothing uses it",
            f"keep claim ds-digits-{made[5]}: nobody knows how old it is",
        ]
        kept = plan_pruning(exposed_claims(claims[:1]), [], keep=1, current="", now=NOW)
        assert str(kept) == f"keep claim ds-digits-{made[0]}: among the 1 newest"
        kept = plan_pruning(staged_versions([header(DIGEST)], [], {}), [], keep=3, current="", now=NOW)
        assert str(kept) == f"keep version versions/{DIGEST}: among the 3 newest"
