"""A cluster with one healthy object, as the commands reach it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doctor.apiserver import Apiserver, running, secret
from tests.doctor.commands import PRIVATE
from tests.doctor.world import CLASS, healthy, operator

from kvserving_operator.control.permissions import CHILDREN

METRICS = "# TYPE kvserving:receipts counter\nkvserving:receipts_total 4\n"


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
    made.objects["deployments"].append(operator())
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
