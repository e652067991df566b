"""Secrets: missing, rotated, and never shown."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.pod_script import Script, image_pull_error
from e2e.operator.objects import children, condition, eventually, path_of, serving
from e2e.operator.running import ROOT, Operator
from e2e.operator.waiting import at_generation, pods, settle, wait_for

TOKEN = "hf_kvservingTestToken0123456789abcdef"  # no token of anybody's: it is searched for
# A pod whose environment names a Secret that is not there does not start, and says so.
NO_SECRET: Script = image_pull_error("CreateContainerConfigError")


def secret(plane: ControlPlane, namespace: str, name: str, **values: str) -> None:
    metadata = {"name": name, "namespace": namespace}
    plane.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values})


def test_a_missing_secret_of_the_user_is_told_and_its_arrival_heals(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    kubelet.script({"kvserving.dev/role": "prefill"}, NO_SECRET)
    start()
    obj = serving(namespace, model={"uri": "hf://Qwen/Qwen3-8B", "secretRef": "hub"})
    plane.api.create(obj)
    found = plane.api.wait(
        path_of(namespace),
        lambda o: condition(o, "PrefillReady").get("reason") == "SecretMissing",
        what="the missing Secret told",
    )
    assert condition(found, "PrefillReady")["message"] == (
        f"Secret {namespace}/hub (spec.model.secretRef) is not there: create it with HF_TOKEN"
    )
    assert condition(found, "Stalled")["reason"] == condition(found, "Ready")["reason"] == "SecretMissing"
    secret(plane, namespace, "hub", HF_TOKEN=TOKEN)
    for name in pods(plane, namespace):
        if "prefill" in name:
            kubelet.set_ready(namespace, name, True)
    wait_for(plane, obj, "Ready")


def test_rotated_secrets_of_the_user_cause_no_write_and_no_restart(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    """Tokens are read when an engine starts, and mounted files change by themselves: the operator never looks."""
    operator = start("--resync=0.3")
    for name, key in (("hub", "HF_TOKEN"), ("clients", "api-key")):
        secret(plane, namespace, name, **{key: TOKEN})
    model = {"uri": "hf://Qwen/Qwen3-8B", "secretRef": "hub"}
    settle(plane, serving(namespace, model=model, router={"apiKeySecretRef": "clients"}))
    proxy.wait_quiet(1)
    before, since = pods(plane, namespace), len(proxy.writes())
    for name, key in (("hub", "HF_TOKEN"), ("clients", "api-key")):
        secret(plane, namespace, name, **{key: "another"})
    done = operator.metric("kvserving_operator_resyncs_total")
    eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= done + 3, what="resyncs")
    assert proxy.writes()[since:] == []
    assert pods(plane, namespace) == before


def test_a_signing_key_with_its_successor_stays_as_the_administrator_wrote_it(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect", "--resync=0.3")
    settle(plane, serving(namespace))
    path = f"/api/v1/namespaces/{namespace}/secrets/qwen-keys"
    former = base64.b64decode(plane.api.get(path)["data"]["signing"]).decode()
    both = base64.b64encode(f"{'0' * 64}\n{former}\n".encode()).decode()
    plane.api.merge(path, {"data": {"signing": both}})
    before = pods(plane, namespace)
    operator.kill()
    operator.start()
    eventually(lambda: operator.metric("kvserving_operator_verifications_total"), lambda n: n >= 1, what="a probe")
    done = operator.metric("kvserving_operator_resyncs_total")
    eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= done + 3, what="resyncs")
    assert plane.api.get(path)["data"]["signing"] == both
    assert pods(plane, namespace) == before
    assert condition(plane.api.get(path_of(namespace)), "Ready")["status"] == "True"


def test_a_token_in_fields_that_faults_quote_and_in_a_secret_is_shown_nowhere(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    secret(plane, namespace, "hub", token=TOKEN)
    operator = start("--log-level=debug")
    obj = serving(
        namespace,
        model={"uri": "hf://Qwen/Qwen3-8B", "secretRef": "hub"},
        engine={"env": [{"name": "MY_TOKEN", "value": TOKEN}], "args": [f"--my-token={TOKEN}"]},
    )
    plane.api.create(obj)
    at_generation(plane, namespace, 1)
    # Fields in which a fault quotes what was written.
    plane.api.merge(
        path_of(namespace), {"spec": {"engine": {"version": "0.19.0", "image": f"example.com/engine:{TOKEN}"}}}
    )
    found = at_generation(plane, namespace, 2)
    keys = plane.api.get(f"/api/v1/namespaces/{namespace}/secrets/qwen-keys")["data"]
    produced = {
        "status": json.dumps(found["status"]),
        "events": json.dumps(plane.api.items(f"/api/v1/namespaces/{namespace}/events")),
        "annotations": json.dumps([c["metadata"].get("annotations") for c in children(plane, namespace).values()]),
        "log": operator.log.read_text(),
        "metrics": operator.get("/metrics").data.decode(),
    }
    assert "0.19.0" in produced["status"]
    for where, text in produced.items():
        assert TOKEN not in text, where
        for key in keys.values():
            assert key not in text, where


def texts(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every text below ``node``."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from texts(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from texts(value, (*path, index))
    elif isinstance(node, str):
        yield path


def with_token(spec: Json, path: tuple[Any, ...]) -> Json:
    """Return ``spec`` with the token within the text at ``path``, where a text of that form can hold one."""
    changed = copy.deepcopy(spec)
    node: Any = changed
    for part in path[:-1]:
        node = node[part]
    text = node[path[-1]]
    scheme, found, rest = text.partition("://")
    node[path[-1]] = f"{scheme}://x:{TOKEN}@{rest}" if found else f"{text}={TOKEN}" if text[:1] == "-" else TOKEN
    return changed


@pytest.mark.parametrize(("case", "least", "least_invalid"), [("11-lora-gated-token", 4, 0), ("12-everything", 16, 1)])
def test_a_token_in_whatever_field_of_the_spec_is_shown_nowhere(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, case: str, least: int, least_invalid: int
) -> None:
    for name in ("hub", "hf-token", "valkey-auth", "api-key"):
        secret(plane, namespace, name, HF_TOKEN=TOKEN, password=TOKEN, **{"api-key": TOKEN})
    operator: Operator = start("--log-level=debug", "--resync=1")
    spec = yaml.safe_load((ROOT / f"tests/cases/specs/valid/{case}.yaml").read_text())["spec"]
    generation = plane.api.create({**serving(namespace), "spec": spec})["metadata"]["generation"]
    taken, invalid, seen = [], 0, ""
    for path in texts(spec):
        try:
            found = plane.api.merge(path_of(namespace), {"spec": with_token(spec, path)})
        except ApiError as error:
            if error.status != 422:
                raise
            # The apiserver tells the user alone.
            continue
        if found["metadata"]["generation"] == generation:
            continue
        generation = found["metadata"]["generation"]
        reached = at_generation(plane, namespace, generation)
        taken.append(path)
        invalid += condition(reached, "ConfigValid")["status"] == "False"
        assert TOKEN not in json.dumps(reached["status"]), path
        seen += json.dumps(reached["status"])
    assert len(taken) >= least
    assert invalid >= least_invalid
    writes = [r for r in proxy.writes() if r.info.full_resource in ("kvservings/status", "events")]
    assert writes
    live = children(plane, namespace).values()
    produced = {
        "status": seen,
        "what was sent": json.dumps([r.body for r in writes]),
        "events": json.dumps(plane.api.items(f"/api/v1/namespaces/{namespace}/events")),
        "annotations": json.dumps([child["metadata"].get("annotations") for child in live]),
        "labels": json.dumps([child["metadata"].get("labels") for child in live]),
        "log": operator.log.read_text(),
        "metrics": operator.get("/metrics").data.decode(),
    }
    for where, text in produced.items():
        assert TOKEN not in text, where
        for child in live:
            for value in (child.get("data") or {}).values() if child.get("type") == "Opaque" else ():
                assert value not in text, where
                assert base64.b64decode(value).decode() not in text, where
