"""model.json: everything that loading a model needs, and where it comes from. No secret gets in."""

from dataclasses import dataclass
from typing import Any

from kubetrain_components.object_store.open_store import without_secrets
from kubetrain_components.run.reuse import ImageVersion
from kubetrain_components.secret_values import shareable
from kubetrain_trainer.output.checkpoint_layout import read_checkpoint
from kubetrain_trainer.output.model_folder import SCHEMA
from kubetrain_trainer.output.training_output import TrainingOutput

EXPORTED = (
    *("framework", "files", "classes", "input", "step", "checkpoint"),
    *("versions", "dataset_digest", "config_digest"),
)
"""Names in the manifest of the export that model.json has too."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of a model, as far as its training's output does not have it."""

    run_id: str
    dataset_uri: str
    image: ImageVersion
    commit: str = ""
    """The git commit of your own code, if it was brought by --code."""


def describe_model(output: TrainingOutput, version: str, origin: Origin) -> dict[str, Any]:
    export, config = output.read_export(), output.train_config()
    return {
        "schema": SCHEMA,
        "version": version,
        "run_id": origin.run_id,
        **{name: export[name] for name in EXPORTED if name in export},
        "metrics": output.read_evaluation()["metrics"],
        "config": shareable(config.to_dict()),
        "dataset_uri": without_secrets(origin.dataset_uri),
        "code": config.code,
        "commit": origin.commit or export.get("commit", ""),
        "processes": _processes(output, export["checkpoint"]),
        "image": origin.image.name,
        "image_id": origin.image.id,
    }


def _processes(output: TrainingOutput, checkpoint: str) -> int:
    trained = read_checkpoint(output.checkpoints / checkpoint)
    return int(trained.manifest.get("world_size", 0)) if trained else 0
