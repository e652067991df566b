"""Engines that cannot hand over: verification fails and names engine and reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.local.stage import Stage, Topology

from kvserving_operator.local.run import Run


def test_verification_names_the_engine_and_what_is_wrong_with_it(stage: Stage, qwen3: Path) -> None:
    service = stage.show_changed(Topology("faulty", qwen3, prefill=1), _with_two_faulty_prefills)
    assert service.state()["phase"] == "Degraded"
    done = stage.kvserving("verify", service.name)
    assert done.returncode == 1, done.stdout
    bare, foreign = (
        next(pod["name"] for pod in service.pods("prefill") if marker in pod["name"]) for marker in ("bare", "foreign")
    )
    text = " ".join(done.stdout.split())
    assert f"prefill {bare} returned no transfer parameters: it runs without connector configuration" in text
    revision = service.state()["revision"]
    decode = service.pods("decode")[0]["name"]
    assert f"foreign_revision: prefill {foreign} runs revision 00000000, decode {decode} {revision}" in text
    assert "RecomputingKV" in stage.kvserving("status", service.name).stdout


def _with_two_faulty_prefills(run: Run) -> Run:
    objects = json.loads(json.dumps(list(run.objects)))
    index = next(i for i, m in enumerate(objects) if m["kind"] == "Deployment" and "-prefill-" in m["metadata"]["name"])
    bare, foreign = (json.loads(json.dumps(objects[index])) for _ in range(2))
    for manifest, name in ((bare, "bare"), (foreign, "foreign")):
        # Pods are named after it.
        manifest["metadata"]["labels"]["kvserving.dev/name"] = name
    _engine(bare)["args"] = [part for part in _engine(bare)["args"] if not part.startswith("--kv-transfer-config")]
    for variable in _engine(foreign)["env"]:
        if variable["name"] == "KVSERVING_REVISION":
            variable["value"] = "00000000"
    objects[index : index + 1] = [bare, foreign]
    return replace(run, objects=tuple(objects))


def _engine(manifest: dict[str, Any]) -> dict[str, Any]:
    containers = manifest["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = next(container for container in containers if container["name"] == "engine")
    return found
