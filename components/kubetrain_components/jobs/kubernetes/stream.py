"""A response of the API server that is read while it arrives: a watch, or a log that is followed."""

import contextlib
from collections.abc import Iterator

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from kubetrain_components.jobs.kubernetes.errors import StreamCut, StreamSilent

CHUNK_BYTES = 64 << 10


class Stream:
    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self.is_stopped = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._response.stream(CHUNK_BYTES, decode_content=False):
                if self.is_stopped:  # once its socket is shut down, TLS returns undeciphered data
                    raise StreamCut("the stream was stopped")
                yield chunk
        except ReadTimeoutError as error:
            raise StreamSilent(f"the API server sent nothing more ({error})") from error
        except (HTTPError, OSError) as error:
            raise StreamCut(f"the API server's response was cut short ({error})") from error

    def stop(self) -> None:
        """Stop the stream, from any thread; its reader gets a StreamCut."""
        self.is_stopped = True
        with contextlib.suppress(Exception):  # it has ended already
            self._response.shutdown()
