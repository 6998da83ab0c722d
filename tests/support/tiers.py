"""Which cases of slow tests CI runs: in 65 minutes, it cannot run all for both frameworks."""

import pytest

ONE_IN_CI = ["pytorch", pytest.param("tensorflow", marks=pytest.mark.thorough)]
