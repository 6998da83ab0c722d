"""`kubetrain translate` prints and writes no secret, and names what it leaves out for that."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.secret_values import is_secret
from kubetrain_pipelines.cli.translate import report, translate_and_show
from kubetrain_pipelines.requests.yaml_text import to_yaml
from kubetrain_pipelines.translate.fields import shown
from kubetrain_pipelines.translate.read_manifests import read_manifests
from kubetrain_pipelines.translate.translation import Translation, translate
from kubetrain_trainer.errors import InvalidSetting
from support.translated import others_in, settings_of

HAND_WRITTEN = Path(__file__).parent / "hand_written"
SECRET = "very-secret-value"


def job_with(spec: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None, **container: Any) -> str:
    main = {"name": "pytorch", "image": "a", **container}
    sidecars = (spec or {}).pop("sidecars", [])
    template = {"metadata": metadata or {}, "spec": {"containers": [main, *sidecars], **(spec or {})}}
    return json.dumps(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "flowers"},
            "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}},
        }
    )


def translated(text: str) -> Translation:
    return translate(read_manifests([("job.yaml", text)]))


def all_output(translation: Translation) -> str:
    return to_yaml(translation.request) + "\n".join(report(translation, None))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASS", SECRET),
        ("PGPASS", SECRET),
        ("REDIS_AUTH", SECRET),
        ("GITHUB_PAT", SECRET),
        ("HF_TOKEN2", SECRET),
        ("API_KEYS", f"{SECRET},more"),
        ("HF_TOKENS", SECRET),
        ("TEAM_TOKENS", SECRET),
        ("api_tokens", SECRET),
        ("DB_PASSWORDS", SECRET),
        ("secrets", SECRET),
        ("STORAGE_URL", f"https://store.example.com/a?sv=1&sig={SECRET}"),
        ("SLACK_WEBHOOK", SECRET),
        ("dbPassword", SECRET),
        ("AWS_CREDS", SECRET),
        ("SENTRY_DSN", f"https://{SECRET}@sentry.example.com/5"),
        ("ERRORS", f"https://{SECRET}@sentry.example.com/5"),
        ("DATABASE", f"host=db password={SECRET}"),
        ("DATABASE", f"postgres://user:{SECRET}/more@host/db"),
        ("STORAGE", f"AccountName=a;AccountKey={SECRET}"),
        ("STORAGE_CONNECTION_STRING", SECRET),
        ("MODEL", "hf_abcdefghijklmnopqrstuv"),
        ("API_TOKEN", f"$(USER):{SECRET}"),
    ],
)
def test_variables_that_may_be_secrets_are_named_but_not_taken(name: str, value: str) -> None:
    variables = [{"name": name, "value": value}, {"name": "LEVEL", "value": "3"}]
    sidecar = {"name": "sync", "image": "s", "env": variables}
    translation = translated(job_with({"sidecars": [sidecar]}, env=variables))
    output = all_output(translation)
    assert value not in output
    assert SECRET not in output
    for container in ("pytorch", "sync"):
        assert f"containers[{container}].env[{name}].value" in output
    settings = settings_of(translation)
    assert settings["pods.env"] == {"LEVEL": "3"}
    assert others_in(settings)[0]["env"] == [{"name": "LEVEL", "value": "3"}]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/key.json"),
        ("PYTHONPATH", "/code:/lib"),
        ("TOKENIZER", "bert"),
        ("MAX_TOKENS", "512"),
        ("MAX_NEW_TOKENS", "512"),
        ("TOKENS_PER_BATCH", "512"),
        ("TOKENS", "train.bin"),
        ("max_new_tokens", "512"),
        ("n_tokens", "512"),
        ("special_tokens", "<pad>"),
        ("NUM_KEYS", "8"),
        ("API_TOKEN", "$(OTHER)"),
        ("ENDPOINT", "http://store.example.com:9000/a"),
        ("REPOSITORY", "ssh://git@github.com/a/b"),
        ("IMAGE_PATH", "/data/passes"),
        ("SACRED", "1"),
        ("AUTH", "Bearer $(WANDB_API_KEY)"),
    ],
)
def test_other_variables_are_taken(name: str, value: str) -> None:
    assert not is_secret(name, value)


COMMANDS: list[dict[str, Any]] = [
    {"command": ["git", "clone", f"https://oauth2:{SECRET}@gitlab.example.com/x/y"]},
    {"args": [f"--token={SECRET}"]},
    {"args": ["--token", SECRET]},
    {"args": ["--api-keys", SECRET]},
    {"args": ["--auth", SECRET]},
    {"args": [f"--data=https://store.example.com/a?X-Amz-Signature={SECRET}"]},
    {"command": ["tool", "--token"], "args": [SECRET]},
    {"command": ["sh", "-c", f"wandb login {SECRET}"]},
    {"command": ["sh", "-c", f"curl -u me:{SECRET} https://example.com"]},
    {"command": ["sh", "-c", f"curl -H 'Authorization: Bearer {SECRET}' https://example.com"]},
    {"command": ["sh", "-c", f"aws configure set aws_secret_access_key {SECRET}"]},
    {"command": ["sh", "-c", f"tool --password='a {SECRET}'"]},
    {"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", f"curl -d 'pass={SECRET}' x"]}}}},
    {"livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": f"Basic {SECRET}"}]}}},
    {"livenessProbe": {"httpGet": {"path": f"/health?token={SECRET}"}}},
]


@pytest.mark.parametrize("content", COMMANDS, ids=lambda content: json.dumps(content)[:40])
def test_containers_whose_command_may_have_a_secret_are_named_but_not_taken(content: dict[str, Any]) -> None:
    helper = {"name": "helper", "image": "h", **content}
    for spec in ({"initContainers": [helper]}, {"sidecars": [helper]}):
        translation = translated(job_with(spec, **content))
        assert SECRET not in all_output(translation)
        (named,) = (each for each in translation.unmapped if each.path.endswith("ontainers[helper]"))
        assert "valueFrom" in named.instead


def test_a_container_that_refers_to_its_secret_is_taken() -> None:
    command = ["sh", "-c", 'wandb login "$KEY" && curl -u "$USER:$PW" -H "Authorization: Bearer ${KEY}" --token $(KEY)']
    helper = {"name": "helper", "image": "registry.example.com/token:1", "command": command}
    helper["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}]
    settings = settings_of(translated(job_with({"initContainers": [helper]})))
    assert settings["pods.pod"]["spec"]["initContainers"] == [helper]


def test_annotations_that_may_be_secrets_are_named_but_not_taken() -> None:
    annotations = {"wandb/api-key": SECRET, "note": f"password: {SECRET}", "team": "vision"}
    translation = translated(job_with(metadata={"annotations": annotations}))
    assert SECRET not in all_output(translation)
    assert settings_of(translation)["pods.pod"]["metadata"]["annotations"] == {"team": "vision"}
    assert {each.path.rpartition(".")[2] for each in translation.unmapped} >= {"wandb/api-key", "note"}


VOLUMES: list[tuple[str, dict[str, Any]]] = [
    ("csi.volumeAttributes.secretKey", {"csi": {"driver": "d", "volumeAttributes": {"secretKey": SECRET}}}),
    ("csi.volumeAttributes.token", {"csi": {"driver": "d", "volumeAttributes": {"token": SECRET}}}),
    ("csi.volumeAttributes.o", {"csi": {"driver": "d", "volumeAttributes": {"o": f"username=a,password={SECRET}"}}}),
    ("flexVolume.options.password", {"flexVolume": {"driver": "d", "options": {"password": SECRET}}}),
    ("flexVolume.options.env", {"flexVolume": {"driver": "d", "options": {"env": f"API_TOKEN={SECRET}"}}}),
    ("flexVolume.options.pin_key", {"flexVolume": {"driver": "d", "options": {"pin_key": 424242}}}),
    ("gitRepo.repository", {"gitRepo": {"repository": f"https://me:{SECRET}@git.example.com/a/b"}}),
    ("nfs.path", {"nfs": {"server": "s", "path": f"/a?token={SECRET}"}}),
    ("mine.mountOptions", {"mine": {"mountOptions": ["ro", f"pass={SECRET}"]}}),
    ("mine.passwords[0].password", {"mine": {"passwords": [{"password": SECRET, "name": "n"}]}}),
]


@pytest.mark.parametrize(("field", "source"), VOLUMES, ids=[field for field, _ in VOLUMES])
def test_options_of_volumes_that_may_be_secrets_are_named_but_not_taken(field: str, source: dict[str, Any]) -> None:
    volume = {"name": "files", **source}
    mount = {"name": "files", "mountPath": "/files"}
    translation = translated(job_with({"volumes": [volume]}, volumeMounts=[mount]))
    output = all_output(translation)
    assert SECRET not in output and "424242" not in output
    (taken,) = settings_of(translation)["pods.pod"]["spec"]["volumes"]
    assert taken["name"] == "files" and taken.keys() == volume.keys(), "the mount needs the volume"
    (named,) = (each for each in translation.unmapped if each.path.endswith(f"volumes[files].{field}"))
    assert "Secret" in named.instead and named.path in output


def test_volumes_that_refer_to_secrets_are_taken() -> None:
    volumes = [
        {"name": "a", "secret": {"secretName": "token", "items": [{"key": "token", "path": "key"}]}},
        {"name": "b", "csi": {"driver": "secrets-store.csi.k8s.io", "nodePublishSecretRef": {"name": "credentials"}}},
        {"name": "c", "projected": {"sources": [{"serviceAccountToken": {"audience": "sts", "path": "token"}}]}},
        {"name": "d", "azureFile": {"secretName": "key", "shareName": "s", "readOnly": True}},
        {"name": "e", "cephfs": {"monitors": ["m:6789"], "user": "u", "secretFile": "/f", "secretRef": {"name": "s"}}},
    ]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    translation = translated(job_with({"volumes": volumes}, volumeMounts=mounts))
    assert settings_of(translation)["pods.pod"]["spec"]["volumes"] == volumes


def test_secrets_of_volumes_that_only_some_pods_have_are_hidden() -> None:
    job = json.loads(job_with({"volumes": [{"name": "mine", "csi": {"driver": "d"}}]}))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    master = json.loads(json.dumps(replicas["Worker"]))
    options = {"password": SECRET, "key": 5, "pin_key": [SECRET], "key2": 424242}
    master["template"]["spec"]["volumes"] = [{"name": "other", "flexVolume": {"driver": "d", "options": options}}]
    replicas["Master"] = {**master, "replicas": 1}
    output = all_output(translated(json.dumps(job)))
    assert "volumes[other].flexVolume.options.password" in output
    assert SECRET not in output and "424242" not in output


def test_variables_given_twice_are_hidden() -> None:
    variables = [{"name": "HF_TOKEN", "value": f"{number}{SECRET}"} for number in range(2)]
    output = all_output(translated(job_with(env=variables)))
    assert SECRET not in output
    assert "env[0].value" in output


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("args", ["--api-key", "hidden"], '["--api-key", "…"]'),
        ("args", ["--api-key=hidden", "--epochs=3"], '["--api-key=", "--epochs="]'),
        ("args", ["hidden", "hidden", "-phidden", "-x"], '["…", "-p", "-x"]'),
        ("command", ["sh", "-c", "export HF_TOKEN=hidden; python train.py --password hidden"], '["sh", "-c", "…"]'),
        ("command", ["wandb login hidden"], '["wandb"]'),
        ("command", ["A=hidden python"], '["…"]'),
        ("lifecycle.preStop.exec.command", ["curl", "-u", "me:hidden"], '["curl", "-u", "…"]'),
        ("env[DATABASE].value", "hidden", '"…"'),
        ("env[0].value", 5, '"…"'),
        ("httpHeaders[Authorization].value", "hidden", '"…"'),
        ("metadata.annotations.wandb/api-key", "hidden", '"…"'),
        ("metadata.annotations.note", "see postgres://user:hidden@host/db", '"see postgres://user:…@host/db"'),
        ("env[X].valueFrom.fieldRef.fieldPath", "spec.nodeName", '"spec.nodeName"'),
        ("tolerations[0].key", "gpu", '"gpu"'),
        ("imagePullSecrets", [{"name": "hub"}], '[{"name": "hub"}]'),
        ("topologySpreadConstraints[0].matchLabelKeys", ["app"], '["app"]'),
    ],
)
def test_values_are_shown_without_secrets(path: str, value: Any, text: str) -> None:
    assert shown(path, value) == text


def test_names_of_aliases_are_not_shown() -> None:
    with pytest.raises(InvalidSetting, match="line 1") as refused:
        read_manifests([("job.yaml", f"value: *{SECRET}")])
    assert SECRET not in str(refused.value)


def test_no_secret_is_printed_or_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("pytorch_job", "tf_job"):
        translate_and_show([HAND_WRITTEN / f"{name}.yaml"], tmp_path / f"{name}.yaml")
        assert SECRET not in (tmp_path / f"{name}.yaml").read_text()
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err
    assert "abc123" not in output.err
    assert "env[WANDB_API_KEY]" in output.err
    assert "secret_env" in output.err
