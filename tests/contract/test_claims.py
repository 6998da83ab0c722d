"""The contract for PVCs in memory; tests/cluster runs it on a real cluster."""

import pytest

from support.claims import MemoryClaims
from support.claims_contract import ClaimsContract


class TestMemoryClaims(ClaimsContract):
    @pytest.fixture
    def claims(self) -> MemoryClaims:
        memory = MemoryClaims()
        memory.classes["fast-ssd"] = {"provisioner": "csi.example.com"}
        return memory
