"""`--code DIR`: a folder of your own code becomes an archive, which pods fetch, verify and unpack."""

import gzip
import io
import os
import subprocess
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.bring_code import fetch
from kubetrain_components.bring_code.fetch import fetch_code, unpack_code
from kubetrain_components.bring_code.pack import MAX_BYTES, archive_key, digest_of, files_of, pack_code, upload_code
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.run.admission import admit_run
from kubetrain_components.run.published_model import read_commit
from kubetrain_components.run.request import merged
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.bring_code import pack, unpacked_apart
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.processes.code_folder import VARIABLE

DIGEST = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    for name in (
        "train.py",
        "team/model.py",
        "team/__pycache__/model.pyc",
        "data/big.bin",
        ".venv/lib.py",
        "notes.txt",
    ):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / "link.py").symlink_to("train.py")
    return code


def test_without_git_all_files_but_the_ignored_ones_are_packed(folder: Path) -> None:
    (folder / ".kubetrainignore").write_text("# too large\ndata/\n*.txt\n")
    assert sorted(files_of(folder)) == ["team/model.py", "train.py"]


@pytest.mark.parametrize(("names", "counted"), [(["a.py"], "1 file of "), (["a.py", "b.py"], "2 files of ")])
def test_what_is_packed_is_counted(tmp_path: Path, names: list[str], counted: str) -> None:
    for name in names:
        (tmp_path / name).write_text(name)
    said: list[str] = []
    pack(AskedRun(code=tmp_path), say=said.append)
    assert counted in said[0]


def test_with_git_the_files_that_it_tracks_are_packed_as_they_are_now(folder: Path) -> None:
    (folder / ".env").write_text("PASSWORD=secret")
    for command in (["init", "-q"], ["add", "train.py", "team/model.py", "notes.txt", ".env"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    (folder / "notes.txt").unlink()
    (folder / "train.py").write_text("changed")
    assert sorted(files_of(folder)) == ["team/model.py", "train.py"]
    assert pack_code(folder).commit == "", "there is none yet"
    unpack_code(pack_code(folder).content, pack_code(folder).digest, folder.parent / "unpacked")
    assert (folder.parent / "unpacked" / "train.py").read_text() == "changed"


def test_the_commit_is_known_and_changes_no_digest(folder: Path, tmp_path: Path) -> None:
    def git(*command: str) -> str:
        identity = ("-c", "user.name=me", "-c", "user.email=me@example.com")
        return subprocess.run(
            ["git", *identity, *command], cwd=folder, check=True, capture_output=True, text=True
        ).stdout

    store = DirectoryStore(tmp_path / "models")
    git("init", "-q")
    git("add", "train.py")
    for message in ("first", "second"):
        git("commit", "-q", "--allow-empty", "-m", message)
        code = pack_code(folder)
        assert code.commit == git("rev-parse", "HEAD").strip()
        upload_code(code, store)
        assert read_commit(store, code.digest) == code.commit
    assert len([each for each in store.list() if each.key.endswith(".tar.gz")]) == 1
    (folder / "train.py").write_text("changed")
    assert pack_code(folder).commit == f"{code.commit}-dirty"
    assert (read_commit(store, DIGEST), read_commit(store, "")) == ("", "")


def test_files_that_git_does_not_track_yet_are_not_brought(folder: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    with pytest.raises(InvalidSetting, match="has no files that git tracks: add them by `git add`"):
        pack_code(folder)


def test_the_same_files_have_the_same_digest(folder: Path, tmp_path: Path) -> None:
    before = pack_code(folder)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", folder, copy], check=True)  # with other times
    assert pack_code(copy).digest == before.digest
    (copy / "train.py").write_text("other")
    assert pack_code(copy).digest != before.digest


def test_a_folder_that_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="is not a folder"):
        pack_code(tmp_path / "absent")
    with pytest.raises(InvalidSetting, match="has no files to bring"):
        pack_code(tmp_path)
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(
        InvalidSetting, match=r"50 MiB in 1 files, more than 50 MiB: list what the training does not need"
    ):
        pack_code(tmp_path)


def test_more_files_than_a_pod_can_unpack_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"{number}.py").write_text("x")
    monkeypatch.setattr("kubetrain_components.bring_code.pack.MAX_ARCHIVE_BYTES", 10 << 10)
    with pytest.raises(InvalidSetting, match="has 20 files, too many for an archive"):
        pack_code(tmp_path)


SECRETS = (
    *("prod.env", ".env", ".ENV.local", "id_rsa", ".git-credentials", ".npmrc", ".pypirc", ".docker/config.json"),
    *(".kaggle/kaggle.json", "keys/kaggle.json", "kubeconfig", "cert.p12", "a.KEY", "keys/a.pem", ".AWS/config"),
    *("prod-kubeconfig.yaml", "terraform.tfstate", "prod.tfvars", "store.jks", "client_secret_1.json", "rootkey.csv"),
)
LEFT_OUT_OUTSIDE_GIT = (
    *(".config/gh/hosts.yml", "credentials", "team/credentials.json", ".mypy_cache/a.json", "venv/lib.py"),
    *("secrets.yaml", "credentials.csv", "gcp-key.json", "hf_token"),
    *("node_modules/a.js", ".ipynb_checkpoints/a.py", "kubetrain-workspace/output/r-1/config.json"),
)


@pytest.mark.parametrize("is_tracked", [False, True])
def test_what_is_usually_secret_is_never_packed(tmp_path: Path, is_tracked: bool) -> None:
    for name in ("train.py", "environment.py", "keys/keys.py", *SECRETS, *LEFT_OUT_OUTSIDE_GIT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    if is_tracked:
        for command in (["init", "-q"], ["add", "--force", "."]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)
    packed = {"train.py", "environment.py", "keys/keys.py", *(LEFT_OUT_OUTSIDE_GIT if is_tracked else ())}
    assert set(files_of(tmp_path)) == packed


def test_patterns_of_your_own_tell_upper_case_from_lower_case(folder: Path) -> None:
    (folder / ".kubetrainignore").write_text("\ufeffDATA\n.*\nTeam\n")
    assert sorted(files_of(folder)) == ["data/big.bin", "notes.txt", "team/model.py", "train.py"]


def test_names_that_are_not_utf_8_are_packed(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    (tmp_path / name).write_text("")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    code = pack_code(tmp_path)
    assert code.files == (name,)
    unpack_code(code.content, code.digest, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / name).is_file()


def test_patterns_that_cannot_be_read_are_refused(folder: Path) -> None:
    (folder / ".kubetrainignore").write_bytes("données".encode("latin-1"))
    with pytest.raises(InvalidSetting, match=r"\.kubetrainignore is not UTF-8 text"):
        pack_code(folder)


def test_an_archive_is_uploaded_again_and_verified(folder: Path, tmp_path: Path) -> None:
    code, store = pack_code(folder), DirectoryStore(tmp_path / "models")
    upload_code(code, store)
    path = tmp_path / "models" / archive_key(code.digest)
    path.write_bytes(b"damaged")
    upload_code(code, store)
    fetch_code(store, code.digest, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "team" / "model.py").read_text() == "team/model.py"
    path.write_bytes(code.content[:-1])
    with pytest.raises(KubetrainError, match="cannot be unpacked"):
        fetch_code(store, code.digest, tmp_path / "again")
    store.write(archive_key(DIGEST), code.content)
    with pytest.raises(KubetrainError, match="has other content than its name says"):
        fetch_code(store, DIGEST, tmp_path / "again")


def archive(entry: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        made.addfile(entry, io.BytesIO(b"" if entry.issym() else b"x"))
    return packed.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


def file(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = 1
    return entry


@pytest.mark.parametrize("entry", [file("../outside"), link("inside", "/etc/passwd"), link("inside", "../outside")])
def test_nothing_is_unpacked_outside_the_folder(tmp_path: Path, entry: tarfile.TarInfo) -> None:
    content = archive(entry)
    digest = digest_of(gzip.decompress(content))
    with pytest.raises(KubetrainError, match="cannot be unpacked"):
        unpack_code(content, digest, tmp_path / "code")
    assert [path.name for path in tmp_path.rglob("*")] == ["code"]


def planned(**settings: Any) -> list[dict[str, Any]]:
    places = {
        "data": {"uri": "s3://bucket/data", "endpoint": "http://minio:9000"},
        "model": {"uri": "s3://bucket/models"},
    }
    return planned_manifests(
        admit_run(
            merged(places, settings),
            pipeline="train-pytorch",
            run_id="r",
            framework="pytorch",
            components_image="components:1",
            trainer_image="trainer:1",
        )
    )


def pods_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest["spec"]
    return [
        each["template"]["spec"] for each in spec.get("pytorchReplicaSpecs", {"": spec}).values() if "template" in each
    ]


def test_pods_that_run_your_code_fetch_it_read_only() -> None:
    entry = {"script": "train.py", "evaluation": {"script": "test.py"}}
    found = set()
    transfer = {
        "env": {"AWS_CA_BUNDLE": "/ca/ca.crt"},
        "pod": pod_patch(
            {"volumes": [{"name": "ca", "configMap": {"name": "ca"}}]},
            {"volumeMounts": [{"name": "ca", "mountPath": "/ca"}]},
        ),
    }
    own = {"env": {"PYTHONHASHSEED": "0"}, "pod": pod_patch({"volumes": [], "initContainers": []})}
    code = {"entry": entry, "code": DIGEST}
    for manifest in planned(train=code, storage={"transfer": transfer}, pods={"evaluation": own}):
        for pod in pods_of(manifest):
            (main, *_) = pod["containers"]
            if main["image"] == "components:1":
                assert "kubetrain-code" not in str(pod)
                continue
            (fetcher,) = pod["initContainers"]
            assert fetcher["image"] == "components:1"
            assert fetcher["command"][-4:] == ["--digest", DIGEST, "--to", "/code"]
            assert fetcher["securityContext"]["allowPrivilegeEscalation"] is False
            assert {"name": "kubetrain-code", "mountPath": "/code", "readOnly": True} in main["volumeMounts"]
            assert {"name": "KUBETRAIN_CODE", "value": "/code"} in main["env"]
            assert {"name": "PYTHONSAFEPATH", "value": "1"} in main["env"]
            assert {"secretRef": {"name": "kubetrain-s3", "optional": True}} in fetcher["envFrom"]
            assert {"name": "AWS_CA_BUNDLE", "value": "/ca/ca.crt"} in fetcher["env"]
            assert {"name": "ca", "mountPath": "/ca"} in fetcher["volumeMounts"]
            assert "ca" in {volume["name"] for volume in pod["volumes"]}
            assert "AWS_SECRET_ACCESS_KEY" not in str(main)
            found.add(manifest["metadata"]["name"].rpartition("-r-")[0])
    assert found == {"train-pytorch-check-imports", "train-pytorch-launch-training", "train-pytorch-evaluate-model"}


def test_without_code_nothing_is_fetched() -> None:
    assert "kubetrain-code" not in str(planned())


def test_a_repository_that_git_cannot_list_is_refused(folder: Path) -> None:
    (folder / ".git").mkdir()
    with pytest.raises(InvalidSetting, match="is in a repository whose files git does not list"):
        pack_code(folder)


def test_a_folder_beside_a_repository_is_not_in_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository")
    assert "train.py" in files_of(Path("../code"))


def test_patterns_name_folders_and_paths(folder: Path) -> None:
    (folder / ".kubetrainignore").write_text("/data\nteam/model.py\n")
    assert sorted(files_of(folder)) == ["notes.txt", "train.py"]
    assert sorted(files_of(folder, folder / "data" / ".." / "team")) == ["notes.txt", "train.py"]


def test_code_among_the_runs_own_files_is_refused(folder: Path) -> None:
    for own in (folder, folder.parent):
        with pytest.raises(InvalidSetting, match="the folder of the run's own files: choose another"):
            pack_code(folder, own)


def test_each_run_has_its_own_copy_of_the_same_code_and_deletes_no_other(folder: Path, tmp_path: Path) -> None:
    code = pack_code(folder)
    with unpacked_apart(code, tmp_path / "out" / ".code") as first:
        written = Path(first[VARIABLE], "notes.txt")
        written.write_text("by the first run")
        with unpacked_apart(code, tmp_path / "out" / ".code") as second:
            assert Path(second[VARIABLE], "notes.txt").read_text() == "notes.txt"
        assert written.read_text() == "by the first run"
    assert list((tmp_path / "out" / ".code").iterdir()) == []
    with unpacked_apart(None, tmp_path / "none") as nothing:
        assert nothing == {}


def test_a_digest_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="code must be the digest of an archive, not 'main'"):
        planned(train={"code": "main"})


def test_a_mount_of_your_own_cannot_be_where_the_code_is() -> None:
    pods = {
        "pod": pod_patch(
            {"volumes": [{"name": "own", "emptyDir": {}}]}, {"volumeMounts": [{"name": "own", "mountPath": "/code/"}]}
        )
    }
    with pytest.raises(InvalidSetting, match="two volumes of a pod are mounted at /code"):
        planned(train={"code": DIGEST}, pods=pods)


def test_an_archive_of_any_length_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_ARCHIVE_BYTES", 1 << 20)
    archive = tmp_path / archive_key("0" * 16)
    archive.parent.mkdir(parents=True)
    archive.touch()
    os.truncate(archive, 64 << 20)
    tracemalloc.start()
    with pytest.raises(KubetrainError, match="cannot be unpacked"):
        fetch_code(DirectoryStore(tmp_path), "0" * 16, tmp_path / "code")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20
