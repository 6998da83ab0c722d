"""Requests to S3 compared with those of botocore, and listings compared with the objects."""

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.s3.listing import list_objects
from kubetrain_components.object_store.s3.listing_page import rows_of
from kubetrain_components.object_store.s3.requests import S3Requests, Signer
from kubetrain_components.object_store.store import Access, StoreError
from support.faulty_s3 import FaultyS3

PARTS = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs", "Cc")), min_size=1, max_size=4)
KEYS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize("token", [None, "session-token"])
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/bucket/a%20b/%C3%BC~._-%2B", ""),
        ("/bucket/", "list-type=2&prefix=a%2Fb%20c"),
        ("/", "continuation-token=%2B%3D&list-type=2"),
    ],
)
def test_requests_are_signed_as_botocore_signs_them(path: str, query: str, token: str | None) -> None:
    moment = datetime.datetime.now(datetime.UTC)
    host = "s3.example.org:9000"
    request = AWSRequest("GET", f"http://{host}{path}?{query}".rstrip("?"), headers={"if-match": '"etag"'})
    S3SigV4Auth(Credentials("access", "secret", token), "s3", "eu-central-1").add_auth(request)
    moment = datetime.datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    signer = Signer("eu-central-1")
    sent = {"host": host, "if-match": '"etag"'}
    signed = signer.signed("GET", path, query, sent, ("access", "secret", token), moment)
    assert signed["authorization"] == request.headers["Authorization"]


@pytest.mark.parametrize(
    ("bucket", "endpoint", "url"),
    [
        ("bucket", "", "https://bucket.s3.amazonaws.com:443"),
        ("dotted.bucket", "", "https://s3.amazonaws.com:443/dotted.bucket"),
        ("bucket", "http://127.0.0.1:9000", "http://127.0.0.1:9000/bucket"),
        ("bucket", "https://s3.example.org/base", "https://s3.example.org:443/base/bucket"),
    ],
)
def test_a_bucket_has_the_url_that_botocore_computes(
    bucket: str, endpoint: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    location = S3Requests(bucket, endpoint, Access.ANONYMOUS)._location
    origin = location.origin
    assert f"{origin.scheme}://{origin.host}:{origin.port}{location.path}" == url
    assert location.signer.region == "us-east-1"


def test_virtual_hosts_and_regions_come_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\ns3 =\n  addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    location = S3Requests("bucket", "https://s3.example.org", Access.ANONYMOUS)._location
    assert (location.origin.host, location.path, location.signer.region) == ("bucket.s3.example.org", "", "eu-west-3")


def test_a_server_is_verified_with_the_configured_ca_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    s3 = FaultyS3()
    s3.put("key", b"content")
    with s3.serving(tls) as url:
        with pytest.raises(StoreError, match="certificate verify failed"):
            list(open_store("s3://bucket", url, Access.ANONYMOUS).list())
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        store = open_store("s3://bucket", url, Access.ANONYMOUS)
        assert [each.key for each in store.list()] == ["key"]
        assert store.read("key").read() == b"content"


def self_signed(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "server.pem"
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


class FolderByFolder:
    """A server that lists "a/" before "a-b/", and starts after a key in its own order or at all that sort after it."""

    def __init__(self, keys: set[str], page_keys: int, *, starts_in_place: bool) -> None:
        self._keys = sorted(keys, key=self._place)
        self._page_keys = page_keys
        self._starts_in_place = starts_in_place

    def _place(self, key: str) -> list[str]:
        return key.split("/")

    def page(self, query: dict[str, str]) -> bytes:
        prefix, after, token = query["prefix"], query.get("start-after", ""), query.get("continuation-token", "0")
        keys = [key for key in self._keys if key.startswith(prefix) and self._is_after(key, after)]
        if "delimiter" in query:
            return self._folders_of(keys, prefix)
        begin, end = int(token), int(token) + self._page_keys
        following = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(keys) else ""
        rows = (
            f"<Contents><Key>{key}</Key><LastModified>x</LastModified><ETag>{key}</ETag><Size>1</Size></Contents>"
            for key in keys[begin:end]
        )
        return f"<IsTruncated>{str(end < len(keys)).lower()}</IsTruncated>{following}{''.join(rows)}".encode()

    def _is_after(self, key: str, after: str) -> bool:
        return self._place(key) > self._place(after) if self._starts_in_place else key > after

    def _folders_of(self, keys: list[str], prefix: str) -> bytes:
        names = {prefix + "".join(key.removeprefix(prefix).partition("/")[:2]): None for key in keys}
        entries = (
            f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
            if name.endswith("/")
            else f"<Contents><Key>{name}</Key><ETag>x</ETag><Size>1</Size></Contents>"
            for name in names
        )
        return f"<IsTruncated>false</IsTruncated>{''.join(entries)}".encode()


class TestListing:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(keys=st.sets(KEYS, max_size=40), page=st.integers(1, 3), ranges=st.integers(1, 6))
    def test_every_key_is_listed_once_for_any_folders_and_pages(self, keys: set[str], page: int, ranges: int) -> None:
        s3 = FaultyS3()
        s3.page_keys = page
        for key in keys:
            s3.put(f"data/{key}", b"")
        for beside in ("dat", "data", "data0", "e"):
            s3.put(beside, b"")
        listed = [each.key for each in list_objects(s3.page, "data/", ranges)]
        assert listed == sorted(keys, key=str.encode)

    def test_long_listings_are_split_at_folders(self) -> None:
        s3 = FaultyS3()
        s3.page_keys = 30
        for number in range(600):
            s3.put(f"data/{number % 20:02}/{number}", b"")
        after: list[str] = []

        def page(query: dict[str, str]) -> bytes:
            after.append(query.get("start-after", ""))
            return s3.page(query)

        assert len(list(list_objects(page, "data/", 4))) == 600
        assert {"data/10/", "data/15/"} <= set(after)
        assert "data/05/" not in after, "it had been listed by then"

    @pytest.mark.parametrize("disorder_from", [0, 20])
    def test_a_server_that_lists_folder_by_folder_is_listed_from_end_to_end(self, disorder_from: int) -> None:
        keys = [f"data/{folder:02}{end}{file}" for folder in range(40) for end in ("/", "-", "!") for file in range(3)]
        by_folder = sorted(keys, key=lambda key: key.split("/"))  # "00-" comes after "00/" although its bytes do not
        order = [key for key in sorted(keys) if int(key[5:7]) < disorder_from]
        order += [key for key in by_folder if int(key[5:7]) >= disorder_from]
        s3 = FaultyS3()

        def page(query: dict[str, str]) -> bytes:
            if "delimiter" in query:
                return s3.page(query)
            token, after = query.get("continuation-token", ""), query.get("start-after", "")
            begin = int(token) if token else next((at for at, key in enumerate(order) if key > after), len(order))
            rows = "".join(
                f"<Contents><Key>{key}</Key><LastModified>x</LastModified><ETag>{key}</ETag><Size>1</Size></Contents>"
                for key in order[begin : begin + 5]
            )
            more = begin + 5 < len(order)
            following = f"<NextContinuationToken>{begin + 5}</NextContinuationToken>" if more else ""
            return f"<IsTruncated>{str(more).lower()}</IsTruncated>{following}{rows}".encode()

        for key in keys:
            s3.put(key, b"x")
        assert sorted(each.key for each in list_objects(page, "data/", 4)) == sorted(key[5:] for key in keys)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        keys=st.sets(st.text("ab-/.", min_size=1, max_size=6), min_size=15, max_size=60),
        page=st.integers(1, 3),
        ranges=st.integers(2, 6),
        starts_in_place=st.booleans(),
    )
    @example(
        keys={
            *(f"A/{number:02}" for number in range(12)),
            *(f"{folder}/{number}" for folder in ("A-x", "a", "a-b", "c") for number in range(4)),
        },
        page=1,
        ranges=16,
        starts_in_place=False,
    )
    @example(
        keys={*(f"A/{number:02}" for number in range(12)), *(f"t/{number}" for number in range(9)), "c/1", "t.csv"},
        page=1,
        ranges=16,
        starts_in_place=False,
    )
    def test_every_key_is_listed_once_by_a_server_that_lists_folder_by_folder(
        self, keys: set[str], page: int, ranges: int, starts_in_place: bool
    ) -> None:
        keys = {key for key in keys if not any(other.startswith(f"{key}/") for other in keys)}
        server = FolderByFolder(keys, page, starts_in_place=starts_in_place)
        assert sorted(each.key for each in list_objects(server.page, "", ranges)) == sorted(keys)

    def test_names_that_such_a_server_lists_later_cost_no_second_listing(self) -> None:
        s3 = FaultyS3()
        s3.page_keys = 30
        for number in range(600):
            s3.put(f"data/{number % 20:02}/{number}", b"")
        for number in range(20):
            s3.put(f"data/{number:02}.csv", b"")
        pages: list[dict[str, str]] = []

        def page(query: dict[str, str]) -> bytes:
            pages.extend([query] if "delimiter" not in query else [])
            return s3.page(query)

        assert len(list(list_objects(page, "data/", 4))) == 620
        assert len(pages) < 620 / 30 + 2 * 4

    @pytest.mark.parametrize(("empty_folders", "is_listed_again"), [(1, False), (90, False), (101, True)])
    def test_few_folders_without_objects_cost_no_second_listing(
        self, empty_folders: int, is_listed_again: bool
    ) -> None:
        s3 = FaultyS3()
        s3.page_keys = 30
        for number in range(600):
            s3.put(f"data/{number % 20:02}/{number}", b"")
        empty = [f"data/{number % 20:02}-deleted-{number}/" for number in range(empty_folders)]
        named = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in empty)
        asked: list[dict[str, str]] = []

        def page(query: dict[str, str]) -> bytes:
            asked.append(dict(query))
            added = named if query == {"prefix": "data/", "delimiter": "/"} else ""
            return s3.page(query).replace(b"</ListBucketResult>", f"{added}</ListBucketResult>".encode())

        assert len(list(list_objects(page, "data/", 4))) == 600
        assert all(({"prefix": folder} in asked) is not is_listed_again for folder in empty)
        whole = [
            each for each in asked if each["prefix"] == "data/" and each.keys() <= {"prefix", "continuation-token"}
        ]
        assert (len(whole) == 600 / 30) is is_listed_again

    def test_short_listings_are_not_split(self) -> None:
        s3 = FaultyS3()
        s3.page_keys = 10
        asked: list[dict[str, str]] = []

        def page(query: dict[str, str]) -> bytes:
            asked.append(query)
            return s3.page(query)

        for number in range(75):
            s3.put(f"data/{number % 20:02}/{number}", b"")
        assert len(list(list_objects(page, "data/", 4))) == 75
        assert len(asked) == 8

    def test_elements_of_an_object_are_read_in_any_order(self) -> None:
        row = "<Contents><Size>3</Size><Key>data/a&amp;b</Key><ETag>&quot;x&quot;</ETag></Contents>"
        other = row.replace("x", "y")
        assert rows_of(f"<R>{row}{other}</R>", "data/", set()) == [("a&b", 3, "x"), ("a&b", 3, "y")]

    def test_an_object_with_a_missing_element_is_an_error(self) -> None:
        with pytest.raises(StoreError, match="without a key, an ETag or a size"):
            rows_of("<R><Contents><Key>a</Key><Size>1</Size></Contents></R>", "", set())
