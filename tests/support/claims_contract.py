"""The contract of the Claims port, which each adapter is tested against."""

import time

import pytest

from kubetrain_components.expose_dataset.claims import CLAIM, Claims
from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.manifest import Manifest


def wanted(name: str = "one") -> Manifest:
    return WantedClaim(purpose="staging", name=name, size="1Mi", access_mode="ReadWriteMany").manifest()


def made(claims: Claims, name: str = "one") -> Manifest:
    assert claims.create(wanted(name))
    found = claims.find(name)
    assert found is not None
    return found


def settled(claims: Claims, name: str = "one") -> Manifest:
    """Return the PVC once it is bound and no longer changes."""
    seen = None
    for _ in range(100):
        found = claims.find(name)
        assert found is not None
        if seen == found and found["status"]["phase"] == "Bound":
            return found
        seen = found
        time.sleep(0.5 if seen["status"]["phase"] != "Bound" else 0.1)
    raise AssertionError(f"still changing: {seen}")


class ClaimsContract:
    @pytest.fixture
    def claims(self) -> Claims:
        raise NotImplementedError

    def test_a_created_pvc_is_found_with_its_kind(self, claims: Claims) -> None:
        assert claims.find("one") is None
        found = made(claims)
        assert found["kind"] == CLAIM
        assert found["metadata"]["uid"]
        assert found["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "kubetrain"}
        assert found["spec"]["accessModes"] == ["ReadWriteMany"]

    def test_a_name_is_used_once(self, claims: Claims) -> None:
        before = made(claims)
        assert not claims.create(wanted())
        found = claims.find("one")
        assert found is not None
        assert found["metadata"]["uid"] == before["metadata"]["uid"]

    def test_all_are_listed_with_their_kind(self, claims: Claims) -> None:
        for name in ("one", "two"):
            made(claims, name)
        assert [(each["kind"], each["metadata"]["name"]) for each in claims.all()] == [(CLAIM, "one"), (CLAIM, "two")]

    def test_annotations_add_up(self, claims: Claims) -> None:
        found = made(claims)
        claims.annotate(found, {"kubetrain/a": "1"})
        noted = claims.annotate(found, {"kubetrain/b": "2"})
        assert noted is not None
        assert noted["metadata"]["annotations"].items() >= {"kubetrain/a": "1", "kubetrain/b": "2"}.items()

    def test_only_the_found_object_is_annotated(self, claims: Claims) -> None:
        found = made(claims)
        another = {**found, "metadata": {**found["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}}
        assert claims.annotate(another, {"kubetrain/a": "1"}) is None
        absent = {**found, "metadata": {**found["metadata"], "name": "absent"}}
        assert claims.annotate(absent, {"kubetrain/a": "1"}) is None
        kept = claims.find("one")
        assert kept is not None
        assert "kubetrain/a" not in kept["metadata"].get("annotations", {})

    def test_only_an_unchanged_object_is_deleted(self, claims: Claims) -> None:
        made(claims)
        before = settled(claims)
        claims.annotate(before, {"kubetrain/last-used": "now"})
        assert not claims.delete("one", before["metadata"])
        seen = claims.find("one")
        assert seen is not None
        other = {**seen["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}
        assert not claims.delete("one", other)
        assert claims.delete("one", seen["metadata"])
        after = claims.find("one")
        assert after is None or after["metadata"]["deletionTimestamp"]
        assert not claims.delete("absent", seen["metadata"])

    def test_a_storage_class_is_found_by_name(self, claims: Claims) -> None:
        storage_class = claims.storage_class(made(claims)["spec"]["storageClassName"])
        assert storage_class is not None
        assert storage_class["provisioner"]
        assert claims.storage_class("no-such-class") is None

    def test_a_healthy_pvc_has_no_warnings(self, claims: Claims) -> None:
        made(claims)
        assert claims.warnings("one") == []
        assert claims.users() == []
