"""The etcd of a rendezvous: wait until it answers, and say why it cannot be used.

torchrun speaks only etcd's API v2, which etcd 3.4 and 3.5 serve with --enable-v2 and later versions do not have.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import ssl
import time
from collections.abc import Callable, Mapping

from kubetrain_trainer.errors import InvalidSetting, KubetrainError

BACKEND = "etcd-v2"
WAIT_SECONDS = 300.0
"""Time for the etcd of a job to get a node and its image, at first and after its node was lost."""
PAUSE_SECONDS = 1.0
ANSWER_SECONDS = 10.0
REMEDY = "check rdzv_endpoint, the etcd's pod, and that network policies let this pod connect to it"


class EtcdUnreachable(KubetrainError):
    is_curable = True


def await_etcd(
    endpoint: str,
    conf_text: str,
    seconds: float = WAIT_SECONDS,
    say: Callable[[str], None] = lambda sentence: print(sentence, flush=True),
) -> None:
    """Wait until the etcd answers.

    Args:
        conf_text: torchrun's rendezvous settings as key=value,key=value.

    Raises:
        EtcdUnreachable: if it does not within this time.
        InvalidSetting: if it does not serve the API v2, or this image cannot use it.
    """
    if importlib.util.find_spec("etcd") is None:
        raise InvalidSetting(
            "rdzv_backend etcd-v2 needs the package python-etcd: install it in the image of the training"
        )
    conf = dict(pair.split("=", 1) for pair in conf_text.split(",") if "=" in pair)
    deadline, last = time.monotonic() + seconds, ""
    while True:
        try:
            status = _get("/v2/machines", endpoint, conf)[0]
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
        else:
            if status == http.client.OK:
                return
            if status == http.client.NOT_FOUND:
                raise InvalidSetting(_explain_missing_v2(endpoint, conf))
            reason = f"it answers with HTTP status {status}"
        if time.monotonic() >= deadline:
            raise EtcdUnreachable(f"etcd at {endpoint} cannot be used ({reason}) for {seconds:.0f} s: {REMEDY}")
        if reason != last:
            say(f"waiting for etcd at {endpoint}: {reason}")
        last = reason
        time.sleep(PAUSE_SECONDS)


def _explain_missing_v2(endpoint: str, conf: Mapping[str, str]) -> str:
    try:
        version = f"etcd {json.loads(_get('/version', endpoint, conf)[1])['etcdserver']}"
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        version = "the server"
    return (
        f"{version} at {endpoint} does not serve the API v2 that torchrun uses: start etcd 3.4 or 3.5 with --enable-v2 "
        "(3.6 does not have it), leave rdzv_endpoint empty for an etcd of the job's own, or use rdzv_backend c10d"
    )


def _get(path: str, endpoint: str, conf: Mapping[str, str]) -> tuple[int, bytes]:
    if conf.get("protocol") == "https":
        server: http.client.HTTPConnection = http.client.HTTPSConnection(
            endpoint, timeout=ANSWER_SECONDS, context=_tls(conf)
        )
    else:
        server = http.client.HTTPConnection(endpoint, timeout=ANSWER_SECONDS)
    try:
        server.request("GET", path)
        answer = server.getresponse()
        return answer.status, answer.read()
    finally:
        server.close()


def _tls(conf: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=conf.get("ca_cert"))
    if certificate := conf.get("ssl_cert"):
        context.load_cert_chain(certificate, conf.get("ssl_cert_key"))
    return context
