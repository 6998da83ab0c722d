"""The check of an MLflow server's address, which users or Kubeflow Pipelines give."""

from urllib.parse import urlsplit


def address_problem(address: str) -> str:
    """Return what is wrong with the address, without repeating a password in it; empty if nothing is."""
    try:
        parts = urlsplit(address)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is not a valid URL"
    if "@" in parts.netloc:
        return "must not contain credentials: pass them in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    if parts.scheme not in ("http", "https") or not has_host or parts.query or parts.fragment:
        return f"must be the address of a server, such as https://mlflow.example.com, not '{address}'"
    return ""
