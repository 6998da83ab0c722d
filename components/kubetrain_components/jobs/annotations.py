"""Labels and annotations by which launchers find a job and know what has happened to it."""

LABEL_PREFIX = "kubetrain/"
RUN_ID, STAGE = LABEL_PREFIX + "run-id", LABEL_PREFIX + "stage"
"""Labels of a job, and annotations with their full values."""
APP_LABEL = "app.kubernetes.io/"
"""Prefix of the labels that Kubernetes recommends."""
MANAGED_BY = {APP_LABEL + "managed-by": "kubetrain"}
"""Label of everything that kubetrain creates on a cluster."""
VERDICT_ANNOTATION, SUCCEEDED, FAILED = LABEL_PREFIX + "verdict", "succeeded", "failed"
CLEAN_PODS_ANNOTATION = LABEL_PREFIX + "clean-pods"
"""The job's clean_pods, written with the verdict. The reaper follows it if the launcher was killed at that moment."""
FAILURE_ANNOTATION = LABEL_PREFIX + "failure"
"""The reason for which the launcher ended the job."""
RESULT_ANNOTATION = LABEL_PREFIX + "result"
"""Termination message of a job's lead pod, kept here because the pod may be deleted."""
AVOIDED_NODES_ANNOTATION = LABEL_PREFIX + "avoided-nodes"
"""Nodes that the job avoids, and those that the next attempt avoids too once the job has failed."""
PROGRESS_ANNOTATION = LABEL_PREFIX + "progress"
SECONDS_RUNNING_ANNOTATION = LABEL_PREFIX + "seconds-running"
"""Time that counts for deadline_seconds, written with the progress for a launcher that restarts."""
LOG_POSITION_ANNOTATION = LABEL_PREFIX + "log-position"
LEFT_ANNOTATION = LABEL_PREFIX + "left-at"
"""Time at which a launcher left the job without its run, for the reaper."""
TTL_ANNOTATION = LABEL_PREFIX + "ttl-seconds"
"""Time that the finished job is kept, for the reaper, if nothing in the cluster deletes such a job."""
KEPT_ON_ITS_NODE = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations against moving a pod to save a node: its run would fail, or every pod of its training restart."""
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
