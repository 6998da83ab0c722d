"""Jobs on a Kubernetes cluster: manifests, the API client, and states read from what the API says."""
