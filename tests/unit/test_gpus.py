import pytest

from kubetrain_trainer.processes.resources import with_tf32
from kubetrain_trainer.settings.config import TrainConfig


@pytest.mark.parametrize(
    ("capability", "settings", "expected"),
    [
        ((9, 0), {}, "bf16 with TF32"),
        ((8, 0), {}, "bf16 with TF32"),
        ((8, 0), {"precision": "fp32"}, "bf16"),
        ((7, 5), {}, "bf16"),
        ((0, 0), {}, "bf16"),
    ],
)
def test_the_banner_says_what_fp32_means(capability: tuple[int, int], settings: dict[str, bool], expected: str) -> None:
    assert with_tf32("bf16", TrainConfig.from_dict(settings), capability) == expected
