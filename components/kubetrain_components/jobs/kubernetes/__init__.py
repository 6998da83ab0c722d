"""Jobs on a Kubernetes cluster: manifests, the API client, and job states derived from responses."""
