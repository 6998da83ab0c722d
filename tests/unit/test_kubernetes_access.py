"""How a cluster is reached: what arrives at real TLS servers and proxies for each form of a kubeconfig."""

import base64
import json
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes.access import connection as connections
from kubetrain_components.jobs.kubernetes.access import credentials, exec_plugin
from kubetrain_components.jobs.kubernetes.access.kubeconfig import find_connection
from kubetrain_components.jobs.kubernetes.access.transport import proxy_for, raise_descriptor_limit
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError, Unauthorized
from support.api_server import PODS, ApiServer, Handler, answer
from support.certificates import Authority
from support.cli import kubetrain
from support.proxy import Proxy

V1 = "client.authentication.k8s.io/v1"
Connect = Callable[..., KubernetesApi]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls_server(authority: Authority, tmp_path: Path) -> Iterator[ApiServer]:
    signed = authority.signed("server", "127.0.0.1", "inside.example")
    with ApiServer(tls=signed.server_context(tmp_path, authority.certificate)) as server:
        yield server


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Connect with a kubeconfig of this cluster and user."""

    def connected(cluster: dict[str, Any], user: dict[str, Any], context: str = "", **options: Any) -> KubernetesApi:
        write(tmp_path / "config", cluster, user)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        return KubernetesApi.connect(retry_seconds=0, context=context, **options)

    return connected


def write(path: Path, cluster: dict[str, Any], user: dict[str, Any], name: str = "it", current: str = "it") -> None:
    context = {"cluster": name, "user": name, "namespace": f"of-{name}"}
    config: dict[str, Any] = {
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": context}],
    }
    path.write_text(yaml.safe_dump(config | ({"current-context": current} if current else {})))


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def trusting(server: ApiServer, authority: Authority, **more: Any) -> dict[str, Any]:
    return {"server": server.url, "certificate-authority-data": in_base64(authority.certificate), **more}


def plugin(tmp_path: Path, script: str, **more: Any) -> dict[str, Any]:
    """A user whose plugin is this shell script; it also counts its runs in the file `runs`."""
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\nprintf x >> {tmp_path}/runs\n{script}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": V1, "command": str(path), "interactiveMode": "Never", **more}}


def prints(version: str = V1, **status: str) -> str:
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    return f"cat <<'END'\n{json.dumps(credential)}\nEND"


def runs(tmp_path: Path) -> int:
    return (tmp_path / "runs").stat().st_size


def test_a_token_is_on_the_wire(server: ApiServer, connect: Connect) -> None:
    api = connect({"server": server.url}, {"token": "of-me"})
    api.get(PODS)
    assert server.headers[-1]["authorization"] == "Bearer of-me"
    assert api.namespace == "of-it"


def test_a_name_with_its_password_is_on_the_wire(server: ApiServer, connect: Connect) -> None:
    connect({"server": server.url}, {"username": "me", "password": "hidden"}).get(PODS)
    assert server.headers[-1]["authorization"] == f"Basic {in_base64(b'me:hidden')}"


def test_a_token_file_is_read_at_each_request(server: ApiServer, connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    api = connect({"server": server.url}, {"tokenFile": "token"})  # beside the kubeconfig
    api.get(PODS)
    (tmp_path / "token").write_text("second\n")
    api.get(PODS)
    assert [each["authorization"] for each in server.headers] == ["Bearer first", "Bearer second"]


def test_a_pod_uses_its_account_and_reads_its_token_again(
    tls_server: ApiServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {"token": b"one", "namespace": b"ml\n", "ca.crt": authority.certificate}.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(connections, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", tls_server.url.rpartition(":")[2])
    api = KubernetesApi.connect(retry_seconds=0)
    assert api.namespace == "ml"
    api.get(PODS)
    (tmp_path / "token").write_bytes(b"two")
    api.get(PODS)
    assert [each["authorization"] for each in tls_server.headers] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("named_by", ["KUBECONFIG", "KUBETRAIN_CONTEXT"])
def test_a_pod_uses_a_kubeconfig_that_it_names(named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").touch()
    monkeypatch.setattr(connections, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube/config", {"server": "http://127.0.0.1:1"}, {})
    monkeypatch.setenv(named_by, "it" if named_by == "KUBETRAIN_CONTEXT" else str(tmp_path / ".kube/config"))
    assert find_connection("").namespace == "of-it"


@pytest.mark.parametrize("as_files", [True, False])
def test_a_client_certificate_is_shown_and_rotated(
    tls_server: ApiServer, authority: Authority, connect: Connect, tmp_path: Path, as_files: bool
) -> None:
    signed = {"certificate": tmp_path / "me.crt", "key": tmp_path / "me.key"}

    def log_in(name: str) -> None:
        mine = authority.signed(name)
        signed["certificate"].write_bytes(mine.certificate)
        signed["key"].write_bytes(mine.key)

    log_in("me")
    user = {f"client-{part}": path.name for part, path in signed.items()}
    if not as_files:
        user = {f"client-{part}-data": in_base64(path.read_bytes()) for part, path in signed.items()}
    api = connect(trusting(tls_server, authority), user)
    api.get(PODS)
    log_in("me-later")
    api.get(PODS)
    assert tls_server.users == (["me", "me-later"] if as_files else ["me", "me"])


def test_a_server_that_the_authority_did_not_sign_is_refused(tls_server: ApiServer, connect: Connect) -> None:
    with pytest.raises(KubernetesError, match="certificate-authority in KUBECONFIG"):
        connect(trusting(tls_server, Authority()), {"token": "of-me"}).get(PODS)
    assert tls_server.requests == []


def test_a_server_is_not_verified_if_the_kubeconfig_says_so(tls_server: ApiServer, connect: Connect) -> None:
    connect({"server": tls_server.url, "insecure-skip-tls-verify": True}, {"token": "of-me"}).get(PODS)
    assert tls_server.headers[-1]["authorization"] == "Bearer of-me"


@pytest.mark.parametrize(("name", "is_right"), [("inside.example", True), ("outside.example", False)])
def test_the_server_must_have_the_tls_server_name(
    tls_server: ApiServer, authority: Authority, connect: Connect, name: str, is_right: bool
) -> None:
    api = connect(trusting(tls_server, authority, **{"tls-server-name": name}), {})
    if is_right:
        api.get(PODS)
        return
    with pytest.raises(KubernetesError, match="certificate"):
        api.get(PODS)


def test_another_account_is_impersonated(server: ApiServer, connect: Connect) -> None:
    account = "system:serviceaccount:ml:a"
    user = {"token": "t", "as": account, "as-groups": ["one", "two"], "as-user-extra": {"x": ["y"]}}
    received: list[str] = []

    def note(handler: Handler) -> bool:
        received.extend(handler.headers.get_all("Impersonate-Group", []))
        return False

    server.fail("GET", note)
    connect({"server": server.url}, user).get(PODS)
    assert server.headers[-1]["impersonate-user"] == account
    assert server.headers[-1]["impersonate-extra-x"] == "y"
    assert received == ["one", "two"]


def test_several_kubeconfigs_are_one_and_the_first_value_wins(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"server": server.url}
    write(tmp_path / "a", here, {"token": "first"}, "one", current="")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "b", here, {"tokenFile": "token"}, "two", current="two")
    write(tmp_path / "c", {"server": "http://nowhere"}, {"token": "last"}, "one", current="one")
    (tmp_path / "folder" / "token").write_text("second")
    paths = [tmp_path / "a", tmp_path / "missing", tmp_path / "folder" / "b", tmp_path / "c"]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))
    KubernetesApi.connect(retry_seconds=0).get(PODS)
    KubernetesApi.connect(retry_seconds=0, context="one").get(PODS)
    assert [each["authorization"] for each in server.headers] == ["Bearer second", "Bearer first"]


def test_commands_take_a_context(tmp_path: Path) -> None:
    write(tmp_path / "config", {"server": "http://127.0.0.1:1"}, {})
    options = ["--context", "of-nobody", "--no-pods"]
    finished = kubetrain("doctor", *options, KUBECONFIG=str(tmp_path / "config"))
    assert finished.exit_code == 1
    assert "no context 'of-nobody'" in finished.output


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
def test_a_plugin_gives_a_token_once(server: ApiServer, connect: Connect, tmp_path: Path, version: str) -> None:
    script = 'echo "$KUBERNETES_EXEC_INFO" > "$OUT"\n' + prints(version, token="of-plugin")
    env = [{"name": "OUT", "value": str(tmp_path / "info")}]
    user = plugin(tmp_path, script, apiVersion=version, env=env, provideClusterInfo=True)
    api = connect({"server": server.url}, user)
    for _ in range(3):
        api.get(PODS)
    assert {each["authorization"] for each in server.headers} == {"Bearer of-plugin"}
    assert runs(tmp_path) == 1
    info = json.loads((tmp_path / "info").read_text())
    assert info == {
        "apiVersion": version,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": server.url}},
    }


@pytest.mark.parametrize("zone", ["Z", ""])
def test_a_plugin_whose_token_expires_runs_again(
    server: ApiServer, connect: Connect, tmp_path: Path, zone: str
) -> None:
    script = prints(token="old", expirationTimestamp=f"2020-01-01T00:00:00{zone}")
    api = connect({"server": server.url}, plugin(tmp_path, script))
    api.get(PODS)
    api.get(PODS)
    assert runs(tmp_path) == 2


def test_a_plugin_gives_a_client_certificate(
    tls_server: ApiServer, authority: Authority, connect: Connect, tmp_path: Path
) -> None:
    mine = authority.signed("of-plugin")
    script = prints(clientCertificateData=mine.certificate.decode(), clientKeyData=mine.key.decode())
    connect(trusting(tls_server, authority), plugin(tmp_path, script)).get(PODS)
    assert tls_server.users == ["of-plugin"]


def test_after_a_401_the_plugin_runs_again_once(server: ApiServer, connect: Connect, tmp_path: Path) -> None:
    server.fail("GET", answer(401, "Unauthorized"))
    api = connect({"server": server.url}, plugin(tmp_path, prints(token="of-plugin")))
    api.get(PODS)
    assert (runs(tmp_path), len(server.requests)) == (2, 2)
    server.fail("POST", answer(401, "Unauthorized"), times=5)
    with pytest.raises(Unauthorized):
        api.create(PODS, {"metadata": {"name": "a"}})
    assert (runs(tmp_path), len(server.requests)) == (3, 4)


def test_a_plugin_whose_certificate_a_gateway_rejects_runs_again(
    authority: Authority, connect: Connect, tmp_path: Path
) -> None:
    for name, days in {"old": -1, "new": 1}.items():
        mine = authority.signed(name, days=days)
        credential = prints(clientCertificateData=mine.certificate.decode(), clientKeyData=mine.key.decode())
        (tmp_path / name).write_text(credential)
    context = authority.signed("server", "127.0.0.1").server_context(tmp_path, authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    user = plugin(tmp_path, f". {tmp_path}/$([ $(cat {tmp_path}/runs) = x ] && echo old || echo new)")
    with ApiServer(tls=context) as server:
        api = connect(trusting(server, authority), user)
        api.retry_seconds = 10
        api.get(PODS)
        assert server.users == ["new"]
    assert runs(tmp_path) == 2


def test_a_401_for_a_static_token_is_final(server: ApiServer, connect: Connect) -> None:
    server.fail("GET", answer(401, "Unauthorized"), times=5)
    with pytest.raises(Unauthorized, match="log in"):
        connect({"server": server.url}, {"token": "old"}).get(PODS)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo 'no session' >&2; exit 3", r"exit code 3 \(no session\)"),
        ("echo secret-text", "did not print an ExecCredential"),
        (prints(), "neither a token nor a certificate"),
        (prints("client.authentication.k8s.io/v1beta1", token="t"), "prints apiVersion .*v1beta1"),
    ],
)
def test_a_plugin_that_fails_is_quoted(
    server: ApiServer, connect: Connect, tmp_path: Path, script: str, cause: str
) -> None:
    with pytest.raises(KubernetesError, match=cause) as caught:
        connect({"server": server.url}, plugin(tmp_path, script)).get(PODS)
    assert "secret-text" not in str(caught.value)
    assert server.requests == []


def test_a_missing_plugin_tells_how_to_install_it(server: ApiServer, connect: Connect) -> None:
    missing = {"exec": {"apiVersion": V1, "command": "no-such-plugin", "installHint": "get it from example.com"}}
    with pytest.raises(KubernetesError, match=r"cannot be started .*get it from example\.com"):
        connect({"server": server.url}, missing).get(PODS)


def test_a_plugin_that_hangs_is_ended_with_what_it_started(
    server: ApiServer, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_plugin, "TIMEOUT_SECONDS", 0.3)
    user = plugin(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    api = connect({"server": server.url}, user)
    for _ in range(2):  # the second time it is not even started
        with pytest.raises(KubernetesError, match="no credential within"):
            api.get(PODS)
    assert runs(tmp_path) == 1
    left = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and Path(f"/proc/{left}/stat").exists() and not is_zombie(left):
        time.sleep(0.01)
    assert not Path(f"/proc/{left}/stat").exists() or is_zombie(left)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_failed_plugin_is_run_again_later(
    server: ApiServer, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "FAILURE_SECONDS", 0)
    script = f"[ -e {tmp_path}/session ] || exit 1\n" + prints(token="of-plugin")
    api = connect({"server": server.url}, plugin(tmp_path, script))
    with pytest.raises(KubernetesError, match="exit code 1"):
        api.get(PODS)
    (tmp_path / "session").touch()
    api.get(PODS)


def test_a_plugin_that_always_asks_needs_a_terminal(server: ApiServer, connect: Connect, tmp_path: Path) -> None:
    user = plugin(tmp_path, prints(token="t"), interactiveMode="Always")
    with pytest.raises(KubernetesError, match="needs a terminal"):
        connect({"server": server.url}, user).get(PODS)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"a: [token: hidden", "not valid YAML"),
        (b"- hidden", "not a YAML mapping"),
        (b"users: hidden", "not a valid kubeconfig"),
        (b"clusters: []", "no current-context"),
        (b"current-context: it", "no context 'it'"),
        (b"current-context: it\ncontexts: [{name: it, context: {cluster: x}}]", "no cluster 'x'"),
        (
            b"current-context: it\ncontexts: [{name: it, context: {cluster: x}}]\nclusters: [{name: x}]",
            "server '' of cluster 'x' is not a URL",
        ),
    ],
)
def test_a_broken_kubeconfig_is_an_error_that_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, cause: str
) -> None:
    (tmp_path / "config").write_bytes(content)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(KubernetesError, match=cause) as caught:
        KubernetesApi.connect()
    assert "hidden" not in str(caught.value)


def test_old_auth_providers_and_plugin_versions_are_refused(server: ApiServer, connect: Connect) -> None:
    with pytest.raises(KubernetesError, match=r"auth-provider 'oidc' .* not supported"):
        connect({"server": server.url}, {"auth-provider": {"name": "oidc"}})
    with pytest.raises(KubernetesError, match="v1alpha1"):
        connect({"server": server.url}, {"exec": {"apiVersion": f"{V1}alpha1", "command": "x"}})


def test_a_broken_certificate_is_named(tls_server: ApiServer, connect: Connect) -> None:
    with pytest.raises(KubernetesError, match="CA certificate of the kubeconfig is not valid"):
        connect({"server": tls_server.url, "certificate-authority-data": in_base64(b"nonsense")}, {}).get(PODS)
    with pytest.raises(KubernetesError, match="not valid base64"):
        connect({"server": tls_server.url, "certificate-authority-data": "%"}, {})


def test_the_proxy_of_the_kubeconfig_is_used(
    tls_server: ApiServer, authority: Authority, connect: Connect, proxy: Proxy
) -> None:
    url = f"http://me:p%40ss@{proxy.url.removeprefix('http://')}"
    connect(trusting(tls_server, authority, **{"proxy-url": url}), {"token": "of-me"}).get(PODS)
    assert proxy.seen == [f"CONNECT {tls_server.url.removeprefix('https://')}"]
    assert proxy.accounts == [f"Basic {in_base64(b'me:p@ss')}"]
    assert tls_server.headers[-1]["authorization"] == "Bearer of-me"
    assert "proxy-authorization" not in tls_server.headers[-1]


def test_the_proxy_of_the_environment_is_used(
    server: ApiServer, connect: Connect, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://"))
    proxy.upstreams["inside.invalid"] = int(server.url.rpartition(":")[2])
    connect({"server": "http://inside.invalid:8080"}, {"token": "of-me"}).get(PODS)
    assert proxy.seen == ["GET http://inside.invalid:8080"]
    assert server.headers[-1]["authorization"] == "Bearer of-me"


@pytest.mark.parametrize(
    ("no_proxy", "server", "is_proxied"),
    [
        ("", "https://api.example.com:6443", True),
        ("", "https://localhost:6443", False),
        ("", "https://127.0.0.1:6443", False),
        ("", "https://[::1]:6443", False),
        ("*", "https://api.example.com", False),
        ("example.com", "https://api.example.com:6443", False),
        ("example.com", "https://example.com", False),
        (".example.com", "https://api.example.com", False),
        (".example.com", "https://example.com", True),
        ("*.example.com", "https://api.example.com", False),
        ("ample.com", "https://example.com", True),
        ("EXAMPLE.com", "https://api.example.com", False),
        ("example.com:6443", "https://api.example.com:6443", False),
        ("example.com:443", "https://api.example.com:6443", True),
        ("10.96.0.0/12, other", "https://10.96.0.1", False),
        ("10.96.0.0/12", "https://10.95.0.1", True),
        ("10.96.0.1", "https://10.96.0.1:443", False),
        ("10.96.0.1:443", "https://10.96.0.1", False),
        ("10.96.0.1:80", "https://10.96.0.1", True),
        ("fd00::/8", "https://[fd00::1]:6443", False),
        ("fd00::1", "https://[fd00::1]:6443", False),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", False),
        ("nonsense/99", "https://10.0.0.1", True),
        ("example.com:²", "https://example.com:2", True),
        ("example.com:४४३", "https://example.com", True),
    ],
)
def test_no_proxy_is_read_as_go_does(no_proxy: str, server: str, is_proxied: bool) -> None:
    environment = {"https_proxy": "proxy:3128", "NO_PROXY": no_proxy}
    assert proxy_for(server, "", environment) == ("http://proxy:3128" if is_proxied else "")
    assert proxy_for(server, "https://other:1", environment) == "https://other:1"


@pytest.mark.parametrize(
    "proxy",
    [
        "http://me:hidden@proxy:99999",
        "me:hidden/@proxy:3128",
        "http://me:hidden[@proxy:3128",
        "http://me:hidden@",
        "http://me:hidden@%zz",
        "http://me:hiddenü@proxy:3128",
    ],
)
def test_a_proxy_that_is_not_a_url_is_refused_without_its_password(
    proxy: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(KubernetesError, match=r"HTTP_PROXY.* is not a valid URL") as caught:
        connect({"server": "http://inside.invalid:8080"}, {}).get(PODS)
    assert "hidden" not in str(caught.value)


def test_an_unknown_kind_of_proxy_is_refused(server: ApiServer, connect: Connect) -> None:
    with pytest.raises(KubernetesError, match=r"socks5:// are not supported"):
        connect({"server": server.url, "proxy-url": "socks5://me:hidden@proxy:1080"}, {})


@pytest.mark.parametrize(
    "server",
    ["ftp://api:21", "api:6443", "https://api:99999", "https://api:²", "https://api:0", "https://[::1", "https://"],
)
def test_a_server_that_is_not_a_url_is_refused_with_its_value(connect: Connect, server: str) -> None:
    with pytest.raises(KubernetesError, match=re.escape(f"server '{server}' of cluster 'it' is not a URL")):
        connect({"server": server}, {})


def test_the_password_of_a_server_that_is_not_a_url_is_not_shown(connect: Connect) -> None:
    with pytest.raises(KubernetesError, match="server 'api:99999' of cluster"):
        connect({"server": "https://me:hidden@api:99999"}, {})


def test_an_interrupt_ends_the_plugin(server: ApiServer, connect: Connect, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not (tmp_path / "runs").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    api = connect({"server": server.url}, plugin(tmp_path, "exec sleep 600"))
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        api.get(PODS)
    interrupter.join()


def test_the_limit_of_open_files_is_raised() -> None:
    program = """
import resource
from kubetrain_components.jobs.kubernetes.access.transport import raise_descriptor_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_descriptor_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(finished.stdout) == min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65_536)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= before[0]


def test_the_kubernetes_library_is_not_imported() -> None:
    program = """
import sys
from kubetrain_components.jobs.kubernetes import backend, manifests
sys.exit(bool({"kubernetes", "kubeflow", "yaml"} & sys.modules.keys()))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
