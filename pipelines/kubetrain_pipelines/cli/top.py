"""`kubetrain top`: print what each job requests and uses. Apart from status, whose imports take twice as long."""

import json

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_pipelines.kubeflow.run_in_cluster import RETRY_SECONDS
from kubetrain_pipelines.status.usage import read_usage, table_of


def top_and_show(namespace: str, *, all_namespaces: bool, as_json: bool) -> None:
    api = KubernetesApi.connect(namespace, RETRY_SECONDS)
    jobs, unknown = read_usage(api, all_namespaces=all_namespaces)
    if as_json:
        report = {"jobs": [job.to_dict() for job in jobs], "not_read": [unknown] if unknown else []}
        return print(json.dumps(report, indent=2))
    if not jobs:
        return print(f"no job has pods in {'any namespace' if all_namespaces else f'namespace {api.namespace}'}")
    print("\n".join(table_of(jobs)))
    if unknown:
        print(f"the use of CPUs and memory is unknown: {unknown}")
    return None
