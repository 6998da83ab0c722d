"""The manifests of jobs, as values: pure functions of a job, which need no cluster."""
