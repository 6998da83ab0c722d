"""The credentials of object stores, which pods get from a Kubernetes secret."""

DEFAULT_SECRET = "kubetrain-s3"  # noqa: S105 - its name
"""May be missing: pods then use the identity of their service account."""
REQUIRED_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
OTHER_STORES = (
    "HF_TOKEN",
    "HF_ENDPOINT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_ENDPOINT",
)
VARIABLES = (*REQUIRED_VARIABLES, "AWS_SESSION_TOKEN", "AWS_REGION", *OTHER_STORES)
