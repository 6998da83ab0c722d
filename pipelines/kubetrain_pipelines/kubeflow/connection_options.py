"""The connection that options, the environment, the repository and the contexts name, in this order."""

import os
from dataclasses import dataclass
from pathlib import Path

from kubetrain_pipelines.definitions.project import project
from kubetrain_pipelines.kubeflow.connection import ENDPOINT_VARIABLES, Connection
from kubetrain_pipelines.kubeflow.contexts import Context, read_contexts
from kubetrain_pipelines.kubeflow.own_cluster import context_of_pod
from kubetrain_pipelines.kubeflow.token_command import TokenCommand
from kubetrain_trainer.errors import InvalidSetting


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    namespace: str = ""
    endpoint: str = ""
    token_file: Path | None = None
    cookie_file: Path | None = None
    ca_file: Path | None = None

    def connection(self) -> Connection | None:
        """Return the connection to Kubeflow Pipelines, or None if no endpoint is configured."""
        context = find_context(self.endpoint)
        return self.connection_to(context) if context.endpoint else None

    def required_connection(self) -> Connection:
        """
        Raises:
            InvalidSetting: if no endpoint is configured.
        """
        return self.connection_to(find_context(self.endpoint))

    def connection_to(self, context: Context) -> Connection:
        return Connection(
            endpoint=context.endpoint,
            namespace=self.namespace or project().namespace or context.namespace,
            token_file=self.token_file,
            token_command=TokenCommand(context.token_command) if context.token_command.strip() else None,
            cookie_file=self.cookie_file,
            ca_file=self.ca_file or (Path(context.ca_file).expanduser() if context.ca_file else None),
        )


def find_context(given: str) -> Context:
    """Return the endpoint with what the context of this endpoint adds, whose token is sent nowhere else.

    Raises:
        InvalidSetting: if a repository names an endpoint that the user has not, because it would get the user's token.
    """
    contexts, repository = read_contexts(), project()
    if endpoint := given or next(filter(None, map(os.environ.get, ENDPOINT_VARIABLES)), ""):
        return contexts.at(endpoint) or Context(endpoint=endpoint)
    if not repository.endpoint:
        return contexts.named(contexts.current) if contexts.current else context_of_pod()
    if trusted := contexts.at(repository.endpoint):
        return trusted
    raise InvalidSetting(
        f"{repository.path} names the endpoint {repository.endpoint}, which none of your contexts has: if you trust "
        f"it, run `kubetrain config set NAME --endpoint {repository.endpoint}`"
    )
