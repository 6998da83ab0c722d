"""Credentials for Google Cloud Storage, found as Google's own libraries find them."""

import json
import os

import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.urllib3 import Request
from google.oauth2.service_account import Credentials

from kubetrain_components.object_store.http_client import Headers, Sign, pool_of
from kubetrain_components.object_store.store import AccessRefused, StoreUnavailable

SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]
KEY_VARIABLE = "GOOGLE_SERVICE_ACCOUNT_KEY"
"""The key of a service account as JSON: a secret's variable cannot be a file."""


def signer(uri: str, *, pays: bool) -> Sign:
    """
    Args:
        pays: True to bill requests to the project of the credentials.

    Raises:
        AccessRefused: if there are no credentials.
    """
    try:
        if key := os.environ.get(KEY_VARIABLE):
            described = json.loads(key)
            credentials, project = (
                Credentials.from_service_account_info(described, scopes=SCOPES),
                described["project_id"],
            )
        else:
            credentials, project = google.auth.default(scopes=SCOPES)
    except (DefaultCredentialsError, ValueError) as error:
        raise AccessRefused(
            f"no credentials for {uri} ({error}): set {KEY_VARIABLE} or GOOGLE_APPLICATION_CREDENTIALS, log in with "
            "`gcloud auth application-default login`, or let the pods use a service account; use anonymous access for "
            "a public bucket"
        ) from error
    billed = {"x-goog-user-project": project} if pays and project else {}

    def sign(method: str, url: str, headers: Headers) -> Headers:
        sent = {**headers, **billed}
        try:
            credentials.before_request(Request(pool_of(url)), method, url, sent)
        except TransportError as error:
            raise StoreUnavailable(f"no token for {uri} ({error}): check the network") from error
        except GoogleAuthError as error:
            raise AccessRefused(f"no token for {uri} ({error}): log in again, or renew the key") from error
        return sent

    return sign
