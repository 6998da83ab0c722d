"""The check of an MLflow server's address, which users or Kubeflow Pipelines give."""

from urllib.parse import urlsplit


def address_problem(address: str) -> str:
    """Return what is wrong with the address, without repeating what may be a password; empty if nothing is."""
    if any(character in address for character in "@?#"):
        return (
            "must not contain credentials, a query or the # of a page: name the server alone, and pass credentials in "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    if any(character.isspace() for character in address):
        return "must not contain spaces"
    try:
        parts = urlsplit(address)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    return "" if is_server else f"must be the address of a server, such as https://mlflow.example.com, not '{address}'"
