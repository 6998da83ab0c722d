"""The KFP component evaluate_model."""

from typing import NamedTuple

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def evaluate_model(
    framework: str,
    dataset: dict,
    run: dict,
    placement: dict,
    latest: dict,
    reused: dict,
    pipeline: str,
    run_id: str,
    model: dsl.Input[dsl.Model],
    test_metrics: dsl.Output[dsl.Metrics],
    confusion_matrix: dsl.Output[dsl.ClassificationMetrics],
    test_report: dsl.Output[dsl.HTML],
) -> NamedTuple("Judged", conditions_met=list, refusal=str):
    """Evaluate the model on the test split, and decide whether it may be published.

    A refusal fails the next step: Kubeflow Pipelines keeps no artifacts of a step that fails.

    Args:
        framework: pytorch or tensorflow.
        dataset: Dataset version to evaluate on, and how pods mount it.
        run: Settings of the run, by group.
        placement: Placement settings of the evaluation's pod.
        latest: Where to fetch the latest published model, if the gate compares with it; else empty.
        reused: Published, already evaluated model if training was skipped; else empty.
        pipeline: Name of the pipeline.
        run_id: ID of the run.
        model: Model to evaluate.
        test_metrics: Loss and metrics on the test split, and those of the latest published model.
        confusion_matrix: Confusion matrix of a classifier; with two classes also the ROC curve.
        test_report: HTML page with curves, confusion matrix, misclassified samples, and the refusal, if any.

    Returns:
        Sentences of the gate's conditions that are met, and why the model must not be published; empty: it may.
    """
    from dataclasses import replace
    from pathlib import Path

    from kubetrain_components.evaluate_model.evaluate import EvaluationRequest, evaluate_model
    from kubetrain_components.evaluate_model.findings import latest_metrics, most_confused, roc_columns
    from kubetrain_components.evaluate_model.report import training_report
    from kubetrain_components.jobs.placement import Placement
    from kubetrain_components.run.dataset_place import DatasetPlace
    from kubetrain_components.run.gate import Latest, latest_of
    from kubetrain_components.run.metrics_artifact import log_numbers, show_numbers
    from kubetrain_components.run.request import parameters_of
    from kubetrain_components.run.site import this_site
    from kubetrain_components.run.transfer_container import place_latest

    asked = parameters_of(run, pipeline=pipeline, run_id=run_id)
    wanted = asked.parsed_gate
    if reused:  # the model itself is the latest
        print(f"{reused['uri']} was already evaluated by run {reused['run_id']}")
        log_numbers(test_metrics, reused["metrics"])
        return wanted.judge(reused["metrics"], Latest(version=reused["uri"], metrics=reused["metrics"]))
    site, place = this_site(), DatasetPlace(**dataset)
    output = site.output(asked)
    request = EvaluationRequest(
        framework=framework,
        entry=output.train_config().entry,
        pipeline=pipeline,
        run_id=run_id,
        data_dir=site.data_dir(place),
        output_dir=site.output_dir(run_id),
        dataset_digest=place.digest,
        dataset_files=place.files,
        manifest_sha256=model.metadata["manifest_sha256"],
        placement=place_latest(Placement.from_dict(placement), latest),
        mounts=site.mounts(place, asked.storage.mounted_output),
    )
    with (
        site.stage("evaluate_model", run_id) as stage,
        site.shard_cache(place) as shard_cache,
        site.backend() as backend,
    ):
        request = replace(request, latest=site.fetch_latest(latest), shard_cache=shard_cache)
        evaluation = evaluate_model(request, output, backend, stage.on_line)
        shown = ("split", "samples", "metrics", "checkpoint", "latest", "unanswered")
        stage.result = {name: evaluation[name] for name in shown if name in evaluation}
        log_numbers(test_metrics, evaluation["metrics"])
        show_numbers(test_metrics, latest_metrics(evaluation))
        if "confusion" in evaluation:
            confusion_matrix.log_confusion_matrix(*most_confused(evaluation["classes"], evaluation["confusion"]))
        if evaluation.get("roc"):
            confusion_matrix.log_roc_curve(*roc_columns(evaluation["roc"]))
        judgment = wanted.judge(evaluation["metrics"], latest_of(evaluation))
        Path(test_report.path).write_text(training_report(output, judgment.refusal))
    return judgment
