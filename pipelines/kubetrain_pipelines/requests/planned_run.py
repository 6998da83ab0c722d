"""Admit and plan a run as its first step would, before anything is sent."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubetrain_components.run.admission import admit_run
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.definitions.images import COMPONENTS, TRAINERS
from kubetrain_pipelines.definitions.pipeline_parameters import (
    FRAMEWORKS,
    PIPELINES,
    Parameter,
    framework_of,
    parameters_of,
    with_defaults,
)
from kubetrain_pipelines.requests.parse_parameters import parse_parameters
from kubetrain_trainer.settings.base import coerced

OBJECTS = ("placement", "storage", "train_config")


def planned_run(
    pipeline: str,
    run_id: str,
    pairs: Sequence[str],
    file: Path | None = None,
    defaults: Mapping[str, str] | None = None,
) -> RunParameters:
    """Return the parameters of a run that trains, as its first step would admit them.

    Args:
        defaults: Defaults that replace those of the pipeline.

    Raises:
        InvalidSetting: if a parameter or setting cannot be used.
    """
    framework_of(pipeline)
    declared = with_defaults(parameters_of(pipeline), defaults or {})
    return _admitted(pipeline, run_id, declared, parse_parameters(declared, pairs, file))


def check_before_sending(pipeline: str, declared: Sequence[Parameter], given: Mapping[str, Any]) -> None:
    """Refuse what the run's first step would refuse, unless the parameters are those of a team's own pipeline.

    Raises:
        InvalidSetting: if a parameter or setting cannot be used.
    """
    if pipeline in PIPELINES and {item.name for item in declared} == {item.name for item in parameters_of(pipeline)}:
        planned_manifests(_admitted(pipeline, "RUN-ID", declared, given))


def _admitted(pipeline: str, run_id: str, declared: Sequence[Parameter], given: Mapping[str, Any]) -> RunParameters:
    framework = FRAMEWORKS.get(pipeline, "")
    values = {item.name: given.get(item.name, item.default) for item in declared}
    # A compiled file has whole numbers as floats.
    typed = {item.name: coerced(item.name, item.type, values[item.name]) for item in declared}
    return admit_run(
        framework=framework,
        pipeline=pipeline,
        run_id=run_id,
        components_image=COMPONENTS,
        trainer_image=TRAINERS.get(framework, ""),
        **{name: {} for name in OBJECTS} | typed,
    )
