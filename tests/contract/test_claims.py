"""The claims in memory keep the contract; those of a cluster do so in tests/cluster."""

import pytest

from support.claims import MemoryClaims
from support.claims_contract import ClaimsContract


class TestMemoryClaims(ClaimsContract):
    @pytest.fixture
    def claims(self) -> MemoryClaims:
        memory = MemoryClaims()
        memory.classes["fast-ssd"] = {"provisioner": "csi.example.com"}
        return memory
