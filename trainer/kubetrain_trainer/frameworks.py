"""The supported frameworks and their trainers' packages."""

from __future__ import annotations

from kubetrain_trainer.errors import InvalidSetting, did_you_mean

PACKAGES = {"pytorch": "kubetrain_trainer.pytorch_ddp", "tensorflow": "kubetrain_trainer.tensorflow_multiworker"}


def package_of(framework: str) -> str:
    if framework not in PACKAGES:
        raise InvalidSetting(f"unknown framework '{framework}': {did_you_mean(framework, PACKAGES)}")
    return PACKAGES[framework]
