"""The part of the Hugging Face hub's HTTP API that a dataset is read by, with its second server for large files."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, quote, unquote, urlsplit

from support.faulty_http import serving

DATASET = "owner/flowers"
LARGE_BYTES = 1000
"""Files from this size on are in LFS; on the hub, those from 10 MB."""
TOKEN = "hf_token"


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Hub:
    """A dataset whose branches name commits, which hold files."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False
    page_files: int = 1000
    url: str = ""
    cdn_url: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and lowercase headers of each request, those to the second server with its URL."""

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        name = hashlib.sha1(repr((branch, len(self.commits), files)).encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name

    @contextlib.contextmanager
    def serving(self) -> Iterator["Hub"]:
        with serving(_Handler, hub=self) as self.url, serving(_Cdn, hub=self) as self.cdn_url:
            yield self


class _Base(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def answer_range(self, content: bytes, headers: dict[str, str]) -> None:
        span = self.headers.get("Range", "")
        if not span:
            self.answer(200, content, headers)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        if int(first) >= len(content):
            self.answer(416, b"")
            return
        end = min(int(last) + 1 if last else len(content), len(content))
        part = {"Content-Range": f"bytes {first}-{end - 1}/{len(content)}"}
        self.answer(206, content[int(first) : end], {**headers, **part})

    def log_message(self, *_: object) -> None:
        pass


class _Handler(_Base):
    def do_GET(self) -> None:
        self.hub.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        path = unquote(urlsplit(self.path).path)
        if not path.startswith((f"/api/datasets/{DATASET}/", f"/datasets/{DATASET}/", "/api/resolve-cache/")):
            self.refuse(401, "RepoNotFound")  # as the hub says to those who may not know if it exists
        elif self.hub.is_gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(401, "GatedRepo")
        elif path.startswith(f"/api/datasets/{DATASET}/revision/"):
            self.send_revision(path.partition("/revision/")[2])
        elif path.startswith(f"/api/datasets/{DATASET}/tree/"):
            self.send_tree(*path.partition("/tree/")[2].partition("/")[::2])
        elif path.startswith("/api/resolve-cache/"):
            self.send_small(*path.partition("/resolve-cache/")[2].partition("/")[::2])
        else:
            self.send_file(*path.partition("/resolve/")[2].partition("/")[::2])

    def refuse(self, status: int, code: str) -> None:
        body = json.dumps({"error": f"{code} of this test"}).encode()
        self.answer(status, body, {"X-Error-Code": code, "X-Error-Message": code})

    def send_revision(self, revision: str) -> None:
        commit = self.hub.branches.get(revision, revision)
        if commit not in self.hub.commits:
            self.refuse(404, "RevisionNotFound")
            return
        self.answer(200, json.dumps({"_id": "1", "id": DATASET, "sha": commit}).encode())

    def send_tree(self, commit: str, folder: str) -> None:
        begin = f"{folder}/" if folder else ""
        files = {name: content for name, content in self.hub.commits[commit].items() if name.startswith(begin)}
        if not files:
            self.refuse(404, "EntryNotFound")
            return
        folders = {name.rpartition("/")[0] for name in files if "/" in name}
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": name} for name in sorted(folders)]
        entries += [_entry(name, content) for name, content in sorted(files.items())]
        query = parse_qs(urlsplit(self.path).query)
        assert query["recursive"] == ["true"]
        start = int(query.get("cursor", ["0="])[0].rstrip("="))
        page = entries[start : start + self.hub.page_files]
        headers = {}
        if start + len(page) < len(entries):
            # The real cursors are base64, which needs its "=" quoted.
            cursor = quote(f"{start + len(page)}=", safe="")
            address = f"https://huggingface.co{urlsplit(self.path).path}?recursive=true&expand=false&cursor={cursor}"
            headers = {"Link": f'<{address}>; rel="next"'}
        self.answer(200, json.dumps(page).encode(), headers)

    def send_file(self, commit: str, name: str) -> None:
        content = self.hub.commits.get(commit, {}).get(name)
        if content is None:
            self.refuse(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(content))}
        if len(content) < LARGE_BYTES:
            location = f"/api/resolve-cache/{commit}/{quote(name)}"
            self.answer(307, b"Temporary Redirect", {**headers, "Location": location})
            return
        digest = hashlib.sha256(content).hexdigest()
        linked = {**headers, "X-Linked-ETag": f'"{digest}"', "ETag": '"of the redirect"'}
        self.answer(302, b"Found", {**linked, "Location": f"{self.hub.cdn_url}/{digest}?signature=s"})

    def send_small(self, commit: str, name: str) -> None:
        content = self.hub.commits[commit][name]
        self.answer_range(content, {"ETag": f'"{git_oid(content)}"'})


class _Cdn(_Base):
    def do_GET(self) -> None:
        sent = {name.lower(): value for name, value in self.headers.items()}
        self.hub.requests.append((f"{self.hub.cdn_url}{self.path}", sent))
        digest = urlsplit(self.path).path.removeprefix("/")
        found = (file for files in self.hub.commits.values() for file in files.values())
        content = next(each for each in found if hashlib.sha256(each).hexdigest() == digest)
        self.answer_range(content, {"ETag": '"etag-of-the-cdn"'})


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry = {"type": "file", "oid": git_oid(content), "size": len(content), "path": name}
    if len(content) < LARGE_BYTES:
        return entry
    lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return {**entry, "oid": git_oid(str(lfs).encode()), "lfs": lfs, "xetHash": "0" * 64}
