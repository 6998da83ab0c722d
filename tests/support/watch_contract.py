"""What kubetrain expects of watches with a label selector, which the fake and a real API server are tested against."""

from collections.abc import Iterator

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.watched import Watched

CHOSEN, OTHER = {"team": "vision"}, {"team": "speech"}


class WatchContract:
    @pytest.fixture
    def api(self) -> KubernetesApi:
        raise NotImplementedError

    @pytest.fixture
    def chosen(self, api: KubernetesApi) -> Iterator[Watched]:
        create(api, "listed", CHOSEN)
        create(api, "unlisted", OTHER)
        watched = Watched(api, api.path("v1", "configmaps"), labelSelector="team=vision")
        watched.start()
        wait_for(watched, {"listed": False})
        yield watched
        watched.stop()
        watched.join(60)

    def test_only_selected_objects_are_told(self, api: KubernetesApi, chosen: Watched) -> None:
        create(api, "other", OTHER)
        create(api, "bare", {})
        create(api, "new", CHOSEN)
        wait_for(chosen, {"listed": False, "new": False})

    def test_an_object_that_gets_the_label_is_new_and_one_that_loses_it_is_gone(
        self, api: KubernetesApi, chosen: Watched
    ) -> None:
        label(api, "unlisted", CHOSEN)
        wait_for(chosen, {"listed": False, "unlisted": False})
        label(api, "listed", OTHER)
        wait_for(chosen, {"listed": True, "unlisted": False})
        gone = next(each for each in chosen.objects() if each.is_gone)
        assert gone.manifest["metadata"]["labels"] == CHOSEN, "the last state that was selected"

    def test_deletions_of_selected_objects_are_told(self, api: KubernetesApi, chosen: Watched) -> None:
        for name in ("unlisted", "listed"):
            assert api.delete(api.path("v1", "configmaps", name))
        wait_for(chosen, {"listed": True})


def create(api: KubernetesApi, name: str, labels: dict[str, str]) -> None:
    metadata = {"name": name, "labels": labels}
    api.create(api.path("v1", "configmaps"), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def label(api: KubernetesApi, name: str, labels: dict[str, str]) -> None:
    assert api.patch(api.path("v1", "configmaps", name), {"metadata": {"labels": labels}})


def wait_for(watched: Watched, wanted: dict[str, bool]) -> None:
    """Wait for these objects to be known, by name, with True for those that are gone."""

    def known() -> dict[str, bool]:
        return {each.manifest["metadata"]["name"]: each.is_gone for each in watched.objects()}

    assert watched.changed.wait_for(lambda: known() == wanted, 60), known()
