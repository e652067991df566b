"""doctor as it is called: of a file, an object in a cluster, a cluster, a machine."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import yaml
from tests.doctor.apiserver import Apiserver, leave
from tests.doctor.commands import PRIVATE, findings, kubectl, kvserving
from tests.doctor.world import SPEC, container

from kvserving_operator.control.permissions import CHILDREN, TABLE
from kvserving_operator.local import shared_memory


def test_a_healthy_object_in_its_cluster_is_explained_and_nothing_is_written(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kubectl("doctor", "qwen") == 0
    said = capsys.readouterr().out
    assert "qwen  namespace prod" in said
    assert "2 engines, counters of 2" in said
    assert "kv_lease_duration=30" in said
    assert said.endswith("nothing found\n")
    assert server.writes == []


def test_mistakes_in_a_cluster_are_errors_and_no_secret_is_shown(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    for body in server.objects["secrets"]:
        if body["metadata"]["name"] == "hub":
            del body["data"]["HF_TOKEN"]
    for pod in server.objects["pods"]:
        if pod["metadata"]["labels"]["kvserving.dev/role"] == "decode":
            container(pod)["env"].append({"name": "PYTHONHASHSEED", "value": "random"})
            server.answers[pod["metadata"]["name"], "version"] = '{"version":"0.30.0"}'
    server.objects["networkpolicies"] = []
    assert kubectl("doctor", "qwen", "-o", "json") == 1
    text = capsys.readouterr().out
    told = findings(text)
    assert {"secret-key-missing", "hash-seed-differs", "engine-version", "network-policy-missing"} <= set(told)
    assert told["secret-key-missing"]["where"] == "Secret hub"
    assert "`kubectl create secret generic hub -n prod --from-file=HF_TOKEN`" in told["secret-key-missing"]["fix"]
    assert json.loads(text)["summary"]["error"] >= 4
    assert json.loads(text)["object"]["live"] is True
    assert PRIVATE not in text


def test_what_may_not_be_read_is_told_and_is_no_error(server: Apiserver, capsys: pytest.CaptureFixture[str]) -> None:
    server.forbidden |= {"nodes", "secrets", "events", "pods/proxy"}
    assert kubectl("doctor", "qwen", "-o", "json") == 0
    text = capsys.readouterr().out
    missed = [f for f in json.loads(text)["findings"] if f["check"] == "not-looked-at"]
    assert {f["where"].partition(" of ")[0] for f in missed} == {"nodes", "secrets", "events", "counters"}
    assert all("grant" in f["fix"] for f in missed)


def test_children_and_pods_that_may_not_be_read_do_not_count_as_missing(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden |= {"pods", *(resource.plural for resource in CHILDREN)}
    assert kubectl("doctor", "qwen", "-o", "json") == 0
    text = capsys.readouterr().out
    assert set(findings(text)) == {"not-looked-at"}
    missed = {f["where"] for f in json.loads(text)["findings"]}
    assert {"pods", "services", "networkpolicies.networking.k8s.io"} <= missed


def test_a_name_that_is_not_there_among_many_lists_the_first_ten(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    [known] = server.objects["kvservings"]
    metadata = known["metadata"]
    server.objects["kvservings"] = [{**known, "metadata": {**metadata, "name": f"svc{n:02}"}} for n in range(12, 0, -1)]
    for command in ("doctor", "status"):
        assert kubectl(command, "nobody") == 1
        told = capsys.readouterr().err
        assert "there are: svc01, svc02" in told
        assert "svc10 and 2 more\n" in told


def test_a_name_that_is_not_there_lists_those_that_are(
    server: Apiserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path / "state"))
    assert kubectl("doctor", "nobody") == 1
    assert capsys.readouterr().err == "error: no KVServing nobody in namespace prod; there are: qwen\n"
    assert kvserving("doctor", "nobody") == 1
    assert capsys.readouterr().err == (
        "error: no service nobody runs on this machine (there are: none; `kvserving up FILE` brings one up), and no "
        "KVServing nobody in namespace prod; there are: qwen\n"
    )
    assert kubectl("status", "nobody") == 1
    assert "there are: qwen" in capsys.readouterr().err


def test_an_object_that_may_not_be_read_is_exit_status_3(server: Apiserver, capsys: pytest.CaptureFixture[str]) -> None:
    server.forbidden.add("kvservings")
    for command in (("doctor", "qwen"), ("status",), ("verify", "qwen")):
        assert kubectl(*command) == 3
        assert "you may not" in capsys.readouterr().err


def test_the_plugin_without_an_object_looks_at_the_cluster(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects["deployments"][-1]["metadata"]["namespace"] = "sys"
    assert kubectl("doctor", "-o", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cluster"]["version"] == "v1.35.1"
    assert said["cluster"]["operators"] == ["sys/op"]
    assert said["cluster"]["devices"]["nvidia.com/gpu"] == 16
    asked = [r for r in server.reviews if r["kind"] == "SubjectAccessReview"]
    assert len(asked) == sum(len(resource.verbs) for resource in TABLE)
    assert {r["spec"]["user"] for r in asked} == {"system:serviceaccount:sys:default"}


def test_rights_that_the_operator_lacks_are_an_error_of_the_cluster(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects["deployments"][-1]["metadata"]["namespace"] = "sys"
    server.forbidden.add("networkpolicies")
    assert kvserving("doctor", "--cluster", "-o", "json") == 1
    told = findings(capsys.readouterr().out)["operator-permissions"]
    assert "patch networkpolicies.networking.k8s.io" in told["what"]
    assert told["where"] == "system:serviceaccount:sys:default"


def test_a_cluster_without_the_kind_is_an_error(server: Apiserver, capsys: pytest.CaptureFixture[str]) -> None:
    server.kinds = tuple(kind for kind in server.kinds if kind != "KVServing")
    assert kubectl("doctor", "-o", "json") == 1
    assert "crd-missing" in findings(capsys.readouterr().out)


def test_without_a_cluster_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kubectl("doctor") == 3
    assert "there is no cluster to ask" in capsys.readouterr().err
    assert kubectl("doctor", "--kubeconfig", "/no/such/file") == 3
    assert "--kubeconfig: /no/such/file is no file" in capsys.readouterr().err


def test_a_file_is_explained_and_judged_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "qwen.yaml"
    body = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "qwen"}, "spec": SPEC}
    file.write_text(yaml.safe_dump(body))
    assert kvserving("doctor", str(file), "-o", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["findings"] == []
    assert {setting["role"] for setting in said["settings"]} == {"prefill", "decode", "router", "store"}
    assert all(setting["why"] for setting in said["settings"])
    assert kvserving("doctor", str(file), "--only", "findings") == 0
    assert "--kv-transfer-config" not in capsys.readouterr().out
    body["spec"] = {**SPEC, "engine": {"version": "0.33.0", "image": "mirror/vllm:v0.30.0"}}
    file.write_text(yaml.safe_dump(body))
    assert kubectl("doctor", str(file)) == 1
    assert "ERROR    spec.engine.image  (image-version)" in capsys.readouterr().out
    assert kubectl("doctor", str(file), "--only", "settings") == 0
    assert "image-version" not in capsys.readouterr().out
    assert kubectl("doctor", str(file), "--cluster") == 2


def test_a_file_with_a_path_of_this_machine_is_looked_at_for_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: laptop}\n"
    file = tmp_path / "laptop.yaml"
    file.write_text(f"{head}spec: {{model: {{uri: 'file:model'}}, prefill: {{}}}}\n")
    kvserving("doctor", str(file))
    said = capsys.readouterr().out
    assert "  looked at for this machine, as spec.model.uri is relative to this machine; `--site cluster` looks" in said
    assert "notice-ModelNotMounted" not in said
    kvserving("doctor", str(file), "--site", "cluster")
    said = " ".join(capsys.readouterr().out.split())
    assert "looked at for a cluster; `--site local` looks at it for this machine" in said
    assert "(notice-ModelNotMounted)" in said
    assert "fix: take pvc://claim/path, hf:// or s3://, or mount the folder" in said


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (None, "model does not exist"),
        ("", "config.json is there and cannot be read: it is empty"),
        ('{"num_hidden_layers": 0}', "config.json: num_hidden_layers"),
    ],
)
def test_model_files_that_up_would_refuse_are_a_finding_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str | None, told: str
) -> None:
    head = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: laptop}\n"
    file = tmp_path / "laptop.yaml"
    file.write_text(
        f"{head}spec: {{model: {{uri: 'file://{tmp_path}/model'}}, prefill: {{}}, transfer: {{lease: 5s}}}}\n"
    )
    if config is not None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(config)
    assert kvserving("doctor", str(file), "--site", "local", "-o", "json") == 1
    said = capsys.readouterr().out
    found = findings(said)
    assert told in found["model-files"]["what"]
    assert {"model-files", "lease-short"} <= set(found)
    assert "notice-ModelFactsUnknown" not in found
    assert json.loads(said)["settings"]
    kvserving("doctor", str(file), "-o", "json")
    assert "model-files" not in findings(capsys.readouterr().out), "a cluster's path is nothing of this machine"


def test_this_machine_is_looked_at_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("KVSERVING_ENGINE_PYTHON", "/no/such/python")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert kvserving("doctor", "-o", "json") == 1
    said = capsys.readouterr().out
    assert {"no-engine", "expandable-segments"} <= set(findings(said))
    assert json.loads(said)["machine"]["system"] == "Linux"
    assert kvserving("doctor") == 1
    assert "this machine  Linux" in capsys.readouterr().out


def test_a_context_says_which_cluster_is_looked_at(server: Apiserver, capsys: pytest.CaptureFixture[str]) -> None:
    leave(Path(os.environ["KUBECONFIG"]))
    for command in (("doctor", "qwen"), ("status", "qwen"), ("verify", "qwen")):
        assert kubectl(*command) == 3
        assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err
    for run in (kubectl, kvserving):
        assert run("doctor", "qwen", "--context", "test", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["object"]["namespace"] == "prod"
        assert run("doctor", "--context", "test", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["cluster"]["version"] == "v1.35.1"
    assert kubectl("status", "--context", "test") == 0
    assert "qwen" in capsys.readouterr().out
    assert kubectl("verify", "qwen", "--context", "nowhere") == 3
    assert "nowhere" in capsys.readouterr().err


def test_what_ended_engines_left_in_shared_memory_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    (tmp_path / "a model of the user").write_bytes(b"1")
    left = tmp_path / "vllm_offload_x"
    left.write_bytes(b"1")
    os.truncate(left, 2**24)
    assert set(shared_memory.unused()) == {left}
    assert shared_memory.unused()[left] < 2**20, "what was never written takes no memory"
    left.write_bytes(bytes(2**20))
    assert shared_memory.unused()[left] >= 2**20


def _with_server(url: str) -> None:
    file = Path(os.environ["KUBECONFIG"])
    body = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**body, "clusters": [{"name": "test", "cluster": {"server": url}}]}))


@pytest.mark.parametrize("command", [("doctor",), ("doctor", "qwen"), ("status",), ("verify", "qwen")])
def test_a_password_in_the_address_of_a_server_is_not_shown(
    server: Apiserver, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    _with_server(server.url.replace("://", f"://me:{PRIVATE}@"))
    assert kubectl(*command) == 3
    told = capsys.readouterr()
    assert "whose server 'http://***@127.0.0.1:" in told.err
    assert PRIVATE not in told.out + told.err


def test_a_credential_plugin_that_fails_is_exit_status_3(server: Apiserver, capfd: pytest.CaptureFixture[str]) -> None:
    file = Path(os.environ["KUBECONFIG"])
    said = ["-c", f"echo {PRIVATE} >&2; exit 1"]
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": said}
    body = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**body, "users": [{"name": "test", "user": {"exec": plugin}}]}))
    assert kubectl("doctor") == 3
    told = f"error: credential plugin sh of kubeconfig {file} failed (exit status 1): log in again\n"
    assert capfd.readouterr() == ("", told)


def test_a_kubeconfig_may_be_a_pipe(server: Apiserver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, pipe = Path(os.environ["KUBECONFIG"]).read_text(), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(content,), daemon=True)
    writer.start()
    assert kubectl("doctor", "qwen", "--kubeconfig", str(pipe), "-o", "json") == 0
    writer.join(30)
    assert json.loads(capsys.readouterr().out)["object"]["namespace"] == "prod"


def test_what_may_not_be_read_of_a_cluster_is_null_and_not_none(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden |= {"nodes", "deployments", "version", "discovery", "selfsubjectaccessreviews"}
    assert kubectl("doctor", "-o", "json") == 0
    said = json.loads(capsys.readouterr().out)
    unknown = dict.fromkeys(("version", "operators", "readyNodes", "devices", "kinds"))
    assert said["cluster"] == {"server": server.url, **unknown}
    assert {f["check"] for f in said["findings"]} <= {"not-looked-at", "no-default-storage-class"}
    missed = {f["where"] for f in said["findings"] if f["check"] == "not-looked-at"}
    assert {"nodes", "deployments.apps", "the version", "the installed kinds", "your rights"} <= missed
    assert kubectl("doctor") == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    assert head == f"{server.url}  Kubernetes unknown"


def test_what_may_not_be_read_of_an_object_is_not_told_as_none(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden |= {"pods", "services"}
    assert kubectl("doctor", "qwen") == 0
    assert " children that may be read, pods may not be read\n" in capsys.readouterr().out


def test_objects_that_may_not_be_listed_are_no_failure_of_a_name_that_is_not_there(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden.add("list kvservings")
    assert kubectl("doctor", "nobody") == 1
    told = "error: no KVServing nobody in namespace prod; which there are may not be read\n"
    assert capsys.readouterr().err == told
