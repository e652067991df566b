"""The commands: a file, an object in a cluster, a cluster, a machine; status and verify of the plugin."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.doctor.apiserver import Apiserver, leave, running, secret
from tests.doctor.world import CLASS, SPEC, container, healthy, operator
from tests.verify.standin import KEY, REVISION, Engine, serving

from kvserving_operator import cli
from kvserving_operator.cli.plugin import PROGRAM, plugin
from kvserving_operator.control.permissions import CHILDREN, TABLE
from kvserving_operator.local import shared_memory

PRIVATE = "s3cr3t-that-nobody-may-see"
METRICS = "# TYPE kvserving:receipts counter\nkvserving:receipts_total 4\n"


def kvserving(*arguments: str) -> int:
    return cli.run(arguments)


def kubectl(*arguments: str) -> int:
    return cli.run(arguments, plugin, PROGRAM)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apiserver]:
    """An apiserver with one healthy object; KUBECONFIG names it."""
    facts = healthy()
    assert facts.live is not None
    live = facts.live
    made = Apiserver()
    plurals = {resource.kind: resource.plural for resource in CHILDREN}
    for child in live.children:
        body = {key: value for key, value in child.items() if key not in ("apiVersion", "kind")}
        made.objects.setdefault(plurals[child["kind"]], []).append(copy.deepcopy(body))
    made.objects["kvservings"] = [copy.deepcopy(dict(live.body))]
    made.objects["pods"] = copy.deepcopy(list(live.pods))  # type: ignore[arg-type]
    for pod in made.objects["pods"]:
        pod["metadata"] |= {"namespace": "prod", "resourceVersion": "3"}
    made.objects["nodes"] = copy.deepcopy(list(live.nodes or ()))  # type: ignore[arg-type]
    made.objects["storageclasses"] = [CLASS]
    made.objects["secrets"] = [
        secret(name, dict.fromkeys(keys.names, PRIVATE))
        for name, keys in (live.secrets or {}).items()
        if keys is not None
    ]
    claim = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
    made.objects["persistentvolumeclaims"] = [{"metadata": {"name": "weights", "namespace": "prod"}, **claim}]
    for name, engine in live.engines.items():
        made.answers[name, "metrics"] = METRICS
        made.answers[name, "version"] = json.dumps({"version": engine.version})
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with running(made, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield made


def findings(text: str) -> dict[str, Any]:
    return {finding["check"]: finding for finding in json.loads(text)["findings"]}


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
    server.objects["deployments"].append(
        {**operator(), "metadata": {"name": "op", "namespace": "sys",
                                    "labels": {"app.kubernetes.io/name": "kvserving-operator"}}}
    )  # fmt: skip
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
    mark = {"app.kubernetes.io/name": "kvserving-operator"}
    server.objects["deployments"].append({**operator(), "metadata": {"name": "op", "namespace": "sys", "labels": mark}})
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


def test_status_shows_objects_and_one_with_its_pods(server: Apiserver, capsys: pytest.CaptureFixture[str]) -> None:
    server.objects["kvservings"].append(
        {"metadata": {"name": "new", "namespace": "other"}, "spec": {"model": {"uri": PRIVATE}}}
    )
    assert kubectl("status") == 0
    said = capsys.readouterr().out
    assert "qwen" in said
    assert "new" not in said
    assert kubectl("status", "-A") == 0
    assert "not looked at by an operator" in capsys.readouterr().out
    assert kubectl("status", "qwen") == 0
    said = capsys.readouterr().out
    for word in ("TransferVerified", "qwen-prefill-", "Ready", "0.33.0"):
        assert word in said
    assert kubectl("status", "qwen", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {pod["role"] for pod in shown["pods"]} == {"prefill", "decode", "router", "store"}
    assert "spec" not in shown
    assert kubectl("status", "-n", "empty") == 0
    assert capsys.readouterr().out == "no objects in namespace empty\n"


@pytest.fixture
def engines(server: Apiserver) -> Iterator[list[Engine]]:
    """Stand-in engines and a router behind the apiserver's proxy."""
    names = {pod["metadata"]["labels"]["kvserving.dev/role"]: pod["metadata"]["name"] for pod in server.objects["pods"]}
    made = [Engine(names["prefill"], "prefill"), Engine(names["decode"], "decode")]
    for pod in server.objects["pods"]:
        pod["metadata"]["labels"]["kvserving.dev/revision"] = REVISION
    server.objects["kvservings"][0]["status"]["revision"] = REVISION
    server.objects["secrets"] = [secret("qwen-keys", {"signing": KEY.decode(), "router-admin": "x"})]
    loop, up, down = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serving(made) as (endpoints, router, _):
            server.forward |= {endpoint.pod: endpoint.url for endpoint in endpoints}
            server.forward[names["router"]] = router.url
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert up.wait(30)
    yield made
    loop.call_soon_threadsafe(down.set)
    thread.join(30)


def test_verify_proves_the_transfer_through_the_proxy(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kubectl("verify", "qwen") == 0
    said = capsys.readouterr()
    assert "verified: KV moved from prefill to decode in 1 pair of engines and through the router" in said.out
    assert KEY.decode() not in said.out + said.err
    assert engines[1].seen[0]["kv_transfer_params"]


def test_verify_says_so_when_decode_recomputes_and_what_the_operator_said(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    engines[1].faults = frozenset({"recomputes"})
    assert kubectl("verify", "qwen", "-o", "json") == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "RecomputingKV"
    assert kubectl("verify", "qwen") == 1
    said = capsys.readouterr()
    assert "not verified (RecomputingKV)" in said.out
    assert "the operator, which needs no proxy, says: Ready: fine" in said.err


def test_verify_needs_ready_engines_a_key_and_rights(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden.add("secrets")
    assert kubectl("verify", "qwen") == 3
    assert "you may not get secrets prod/qwen-keys" in capsys.readouterr().err
    server.forbidden.clear()
    server.objects["secrets"] = []
    assert kubectl("verify", "qwen") == 1
    assert "qwen-keys holds no signing key yet" in capsys.readouterr().err
    server.objects["kvservings"][0]["status"]["revision"] = "feed"
    assert kubectl("verify", "qwen") == 1
    assert "no ready decode and no ready prefill pod of revision feed" in capsys.readouterr().err


def test_a_router_that_wants_a_clients_key_is_left_out_of_the_proof(
    server: Apiserver, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects["kvservings"][0]["spec"] = {**SPEC, "router": {"apiKeySecretRef": "clients"}}
    assert kubectl("verify", "qwen") == 0
    said = capsys.readouterr()
    assert "the router is left out" in said.err
    assert "through the router" not in said.out


@pytest.mark.parametrize("name", ["", "Qwen", "qwen?watch=1", "..", "a" * 254])
@pytest.mark.parametrize("command", ["status", "verify", "doctor", "rollout status", "rollout history", "rollout undo"])
def test_what_is_no_name_is_wrong_usage_before_a_cluster_is_asked(
    capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    assert kubectl(*command.split(), name) == 2
    assert f"{name[:60]!r} is no name" in capsys.readouterr().err
    assert kubectl(*command.split(), "qwen", "-n", "prod/x") == 2
    assert "'prod/x' is no name" in capsys.readouterr().err


def test_help_and_unknown_commands_of_the_plugin_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl("--help") == 0
    said = capsys.readouterr().out
    assert "Usage: kubectl kvserving" in said
    for word in ("status", "verify", "render", "doctor", "validate"):
        assert word in said
    assert " up " not in said
    assert kubectl("statsu") == 2
    assert "Did you mean 'status'?" in capsys.readouterr().err
