"""The contract of the Claims port on a real cluster."""

import pytest

from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from support.claims_contract import ClaimsContract

pytestmark = [pytest.mark.cluster, pytest.mark.core]


class TestKubernetesClaims(ClaimsContract):
    @pytest.fixture
    def claims(self, namespace: str) -> KubernetesClaims:
        return KubernetesClaims.connect(namespace)
