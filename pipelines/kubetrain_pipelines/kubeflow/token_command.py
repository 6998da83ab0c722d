"""A command that prints a token for Kubeflow Pipelines."""

import shlex
import subprocess
import time

from kubetrain_pipelines.kubeflow.kfp_errors import Unauthorized
from kubetrain_trainer.errors import InvalidSetting

MAX_AGE_SECONDS = 60.0
TIMEOUT_SECONDS = 60.0
MAX_QUOTED = 500


class TokenCommand:
    """It runs again once its token is a minute old, because tokens expire."""

    def __init__(self, command: str) -> None:
        """
        Raises:
            InvalidSetting: if a quote is not closed.
        """
        self._command = command
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise InvalidSetting(f"the token command `{command}` is invalid ({error}): quote it properly") from error
        self.tokens: list[str] = []
        """The last two tokens: an answer may still quote the one before."""
        self._made = 0.0

    def token(self) -> str:
        """
        Raises:
            Unauthorized: if the command fails.
        """
        if not self.tokens or time.monotonic() - self._made > MAX_AGE_SECONDS:
            self.tokens = [*self.tokens[-1:], self._run()]
            self._made = time.monotonic()
        return self.tokens[-1]

    def _run(self) -> str:
        try:
            done = subprocess.run(
                self._arguments,
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            complaint = str(getattr(error, "stderr", "") or error).strip()[-MAX_QUOTED:]
            raise Unauthorized(
                f"the token command `{self._command}` failed ({complaint}): run it by hand to see why, or change it "
                "with `kubetrain config set`"
            ) from error
        return done.stdout.strip()
